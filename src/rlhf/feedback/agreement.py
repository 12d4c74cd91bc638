"""How far annotators agree beyond chance: Cohen's, Fleiss' and Krippendorff's coefficients, with intervals.

All of them are functions of one small table, which is a sum over items:

    coincidences   [k, k]  how often values c and k met on an item; each item counts once for each of its values
    contingencies  [k, k]  first annotator's value against the second's, over the items that both judged

so an interval comes from drawing items again, and nothing else is to be measured again. Items are what is independent:
the judgments of one item belong together.

A coefficient whose chance agreement is perfect (everybody gave one and the same value) has no meaning: it is NaN, with
the reason, never 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlhf.data.message_text import counted
from rlhf.errors import DataError, kind_of, look_up
from rlhf.evaluation.intervals import RESAMPLES, Estimate, bootstrap_tail, check_confidence
from rlhf.formatting import percentage

Array = NDArray[np.float64]
Judgment = tuple[Hashable, Hashable, Any]
"""Item, annotator, value."""
MIN_ITEMS = 20
"""Items below which no interval is given. Of alpha's intervals at 20 items, 92 to 99 % hold the truth (two to five annotators,
right 60 to 95 % of the time); at 10, every third set of careful annotators has no two that differ, and no spread to draw from."""

MAX_VOID_FRAC = 0.025
"""Share of draws in which the coefficient does not exist, because all judgments drawn have one value, up to which there is an
interval: four items with a rare value, about. Of alpha's intervals at rare values (2 to 10 % of items, 40 to 400 of them, two or
three annotators wrong 0.5 to 10 % of the time), 94 to 98 % hold the truth; were the other draws taken for all, 62 % at 50 items of
which 2 % are rare."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Judgments end to end; an annotator judges an item at most once, and not every item."""

    items: NDArray[np.int64]
    """[n] number of the item."""
    annotators: NDArray[np.int64]
    """[n] number of the annotator."""
    values: NDArray[np.int64]
    """[n] place of the value in ``scale``."""
    scale: tuple[Any, ...]
    """[k] the values there can be; their order matters to ordinal coefficients, their numbers to interval ones."""
    item_names: tuple[Hashable, ...]
    annotator_names: tuple[Hashable, ...]

    @classmethod
    def of(cls, judgments: Iterable[Judgment], *, scale: Sequence[Any] | None = None) -> Self:
        """Number items and annotators in order of appearance.

        Args:
            judgments: (item, annotator, value); a value of None or NaN is a judgment that was not made, and left out.
            scale: Values there can be, in order; by default those that occur, sorted.

        Raises:
            DataError: Nothing was judged, a value is not on the scale, or somebody judged an item twice.
        """
        made = [(i, a, v) for i, a, v in judgments if not (v is None or v != v)]  # NaN of any library
        if not made:
            raise DataError("There is no judgment; wanted at least one (item, annotator, value).")
        scale = tuple(scale) if scale is not None else _sorted_values([value for _, _, value in made])
        place = {value: number for number, value in enumerate(scale)}
        items: dict[Hashable, int] = {}
        annotators: dict[Hashable, int] = {}
        seen: set[tuple[Hashable, Hashable]] = set()
        rows = []
        for item, annotator, value in made:
            if value not in place:
                raise DataError(
                    f"{annotator!r} gave item {item!r} the value {value!r}, which is not on the scale "
                    f"{', '.join(map(repr, scale))}."
                )
            if (item, annotator) in seen:
                raise DataError(
                    f"{annotator!r} judged item {item!r} twice; keep the judgment that counts, such as the last."
                )
            seen.add((item, annotator))
            rows.append(
                (items.setdefault(item, len(items)), annotators.setdefault(annotator, len(annotators)), place[value])
            )
        numbers = np.array(rows, dtype=np.int64)
        return cls(numbers[:, 0], numbers[:, 1], numbers[:, 2], scale, tuple(items), tuple(annotators))

    def counts(self) -> Array:
        """[items, k] how many annotators gave an item each value."""
        table = np.zeros((len(self.item_names), len(self.scale)))
        np.add.at(table, (self.items, self.values), 1)
        return table


def coincidences(labels: Labels) -> Array:
    """[items with two values or more, k, k] ordered pairs of values within each item, over (values of the item - 1).

    Source: Krippendorff 2011, "Computing Krippendorff's alpha-reliability", section C.
    """
    counts = labels.counts()
    counts = counts[counts.sum(1) >= 2]
    pairs = counts[:, :, None] * counts[:, None, :]
    pairs -= counts[:, :, None] * np.eye(counts.shape[1])
    return pairs / (counts.sum(1) - 1)[:, None, None]


