"""Worlds with a known truth for the intervals of a model's metrics: a part of ``benchmarks/evaluation_statistics.py``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rlhf.evaluation.intervals import Estimate, paired_difference
from rlhf.evaluation.metrics.equal_length import InterceptStatistic
from rlhf.evaluation.metrics.quantiles import QuantileStatistic
from rlhf.evaluation.metrics.unit_statistics import (
    CorpusStatistic,
    MeanStatistic,
    ResampledStatistic,
    difference_of,
    ratio,
)
from rlhf.evaluation.ratings.style_control import style_controlled_ratings
from rlhf.seeds import derive_seed

Generator = np.random.Generator
Array = NDArray[np.float64]
World = tuple[float, Callable[[Generator], Estimate]]


def scores_before_and_after(n: int) -> World:
    """Paired scores with a difference of .3."""

    def draw(rng: Generator) -> Estimate:
        before = rng.normal(0, 3, n)
        return paired_difference(before, before + rng.normal(0.3, 1, n))

    return 0.3, draw


def solved_before_and_after(n: int, discordant: float, gain: float) -> World:
    """Right or wrong; a share of the prompts changes."""
    p = [(discordant - gain) / 2, (discordant + gain) / 2, 1 - discordant]
    return gain, lambda rng: paired_difference(np.zeros(n), rng.choice([-1.0, 1.0, 0.0], size=n, p=p), shares=True)


def naive_change(n: int, discordant: float, gain: float) -> World:
    """The percentile bootstrap of the same."""
    p = [(discordant - gain) / 2, (discordant + gain) / 2, 1 - discordant]

    def draw(rng: Generator) -> Estimate:
        d = rng.choice([-1.0, 1.0, 0.0], size=n, p=p)
        low, high = np.quantile(d[rng.integers(0, n, size=(400, n))].mean(axis=1), [0.025, 0.975])
        return Estimate(value=float(d.mean()), low=float(low), high=float(high), n=n)

    return gain, draw


def overlaps(n: int) -> World:
    """Shares that all change a little, such as ROUGE."""
    return 0.02, lambda rng: paired_difference(np.full(n, 0.5), 0.5 + rng.normal(0.02, 0.08, n), shares=True)


def per_token(n: int) -> World:
    """A sum over a sum: long completions have a higher number per token."""

    def rows(rng: Generator, size: int) -> tuple[Array, Array]:
        lengths = np.ceil(rng.lognormal(3, 0.5, size))
        return lengths * 0.02 * lengths**0.2 * rng.gamma(4, 0.25, size), lengths

    return float(np.divide(*map(np.sum, rows(np.random.default_rng(0), 2_000_000)))), lambda rng: ratio(
        *rows(rng, n)
    ).estimate(seed=int(rng.integers(2**31)))


def quantile(n: int, num_samples: int, share: float) -> World:
    """Lengths, a part of whose spread is the prompt's."""

    def lengths(rng: Generator, size: int, num: int) -> Array:
        return rng.lognormal(3, 0.4, (size, 1)) * rng.lognormal(0, 0.3, (size, num))

    truth = float(np.quantile(lengths(np.random.default_rng(0), 2_000_000, 1), share))
    return truth, lambda rng: QuantileStatistic(lengths(rng, n, num_samples), share).estimate()


def naive_quantile(n: int, share: float) -> World:
    """The bootstrap of the same."""

    def draw(rng: Generator) -> Estimate:
        rows = rng.lognormal(3, 0.5, (n, 1))
        return ResampledStatistic(rows, lambda draws: np.quantile(draws[..., 0], share, axis=1)).estimate()

    return float(np.quantile(np.random.default_rng(0).lognormal(3, 0.5, 2_000_000), share)), draw


def distinct(n: int) -> World:
    """distinct-2 of n texts of 12 words from a vocabulary as uneven as a language's; the truth is its mean over sets of n texts."""
    weights = 1 / np.arange(1, 301)
    weights /= weights.sum()

    def corpus(rng: Generator) -> CorpusStatistic:
        words = rng.choice(300, size=(n, 12), p=weights)
        pairs = [set(zip(row[:-1].tolist(), row[1:].tolist(), strict=True)) for row in words]

        def share(numbers: object) -> float:
            chosen = list(numbers)  # type: ignore[call-overload]
            return len(set().union(*(pairs[i] for i in chosen))) / (11 * len(chosen))

        return CorpusStatistic(share, tuple(range(n)), limits=(0.0, 1.0))

    rng = np.random.default_rng(derive_seed(0, "distinct", str(n)))
    truth = float(np.mean([each.function(each.units) for each in (corpus(rng) for _ in range(1500))]))
    return truth, lambda rng: corpus(rng).estimate(seed=int(rng.integers(2**31)))


