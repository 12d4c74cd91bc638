"""What a judge of two completions is asked, and what it says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from rlhf.data.contracts import Text
from rlhf.data.expand import text_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two completions of one prompt, in the order in which the judge sees them."""

    prompt: Text
    first: str
    second: str
    ended: tuple[bool, bool] = (True, True)
    """Whether each came to its own end; False where the length limit cut it."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What else the prompt's row carries."""

    def swapped(self) -> Pair:
        """The same in the other order."""
        return replace(self, first=self.second, second=self.first, ended=(self.ended[1], self.ended[0]))

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for pairs that are the same question."""
        return text_key(self.prompt), self.first, self.second


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A verdict on one pair in one order."""

    first: float | None
    """1 where the first is better, 0 where the second is, 1/2 for a tie, or between; of a judge that grades single answers the grade of the
    first, from 1 to 10. None where there is none."""
    said: str = ""
    """The judge's own words."""
    reason: str = ""
    """Why there is none."""
    cost: float = 0.0
    """Dollars."""
    silent: tuple[str, ...] = ()
    """Members of a jury that had no verdict."""
    members: tuple[float | None, ...] = ()
    """What each member of a jury said, in the jury's order, as ``first``."""
    values: tuple[float, ...] = ()
    """Of a judge that was asked for several numbers, such as a grade by each criterion or the rank of each answer; then ``first`` is their
    mean, and says only that they could be read."""

    def swapped(self) -> Vote:
        """The same verdict on the pair in the other order."""
        return replace(self, first=_turned(self.first), members=tuple(map(_turned, self.members)))


def _turned(outcome: float | None) -> float | None:
    return None if outcome is None else 1 - outcome


OnVote = Callable[[int, Vote], None]
"""Called with the place of a pair and its verdict as soon as there is one, perhaps from another thread; not with one that is missing
because the judge refused the question, which it may answer another time."""


@runtime_checkable
class PairwiseJudge(Protocol):
    """Says which of two completions is better."""

    @property
    def name(self) -> str:
        """What results call it."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that decides its verdicts, for JSON, without secrets: another identity is another judge."""
        ...

    @property
    def symmetric(self) -> bool:
        """Whether the order can't matter, because each completion is scored by itself or by people who saw both."""
        ...

    def votes(self, pairs: Sequence[Pair], on_vote: OnVote | None = None) -> list[Vote]:
        """A verdict on each pair, in the order given.

        Args:
            pairs: [n].
            on_vote: See ``OnVote``.

        Raises:
            RewardError: The judge does not answer.
        """
        ...


def digest(value: Any) -> str:
    """16 hex digits of anything that JSON holds; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def judge_hash(judge: PairwiseJudge) -> str:
    """16 hex digits that change with whatever decides its verdicts."""
    return digest(judge.identity)


def told(votes: Sequence[Vote], on_vote: OnVote | None) -> list[Vote]:
    """All verdicts of a judge that gives them at once."""
    if on_vote is not None:
        for place, vote in enumerate(votes):
            on_vote(place, vote)
    return list(votes)
