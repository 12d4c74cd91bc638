from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf.export.format_writer import OpenedModel
from rlhf.export.output_comparison import compare_outputs

ROWS = [[0, 1], [1, 0, 1, 1]]


class Constant(OpenedModel):
    """The same two logits after every token."""

    def __init__(self, *logits: float) -> None:
        self.logits = torch.tensor(logits)

    def outputs(self, row: Sequence[int]) -> Tensor:
        return self.logits.repeat(len(row), 1)


def compared(before: OpenedModel, after: OpenedModel) -> Any:
    source: Any = SimpleNamespace(reward=None, outputs=before.outputs)
    return compare_outputs(source, after, ROWS, "rows")


def test_two_constant_models_by_hand():
    # Probabilities 1/2, 1/2 and 1/4, 3/4. Predicted tokens are 1; 0, 1, 1.
    found = compared(Constant(0, 0), Constant(0, math.log(3)))
    assert found.max_difference == pytest.approx(math.log(3))
    assert found.kl == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert found.perplexity_before == pytest.approx(2)
    assert found.perplexity_after == pytest.approx((4 / 3) ** 0.75 * 4**0.25)
    assert (found.rows, found.tokens, found.same_top) == (2, 6, 0)


def test_equal_models_pass_and_say_so():
    found = compared(Constant(0, 2), Constant(0, 2))
    assert (found.max_difference, found.kl, found.same_top) == (0, 0, 1)
    assert found.greedy_same == found.greedy_tokens == 32
    assert not found.failures(exact=True, max_increase=0.05)


def test_a_continuation_may_leave_the_originals_only_at_a_tie():
    tie = compared(Constant(1, 1 + 1e-6), Constant(1 + 1e-6, 1))
    assert tie.greedy_same == 0
    assert not tie.failures(exact=True, max_increase=0.05)
    other = compared(Constant(1, 1.01), Constant(1.01, 1))
    assert any("greedy" in failure for failure in other.failures(exact=True, max_increase=0.05))


def test_rounded_weights_are_judged_by_perplexity():
    found = compared(Constant(0, 0), Constant(0, 0.1))
    rise = found.perplexity_after / found.perplexity_before - 1
    assert found.failures(exact=True, max_increase=1)
    assert not found.failures(exact=False, max_increase=abs(rise) + 0.01)
    worse = compared(Constant(0, 0), Constant(2, 0))
    assert any("perplexity" in failure for failure in worse.failures(exact=False, max_increase=0.05))


def test_an_output_that_is_no_number_never_passes():
    found = compared(Constant(0, 0), Constant(0, math.nan))
    assert found.failures(exact=False, max_increase=1e9)


def test_scores_are_judged_by_their_spread():
    # Scores 0 and 4 have a deviation of 2; a change of 0.5 is a quarter of it.
    class Scores(OpenedModel):
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def outputs(self, row: Sequence[int]) -> Tensor:
            return torch.tensor([self.scale * (len(row) - 2) * 2.0])

    source: Any = SimpleNamespace(reward=object(), outputs=Scores(1).outputs)
    found = compare_outputs(source, Scores(1.125), ROWS, "rows")
    assert (found.spread, found.max_difference) == (2, 0.5)
    assert found.failures(exact=True, max_increase=1)
    assert not found.failures(exact=False, max_increase=0.26)
    assert found.failures(exact=False, max_increase=0.24)
