"""Numbers as people write them."""

from __future__ import annotations

import re

import pytest

from rlhf.formatting import (
    bytes_text,
    duration,
    percentage,
    percentage_points,
    plain_number,
    rounded,
    seconds_text,
    shares_of_100,
    signed_number,
    told_apart,
)
from tests.fixtures.source import FILES, name_of


@pytest.mark.parametrize(
    ("counts", "shares"),
    [([40, 40, 40], [34, 33, 33]), ([335, 52, 13], [84, 13, 3]), ([1, 1], [50, 50]), ([0, 0, 7], [0, 0, 100]), ([0, 0], [0, 0])],
)  # fmt: skip
def test_shares_add_to_100(counts, shares):
    assert shares_of_100(counts) == shares


def test_there_is_one_minus_and_none_before_a_zero():
    assert [plain_number(-0.0), percentage(-0.0001), plain_number(-1.5)] == ["0.00", "0.0\u202f%", "-1.50"]
    assert [signed_number(-1.5), signed_number(0.25), signed_number(0.0)] == ["-1.50", "+0.25", "+0.00"]


def test_numbers_that_differ_are_printed_differently():
    assert told_apart(-0.082, -0.078) == ("-0.082", "-0.078")
    assert told_apart(1.0, 2.0) == ("1.00", "2.00")
    assert told_apart(2.0, 2.0)[0] == told_apart(2.0, 2.0)[1]


def test_large_numbers_that_differ_are_told_apart_and_rounding_has_no_sign():
    assert told_apart(12345.6, 12346.6) == ("12,346", "12,347")
    assert told_apart(100_000, 100_001) == ("100,000", "100,001")
    assert told_apart(2e7, 2e7 + 1)[0] != told_apart(2e7, 2e7 + 1)[1]
    assert [signed_number(-5.6e-17), signed_number(-0.001)] == ["+0.00", "-0.001"]
    assert percentage_points(-0.0004) == "+0.0\u202fpp"
    assert percentage(0.9925).split("\u202f")[0] == percentage_points(0.9925).split("\u202f")[0].strip("+")


@pytest.mark.parametrize(
    ("value", "plain", "signed"), [(-0.0004, "0.00", "+0.00"), (-0.006, "-0.01", "-0.01"), (1.5, "1.50", "+1.50")]
)
def test_no_zero_has_a_minus(value, plain, signed):
    assert rounded(value) == plain
    assert rounded(value, sign=True) == signed


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (16 * 2**20, "16.0 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**51, "2,048.0 TiB"),
    ],
)
def test_sizes_have_the_unit_that_fits(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.24, "8.2 s"), (45.4, "45 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (None, "unknown")],
)
def test_durations_have_two_units_at_most(seconds, text):
    assert duration(seconds) == text


def test_nobody_formats_percentages_by_hand():
    """``92.4 %`` everywhere: no ``:.1%`` and no percent sign behind a number that is put together."""
    by_hand = re.compile(r"\{[^{}]*:[^{}]*\.\d%\}|\{[^{}]*:[^{}]*[fg]\} ?%")
    actual = [
        name_of(file)
        for file in FILES
        if by_hand.search(file.read_text(encoding="utf-8")) and file.name != "formatting.py"
    ]
    assert actual == [], "use rlhf.formatting.percentage"


def test_a_duration_to_compare_has_few_digits():
    assert [seconds_text(x) for x in (0.0041, 3.2, 720, 5400)] == ["4.1 ms", "3.20 s", "12.0 min", "1.5 h"]
