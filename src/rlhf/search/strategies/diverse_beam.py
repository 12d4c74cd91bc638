"""Diverse beam search over steps: groups of beams, kept apart by a penalty on steps that earlier groups took; without it, DVTS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rlhf.rollout.types import Completion
from rlhf.search.contract import Ask, Request, Search
from rlhf.search.strategies.step_beam import Beam, beginnings, best_beam, ended_beams, unlike

Step: TypeAlias = tuple[int, ...]
"""The newest step's tokens."""


@dataclass(frozen=True, slots=True)
class Child:
    """A beginning of a completion that a group drew."""

    candidate: Completion
    score: float
    step: Step


def diverse_beam(
    ask: Ask,
    *,
    groups: int = 4,
    width: int = 1,
    samples: int = 4,
    diversity_penalty: float = 0.0,
    max_steps: int = 64,
) -> Search:
    """Several beam searches side by side, the best answer of all; each keeps away from what those before it took.

    Each step, ``samples`` next steps are drawn of every beam that has not ended, and scored. Then the groups choose one after another,
    each the ``width`` of its own children with the highest

        score - diversity_penalty * number of beams of earlier groups whose newest step is the same

    (the Hamming diversity of Vijayakumar et al. 2016, arXiv:1610.02424, with steps in place of tokens). The penalty
    decides who goes on and is not part of a beam's score. With a penalty of 0 the groups are independent, and with a width of 1, too,
    this is diverse verifier tree search (DVTS; Beeching, Tunstall and Rush 2024, "Scaling test-time compute with open models");
    with one group it is ``beam``. Groups that hold the same beginning have it read and equal children scored once.

    Args:
        ask: The prompt.
        groups: Beam searches; DVTS calls them subtrees.
        width: Beams of a group that go on; equal ones hold one place.
        samples: Next steps drawn of each beam.
        diversity_penalty: In units of the score; with scores from 0 to 1, at 1 a step that an earlier group took goes on only where a
            group has no other.
        max_steps: The most steps; what has not ended then is answered as it is.
    """
    beams: list[list[Beam]] = [[(None, 1.0)] for _ in range(groups)]
    for _ in range(max_steps):
        going = [beginnings(ask, group) for group in beams]
        if not any(going):
            break
        new = yield from _children(ask, going, samples)
        taken: Counter[Step] = Counter()
        for place, children in enumerate(new):
            # What ended keeps its place by its score: it takes no step, so it repeats none.
            choices: list[tuple[float, Beam, Step | None]] = [
                (each[1], each, None) for each in ended_beams(ask, beams[place])
            ]
            choices += [
                (child.score - diversity_penalty * taken[child.step], (child.candidate, child.score), child.step)
                for child in children
            ]
            chosen = sorted(choices, key=lambda choice: -choice[0])[:width]
            beams[place] = [each for _, each, _ in chosen]
            taken.update(step for _, _, step in chosen if step is not None)
    return best_beam(ask, [each for group in beams for each in group])


def _children(
    ask: Ask, going: Sequence[Sequence[Completion | None]], samples: int
) -> Generator[list[Request], Any, list[list[Child]]]:
    """[groups] of each group's beginnings the different ones of ``samples`` next steps, scored."""
    holders: dict[tuple[int, ...], list[int]] = {}
    """Tokens of a beginning -> the groups that go on from it."""
    parents: dict[tuple[int, ...], Completion | None] = {}
    for place, group in enumerate(going):
        for candidate in group:
            tokens = () if candidate is None else tuple(candidate.tokens)
            parents.setdefault(tokens, candidate)
            holders.setdefault(tokens, []).append(place)
    drawn = yield [
        ask.sample(samples * len(places), prefix=parents[tokens], step=True) for tokens, places in holders.items()
    ]
    different = [unlike(each) for each in drawn]
    scores = yield [ask.score(each) for each in different]
    children: list[list[Child]] = [[] for _ in going]
    for (tokens, places), steps, own, values in zip(holders.items(), drawn, different, scores, strict=True):
        known = {
            tuple(each.tokens): Child(each, score, tuple(each.tokens[len(tokens) :]))
            for each, score in zip(own, values, strict=True)
        }
        for number, place in enumerate(places):
            share = steps[number * samples : (number + 1) * samples]
            children[place] += [known[tuple(each.tokens)] for each in unlike(share)]
    return children
