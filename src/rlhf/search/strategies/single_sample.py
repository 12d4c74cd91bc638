"""One completion: drawn, or the likeliest token each time. What every search is compared with."""

from __future__ import annotations

from rlhf.search.contract import Ask, Search


def greedy(ask: Ask) -> Search:
    """The likeliest token each time."""
    (only,) = yield ask.sample(1, temperature=0.0)
    return only


def single_sample(ask: Ask) -> Search:
    """One draw."""
    (only,) = yield ask.sample(1)
    return only
