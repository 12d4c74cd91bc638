"""Matches as arrays, and whether they say how far all systems are apart.

A likelihood has a largest value at finite strengths only if, of every split of the systems in two, each part has won against
the other (Ford 1957). Other programs return numbers all the same: on a system that never lost, 12, or 1e-6 for everybody.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import NegativeCycleError, bellman_ford, connected_components

from rlhf.data.message_text import listed
from rlhf.errors import DataError
from rlhf.evaluation.intervals import Array

Match = tuple[Hashable, Hashable, float] | tuple[Hashable, Hashable, float, Hashable]
"""First system, second system, outcome: 1 the first won, 0 the second, 1/2 a tie; and the prompt, if matches share prompts."""


@dataclass(frozen=True, slots=True)
class Matches:
    """M matches of K systems on C prompts."""

    names: tuple[Hashable, ...]
    """[K] in the order in which they first appear."""
    first: NDArray[np.int64]
    """[M] number of the first system."""
    second: NDArray[np.int64]
    """[M]"""
    outcome: Array
    """[M] 1, 1/2 or 0; or shares between them."""
    unit: NDArray[np.int64]
    """[M] number of the prompt; each match is its own where no prompt is named."""

    @classmethod
    def of(cls, matches: Iterable[Match], *, shares: bool = False) -> Matches:
        """Number the systems and the prompts.

        Args:
            matches: As written above.
            shares: Whether an outcome may be any number from 0 to 1, such as the share of a prompt's samples that the first won.

        Raises:
            DataError: There is no match, one has an outcome that is none, or a system plays itself.
        """
        names: dict[Hashable, int] = {}
        units: dict[Hashable, int] = {}
        rows: list[tuple[int, int, float, int]] = []
        for number, match in enumerate(matches):
            if len(match) not in (3, 4):
                raise DataError(
                    f"Match {number} has {len(match)} entries; wanted (first, second, outcome) or (first, second, outcome, prompt)."
                )
            first, second, outcome = match[0], match[1], _outcome(match[2], number, shares)
            if first == second:
                raise DataError(f"Match {number} is of {first!r} against itself.")
            unit = (number,) if len(match) == 3 else match[3]
            rows.append(
                (
                    names.setdefault(first, len(names)),
                    names.setdefault(second, len(names)),
                    outcome,
                    units.setdefault(unit, len(units)),
                )
            )
        if not rows:
            raise DataError("There is no match; wanted at least one (first, second, outcome).")
        first_column, second_column, outcome_column, unit_column = map(np.asarray, zip(*rows, strict=True))
        return cls(tuple(names), first_column, second_column, outcome_column.astype(np.float64), unit_column)

    @property
    def num_units(self) -> int:
        """C."""
        return int(self.unit.max()) + 1

    @property
    def tied(self) -> NDArray[np.bool_]:
        """[M]"""
        return np.asarray(self.outcome == 0.5)


def components(matches: Matches) -> list[list[Hashable]]:
    """Groups of systems within which strengths are comparable; a tie is half a win for each. One group is what a fit needs."""
    winner = np.where(matches.outcome >= 0.5, matches.first, matches.second)
    loser = np.where(matches.outcome >= 0.5, matches.second, matches.first)
    both = (matches.outcome > 0) & (matches.outcome < 1)
    rows, columns = np.concatenate([winner, loser[both]]), np.concatenate([loser, winner[both]])
    k = len(matches.names)
    graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(k, k))
    num, label = connected_components(graph, directed=True, connection="strong")
    groups: list[list[Hashable]] = [[] for _ in range(num)]
    for name, place in zip(matches.names, label, strict=True):
        groups[place].append(name)
    return sorted(groups, key=len, reverse=True)


def are_connected(matches: Matches) -> bool:
    """Whether every two systems are joined by a chain of matches, whoever won."""
    k = len(matches.names)
    graph = coo_array((np.ones(len(matches.first)), (matches.first, matches.second)), shape=(k, k))
    return int(connected_components(graph, directed=False, return_labels=False)) == 1


def check_identified(matches: Matches, *, with_tie_parameter: bool = False) -> None:
    """Refuse matches whose likelihood has no finite maximum.

    With a parameter for ties there is one more way to run away: strengths and the parameter grow together if some strengths
    make every win a lead of at least 2 and every tie one of at most 2. Such strengths exist unless a cycle of matches holds
    more wins (one way) than ties: a negative cycle of the graph of those inequalities.

    Raises:
        DataError: Names the groups that can't be compared.
    """
    groups = components(matches)
    if len(groups) > 1:
        why = (
            "some won every match with the others" if are_connected(matches) else "some never played any of the others"
        )
        raise DataError(
            f"These matches do not say how far systems are apart: {why}. Comparable with one another are only "
            f"{'; '.join(listed(group) for group in groups)}. Add matches between the groups, rate them separately, or declare a prior."
        )
    if with_tie_parameter and matches.tied.any() and not _has_winning_cycle(matches):
        raise DataError(
            "These matches do not bound the parameter for ties: nobody who won against another was ever beaten back, but for ties. "
            "Count ties as half a win (ties='half'), or declare a prior."
        )


def _has_winning_cycle(matches: Matches) -> bool:
    k, tied = len(matches.names), matches.tied
    weight = np.full((k, k), np.inf)
    winner = np.where(matches.outcome > 0.5, matches.first, matches.second)
    loser = np.where(matches.outcome > 0.5, matches.second, matches.first)
    for a, b in ((matches.first, matches.second), (matches.second, matches.first)):
        np.minimum.at(weight, (a[tied], b[tied]), 2.0)
    np.minimum.at(weight, (winner[~tied], loser[~tied]), -2.0)
    finite = np.isfinite(weight)
    rows, columns = np.nonzero(finite)
    try:
        bellman_ford(coo_array((weight[finite], (rows, columns)), shape=(k, k)).tocsr(), directed=True, indices=0)
    except NegativeCycleError:
        return True
    return False


def _outcome(value: Any, number: int, shares: bool) -> float:
    if shares and isinstance(value, int | float) and 0 <= value <= 1:
        return float(value)
    if value not in (0, 0.5, 1):
        raise DataError(
            f"Match {number} has the outcome {value!r}; wanted 1 (the first won), 0 (the second) or 0.5 (a tie). Leave out matches "
            "that were not judged, and report how many."
        )
    return float(value)


def scores_by_unit(scores: Array, unit: NDArray[np.int64], num_units: int) -> Array:
    """[C, P] sums of [M, P] scores over the matches of each prompt."""
    sums = np.zeros((num_units, scores.shape[1]))
    np.add.at(sums, unit, scores)
    return sums
