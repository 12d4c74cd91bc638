"""Monte Carlo tree search over steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlhf.errors import ConfigError
from rlhf.rollout.types import Completion
from rlhf.search.contract import Ask, Choice, Search
from rlhf.search.strategies.step_beam import unlike


@dataclass(frozen=True, slots=True)
class Widening:
    """When a node is sampled again."""

    max_children: int
    """Most steps sampled of one node."""
    below: float
    """While its best child's score is below this share of its own."""


@dataclass(slots=True, eq=False)
class Node:
    """A beginning of a completion, or the prompt."""

    candidate: Completion | None
    score: float
    """Of what it says so far, in [0, 1]; 1 for the prompt."""
    ended: bool = False
    estimate: float | None = None
    """Of its value, before anything was found below it; its score where None."""
    prior: float = 1.0
    """Share of its parent's samples that took this step."""
    children: list[Node] = field(default_factory=list)
    counts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Tokens of a child -> how often they were sampled."""
    visits: int = 0
    total: float = 0.0
    """Sum of the values that came back through it."""
    pending: int = 0
    """Visits under way, each counted as a value of 0: a virtual loss."""

    @property
    def num_sampled(self) -> int:
        """Steps sampled from here."""
        return self.counts.total()

    @property
    def worth(self) -> float:
        """As a leaf."""
        return self.score if self.estimate is None else self.estimate

    @property
    def value(self) -> float:
        """Mean of the values that came back; its own estimate before the first."""
        known = self.total if self.visits else self.worth
        return known / (max(self.visits, 1) + self.pending)

    def may_widen(self, limits: Widening) -> bool:
        """Whether more steps are sampled from here: its best child is far below what it has itself."""
        best = max((child.score for child in self.children), default=0.0)
        return not self.ended and self.num_sampled < limits.max_children and best < limits.below * self.score

    def open(self, limits: Widening) -> bool:
        """Whether the search can still learn something below it."""
        if self.ended:
            return False
        if not self.counts or self.may_widen(limits):
            return True
        return any(child.open(limits) for child in self.children)


def mcts(
    ask: Ask,
    *,
    samples: int = 2,
    max_children: int = 16,
    widen_below: float = 0.5,
    exploration: float = 0.5,
    max_expansions: int = 128,
    leaves_at_once: int = 1,
    commit_after: int | None = None,
    stop_at: float | None = 0.9,
    value_weight: float = 0.0,
) -> Search:
    """PUCT over steps, a leaf's value by its score.

        argmax over children of  value + exploration prior sqrt(visits of the parent) / (1 + visits)

    An expansion samples ``samples`` next steps of a leaf and scores those that are new; the best score comes back to the root as a value.
    A node is expanded again, up to ``max_children`` samples, while its best child is below ``widen_below`` of its own score: without
    that, two wrong first steps are a dead end (progressive widening by quality). The scorer must judge beginnings, in [0, 1].

    Sources: Rosin 2011 and Silver et al. 2017 (PUCT with priors); Couetoux et al. 2011 (progressive widening; theirs goes by visits);
    Chaslot et al. 2008 (virtual loss); the settings' defaults were measured on the reasoning world (docs/results/search.md).

    Args:
        ask: The prompt.
        samples: Steps sampled in one expansion.
        max_children: Most steps sampled of one node, the cap.
        widen_below: 0 to expand each node once.
        exploration: Weight of the prior.
        max_expansions: The most of them.
        leaves_at_once: Leaves expanded in one call, kept apart by a virtual loss.
        commit_after: After so many expansions the root moves to its most visited child, whose subtree stays; None to search from the
            prompt throughout.
        stop_at: A completion with this score ends the search; None to use every expansion.
        value_weight: Share of the value model in the value of a leaf that is not complete; its estimates are held to [0, 1].

    Raises:
        ConfigError: A score is not from 0 to 1.
    """
    root = top = Node(None, 1.0)
    limits = Widening(max_children, widen_below)
    finished: list[Node] = []
    since_commit = expansions = outside = 0
    while expansions < max_expansions and root.open(limits):
        paths = _select_leaves(root, min(leaves_at_once, max_expansions - expansions), exploration, limits)
        groups = yield [
            ask.sample(min(samples, max(max_children - path[-1].num_sampled, 1)), prefix=path[-1].candidate, step=True)
            for path in paths
        ]
        new = [_new_steps(path[-1], group) for path, group in zip(paths, groups, strict=True)]
        scores = yield [ask.score(group) for group in new]
        if odd := [score for own in scores for score in own if not 0 <= score <= 1]:
            raise ConfigError(
                f"Tree search wants scores from 0 to 1, and the reward gave {odd[0]:g}; take a process reward model."
            )
        nodes = [
            [Node(each, score, ended=ask.ended(each)) for each, score in zip(group, own, strict=True)]
            for group, own in zip(new, scores, strict=True)
        ]
        if value_weight:
            open_ones = [node for children in nodes for node in children if not node.ended]
            estimates = yield ask.value([node.candidate for node in open_ones if node.candidate is not None])
            outside += _estimate(open_ones, estimates, value_weight)
        for path, children in zip(paths, nodes, strict=True):
            _grow(path, children)
            finished += [child for child in children if child.candidate is not None and ask.complete(child.candidate)]
        expansions, since_commit = expansions + len(paths), since_commit + len(paths)
        if stop_at is not None and any(node.score >= stop_at for node in finished):
            break
        if commit_after is not None and since_commit >= commit_after and root.children:
            root, since_commit = max(root.children, key=lambda child: (child.visits, child.score)), 0
    details = {"expansions": expansions, **({"values_outside": outside} if value_weight else {})}
    if finished:
        best = max(finished, key=lambda node: node.score)
        assert best.candidate is not None
        return Choice(completion=best.candidate, score=best.score, details=details)
    deepest = _best_leaf(top)
    if deepest.candidate is not None and deepest.ended:
        return Choice(completion=deepest.candidate, score=deepest.score, details=details)
    (whole,) = yield ask.sample(1, prefix=deepest.candidate)
    return Choice(completion=whole, details=details)


def _select_leaves(root: Node, count: int, exploration: float, limits: Widening) -> list[list[Node]]:
    """Paths from the root to different leaves; fewer where there are no more."""
    paths: list[list[Node]] = []
    for _ in range(count):
        path = [root]
        while path[-1].counts and not path[-1].may_widen(limits):
            choices = [child for child in path[-1].children if child.open(limits)]
            if not choices:
                break
            path.append(max(choices, key=lambda child: _puct(path[-1], child, exploration)))
        if any(path[-1] is other[-1] for other in paths):
            break
        for node in path:
            node.pending += 1
        paths.append(path)
    for path in paths:
        for node in path:
            node.pending -= 1
    return paths


def _puct(parent: Node, child: Node, exploration: float) -> float:
    visits = parent.visits + parent.pending
    return child.value + exploration * child.prior * math.sqrt(max(visits, 1)) / (1 + child.visits + child.pending)


def _new_steps(leaf: Node, group: Sequence[Completion]) -> list[Completion]:
    """The steps that the leaf has not; all are counted."""
    known = set(leaf.counts)
    leaf.counts.update(tuple(each.tokens) for each in group)
    return [each for each in unlike(group) if tuple(each.tokens) not in known]


def _grow(path: Sequence[Node], children: list[Node]) -> None:
    leaf = path[-1]
    leaf.children += children
    for child in leaf.children:
        assert child.candidate is not None
        child.prior = leaf.counts[tuple(child.candidate.tokens)] / leaf.num_sampled
    value = max((child.worth for child in children), default=max((child.worth for child in leaf.children), default=0.0))
    for node in path:
        node.visits += 1
        node.total += value


def _estimate(nodes: Sequence[Node], values: Sequence[float], weight: float) -> int:
    """Mix values into the nodes' worth; gives how many lay outside of [0, 1]."""
    for node, value in zip(nodes, values, strict=True):
        node.estimate = (1 - weight) * node.score + weight * min(max(value, 0.0), 1.0)
    return sum(not 0 <= value <= 1 for value in values)


def _best_leaf(root: Node) -> Node:
    """Down the best-scored children to one that has none."""
    node = root
    while node.children:
        node = max(node.children, key=lambda child: child.score)
    return node
