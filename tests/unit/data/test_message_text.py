from __future__ import annotations

import pytest

from rlhf.data.message_text import counted, describe, listed, one_line, printable, short, shown


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true/false (True)"),
        (5, "a number (5)"),
        ("x", "a string ('x')"),
        ("x" * 5000, "a string ('" + "x" * 37 + "'...)"),
        ([1, 2], "a list ([1, 2])"),
        ([0] * 10_000, "a list ([0, 0, 0, 0, 0, 0, ...])"),
        ({"a": object}, "an object"),
        (b"x", "a bytes (b'x')"),
    ],
)
def test_a_value_is_called_by_its_type_and_shown_where_it_is_short(value, words):
    assert describe(value).startswith(words)
    assert len(describe(value)) < 80


def test_a_number_of_more_digits_than_python_writes_has_a_name():
    assert describe(10**5000) == shown(10**5000) == "a number"


def test_nesting_without_end_has_a_short_name():
    value: list = []
    for _ in range(100_000):
        value = [value]
    assert len(describe(value)) < 80
    while value:  # taken apart from outside: freeing it level by level would recurse
        value = value[0]


def test_many_names_are_listed_by_the_first_dozen():
    assert listed(["a", "b"]) == "'a', 'b'"
    assert listed([]) == ""
    assert listed(f"n{number}" for number in range(1000)).endswith("'n11' and 988 more")
    assert listed([5, None]) == "a number (5), null"


def test_nothing_unprintable_gets_into_a_message():
    odd = "\x1b[31m\0\ud800\n"
    for text in (short(odd), shown(odd), printable(odd), one_line(odd), describe(odd)):
        assert text.isprintable(), text
        text.encode()


def test_another_librarys_message_becomes_one_line_without_its_full_stop():
    assert one_line(ValueError("first\n  second.")) == "first second"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line("x" * 5000)) == 200


@pytest.mark.parametrize(("number", "text"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1200, "1,200 steps")])
def test_one_is_singular(number, text):
    assert counted(number, "step") == text
