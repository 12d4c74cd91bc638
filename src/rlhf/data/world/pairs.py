"""The annotator of the embedded world: the ground-truth judge, with slips."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from rlhf.data.world.judge import judge
from rlhf.errors import ConfigError
from rlhf.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled completion."""

    text: str
    """Decoded, without special tokens."""
    ended: bool
    """The model ended its turn; False where the length limit cut it off."""


class LabeledPair(TypedDict):
    """A row of a preference file."""

    prompt: str
    chosen: str
    rejected: str
    chosen_ended: bool
    """False where the completion was cut off: no end-of-sequence token belongs behind it."""
    rejected_ended: bool
    flipped: bool
    """The annotator slipped: chosen is the worse one."""
    gold_margin: float
    """Judge score of the better minus the worse completion, always > 0. Only for measuring; training on it would leak
    the ground truth."""


def label_pairs(samples: Iterable[tuple[str, Sequence[Sample]]], noise: float, seed: int) -> list[LabeledPair]:
    """Best against worst completion of each prompt by judge score; prompts whose best and worst tie are dropped.

    Args:
        samples: Each prompt with its sampled completions (the embedded world draws four).
        noise: Probability that a label is flipped, in [0, 0.5). Each prompt has its own draw, so a pair's label does
            not depend on which other prompts are there.
        seed: The run's seed.

    Returns:
        One row for each prompt that does not tie, in the order given.
    """
    if not 0.0 <= noise < 0.5:
        raise ConfigError(f"Label noise is {noise}; a probability of at least 0 and below 0.5 is wanted.")
    rows: list[LabeledPair] = []
    for prompt, completions in samples:
        texts, ended = [s.text for s in completions], [s.ended for s in completions]
        choice = annotate([prompt], [texts], ended=[ended], noise=noise, seed=seed)[0]
        if choice is None:
            continue
        chosen, rejected = completions[choice["chosen"]], completions[choice["rejected"]]
        rows.append(
            LabeledPair(
                prompt=prompt,
                chosen=chosen.text,
                rejected=rejected.text,
                chosen_ended=chosen.ended,
                rejected_ended=rejected.ended,
                flipped=choice["flipped"],
                gold_margin=choice["gold_margin"],
            )
        )
    return rows


class Choice(TypedDict):
    """What the annotator says about the completions of one prompt."""

    chosen: int
    """Number of the completion called better."""
    rejected: int
    flipped: bool
    """The annotator slipped: chosen is the worse one."""
    gold_margin: float
    """Judge score of the better minus the worse, always > 0; only for measuring."""


def annotate(
    prompts: Sequence[str],
    completions: Sequence[Sequence[str]],
    *,
    ended: Sequence[Sequence[bool]],
    noise: float,
    seed: int,
) -> list[Choice | None]:
    """Best against worst completion of each prompt by judge score; None where they tie.

    Args:
        prompts: [P].
        completions: [P] lists of decoded texts.
        ended: Whether each completion ended by itself.
        noise: Probability that a label is flipped, in [0, 0.5). Each prompt has its own draw, so a label does not depend
            on which other prompts are there.
        seed: The run's seed.
    """
    if not 0.0 <= noise < 0.5:
        raise ConfigError(f"Label noise is {noise}; a probability of at least 0 and below 0.5 is wanted.")
    choices: list[Choice | None] = []
    for prompt, texts, ends in zip(prompts, completions, ended, strict=True):
        scores = [judge(prompt, text, ended=end).score for text, end in zip(texts, ends, strict=True)]
        if not scores or max(scores) == min(scores):
            choices.append(None)
            continue
        better, worse = scores.index(max(scores)), scores.index(min(scores))
        flipped = random.Random(derive_seed(seed, "world", "label noise", prompt)).random() < noise
        chosen, rejected = (worse, better) if flipped else (better, worse)
        choices.append(Choice(chosen=chosen, rejected=rejected, flipped=flipped, gold_margin=max(scores) - min(scores)))
    return choices
