"""Numbers as people write them."""

from __future__ import annotations

import pytest

from rlhf.evaluation.numbers import (
    percentage,
    percentage_points,
    plain_number,
    shares_of_100,
    signed_number,
    told_apart,
)


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
