"""Votes: sample some completions and give the answer that most of them give, or that has most of the scores."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from rlhf.rollout.types import Completion
from rlhf.search.answer_key import AnswerOf
from rlhf.search.contract import Ask, Choice, Search

KeyT = TypeVar("KeyT", bound=Hashable)


def majority_vote(ask: Ask, *, answer_of: AnswerOf, num_samples: int = 8) -> Search:
    """The commonest answer among the samples (self-consistency; Wang et al. 2022, arXiv:2203.11171).

    Args:
        ask: The prompt.
        answer_of: What two completions must have in common to be one answer.
        num_samples: How many vote.
    """
    candidates = yield ask.sample(num_samples)
    return elected(candidates, [1.0] * len(candidates), answer_of)


def weighted_vote(ask: Ask, *, answer_of: AnswerOf, num_samples: int = 8) -> Search:
    """The answer whose samples' scores sum highest (Li et al. 2022, arXiv:2206.02336; Wang et al. 2023, arXiv:2312.08935).

    Scores must not be negative, as those of process reward models and verifiers are not: with others an answer would lose by being given
    often. So where one is negative, the lowest score of the prompt counts as 0.

    Args:
        ask: The prompt.
        answer_of: What two completions must have in common to be one answer.
        num_samples: How many vote.
    """
    candidates = yield ask.sample(num_samples)
    scores = yield ask.score(candidates)
    return elected(candidates, vote_weights(scores), answer_of)


def vote_weights(scores: Sequence[float]) -> list[float]:
    """Scores as weights of votes, none below 0."""
    lowest = min(scores, default=0.0)
    return [score - min(lowest, 0.0) for score in scores]


def elected(candidates: Sequence[Completion], weights: Sequence[float], answer_of: AnswerOf) -> Choice:
    """The completion of the winning answer that has most weight; a completion without an answer has no vote.

    Where none has an answer, the one with most weight. The answer that was given first wins a tie.
    """
    answers = [answer_of(candidate.text) for candidate in candidates]
    votes = tally(answers, weights)
    if not votes:
        place = max(range(len(candidates)), key=weights.__getitem__)
        return Choice(completion=candidates[place], details={"votes": {}})
    winner = max(votes, key=votes.__getitem__)
    place = max((i for i, answer in enumerate(answers) if answer == winner), key=weights.__getitem__)
    return Choice(completion=candidates[place], score=votes[winner], details={"answer": winner, "votes": votes})


def tally(answers: Sequence[KeyT | None], weights: Sequence[float]) -> Mapping[KeyT, float]:
    """Answer -> its weight, in the order in which answers were first given; None has no vote."""
    votes: dict[KeyT, float] = {}
    for answer, weight in zip(answers, weights, strict=True):
        if answer is not None:
            votes[answer] = votes.get(answer, 0.0) + weight
    return votes
