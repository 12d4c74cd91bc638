"""Beam search over steps: several next steps of each beam, of which those with the highest scores go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rlhf.rollout.types import Completion
from rlhf.search.contract import Ask, Choice, Search

Beam: TypeAlias = tuple[Completion | None, float]
"""A beginning of a completion, None for the prompt alone, and its score."""


def beam(ask: Ask, *, width: int = 1, samples: int = 4, distinct: bool = True, max_steps: int = 64) -> Search:
    """Keep the ``width`` best beginnings, step by step (Snell et al. 2024, section 5.2, arXiv:2408.03314).

    Each step, ``samples`` next steps are drawn of every beam that has not ended, and scored. A beam that ended keeps its place until
    better ones push it out; the search ends when all have ended. The scorer must be able to judge beginnings, as a process reward model
    is.

    Args:
        ask: The prompt.
        width: Beams that go on.
        samples: Next steps drawn of each.
        distinct: Equal beginnings hold one place among the beams, so that the beams differ.
        max_steps: The most steps; what has not ended then is answered as it is.
    """
    beams: list[Beam] = [(None, 1.0)]
    for _ in range(max_steps):
        going = beginnings(ask, beams)
        if not going:
            break
        groups = yield [ask.sample(samples, prefix=candidate, step=True) for candidate in going]
        # A request for the scores of each beam's children, so that they share what they begin with.
        children = [unlike(group) if distinct else group for group in groups]
        scores = yield [ask.score(group) for group in children]
        new = [pair for group, own in zip(children, scores, strict=True) for pair in zip(group, own, strict=True)]
        beams = sorted([*ended_beams(ask, beams), *new], key=lambda pair: -pair[1])[:width]
    return best_beam(ask, beams)


def beginnings(ask: Ask, beams: Sequence[Beam]) -> list[Completion | None]:
    """Of the beams that have not ended."""
    return [candidate for candidate, _ in beams if candidate is None or not ask.ended(candidate)]


def ended_beams(ask: Ask, beams: Sequence[Beam]) -> list[Beam]:
    """Those that nothing follows."""
    return [(candidate, score) for candidate, score in beams if candidate is not None and ask.ended(candidate)]


def best_beam(ask: Ask, beams: Sequence[Beam]) -> Choice:
    """The one with the highest score, of those that came to their own end where there are any."""
    whole = [(candidate, score) for candidate, score in beams if candidate is not None]
    own_end = [pair for pair in whole if ask.complete(pair[0])]
    completion, score = max(own_end or whole, key=lambda pair: pair[1])
    return Choice(completion=completion, score=score)


def unlike(candidates: Sequence[Completion]) -> list[Completion]:
    """Those with different tokens, the first of equals."""
    return list({tuple(candidate.tokens): candidate for candidate in reversed(candidates)}.values())[::-1]