def group_against_rest(n: int) -> World:
    """A group of a fifth of n prompts, twice as noisy as the rest."""

    def draw(rng: Generator) -> Estimate:
        own, rest = rng.normal(0.5, 2, n // 5), rng.normal(0, 1, n - n // 5)
        one, other = (MeanStatistic(values).moments() for values in (own, rest))
        assert one is not None
        assert other is not None
        return difference_of(one, other)[0]

    return 0.5, draw


def equal_length(n: int) -> World:
    """Quality that grows with length, and a model that writes a third more."""

    def draw(rng: Generator) -> Estimate:
        x = rng.normal(0.3, 0.5, n)
        return InterceptStatistic(np.stack([x, 0.2 + 0.8 * x + rng.normal(0, 1, n)], axis=1)).estimate()

    return 0.2, draw


def styled(n: int) -> World:
    """Three systems .6 apart; bold text wins, and the best writes the least of it."""
    strengths = np.array([0.6, 0.0, -0.6])

    def draw(rng: Generator) -> Estimate:
        pairs = np.array([rng.choice(3, 2, replace=False) for _ in range(n)])
        bold = rng.poisson(2 + 2 * pairs)
        difference = (bold[:, 0] - bold[:, 1]) / (bold.sum(axis=1) + 1)
        lead = strengths[pairs[:, 0]] - strengths[pairs[:, 1]] + 1.5 * difference
        won = (rng.random(n) < 1 / (1 + np.exp(-lead))).astype(float)
        matches = [(int(a), int(b), y, number) for number, ((a, b), y) in enumerate(zip(pairs, won, strict=True))]
        first, second = ([{"bold": float(count)} for count in column] for column in bold.T)
        return style_controlled_ratings(matches, first, second).difference(0, 2)

    return 1.2, draw


WORLDS: list[tuple[str, Callable[[], World], int]] = [
    *((f"change of a score, n = {n}", lambda n=n: scores_before_and_after(n), 4000) for n in (3, 20, 100)),
    *(
        (
            f"change of a share, {d:.0%} of {n} prompts change",
            lambda n=n, d=d, g=g: solved_before_and_after(n, d, g),
            4000,
        )
        for n in (5, 20, 100, 500)
        for d, g in ((0.15, 0.05), (0.02, -0.02))
    ),
    *(
        (f"*naive: bootstrap of that change, {d:.0%} of {n}*", lambda n=n, d=d, g=g: naive_change(n, d, g), 1000)
        for n, d, g in ((5, 0.15, 0.05), (20, 0.02, -0.02))
    ),
    *((f"change of an overlap, n = {n}", lambda n=n: overlaps(n), 4000) for n in (5, 20, 100)),
    *((f"sum over sum, n = {n}", lambda n=n: per_token(n), 400) for n in (5, 20, 100)),
    *(
        (f"{q:.0%} quantile, {n} prompts of {s}", lambda n=n, s=s, q=q: quantile(n, s, q), 1000)
        for q, n in ((0.5, 10), (0.5, 100), (0.95, 80), (0.95, 300))
        for s in (1, 4)
    ),
    ("*naive: bootstrap of a 95% quantile, 20 prompts*", lambda: naive_quantile(20, 0.95), 300),
    *((f"different pairs of words, {n} texts (jackknife)", lambda n=n: distinct(n), 400) for n in (20, 100)),
    *((f"group against the rest (Welch), n = {n}", lambda n=n: group_against_rest(n), 4000) for n in (30, 200)),
    ("Bradley-Terry at equal style, 400 prompts (penalized)", lambda: styled(400), 300),
    *((f"quality at equal length, n = {n}", lambda n=n: equal_length(n), 4000) for n in (10, 100)),
]
"""Name, what makes the world, runs."""
