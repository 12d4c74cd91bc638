"""A judge that is people: their votes on the very same completions."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.config.judge_types.human_judge import HumanJudgeConfig
from rlhf.rewards.pairwise.human_votes import HumanVotes, read_votes, votes_of_store
from rlhf.rewards.pairwise.votes import OnVote, Pair, Vote, told


class HumanJudge:
    """Looks votes up; a pair that nobody voted on has no verdict.

    Args:
        votes: Of people.
        name: What results call it.
    """

    symmetric = True

    def __init__(self, votes: HumanVotes, *, name: str = "people") -> None:
        self.human = votes
        self.name = name
        self.identity = {"type": "human", "content": votes.content}

    def votes(self, pairs: Sequence[Pair], on_vote: OnVote | None = None) -> list[Vote]:
        """A verdict on each pair, in the order given."""
        outcomes = [self.human.of(pair.prompt, pair.first, pair.second) for pair in pairs]
        missing = "nobody voted on these two completions"
        return told(
            [Vote(first=outcome, reason="" if outcome is not None else missing) for outcome in outcomes], on_vote
        )


def build_human_judge(config: HumanJudgeConfig) -> HumanJudge:
    """From a file or a store."""
    if config.labels is not None:
        return HumanJudge(read_votes(config.labels), name=config.name or "people")
    assert config.store is not None
    return HumanJudge(votes_of_store(config.store), name=config.name or "people")
