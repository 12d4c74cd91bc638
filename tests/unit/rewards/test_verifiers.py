from __future__ import annotations

import time
from fractions import Fraction

import pytest

from rlhf.config.verifier_rewards import NumericRewardConfig
from rlhf.errors import ConfigError, MissingExtraError, RewardError
from rlhf.rewards.factory import build_reward
from rlhf.rewards.verifiers import exact, numeric
from rlhf.rewards.verifiers.answers import BadReferenceError, after_hashes, after_phrase, boxed
from rlhf.rewards.verifiers.numeric import numbers_in, only_number
from rlhf.testing import SCORER_CHECKS
from tests.unit.rewards.helpers import HERE, prompt, samples

WHERE = NumericRewardConfig().where


def numeric_score(text: str, reference, **options) -> float:
    settings = {"where": WHERE, "tolerance": 0.0, "relative_tolerance": 0.0} | options
    return numeric.verify(text, reference, **settings).score


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42), ("42.", 42), ("-42", -42), ("−42", -42), ("+42", 42), ("4.50", Fraction(9, 2)), (".5", Fraction(1, 2)),
        ("1,234", 1234), ("12,345,678.9", Fraction(123456789, 10)), ("1{,}234", 1234), ("1\\,234", 1234),
        ("$1,234.00", 1234), ("-$5", -5), ("$-5", -5), ("€ 5", 5), ("50%", 50), ("50\\%", 50), ("3 apples", 3),
        ("3/4", Fraction(3, 4)), ("-3/4", Fraction(-3, 4)), ("3 1/2", Fraction(7, 2)), ("-3 1/2", Fraction(-7, 2)),
        ("\\frac{3}{4}", Fraction(3, 4)), ("3\\frac{1}{2}", Fraction(7, 2)), ("1e3", 1000), ("1.5 × 10^3", 1500),
        ("1.5 \\times 10^{-1}", Fraction(3, 20)), ("x = 7", 7), ("2 + 3 = 5", 5),
        ("1,5", None), ("1.234,56", None), ("1,23,456", None), ("3:30", None), ("1.2.3", None), ("1/0", None), ("1/2/3", None),
        ("", None), ("forty", None), ("1 or 2", None), ("(1,2)", None), ("1e999999999", None), ("9" * 101, None), ("x2", None),
    ],
)  # fmt: skip
def test_what_counts_as_a_number(text, number):
    assert only_number(text) == number


def test_a_range_is_two_numbers():
    assert numbers_in("3 and -5, or 1,000.") == [3, -5, 1000]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("6 * 7 = 42\n#### 42", 1.0),
        ("#### 41\nno:\n#### 42", 1.0),
        ("#### 42\nno:\n#### 41", 0.0),
        ("so \\boxed{42} it is, in 3 steps", 1.0),
        ("\\boxed{42} and #### 7", 0.0),  # the first mark of the list is the answer
        ("The answer is 42. That took 3 steps.", 1.0),
        ("**Final answer: 42**", 1.0),
        ("There are 3 of 14 each, so 42", 1.0),
        ("42, or 43", 0.0),
        ("#### forty-two, which is 42 or so or 42", 0.0),
        ("", 0.0),
    ],
)
def test_where_the_answer_stands(text, score):
    assert numeric_score(text, "3 * 14 = <<3*14=42>>42\n#### 42") == score


def test_only_a_mark_counts_as_the_format():
    result = build_reward({"kind": "numeric"}).score(*samples("#### 1", "it is 1", "#### one", answer=["1"] * 3))
    assert result.per_component == {"numeric": [1.0, 1.0, 0.0], "numeric/format": [1.0, 0.0, 0.0]}


def test_tolerance_is_what_was_asked_for():
    assert numeric_score("0.3333", "1/3") == 0
    assert numeric_score("0.3333", "1/3", tolerance=1e-3) == 1
    assert numeric_score("101", 100.0, relative_tolerance=0.01) == 1
    assert numeric_score("101.1", 100, relative_tolerance=0.01) == 0


@pytest.mark.parametrize(
    "text", ["1 " * 100_000, "9" * 300_000, "\\boxed{" * 30_000, "\\frac{1}" * 30_000, "answer " * 30_000]
)
def test_a_long_text_takes_no_long_time(text):
    start = time.process_time()
    numeric_score(text, 3)
    assert time.process_time() - start < 5


