"""Numbers in a sentence."""

from __future__ import annotations

import pytest

from rlhf.pipeline.words import counted, rounded


@pytest.mark.parametrize(("number", "text"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1200, "1,200 steps")])
def test_one_is_singular(number, text):
    assert counted(number, "step") == text


@pytest.mark.parametrize(
    ("value", "plain", "signed"), [(-0.0004, "0.00", "+0.00"), (-0.006, "-0.01", "-0.01"), (1.5, "1.50", "+1.50")]
)
def test_no_zero_has_a_minus(value, plain, signed):
    assert rounded(value) == plain
    assert rounded(value, sign=True) == signed
