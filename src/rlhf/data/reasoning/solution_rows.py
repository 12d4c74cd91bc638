"""Solutions as rows of training data, with labels from the exact verifier.

    stepwise    prompt, completions, labels, level      for process reward models
    unpaired    prompt, completion, label, level        for outcome reward models: is the answer right?

Solutions of the demonstrator and of a policy are judged here by the same program.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
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
    """Is each step right, given the one before it? All are labeled, not only those up to the first mistake."""
    level: Level


class LabeledCompletion(TypedDict):
    """A sampled solution in a labeler's words, both verdicts together; its prompt is the one that was asked."""

    completions: list[str]
    labels: list[bool]
    label: bool
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


def label_completions(
    prompts: Sequence[str], completions: Sequence[Sequence[str]], *, seed: int, cut_frac: float = 0.0
) -> list[list[LabeledCompletion | None]]:
    """What a policy sampled, step by step, judged by the exact verifier: a labeler of ``step_labels`` stages.

    Some completions may be cut short and end in a guess. Policies seldom do that, so a reward model would not learn it
    from their samples; but a search that maximizes the reward model finds it.

    Args:
        prompts: [n] problems of this world.
        completions: [n] those sampled for each of them.
        seed: The run's seed.
        cut_frac: Share of completions that are cut short (0.15 in the measured recipe), in [0, 1]. Each completion has
            its own draw, so what is said of it does not depend on which others are there.

    Returns:
        [n] for each completion its steps and verdicts; None for an empty one, which has no step to label.

    Raises:
        DataError: A prompt is not a problem of this world.
    """
    if not 0.0 <= cut_frac <= 1.0:
        raise ConfigError(f"cut_frac is {cut_frac}; wanted the share of completions to cut short, from 0 to 1.")
    labeled: list[list[LabeledCompletion | None]] = []
    for prompt, group in zip(prompts, completions, strict=True):
        problem = parse_problem(prompt)
        of_problem: list[LabeledCompletion | None] = []
        for number, completion in enumerate(group):
            steps = split_steps(completion)
            draw = random.Random(derive_seed(seed, "reasoning", "cut short", prompt, number))
            if steps and draw.random() < cut_frac:
                steps = cut_short(steps, draw)
            of_problem.append(_labeled(problem, steps) if steps else None)
        labeled.append(of_problem)
    return labeled


def _labeled(problem: Problem, steps: Sequence[str]) -> LabeledCompletion:
    return LabeledCompletion(
        completions=list(steps),
        labels=list(label_steps(problem, steps)),
        label=stated_answer(steps) == problem.answer,
        level=problem.level,
    )
