"""Numbers in a sentence."""

from __future__ import annotations

import pytest

from rlhf.pipeline.formatting import rounded


@pytest.mark.parametrize(
    ("value", "plain", "signed"), [(-0.0004, "0.00", "+0.00"), (-0.006, "-0.01", "-0.01"), (1.5, "1.50", "+1.50")]
)
def test_no_zero_has_a_minus(value, plain, signed):
    assert rounded(value) == plain
    assert rounded(value, sign=True) == signed
