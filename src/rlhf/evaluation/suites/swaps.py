"""Bias: the same items with the names of one group or another, and the difference of the scores."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf.errors import DataError
from rlhf.evaluation.intervals import Estimate, paired_difference
from rlhf.evaluation.paired_tests import holm, sign_flip_test
from rlhf.seeds import derive_seed

SWAP_GROUP = "swap_group"
"""The column of an item that says which group's texts were filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDifference:
    """Two groups on the same items."""

    groups: tuple[str, str]
    means: tuple[float, float]
    """Mean score of each, over the items that both have."""
    difference: Estimate
    """Mean of first - second over items, each averaged over its texts first."""
    p_value: float
    """Of a sign-flip test, Holm-adjusted for the number of pairs of groups; nan without items."""

    @property
    def is_shown(self) -> bool:
        """Whether the groups are treated differently, at 5 % over all pairs of groups."""
        return self.p_value < 0.05

    def __str__(self) -> str:
        first, second = self.groups
        if not self.difference.measured:
            return f"{first} against {second}: not measured ({self.difference.reason})."
        outcome = "differ" if self.is_shown else "no difference shown"
        value, low, high = self.difference.value, self.difference.low, self.difference.high
        return f"{first} against {second}: {outcome}, {value:+.3g} [{low:+.3g}, {high:+.3g}], p = {self.p_value:.2g}."

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "groups": list(self.groups),
            "means": list(self.means) if self.difference.n else None,
            "difference": self.difference.to_dict(),
            "p_value": None if math.isnan(self.p_value) else self.p_value,
        }


def fill_swaps(
    rows: Sequence[Mapping[str, Any]], swaps: Mapping[str, Mapping[str, Sequence[str]]], *, source: str
) -> list[dict[str, Any]]:
    """Every row once for each text of each group; a group's n-th row takes the n-th text of every placeholder.

    Args:
        rows: Items whose texts hold ``{placeholder}``.
        swaps: Group -> placeholder -> texts.
        source: What errors call the suite.

    Raises:
        DataError: An item holds none of the placeholders, and could show no difference.
    """
    filled: list[dict[str, Any]] = []
    for number, row in enumerate(rows, 1):
        name = str(row.get("id", number))
        for group, texts in swaps.items():
            used = {f"{{{key}}}": values for key, values in texts.items() if _replaced(row, {f"{{{key}}}": ""}) != row}
            if not used:
                raise DataError(
                    f"{source}, item {name}: it holds none of {', '.join(f'{{{key}}}' for key in texts)}; write one into its prompt."
                )
            for place in range(max(len(values) for values in used.values())):
                words = {key: values[place % len(values)] for key, values in used.items()}
                own = {"id": f"{name}/{group}/{place + 1}", "group": str(row.get("group", name)), SWAP_GROUP: group}
                filled.append({**_replaced(row, words), **own})
    return filled


def group_differences(
    scores: Mapping[str, Sequence[float | None]], units: Mapping[str, str], groups: Mapping[str, str], *, seed: int = 0
) -> list[GroupDifference]:
    """Compare all pairs of groups, paired by unit.

    Within a unit, a group's score is the mean over its texts, so a group with more texts weighs no more. An item without a score for one of
    the groups is left out of that pair. The p-value is of a sign-flip test (``paired_tests.sign_flip_test``).

    Source: swapping groups in fixed templates: Kiritchenko and Mohammad 2018, "Examining gender and race bias in two hundred sentiment
    analysis systems", arXiv:1805.04508; names as signals: Bertrand and Mullainathan 2004, American Economic Review 94.

    Args:
        scores: Item -> one for each completion, None where missing.
        units: Item -> the template that it was made from.
        groups: Item -> group.
        seed: Of the sign flips.
    """
    cells: dict[tuple[str, str], list[float]] = {}
    for item, values in scores.items():
        known = [value for value in values if value is not None]
        if known:
            cells.setdefault((units[item], groups[item]), []).append(math.fsum(known) / len(known))
    means = {cell: math.fsum(values) / len(values) for cell, values in cells.items()}
    names, templates = list(dict.fromkeys(groups.values())), list(dict.fromkeys(units.values()))
    pairs: list[GroupDifference] = []
    for first, second in itertools.combinations(names, 2):
        both = [
            (means[unit, first], means[unit, second])
            for unit in templates
            if (unit, first) in means and (unit, second) in means
        ]
        d = np.array([a - b for a, b in both])
        pairs.append(
            GroupDifference(
                groups=(first, second),
                means=(math.fsum(a for a, _ in both) / len(both), math.fsum(b for _, b in both) / len(both))
                if both
                else (math.nan, math.nan),
                difference=paired_difference(
                    [b for _, b in both],
                    [a for a, _ in both],
                    shares=all(0 <= mean <= 1 for pair in both for mean in pair),
                ),
                p_value=sign_flip_test(d, seed=derive_seed(seed, "swaps", first, second)) if len(both) else math.nan,
            )
        )
    tested = [place for place, each in enumerate(pairs) if not math.isnan(each.p_value)]
    for place, adjusted in zip(tested, holm([pairs[place].p_value for place in tested]), strict=True):
        each = pairs[place]
        pairs[place] = GroupDifference(
            groups=each.groups, means=each.means, difference=each.difference, p_value=float(adjusted)
        )
    return pairs


def _replaced(value: Any, words: Mapping[str, str]) -> Any:
    """The same value with every placeholder filled in, wherever there is text."""
    if isinstance(value, str):
        for placeholder, text in words.items():
            value = value.replace(placeholder, text)
        return value
    if isinstance(value, list):
        return [_replaced(each, words) for each in value]
    if isinstance(value, dict):
        return {key: _replaced(each, words) for key, each in value.items()}
    return value
