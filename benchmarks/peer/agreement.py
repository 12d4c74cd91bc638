"""Whether two sides did the same work: no ratio is printed before this was asserted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.peer.cases import Case

CHECKED = 4
"""Steps from the start whose losses must agree; fewer where fewer were taken."""
TOLERANCE = {"fp32": 1e-4, "bf16": 5e-3}
"""Relative. In bf16 two orders of summation differ by 1e-3 after the first steps."""
ROUNDING = 4.0
"""How many times as far as the peer our side may be, in bf16, from what both compute in float32. Adam makes a whole step of a gradient
whose sign was rounded, so two right programs part by chance; which of them is nearer to float32 after a few steps is chance, too."""


MEAN_LENGTH, MOST_CUT = 0.4, 0.5
"""How far the mean length of sampled completions may lie from what the weights were made for, as a share of it, and the share of them that
the cap may cut: completions that do not end give neither side anything to win by noticing."""


class Disagreement(AssertionError):
    """The two sides did not compute the same."""


class Reported(Protocol):
    """What a side said of its steps."""

    losses: list[float]
    values: dict[str, list[float]]
    ready: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """A number that both sides report at every step."""

    name: str
    steps: int
    """From the start; fewer where fewer were taken."""
    smallest: float = 1e-12
    """Differences are relative to the peer's number, or to this where that is smaller."""
    every: int = 1
    """Numbers of ours to one of the peer's, which is their mean: optimizer steps on one rollout."""
    terms: float = 0.0
    """Mean size of the terms of a sum that nearly cancels: what bf16 rounds are they, and in bf16 differences are relative to it."""

    def scale(self, number: float, dtype: str) -> float:
        """What a difference from ``number`` is relative to."""
        return max(abs(number), self.smallest, self.terms if dtype == "bf16" else 0.0)


WHAT: dict[str, tuple[Check, ...]] = {
    "orpo": (Check("log_odds_ratio", 1),),
    "grpo": (Check("grad_norm", 1),),
    "ppo": (Check("score", 1, 0.1), Check("value_loss", 1, every=4), Check("policy_loss", 1, 0.02, every=4, terms=0.5)),
}
"""Method -> what is compared, where it is not the loss of the first ``CHECKED`` steps. TRL's ORPO takes its likelihood term over prompt
and completion, the paper and ours over the completion: the term with the odds is the same at the first step, and from then on the two
learn from different losses. GRPO's loss at its first step is 0 whatever the policy, so it is the norm of its gradient. PPO's is the mean
of products of whitened advantages, which are 0 on average and of size .8, with ratios near 1."""


def compare(case: Case, task: dict[str, Any], ours: Reported, theirs: Reported) -> str:
    """Assert that both sides computed the same on the same rows.

    Returns:
        What was asserted, in words.

    Raises:
        Disagreement: Something differs by more than the tolerance; or there is nothing to compare.
    """
    if case.method == "generate":
        return check_greedy(ours.ready["greedy"], theirs.ready["greedy"])
    trained_on = theirs.ready.get("trained_on")
    if trained_on is not None:
        check_rows(task["rows"], trained_on)
    told = [check_numbers(check, our, their, dtype=case.dtype) for check, our, their in compared(case, ours, theirs)]
    return "; ".join(told)


def compared(case: Case, ours: Reported, theirs: Reported) -> Iterator[tuple[Check, list[float], list[float]]]:
    """What is compared, and the numbers of both sides, step by step."""
    for check in WHAT.get(case.method, (Check("loss", CHECKED),)):
        our, their = (
            side.losses if check.name == "loss" else side.values.get(check.name, []) for side in (ours, theirs)
        )
        yield check, [sum(our[n : n + check.every]) / check.every for n in range(0, len(our), check.every)], their