def contingencies(labels: Labels, first: Hashable, second: Hashable) -> Array:
    """[items that both judged, k, k] one 1 in each: row for the first annotator's value, column for the second's.

    Raises:
        DataError: One of them judged nothing.
    """
    numbers = {name: number for number, name in enumerate(labels.annotator_names)}
    for name in (first, second):
        if name not in numbers:
            raise DataError(f"{name!r} judged nothing; annotators are {', '.join(map(repr, labels.annotator_names))}.")
    given = []
    for name in (first, second):
        mine = labels.annotators == numbers[name]
        given.append(dict(zip(labels.items[mine].tolist(), labels.values[mine].tolist(), strict=True)))
    both = [item for item in given[0] if item in given[1]]
    table = np.zeros((len(both), len(labels.scale), len(labels.scale)))
    for row, item in enumerate(both):
        table[row, given[0][item], given[1][item]] = 1
    return table


def observed_agreement(table: Array) -> Array:
    """Share of pairs of values that are equal.

    Args:
        table: [..., k, k] sum of ``coincidences`` or ``contingencies``.

    Returns:
        [...]; NaN for an empty table.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(np.trace(table, axis1=-2, axis2=-1) / table.sum((-2, -1)))


def cohen_kappa(table: Array, *, weights: str = "none") -> Array:
    """Agreement of two annotators beyond what their own habits would give by chance.

        1 - sum w[c, k] observed[c, k] / sum w[c, k] row[c] column[k] / n,
        w = 1 off the diagonal; |c - k|; (c - k)^2   for weights none; linear; quadratic

    Sources: Cohen 1960, "A coefficient of agreement for nominal scales"; with weights: Cohen 1968.

    Args:
        table: [..., k, k] sum of ``contingencies``, values in the order of their scale.
        weights: ``none``, ``linear`` or ``quadratic``.

    Returns:
        [...]; NaN where chance agreement is perfect, or nothing was judged by both.
    """
    steps = np.arange(table.shape[-1], dtype=float)
    distance = np.abs(steps[:, None] - steps)
    weight = look_up(
        {"none": (distance > 0).astype(float), "linear": distance, "quadratic": distance**2}, weights, kind="weighting"
    )
    by_chance = table.sum(-1, keepdims=True) * table.sum(-2, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = (weight * by_chance).sum((-2, -1)) / table.sum((-2, -1))
        return np.asarray(np.where(expected > 0, 1 - (weight * table).sum((-2, -1)) / expected, math.nan))


def fleiss_kappa(table: Array) -> Array:
    """Agreement of several annotators, the same number for each item, beyond that of values drawn from the whole.

        (P - P_e) / (1 - P_e),   P = share of agreeing pairs,  P_e = sum over values of their share squared

    Where items have different numbers of judgments, Krippendorff's alpha is the coefficient to take.

    Source: Fleiss 1971, "Measuring nominal scale agreement among many raters".

    Args:
        table: [..., k, k] sum of ``coincidences`` of items with equally many judgments.

    Returns:
        [...]; NaN where all values are the same, or no item has two.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = table.sum(-1) / table.sum((-2, -1))[..., None]
        chance = (shares**2).sum(-1)
        return np.asarray(np.where(chance < 1, (observed_agreement(table) - chance) / (1 - chance), math.nan))


def calculate_fleiss_kappa(
    ratings: Sequence[Sequence[Any]] | None = None, *, counts: Sequence[Sequence[int]] | None = None
) -> float:
    """Fleiss' kappa of a table of ratings; see ``fleiss_kappa``, and ``agreement_estimate`` for an interval.

        calculate_fleiss_kappa([["a", "a", "b"], ["b", "b", "b"]])  # two items, three ratings each
        calculate_fleiss_kappa(counts=[[2, 1], [0, 3]])             # the same, as counts of a and b

    Args:
        ratings: [items][ratings] the category that each rating gave the item, in any order; equally many of each item, at least two.
        counts: [items][categories] how often each category was given, in place of ``ratings``.

    Returns:
        1 for perfect agreement, 0 for chance; NaN where all ratings are the same category, as there is nothing to agree beyond.

    Raises:
        DataError: Items have different numbers of ratings (Krippendorff's alpha takes those), fewer than two, or one is missing.
    """
    if (ratings is None) == (counts is None):
        raise DataError("Give ratings, or counts of them by category, and not both.")
    for name, table in (("ratings", ratings), ("counts", counts)):
        for place, item in enumerate(() if table is None else table):
            if isinstance(item, (str, Mapping)) or not hasattr(item, "__len__"):
                raise DataError(f"{name}[{place}] is {kind_of(item)}; expected a list with all {name} of the item.")
    if counts is not None:
        ratings = [[category for category, times in enumerate(row) for _ in range(times)] for row in counts]
    assert ratings is not None
    sizes = sorted({len(item) for item in ratings})
    if len(sizes) != 1 or sizes[0] < 2:
        raise DataError(
            f"Fleiss' kappa needs equally many ratings of each item, at least two; got {sizes or 'no items'}. "
            "Krippendorff's alpha takes items with different numbers."
        )
    if any(value is None or value != value for item in ratings for value in item):
        raise DataError("Some ratings are missing (None or NaN); leave the item out, or use Krippendorff's alpha.")
    judgments = [(i, a, value) for i, item in enumerate(ratings) for a, value in enumerate(item)]
    return float(fleiss_kappa(coincidences(Labels.of(judgments)).sum(0)))


