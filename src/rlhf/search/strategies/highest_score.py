"""Best of N: sample some completions and answer with the one that the scorer likes best."""

from __future__ import annotations

from rlhf.search.contract import Ask, Search


def best_of_n(ask: Ask, *, num_samples: int = 8) -> Search:
    """The highest-scored of ``num_samples`` completions; the earlier one of equals.

    Args:
        ask: The prompt.
        num_samples: N.
    """
    candidates = yield ask.sample(num_samples)
    scores = yield ask.score(candidates)
    return ask.best(candidates, scores)