def test_marks():
    assert after_hashes("#### 1\n#### 2 \nx") == "2"
    assert boxed("\\boxed{1} \\boxed{\\frac{1}{2}}!") == "\\frac{1}{2}"
    assert boxed("\\boxed{\\frac{1}{2}") is None
    assert after_phrase("The answer is: yes. No.") == "yes"
    assert after_phrase("nothing") is None


def test_exact_is_word_for_word_but_for_white_space():
    def score(text, reference, **options):
        return exact.verify(text, reference, **({"where": ["whole"], "ignore_case": False} | options)).score

    assert score(" New\n York ", "New York") == 1
    assert score("new york", "New York") == 0
    assert score("new york", "New York", ignore_case=True) == 1
    assert score("B", ["A", "B"]) == 1
    assert score("I say \\boxed{B}", "B", where=["boxed"]) == 1
    with pytest.raises(BadReferenceError, match="list of texts"):
        score("x", {"a": 1})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"answr": ["1", "2"]},
            ["'p0'", "no column 'answer'", "it has answr", "Did you mean 'answr'", "under `column`"],
        ),
        ({"answer": ["1", "two"]}, ["'p1'", "column 'answer' holds 'two', which is not a number", "'#### 42'"]),
        ({"answer": ["1", None]}, ["'p1'", "reference is null", "no other reward judges"]),
    ],
)
def test_a_reference_that_is_none_is_told(columns, words):
    with pytest.raises(RewardError) as caught:  # the words are the parameters' business
        build_reward({"kind": "numeric"}).score(*samples("1", "2", **columns))
    for word in words:
        assert word in str(caught.value)


def test_a_row_with_null_is_left_to_the_others():
    both = build_reward([{"kind": "numeric", "weight": 2}, {"kind": "exact", "column": "word"}])
    assert both.score(*samples("1", "a", answer=["1", None], word=[None, "a"])).scores == [2.0, 1.0]


def test_a_row_that_is_not_verifiable_is_left_to_the_others_and_counted():
    texts, columns = ("1", "1", "1"), {"answer": ["1", "1", "1"], "verifiable": [True, False, None]}
    both = build_reward(
        [{"kind": "numeric", "weight": 2}, {"kind": "function", "function": f"{HERE}:length", "in_process": True}]
    )
    result = both.score(*samples(*texts, **columns))
    assert result.scores == [3.0, 1.0, 3.0]
    assert result.per_component["verifiable"] == [1.0, 0.0, 1.0]
    assert result.per_component["numeric"] == [1.0, None, 1.0]
    assert "verifiable" not in both.score(*samples("1", answer=["1"])).per_component
    with pytest.raises(RewardError, match=r"'p1'.*verifiable"):
        build_reward({"kind": "numeric"}).score(*samples(*texts, **columns))
    with pytest.raises(RewardError, match=r"'p0'.*'verifiable' holds 'no'"):
        both.score(*samples("1", answer=["1"], verifiable=["no"]))


def test_a_pattern_that_backtracks_for_ever_counts_nothing_and_is_told():
    told = []
    with build_reward({"kind": "pattern", "pattern": "^(a+)+$", "timeout_seconds": 0.3}) as scorer:
        scorer.notify = told.append
        result = scorer.score(*samples("a" * 60 + "b", "aaa"))
    assert result.scores == [0.0, 1.0]
    assert result.per_component["pattern/gave_up"] == [1.0, 0.0]
    assert "gave up on 1 of 2" in told[0]
    assert "timeout_seconds (0.3)" in told[0]


def test_a_patterns_group_is_compared_with_the_column():
    with build_reward({"kind": "pattern", "pattern": "<a>(.*?)</a>", "column": "answer"}) as scorer:
        result = scorer.score(*samples("<a> 4 </a>", "<a>5</a>", "4", answer=["4"] * 3))
    assert result.scores == [1.0, 0.0, 0.0]
    assert result.per_component["pattern/format"] == [1.0, 1.0, 0.0]


def test_json_is_json_alone_or_the_last_fenced_block():
    texts = ['{"a": 1}', "[1", "NaN", '{"a": 1, "a": 2}', 'So:\n```json\n{"a": 2}\n```\n', "[" * 100_000]
    with build_reward({"kind": "json"}) as scorer:
        assert scorer.score(*samples(*texts)).scores == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]


def test_a_schema_is_kept():
    pytest.importorskip("jsonschema")
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"pattern": "^(a+)+$"}}}
    with build_reward({"kind": "json", "json_schema": schema, "timeout_seconds": 1}) as scorer:
        texts = ['{"a": "aa"}', "{}", '{"a": "%s"}' % ("a" * 60 + "b")]
        assert scorer.score(*samples(*texts)).scores == [1.0, 0.0, 0.0]
    with pytest.raises(ConfigError, match=r"json_schema.*at type"):
        build_reward({"kind": "json", "json_schema": {"type": "objekt"}})


