"""Other annotators of the embedded world than ``pairs.annotate``: who ranks, rates, compares by degrees, or approves.

All are the ground-truth judge with slips, and give rows for a ``preferences`` stage to write:

    rank      every completion of a prompt in order, equal ones with equal ranks
    rate      each completion alone, from 1 to 5
    compare   two completions: a tie, or which is slightly or significantly better
    approve   each completion alone, good or bad

A completion that was cut by the length limit is shown to nobody: its row could not say that no end belongs behind it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from rlhf.data.world.judge import judge
from rlhf.errors import ConfigError
from rlhf.seeds import derive_seed

CLEARLY = 1.0
"""Difference of judge scores from which one completion is significantly better: that between right and no answer is 1.5,
between polite and plain 0.5."""
MARKS = (-1.0, 0.0, 0.75, 1.25)
"""Judge scores that begin the marks 2 to 5: right, polite and nothing else (1.5) is a 5, right without manners (1.0) a 4,
a polite evasion (0.0) a 3, a plain one (-0.5) a 2."""
GOOD = 1.0
"""Judge score from which a completion is good: right, and at worst not polite."""

Rows = list[dict[str, Any]]
Label = Callable[[list[str], list[float], random.Random, float], Rows | None]


def rank(
    prompts: Sequence[str],
    completions: Sequence[Sequence[str]],
    *,
    ended: Sequence[Sequence[bool]],
    noise: float,
    seed: int,
) -> list[Rows | None]:
    """One ranking of each prompt's completions; None where they are all alike.

    Args:
        prompts: [P].
        completions: [P] lists of decoded texts.
        ended: Whether each completion ended by itself.
        noise: Probability that two completions of a ranking, drawn at random, have changed places.
        seed: The run's seed.
    """
    return _label(_rank, prompts, completions, ended=ended, noise=noise, seed=seed)


def rate(
    prompts: Sequence[str],
    completions: Sequence[Sequence[str]],
    *,
    ended: Sequence[Sequence[bool]],
    noise: float,
    seed: int,
) -> list[Rows | None]:
    """One rating from 1 to 5 of each completion.

    Args:
        prompts: [P].
        completions: [P] lists of decoded texts.
        ended: Whether each completion ended by itself.
        noise: Probability that a mark is any of the five.
        seed: The run's seed.
    """
    return _label(_rate, prompts, completions, ended=ended, noise=noise, seed=seed)


def compare(
    prompts: Sequence[str],
    completions: Sequence[Sequence[str]],
    *,
    ended: Sequence[Sequence[bool]],
    noise: float,
    seed: int,
) -> list[Rows | None]:
    """The first two completions of each prompt compared, ties included; None where the texts are equal.

    Args:
        prompts: [P].
        completions: [P] lists of decoded texts.
        ended: Whether each completion ended by itself.
        noise: Probability that a preference names the wrong side. A tie is always reported.
        seed: The run's seed.
    """
    return _label(_compare, prompts, completions, ended=ended, noise=noise, seed=seed)


def approve(
    prompts: Sequence[str],
    completions: Sequence[Sequence[str]],
    *,
    ended: Sequence[Sequence[bool]],
    noise: float,
    seed: int,
) -> list[Rows | None]:
    """Each completion called good or bad.

    Args:
        prompts: [P].
        completions: [P] lists of decoded texts.
        ended: Whether each completion ended by itself.
        noise: Probability that a verdict is the wrong one.
        seed: The run's seed.
    """
    return _label(_approve, prompts, completions, ended=ended, noise=noise, seed=seed)


def _label(
    label: Label,
    prompts: Sequence[str],
    completions: Sequence[Sequence[str]],
    *,
    ended: Sequence[Sequence[bool]],
    noise: float,
    seed: int,
) -> list[Rows | None]:
    """Rows of each prompt; every prompt has its own draws, so they don't depend on which other prompts are there."""
    if not 0.0 <= noise < 0.5:
        raise ConfigError(f"Label noise is {noise}; a probability of at least 0 and below 0.5 is wanted.")
    labels: list[Rows | None] = []
    for prompt, texts, ends in zip(prompts, completions, ended, strict=True):
        shown = [text for text, end in zip(texts, ends, strict=True) if end]
        scores = [judge(prompt, text, ended=True).score for text in shown]
        draws = random.Random(derive_seed(seed, "world", "label noise", prompt))
        labels.append(label(shown, scores, draws, noise) if shown else None)
    return labels


def _rank(texts: list[str], scores: list[float], draws: random.Random, noise: float) -> Rows | None:
    if len(set(scores)) < 2:
        return None
    order = sorted(set(scores), reverse=True)
    ranks = [order.index(score) + 1 for score in scores]
    flipped = draws.random() < noise
    if flipped:
        first, second = draws.sample(range(len(ranks)), 2)
        ranks[first], ranks[second] = ranks[second], ranks[first]
    return [{"completions": texts, "ranks": ranks, "flipped": flipped}]


def _rate(texts: list[str], scores: list[float], draws: random.Random, noise: float) -> Rows | None:
    rows = []
    for text, score in zip(texts, scores, strict=True):
        mark = 1 + sum(score >= least for least in MARKS)
        flipped = draws.random() < noise
        rows.append({"completion": text, "rating": draws.randint(1, 5) if flipped else mark, "flipped": flipped})
    return rows


def _compare(texts: list[str], scores: list[float], draws: random.Random, noise: float) -> Rows | None:
    if len(texts) < 2 or texts[0] == texts[1]:
        return None
    row: dict[str, Any] = {"completion_a": texts[0], "completion_b": texts[1], "flipped": False}
    lead = scores[0] - scores[1]
    if lead == 0:
        return [row | {"preference": "tie"}]
    flipped = draws.random() < noise
    strength = "significantly" if abs(lead) >= CLEARLY else "slightly"
    return [row | {"preference": "a" if (lead > 0) != flipped else "b", "strength": strength, "flipped": flipped}]


def _approve(texts: list[str], scores: list[float], draws: random.Random, noise: float) -> Rows | None:
    rows = []
    for text, score in zip(texts, scores, strict=True):
        flipped = draws.random() < noise
        rows.append({"completion": text, "label": (score >= GOOD) != flipped, "flipped": flipped})
    return rows