def krippendorff_alpha(table: Array, *, metric: str = "nominal", scale: Sequence[Any] | None = None) -> Array:
    """Agreement of any number of annotators, each of whom may have left items out, on nominal, ordinal or interval values.

        1 - observed disagreement / expected disagreement
          = 1 - (n - 1) sum o[c, k] d2[c, k] / sum n[c] n[k] d2[c, k],     n[c] = sum over k of o[c, k],  n = sum of n[c]

        d2   nominal: 1 where c differs from k     interval: (c - k)^2     ordinal: (n[c]/2 + n[c+1] + ... + n[k]/2)^2

    Source: Krippendorff 2011, "Computing Krippendorff's alpha-reliability".

    Args:
        table: [..., k, k] sum of ``coincidences``.
        metric: ``nominal``, ``ordinal`` or ``interval``.
        scale: [k] numbers that the values stand for, for ``interval``; by default 0, 1, ... k - 1.

    Returns:
        [...]; NaN where no item has two values, or all values are the same.
    """
    sizes = table.sum(-1)
    total = sizes.sum(-1)
    distance = look_up(_DISTANCES, metric, kind="metric")(sizes, scale)
    observed = (table * distance).sum((-2, -1))
    expected = (sizes[..., :, None] * sizes[..., None, :] * distance).sum((-2, -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(expected > 0, 1 - (total - 1) * observed / expected, math.nan))


def agreement_estimate(
    tables: Array,
    coefficient: Callable[[Array], Array],
    *,
    seed: int = 0,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """A coefficient with its bootstrap interval over items (``bootstrap_tail``).

    Args:
        tables: [items, k, k] ``coincidences`` or ``contingencies``.
        coefficient: One of the functions above, with its options bound.
        seed: Of the draws.
        confidence: Of the interval.
        resamples: Draws of all items with replacement.

    Returns:
        NaN with a reason where the coefficient does not exist. The value without an interval, with the reason, where items are
        fewer than ``MIN_ITEMS``, where every draw gives the same value, or where the coefficient does not exist in more than
        ``MAX_VOID_FRAC`` of the draws.
    """
    check_confidence(confidence)
    if not len(tables):
        return Estimate.missing("no item was judged by two annotators")
    value = float(coefficient(tables.sum(0)))
    if not math.isfinite(value):
        return Estimate.missing(
            "every judgment has the same value, so nothing says what chance would give", n=len(tables)
        )
    if len(tables) < MIN_ITEMS:
        return _without_interval(
            value, len(tables), f"{counted(len(tables), 'item')}, and it takes {MIN_ITEMS}", confidence
        )
    rng = np.random.default_rng(seed)
    # items with the same table are interchangeable: drawing how often each table comes is the same, and needs no
    # [resamples, items] array, of which 50,000 items would make gigabytes
    distinct, times = np.unique(tables.reshape(len(tables), -1), axis=0, return_counts=True)
    drawn = rng.multinomial(len(tables), times / len(tables), size=resamples).astype(float) @ distinct
    coefficients = coefficient(drawn.reshape(resamples, *tables.shape[1:]))
    exists = np.isfinite(coefficients)
    if (void := 1 - exists.mean()) > MAX_VOID_FRAC:
        why_not = f"all values but one are so rare that {percentage(void, 0)} of draws of the items lack them"
        return _without_interval(value, len(tables), why_not, confidence)
    coefficients = coefficients[exists]
    if math.isclose(coefficients.min(), coefficients.max(), abs_tol=1e-12):
        return _without_interval(
            value, len(tables), "every draw of the items agrees as much, so there is no spread", confidence
        )
    tail = bootstrap_tail(len(tables), confidence)
    low, high = np.quantile(coefficients, [tail, 1 - tail])
    return Estimate(value=value, low=float(low), high=float(high), n=len(tables), confidence=confidence)


def _without_interval(value: float, n: int, why: str, confidence: float) -> Estimate:
    return Estimate(value=value, low=math.nan, high=math.nan, n=n, confidence=confidence, reason=f"no interval: {why}")


def _nominal(sizes: Array, scale: Sequence[Any] | None) -> Array:
    return 1 - np.eye(sizes.shape[-1])


def _interval(sizes: Array, scale: Sequence[Any] | None) -> Array:
    numbers = np.asarray(scale if scale is not None else range(sizes.shape[-1]), dtype=float)
    return (numbers[:, None] - numbers) ** 2


def _ordinal(sizes: Array, scale: Sequence[Any] | None) -> Array:
    # places of the middles of the values' blocks, were all judgments laid out in order
    middles = sizes.cumsum(-1) - sizes / 2
    return np.asarray((middles[..., :, None] - middles[..., None, :]) ** 2)


_DISTANCES: Mapping[str, Callable[[Array, Sequence[Any] | None], Array]] = {
    "nominal": _nominal,
    "ordinal": _ordinal,
    "interval": _interval,
}


def _sorted_values(values: Sequence[Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(set(values)))
    except TypeError:
        raise DataError(
            "Values of different types have no order; give `scale`, the values there can be, in order."
        ) from None
