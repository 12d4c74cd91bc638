"""Solutions as rows of training data, with labels from the exact verifier.

    stepwise    prompt, completions, labels, level      for process reward models
    unpaired    prompt, completion, label, level        for outcome reward models: is the answer right?

Whoever wrote a solution, the demonstrator or a policy, it is judged here by the same program.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TypedDict

from rlhf.data.reasoning.problems import Level, Problem, parse_problem
from rlhf.data.reasoning.traces import cut_short
from rlhf.data.reasoning.verify import label_steps, split_steps, stated_answer
from rlhf.errors import ConfigError
from rlhf.seeds import derive_seed


class StepwiseRow(TypedDict):
    """A solution step by step."""

    prompt: str
    completions: list[str]
    """The steps; joined, they are the completion."""
    labels: list[bool]
    """Is each step right, given the one before it? All are labelled, not only those up to the first mistake."""
    level: Level


class OutcomeRow(TypedDict):
    """A solution as a whole."""

    prompt: str
    completion: str
    label: bool
    """The answer is right, however it was found."""
    level: Level


def stepwise_row(problem: Problem, steps: Sequence[str]) -> StepwiseRow:
    """A solution with a label for each step."""
    labels = list(label_steps(problem, steps))
    return StepwiseRow(prompt=problem.prompt, completions=list(steps), labels=labels, level=problem.level)


def outcome_row(problem: Problem, steps: Sequence[str]) -> OutcomeRow:
    """The same solution with one label, for its answer."""
    right = stated_answer(steps) == problem.answer
    return OutcomeRow(prompt=problem.prompt, completion="".join(steps), label=right, level=problem.level)


def label_samples(
    samples: Iterable[tuple[str, Sequence[str]]], *, cut_frac: float, seed: int
) -> tuple[list[StepwiseRow], list[OutcomeRow]]:
    """What a policy sampled, as rows for both kinds of reward model.

    Some are cut short and end in a guess. Policies seldom do that, so a reward model would not learn it from their
    samples; but a search that maximises the reward model finds it.

    Args:
        samples: Each prompt with its sampled completions. Empty completions are left out: they have no step to label.
        cut_frac: Share of completions that are cut short (0.15 in the measured recipe), in [0, 1]. Each completion has
            its own draw, so a row does not depend on which others are there.
        seed: The run's seed.

    Returns:
        Stepwise and outcome rows of the same completions, in the order given.

    Raises:
        DataError: A prompt is no problem of this world.
    """
    if not 0.0 <= cut_frac <= 1.0:
        raise ConfigError(f"cut_frac is {cut_frac}; wanted the share of completions to cut short, from 0 to 1.")
    stepwise, outcome = [], []
    for prompt, completions in samples:
        problem = parse_problem(prompt)
        for number, completion in enumerate(completions):
            steps = split_steps(completion)
            if not steps:
                continue
            draw = random.Random(derive_seed(seed, "reasoning", "cut short", prompt, number))
            if draw.random() < cut_frac:
                steps = cut_short(steps, draw)
            stepwise.append(stepwise_row(problem, steps))
            outcome.append(outcome_row(problem, steps))
    return stepwise, outcome
