"""What a written model answers, next to the original, on the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf.export.format_writer import OpenedModel
from rlhf.export.source_model import SourceModel
from rlhf.formatting import percentage, plain_number

EXACT_TOLERANCE = 1e-3
"""Of logits and scores of float32 weights, per unit of the largest one and at least 1: other kernels add in another order."""
PROMPT_TOKENS = 8
CONTINUATION = 16
"""Tokens of the greedy continuations that are compared."""
NUM_CONTINUATIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison:
    """Differences between the original and what was read back."""

    rows: int
    tokens: int
    over: str
    """What the rows are."""
    max_difference: float
    """Largest absolute one of a logit, or of a score."""
    largest: float
    """Largest absolute logit or score of the original."""
    kl: float | None = None
    """Mean over positions of KL(original || exported), nats."""
    same_top: float | None = None
    """Share of positions with the same likeliest token."""
    perplexity_before: float | None = None
    perplexity_after: float | None = None
    """Of the rows' tokens but the first of each."""
    greedy_tokens: int | None = None
    greedy_same: int | None = None
    """Tokens of greedy continuations, and how many are the same up to the first that is not."""
    greedy_gap: float = 0.0
    """Where continuations part: how far the original's logits of the two tokens lie apart, at most."""
    spread: float | None = None
    """Standard deviation of the original's scores over the rows."""

    def to_dict(self) -> dict[str, Any]:
        """For the record; what does not apply is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def tolerance(self) -> float:
        """Of the outputs of float32 weights."""
        return EXACT_TOLERANCE * max(1.0, self.largest)

    def failures(self, *, exact: bool, max_increase: float) -> list[str]:
        """Why the written model is not good enough to keep; empty if it is.

        Args:
            exact: Whether outputs must be the original's, up to the order of additions.
            max_increase: Of the perplexity, as a share; of a score in units of the scores' spread.
        """
        if not math.isfinite(self.max_difference):
            return ["an output is not a finite number"]
        if exact:
            reasons = []
            if self.max_difference > self.tolerance:
                reasons.append(f"outputs differ by {self.max_difference:.3g}, more than {self.tolerance:.3g}")
            if self.greedy_gap > 2 * self.tolerance:
                reasons.append(
                    f"a greedy continuation leaves the original's where that prefers its token by {self.greedy_gap:.3g}"
                )
            return reasons
        if self.perplexity_before is not None and self.perplexity_after is not None:
            increase = self.perplexity_after / self.perplexity_before - 1
            if increase > max_increase:
                return [
                    f"perplexity rises from {self.perplexity_before:.4g} to {self.perplexity_after:.4g}, by {percentage(increase)}, "
                    f"more than {percentage(max_increase)}"
                ]
        elif self.spread is not None and self.max_difference > max_increase * max(self.spread, EXACT_TOLERANCE):
            return [
                f"a score changes by {self.max_difference:.3g}, more than {max_increase:g} of the scores' spread {self.spread:.3g}"
            ]
        return []

    def lines(self) -> list[str]:
        """For the console."""
        what = "score" if self.perplexity_before is None else "logit"
        lines = [
            f"compared   {self.rows} {self.over}, {self.tokens:,} tokens",
            f"{what}s     largest difference {self.max_difference:.3g}, the largest {what} is {plain_number(self.largest)}",
        ]
        if self.same_top is not None and self.kl is not None:
            lines.append(f"tokens     likeliest token the same at {percentage(self.same_top)}, KL {self.kl:.3g} nats")
        if self.greedy_tokens is not None:
            lines.append(f"greedy     {self.greedy_same} of {self.greedy_tokens} tokens of continuations the same")
        if self.perplexity_before is not None:
            lines.append(f"perplexity {self.perplexity_before:.5g} before, {self.perplexity_after:.5g} after")
        return lines


def compare_outputs(
    source: SourceModel, opened: OpenedModel, rows: Sequence[Sequence[int]], over: str
) -> OutputComparison:
    """Run both on all rows.

    Args:
        source: The original.
        opened: What was written, read back.
        rows: Token ids, at least two each.
        over: What the rows are, for people.
    """
    if source.reward is not None:
        return _compare_scores(source, opened, rows, over)
    worst = largest = divergence = 0.0
    nll = torch.zeros(2, dtype=torch.float64)
    same = positions = 0
    for row in rows:
        before, after = source.outputs(row), opened.outputs(row)
        worst = max(worst, _largest(before - after))
        largest = max(largest, _largest(before))
        first, second = before.double().log_softmax(-1), after.double().log_softmax(-1)
        divergence += float((first.exp() * (first - second)).sum())
        same += int((before.argmax(-1) == after.argmax(-1)).sum())
        positions += len(row)
        next_tokens = torch.tensor(list(row[1:]))[:, None]
        nll -= torch.stack([logprobs[:-1].gather(-1, next_tokens).sum() for logprobs in (first, second)])
    perplexity = (nll / (positions - len(rows))).exp().tolist()
    prompts = [row[: max(1, min(PROMPT_TOKENS + number, len(row) - 1))] for number, row in enumerate(rows)]
    greedy = _compare_greedy(source, opened, prompts[:NUM_CONTINUATIONS])
    return OutputComparison(
        rows=len(rows), tokens=positions, over=over, max_difference=worst, largest=largest, kl=max(0.0, divergence / positions),
        same_top=same / positions, perplexity_before=perplexity[0], perplexity_after=perplexity[1], **greedy,
    )  # fmt: skip


def _compare_scores(
    source: SourceModel, opened: OpenedModel, rows: Sequence[Sequence[int]], over: str
) -> OutputComparison:
    before = torch.cat([source.outputs(row) for row in rows]).double()
    after = torch.cat([opened.outputs(row) for row in rows]).double()
    return OutputComparison(
        rows=len(rows), tokens=sum(map(len, rows)), over=over, max_difference=_largest(before - after),
        largest=_largest(before), spread=float(before.std(correction=0)),
    )  # fmt: skip


def _compare_greedy(source: SourceModel, opened: OpenedModel, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The original's greedy continuations, token by token, against those of the written model's own decoding."""
    same, gap = 0, 0.0
    continuations = opened.greedy(prompts, CONTINUATION)
    for prompt, tokens in zip(prompts, continuations, strict=True):
        for place, token in enumerate(tokens):
            logits = source.outputs([*prompt, *tokens[:place]])[-1]
            if token != int(logits.argmax()):
                gap = max(gap, float(logits.max() - logits[token]))
                break
            same += 1
    return {"greedy_tokens": CONTINUATION * len(prompts), "greedy_same": same, "greedy_gap": gap}


def _largest(values: Tensor) -> float:
    """Largest absolute value; infinite where one is not a number."""
    largest = float(values.abs().max())
    return largest if math.isfinite(largest) else math.inf
