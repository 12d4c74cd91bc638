"""Several judges together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from rlhf.config.judge_types.jury import JuryJudgeConfig
from rlhf.rewards.pairwise.grades import asking, grading_judge
from rlhf.rewards.pairwise.templates import JudgeTemplate
from rlhf.rewards.pairwise.votes import OnVote, Pair, PairwiseJudge, Vote, told


class Jury:
    """One verdict of several; it is missing unless more than half of the members have one.

    Args:
        members: Each a judge.
        combine: ``majority``: what more than half of those with a verdict say, else a tie; ``mean``: the mean of their outcomes.
        name: What results call it.

    Sources: small judges of different families: Verga et al. 2024, arXiv:2404.18796.
    """

    def __init__(
        self,
        members: Sequence[PairwiseJudge],
        *,
        combine: Literal["majority", "mean"] = "majority",
        name: str | None = None,
    ) -> None:
        self.members = list(members)
        self.combine = combine
        self.name = name or f"jury of {', '.join(member.name for member in members)}"
        self.symmetric = all(member.symmetric for member in members)
        self.member_names = _told_apart([member.name for member in members])
        self.identity: Mapping[str, Any] = {
            "type": "jury", "combine": combine, "members": [dict(member.identity) for member in members]
        }  # fmt: skip

    def grading(self) -> Jury:
        """The same members, asked for grades, whose mean is the jury's."""
        return Jury([grading_judge(member) for member in self.members], combine="mean", name=self.name)

    def with_template(self, template: JudgeTemplate) -> Jury:
        """The same members, asked by another prompt; their numbers are averaged."""
        return Jury([asking(member, template) for member in self.members], combine="mean", name=self.name)

    def votes(self, pairs: Sequence[Pair], on_vote: OnVote | None = None) -> list[Vote]:
        """A verdict on each pair, in the order given."""
        each = [member.votes(pairs) for member in self.members]
        return told([self._together(votes) for votes in zip(*each, strict=True)], on_vote)

    def _together(self, votes: Sequence[Vote]) -> Vote:
        outcomes = [vote.first for vote in votes if vote.first is not None]
        said = "; ".join(
            f"{name}: {vote.reason if vote.first is None else f'{vote.first:g}'}"
            for name, vote in zip(self.member_names, votes, strict=True)
        )
        vote = Vote(
            first=None,
            said=said,
            cost=sum(each.cost for each in votes),
            members=tuple(each.first for each in votes),
            silent=tuple(name for name, each in zip(self.member_names, votes, strict=True) if each.first is None),
        )
        if 2 * len(outcomes) <= len(votes):
            return replace(vote, reason=f"{len(outcomes)} of {len(votes)} members have a verdict")
        if self.combine == "mean":
            several = [each.values for each in votes if each.first is not None and each.values]
            if len({len(values) for values in several}) > 1:
                return replace(vote, reason="its members gave different counts of numbers")
            values = tuple(sum(each) / len(each) for each in zip(*several, strict=True))
            return replace(vote, first=sum(outcomes) / len(outcomes), values=values)
        for winner in (1.0, 0.0):
            if 2 * sum(abs(outcome - winner) < 0.5 for outcome in outcomes) > len(outcomes):
                return replace(vote, first=winner)
        return replace(vote, first=0.5)


def _told_apart(names: Sequence[str]) -> list[str]:
    """Names, the second of equal ones with its place in the jury."""
    return [name if name not in names[:place] else f"{name} ({place + 1})" for place, name in enumerate(names)]


def build_jury(config: JuryJudgeConfig, members: Sequence[PairwiseJudge]) -> Jury:
    """Of members that were built from its settings."""
    return Jury(members, combine=config.combine, name=config.name)
