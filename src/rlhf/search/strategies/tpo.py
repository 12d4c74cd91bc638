"""Test-time preference optimization: the reward's preferences, put into words, guide the next samples."""

from __future__ import annotations

from rlhf.config.search_revision import RevisionConfig
from rlhf.search.contract import Ask, BudgetSpent, Choice, Search


def tpo(ask: Ask, *, samples: int = 5, iterations: int = 2, revision: RevisionConfig | None = None) -> Search:
    """Sample, compare best and worst, draw advice from the comparison, and sample anew; the highest score of all is the answer.

        pool = samples of the prompt
        each iteration:  loss     = critic(best of pool, worst of pool)
                         gradient = critic(best of pool, loss)
                         pool    += samples of a revision of the best by the gradient

    Loss and gradient are texts, and no weight changes. Every sample stays in the pool, so the best never gets worse.

    Source: Li et al. 2025, section 4, arXiv:2501.12895, whose critic is the policy itself.

    Args:
        ask: The prompt.
        samples: N, drawn at first and in each iteration.
        iterations: D, the most; it ends where the critic has nothing to say.
        revision: How the best is revised; by rewriting where None.
    """
    how = revision or RevisionConfig()
    pool = yield ask.sample(samples)
    scores = yield ask.score(pool)
    asked = 0
    try:
        while asked < iterations:
            best = ask.best(pool, scores).completion
            worst = pool[min(range(len(scores)), key=scores.__getitem__)]
            rejected = worst if worst.text != best.text else None
            loss = yield ask.critique(best, rejected=rejected)
            asked += 1
            if not loss.text:
                break
            gradient = yield ask.advice(best, loss, rejected=rejected)
            new = yield ask.revise(best, gradient, how, num=samples)
            scores = [*scores, *(yield ask.score(new))]
            pool = [*pool, *new]
    except BudgetSpent:
        pool = pool[: len(scores)]
    answer = ask.best(pool, scores)
    return Choice(completion=answer.completion, score=answer.score, details={"comparisons": asked})
