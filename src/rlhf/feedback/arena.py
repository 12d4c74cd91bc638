"""Ratings of models from votes on two completions that stood side by side, without names.

One name may have answered with several weights: each is rated by itself. Votes on two completions of one model say nothing of another.
Intervals are over users, whose votes are no independent draws; with few users they are over votes, and then speak of these users only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.data.message_text import counted
from rlhf.errors import DataError
from rlhf.evaluation.intervals import CONFIDENCE, Estimate, share_interval, unit_means
from rlhf.evaluation.ratings.bradley_terry import ratings_of_any_matches
from rlhf.evaluation.ratings.fitted import Ratings

MIN_USERS = 10
"""Fewer give no interval over users."""
OUTCOME: Mapping[str, float] = {"a": 1.0, "tie": 0.5, "b": 0.0}
NO_NAME = "a model has no name"
ONE_MODEL = "both completions are of one model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaRatings:
    """What votes say of models."""

    ratings: Ratings
    record: dict[str, tuple[int, int, int]]
    """Model -> votes that it won, lost, and tied."""
    first_won: Estimate
    """Share of decided votes won by what stood first; one half where places don't matter."""
    num_votes: int
    num_users: int
    """Who are named."""
    unit: str
    """What intervals are over: ``users`` or ``votes``."""
    left_out: Counter[str]
    """Reason to number of votes."""
    note: str
    """Where a prior was needed."""

    @property
    def order(self) -> list[str]:
        """The strongest first."""
        return sorted(self.record, key=lambda name: -self.ratings.strengths[name])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        elo = self.ratings.elo()
        models = []
        for name in self.order:
            gap = self.ratings.elo_behind_best(name)
            won, lost, tied = self.record[name]
            behind = None if gap is None else gap.to_dict()
            models.append(
                {"model": name, "rating": elo[name], "behind_best": behind, "won": won, "lost": lost, "tied": tied}
            )
        return {
            "models": models, "first_won": self.first_won.to_dict(), "num_votes": self.num_votes, "num_users": self.num_users,
            "unit": self.unit, "left_out": dict(self.left_out), "note": self.note,
        }  # fmt: skip


def arena_ratings(rows: Iterable[Mapping[str, Any]], *, confidence: float = CONFIDENCE) -> ArenaRatings:
    """Ratings from the votes among rows of events.

    Args:
        rows: Of ``rows_of_events``; those that are no votes are passed over.
        confidence: Of the intervals.

    Raises:
        DataError: There is no vote on two models.
    """
    votes = [row for row in rows if row.get("event") == "vote"]
    names = _names(votes)
    left_out: Counter[str] = Counter()
    counted_votes: list[tuple[Mapping[str, Any], str, str]] = []
    for row in votes:
        sides = [names.get((row.get(f"model_{side}"), _weights(row, side))) for side in "ab"]
        if sides[0] is None or sides[1] is None:
            left_out[NO_NAME] += 1
        elif sides[0] == sides[1] or (_weights(row, "a") and _weights(row, "a") == _weights(row, "b")):
            left_out[ONE_MODEL] += 1
        else:
            counted_votes.append((row, sides[0], sides[1]))
    if not counted_votes:
        why = "; ".join(f"{counted(number, 'vote')}: {reason}" for reason, number in left_out.items())
        raise DataError(
            f"There is no vote on two models{f' ({why})' if why else ''}. Serve two under a shared name (`rlhf serve A --model b=B "
            "--share arena=A:0.5,b:0.5 --store FILE compare_every=1`), and have people vote on its chat page."
        )
    users = {row["annotator_id"] for row, _, _ in counted_votes if row.get("annotator_id")}
    unit = "users" if len(users) >= MIN_USERS else "votes"
    units = [row.get("annotator_id") or row["id"] if unit == "users" else row["id"] for row, _, _ in counted_votes]
    matches = [(a, b, OUTCOME[row["preference"]], of) for (row, a, b), of in zip(counted_votes, units, strict=True)]
    ratings, note = ratings_of_any_matches(matches, confidence=confidence)
    return ArenaRatings(
        ratings=ratings, record=_record(matches), first_won=_first_won(counted_votes, units, confidence),
        num_votes=len(matches), num_users=len(users), unit=unit, left_out=left_out, note=note,
    )  # fmt: skip


def _weights(row: Mapping[str, Any], side: str) -> str:
    return str(row.get(f"weights_{side}") or "")


def _names(votes: Sequence[Mapping[str, Any]]) -> dict[tuple[str | None, str], str]:
    """(model, weights) -> what it is called: the model, with its version or its weights where the name had several."""
    versions: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in votes:
        for side in "ab":
            if (model := row.get(f"model_{side}")) is not None:
                versions[model][_weights(row, side)] = row.get(f"version_{side}")
    names: dict[tuple[str | None, str], str] = {}
    for model, of in versions.items():
        for weights, version in of.items():
            more = f" version {version}" if version is not None else f" {weights[:10] or '(weights not known)'}"
            names[model, weights] = model if len(of) == 1 else f"{model}{more}"
    return names


def _record(matches: Sequence[tuple[str, str, float, Any]]) -> dict[str, tuple[int, int, int]]:
    places = {1.0: (0, 1), 0.0: (1, 0), 0.5: (2, 2)}
    record: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for first, second, outcome, _ in matches:
        for name, place in zip((first, second), places[outcome], strict=True):
            record[name][place] += 1
    return {name: (won, lost, tied) for name, (won, lost, tied) in record.items()}


def _first_won(
    votes: Sequence[tuple[Mapping[str, Any], str, str]], units: Sequence[Any], confidence: float
) -> Estimate:
    decided = [
        (float(row["preference"] == row["shown_first"]), of)
        for (row, _, _), of in zip(votes, units, strict=True)
        if row["preference"] != "tie" and row.get("shown_first")
    ]
    if not decided:
        return Estimate.missing("no vote was decided")
    return share_interval(unit_means([won for won, _ in decided], [of for _, of in decided]), confidence=confidence)