def check_rounding(case: Case, in_bf16: tuple[Reported, Reported], exact: Reported) -> str:
    """Assert that our side is not far less exact in bf16 than the peer's.

    Args:
        case: In bf16, where the two sides parted by more than is allowed.
        in_bf16: What ours and the peer reported.
        exact: What the peer, and ours, reported of the same rows and weights in float32.

    Returns:
        What was asserted, in words.

    Raises:
        Disagreement: It is.
    """
    told = []
    pairs = zip(compared(case, *in_bf16), compared(case, exact, exact), strict=True)
    for (check, ours, theirs), (_, _, right) in pairs:
        our, their = (largest_gap(check, numbers, right) for numbers in (ours, theirs))
        limit = max(ROUNDING * their, TOLERANCE["bf16"])
        if not our <= limit:
            raise Disagreement(
                f"{check.name} in bf16 is {our:.1e} from that in float32 here and {their:.1e} in TRL; at most {limit:.1e} is allowed"
            )
        told.append(f"{check.name} in bf16 is {our:.1e} from that here and {their:.1e} in TRL")
    return "; ".join(told)


def largest_gap(check: Check, numbers: Sequence[float], exact: Sequence[float]) -> float:
    """Relative, of numbers in bf16, over the steps that are compared."""
    pairs = list(zip(numbers, exact, strict=False))[: check.steps]
    return max(abs(number - right) / check.scale(right, "bf16") for number, right in pairs)


def check_greedy(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> str:
    """Assert that greedy completions in float32 are the same, token by token.

    Returns:
        What was asserted, in words.

    Raises:
        Disagreement: One is not.
    """
    different = [n for n, (our, their) in enumerate(zip(ours, theirs, strict=True)) if list(our) != list(their)]
    if different or not ours:
        raise Disagreement(f"greedy completions in float32 differ for {len(different)} of {len(ours)} prompts")
    return f"greedy completions of {len(ours)} prompts in float32 are the same, {sum(map(len, ours))} tokens"


def check_rows(rows: Sequence[dict[str, Any]], trained_on: Sequence[Sequence[Sequence[int]]]) -> None:
    """Assert that the peer's tokenizer gave back our ids, and that it takes our rows in our order."""
    meant = [[row["prompt"] + ids for ids in row["completions"]] for row in rows[: len(trained_on)]]
    for number, (row, theirs) in enumerate(zip(meant, trained_on, strict=True)):
        if row != [list(ids) for ids in theirs]:
            raise Disagreement(f"row {number}: TRL trains on other tokens than we do")


def check_numbers(check: Check, ours: Sequence[float], theirs: Sequence[float], *, dtype: str) -> str:
    """Assert that the first numbers of both sides agree.

    Returns:
        What was asserted, in words.

    Raises:
        Disagreement: They do not, or there is none.
    """
    pairs = list(zip(ours, theirs, strict=False))[: check.steps]
    if not pairs:
        raise Disagreement(f"{check.name}: one side reported none, so nothing could be compared")
    worst, tolerance = 0.0, TOLERANCE[dtype]
    for step, (our, their) in enumerate(pairs, start=1):
        gap = abs(our - their) / check.scale(their, dtype)
        if not gap <= tolerance:  # also where it is no number
            raise Disagreement(
                f"{check.name} of step {step}: {our:.6g} here, {their:.6g} in TRL, a relative difference of {gap:.1e}; at most "
                f"{tolerance:g} is allowed"
            )
        worst = max(worst, gap)
    steps = "step 1" if len(pairs) == 1 else f"steps 1 to {len(pairs)}"
    return f"{check.name} of {steps} within {tolerance:g} (largest relative difference {worst:.1e})"


def check_lengths(case: Case, side: str, lengths: Sequence[int]) -> None:
    """That sampled completions end as the weights were made for.

    Args:
        case: Of a method that samples.
        side: Who sampled.
        lengths: Tokens of each completion.

    Raises:
        Disagreement: They are all cut, or much longer or shorter.
    """
    going_on = 1 - 1 / case.ends_after
    expected = (1 - going_on**case.max_new_tokens) * case.ends_after
    mean = sum(lengths) / len(lengths)
    cut = sum(length >= case.max_new_tokens for length in lengths) / len(lengths)
    if abs(mean - expected) > MEAN_LENGTH * expected or cut > MOST_CUT:
        raise Disagreement(
            f"{side} sampled completions of {mean:.0f} tokens on average, {cut:.0%} of them cut at {case.max_new_tokens}; the weights were "
            f"made for {expected:.0f}"
        )