@pytest.mark.parametrize(
    ("schema", "reference"),
    [
        ({"$ref": "#/$defs/answer"}, "#/$defs/answer"),
        ({"properties": {"a": {"$ref": "https://example.org/a.json"}}}, "https://example.org/a.json"),
        ({"items": {"$ref": "#/mine/a"}, "mine": {"a": {"$ref": "#/mine/b"}}}, "#/mine/b"),
    ],
)
def test_a_reference_of_a_schema_that_leads_nowhere_is_named_by_setting_or_sample(schema, reference):
    pytest.importorskip("jsonschema")
    with pytest.raises(ConfigError, match=r"`json_schema`.*\$ref") as caught:
        build_reward({"kind": "json", "json_schema": schema})
    assert repr(reference) in str(caught.value)
    with build_reward({"kind": "json", "column": "wanted"}) as scorer, pytest.raises(RewardError) as refused:
        scorer.score(*samples("1", "2", wanted=[True, schema]))
    assert all(part in str(refused.value) for part in ("sample 'p1'", "column 'wanted'", "$ref", repr(reference)))


def test_references_inside_a_schema_are_followed():
    pytest.importorskip("jsonschema")
    tree = {"$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "$ref": "#/$defs/node"}
    with build_reward({"kind": "json", "json_schema": tree}) as scorer:
        assert scorer.score(*samples("[[], [[]]]", "[[], 1]")).scores == [1.0, 0.0]


def test_math_verify_judges_expressions_and_can_be_stopped():
    pytest.importorskip("math_verify")
    texts = ["\\boxed{\\frac{1}{2}}", "$0.25$", "$9^{9^{9^{9}}}$"]
    with build_reward({"kind": "math", "timeout_seconds": 3}) as scorer:
        result = scorer.score(*samples(*texts, answer=["0.5", "\\frac{1}{2}", "3"]))
    assert result.scores == [1.0, 0.0, 0.0]


SLOW_TO_LOAD = """
import time
time.sleep(1.5)
def parse(text, parsing_timeout):
    if text == "hang":
        time.sleep(60)
    return [text.strip("$")]
def verify(wanted, found, timeout_seconds):
    return wanted == found
"""


def test_what_a_verifier_loads_is_no_completions_time_nor_after_one_that_hung(tmp_path, monkeypatch):
    (tmp_path / "math_verify.py").write_text(SLOW_TO_LOAD, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with build_reward({"kind": "math", "timeout_seconds": 1}) as scorer:
        result = scorer.score(*samples("1", "hang", "2", answer=["1", "1", "2"]))
    assert result.scores == [1.0, 0.0, 1.0]
    assert result.per_component["math/gave_up"] == [0.0, 1.0, 0.0]


def test_a_verifier_that_can_not_be_loaded_is_an_error_and_no_completions_fault(tmp_path, monkeypatch):
    (tmp_path / "math_verify.py").write_text(
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with build_reward({"kind": "math"}) as scorer, pytest.raises(RewardError, match="can't be used"):
        scorer.score(*samples("1", answer=["1"]))


def test_what_is_not_installed_is_told(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "math_verify", None)
    with pytest.raises(MissingExtraError, match=r"'math' .*'math_verify'.*\[eval\]"):
        build_reward({"kind": "math"})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "pattern", "pattern": "("}, "not a regular expression: missing \\)"),
        ({"kind": "pattern", "pattern": "a", "column": "b"}, "needs a group in parentheses"),
        ({"kind": "numeric", "where": []}, "where: .*at least 1"),
        ({"kind": "numeric", "tolerance": -1}, "tolerance: .*greater than or equal to 0"),
    ],
)
def test_wrong_settings_are_told(spec, message):
    with pytest.raises(ConfigError, match=message):
        build_reward(spec)


@pytest.mark.parametrize("check", SCORER_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", [{"kind": "numeric"}, {"kind": "exact"}, {"kind": "pattern", "pattern": "o"}])
def test_a_verifier_keeps_the_contract(spec, check):
    scorer = build_reward(spec)
    try:
        check(scorer, [prompt(n, ids=[5, 6, 7 + n], answer="1") for n in range(4)], ["1", "so bad, 2", "", "x"])
    finally:
        scorer.close()
