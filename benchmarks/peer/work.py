"""Rows drawn from a seed, how many tokens they are, and how much of the arithmetic on them is useful.

Lengths are log-normal with sigma 0.6, completions end in EOS. The same rows go to both sides as ids; where the peer takes texts,
word n of the vocabulary is written ``wn``, and its tokenizer gives back exactly that id.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peer.cases import EOS, FIRST_WORD, Case, Shape

SIGMA = 0.6
SHORTEST = 4
EQUAL_LENGTHS = 4
"""Steps at the start of an ORPO run whose chosen completions are all of one length: TRL's likelihood term is a mean over tokens,
ours, like the paper's, one per completion, and these are equal only then."""

Row = dict[str, Any]
"""``prompt`` and ``completions`` (ids); ``label`` for KTO."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one optimizer step works on."""

    real: int
    """Every sequence with its own copy of the prompt."""
    unique: int
    """A shared prompt once."""
    padded: int
    """The rectangle of the longest sequence."""
    scored: int
    """Tokens with a log-probability: the completions'."""
    completions: int
    """Their tokens; the same as ``scored`` but for the reward model, which scores none."""

    @property
    def waste(self) -> float:
        """Tokens that padding and repeated prompts make of each distinct one."""
        return self.padded / self.unique


def draw_length(rng: random.Random, mean: int, *, longest: int = 896) -> int:
    """Log-normal with this mean, within what the model was made for."""
    drawn = rng.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA)
    return min(max(round(drawn), SHORTEST), longest)


def draw_rows(case: Case, *, count: int, seed: int = 0) -> list[Row]:
    """Rows of a case: as many as ``count`` says, the same for the same seed.

    Pairs have two completions, SFT's and KTO's rows one, prompts to sample from none. Prompts are distinct.
    """
    rng = random.Random(f"{seed} {case.method} {case.prompt_mean} {case.completion_mean} {case.shape.vocabulary}")
    per_row = {"sft": 1, "kto": 1, "grpo": 0, "ppo": 0, "generate": 0}.get(case.method, 2)

    def words(length: int) -> list[int]:
        return [rng.randrange(FIRST_WORD, case.shape.vocabulary) for _ in range(length)]

    rows = []
    for number in range(count):
        prompt = words(draw_length(rng, case.prompt_mean, longest=case.longest))
        lengths = [draw_length(rng, case.completion_mean, longest=case.longest) for _ in range(per_row)]
        if case.method == "orpo" and number < EQUAL_LENGTHS * case.rows:
            lengths[0] = case.completion_mean
        row: Row = {"prompt": prompt, "completions": [[*words(length - 1), EOS] for length in lengths]}
        if case.method == "kto":
            row["label"] = number % 2 == 0
        rows.append(row)
    return rows


def force_completions(rows: Sequence[Row], case: Case, *, whole: bool, seed: int = 0) -> list[Row]:
    """Rows to compare what two sides learn from the same completions, as if the policy had sampled them.

    Args:
        rows: Prompts.
        whole: All as long as allowed and without EOS: TRL's PPO counts one column more where a completion has an end.
    """
    rng = random.Random(f"forced {seed}")

    def completion() -> list[int]:
        length = case.max_new_tokens if whole else min(draw_length(rng, case.max_new_tokens // 2), case.max_new_tokens)
        ids = [rng.randrange(FIRST_WORD, case.shape.vocabulary) for _ in range(length)]
        return ids if length == case.max_new_tokens else [*ids[:-1], EOS]

    return [{**row, "completions": [completion() for _ in range(case.group)]} for row in rows]


def steps_of(rows: Sequence[Row], case: Case) -> Iterator[Sequence[Row]]:
    """The rows of each optimizer step."""
    for first in range(0, len(rows), case.rows):
        yield rows[first : first + case.rows]


def text_of(ids: Sequence[int]) -> str:
    """What the tokenizer of these models turns back into exactly these ids."""
    return " ".join("</s>" if token == EOS else f"w{token}" for token in ids)


def share_of_low_words(ids: Sequence[int], vocabulary: int) -> float:
    """The reward of both sides where one is needed: 100 times the share of tokens below the middle of the vocabulary. So large that
    what is added to a group's deviation before dividing by it (1e-4 or less) does not show."""
    return 100.0 * sum(token < vocabulary // 2 for token in ids) / len(ids)


def count_tokens(rows: Sequence[Row], *, scores_tokens: bool = True) -> Tokens:
    """Of one optimizer step.

    Args:
        rows: Prompts with their completions; every sequence is a prompt and one completion.
        scores_tokens: False for a reward model, which reads one number at the end of a sequence.
    """
    sequences = [len(row["prompt"]) + len(completion) for row in rows for completion in row["completions"]]
    completions = sum(len(completion) for row in rows for completion in row["completions"])
    return Tokens(
        real=sum(sequences),
        unique=sum(len(row["prompt"]) for row in rows) + completions,
        padded=len(sequences) * max(sequences),
        scored=completions if scores_tokens else 0,
        completions=completions,
    )


def forward_flop(shape: Shape, tokens: int, scored: int) -> float:
    """Of one forward pass: 2 for each weight of the body and token, and of the head and scored token. Attention's own
    products (4 x hidden x length for each token and layer; a few percent at these lengths) are left out, in favor of nobody."""
    return 2.0 * (shape.body_parameters * tokens + shape.head_parameters * scored)


def useful_flop(case: Case, tokens: Tokens) -> float:
    """What one optimizer step cannot do without, a backward pass counted as two forward ones.

    Reference log-probabilities of fixed rows are no part of it (they are computed once, whatever the number of epochs); KTO's
    mismatched completions are, under policy and reference. PPO: sampling, one pass each of reference, reward model and critic
    over what was sampled, then ``epochs`` times policy and critic forward and backward.
    """
    shape = case.shape
    policy = forward_flop(shape, tokens.unique, tokens.scored)
    backbone = forward_flop(shape, tokens.unique, 0)
    match case.method:
        case "generate":
            return policy
        case "kto":
            return 3 * policy + 2 * policy
        case "grpo":
            return policy + 3 * policy
        case "ppo":
            return policy + policy + 2 * backbone + case.epochs * 3 * (policy + backbone)
        case _:
            return 3 * policy


def share_of_peak(flop: float, seconds: float, peak: float) -> float:
    """Useful work as a share of the machine's matrix products (floating-point operations a second)."""
    return flop / seconds / peak
