from __future__ import annotations

import json
import random

import pytest

from rlhf.data.strict_json import MAX_NESTING, RefusedJsonError, decode, decode_from, find_end, nesting


@pytest.mark.parametrize(
    "text", ['{"a": [1, -2.5e3, true, null, "\\u00e9 \\" ]"]}', "[]", " 5 ", '"x"', '{"a": {}}', '{"n": 1e308}']
)
def test_what_is_sound_is_read_as_python_reads_it(text):
    assert decode(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' appears in the same object twice"),
        ('[{"k": {"x": 1, "x": 1}}]', "the key 'x' appears"),
        ("[NaN]", "NaN is not a JSON value; use null"),
        ("[1e999]", "the number 1e999 is beyond what a float holds"),
        ("[" + "7" * 301 + "]", r"a number of 301 digits \(777777777777...\)"),
        ("[" * 101 + "]" * 101, f"nested more than {MAX_NESTING} deep"),
        ("[" * 100_000, f"nested more than {MAX_NESTING} deep"),
    ],
)
def test_what_is_json_and_no_row_is_refused_by_name(text, message):
    with pytest.raises(RefusedJsonError, match=message):
        decode(text)


def test_the_deepest_nesting_that_is_taken_is_the_one_that_is_named():
    assert decode("[" * MAX_NESTING + "]" * MAX_NESTING) is not None
    assert nesting(5) == 0
    assert nesting([]) == 1
    assert nesting({"a": [{}]}) == 3
    wide = decode("[" + ",".join(["[{}]"] * 500) + "]")
    assert nesting(wide) == 3, "many brackets are not deep ones"


@pytest.mark.parametrize("text", ['{"a": 1} x', "[1] [2]", "", "{", "[1,]"])
def test_what_is_no_json_says_where(text):
    with pytest.raises(json.JSONDecodeError):
        decode(text)


def test_the_end_of_a_refused_value_is_found_by_its_brackets():
    value = '{"a": "]}\\"{[", "b": [{}, NaN], "a": 2}'
    text = f"  {value} , 7]"
    assert text[find_end(text, 0) :] == " , 7]"
    assert find_end(value[:-1], 0) is None, "it may go on behind what was read"
    assert find_end("NaN, 5", 0) == 3
    assert find_end("Infinit", 0) is None


def test_the_end_of_any_value_is_found_by_its_brackets_too():
    rng = random.Random(0)
    for _ in range(200):
        value = {"k": [rng.choice(['a"]', "\\", "}{", 5, None, [], {}]) for _ in range(rng.randrange(5))]}
        text = json.dumps(value)
        padded = f"{text},{text}"
        assert find_end(padded, 0) == decode_from(padded, 0)[1] == len(text)
