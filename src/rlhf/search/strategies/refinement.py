"""Generate, criticize, revise; a revision is kept where a judge other than the critic agrees."""

from __future__ import annotations

from typing import Any

from rlhf.config.search_revision import PAIR_GAIN, RevisionConfig
from rlhf.rollout.types import Completion
from rlhf.search.contract import Ask, BudgetSpent, Choice, Search

ACCEPTED = "accepted"
"""Name of a result's detail: the revisions that were kept, in order, each with the draft that it replaced."""


def refine(
    ask: Ask,
    *,
    rounds: int = 3,
    samples: int = 1,
    min_gain: float = 0.0,
    min_pair_gain: float = PAIR_GAIN,
    revision: RevisionConfig | None = None,
) -> Search:
    """Revise one draft as long as the critic has something to say, and the judge likes the outcome better.

    Critique and revision by one model, over and over, is Self-Refine (Madaan et al. 2023, arXiv:2303.17651); that a model hardly finds its
    own mistakes so is why another decides what is kept (Huang et al. 2023, arXiv:2310.01798).

    Args:
        ask: The prompt.
        rounds: The most critiques; a draft that was not replaced is criticized again.
        samples: Revisions of each critique.
        min_gain: A revision is kept where its score is higher by more than this; one that was cut only in place of one that was cut.
        min_pair_gain: A kept revision is a preference pair where its score is higher by more than this.
        revision: How the draft is revised; by rewriting where None.
    """
    how = revision or RevisionConfig()
    (draft,) = yield ask.sample(1)
    (score,) = yield ask.score([draft])
    accepted: list[dict[str, Any]] = []
    asked = 0
    try:
        while asked < rounds:
            critique = yield ask.critique(draft)
            asked += 1
            if not critique.text:
                break
            revisions = yield ask.revise(draft, critique, how, num=samples)
            scores = yield ask.score(revisions)
            best = ask.best(revisions, scores)
            assert best.score is not None
            if best.score > score + min_gain and best.completion.truncated <= draft.truncated:
                accepted.append(_pair(draft, score, best, critique.text, min_pair_gain))
                draft, score = best.completion, best.score
    except BudgetSpent:
        pass  # what was kept so far is the answer
    return Choice(completion=draft, score=score, details={"critiques": asked, ACCEPTED: accepted})


def _pair(before: Completion, score: float, after: Choice, critique: str, min_gain: float) -> dict[str, Any]:
    assert after.score is not None
    return {
        "before": before.text,
        "after": after.completion.text,
        "before_ids": list(before.tokens),
        "after_ids": list(after.completion.tokens),
        "critique": critique,
        "scores": [score, after.score],
        "is_pair": after.score > score + min_gain,
    }
