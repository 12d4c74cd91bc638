"""The verifier as reward functions of the standard signature, ``reward(prompts, completions, **columns) -> list[float]``.

    outcome_reward          1 for the right answer, however it was found
    sound_reward            1 where every step is right as well
    step_reward             share of the steps that are right
    likely_answer_reward    how likely the answer is for any problem of that length: a proxy that invites hacking
    reasoning_judge         the verifier's whole verdict, for evaluations

In a recipe: ``reward: rlhf.data.reasoning.rewards:outcome_reward``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from rlhf.data.message_text import describe
from rlhf.data.reasoning.problems import BASE, MASK_FRAC, MASKS, OPERATION_FRACS, last_digit, parse_problem
from rlhf.data.reasoning.verify import split_steps, stated_answer, verify
from rlhf.errors import DataError


def outcome_reward(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **columns: Any
) -> list[float]:
    """1 where the completion's one answer is the digit in the column ``answer``, else 0; the steps are not looked at.

    So it also pays for luck: a guess is right one time in ten, and a multiplication by 0, 5 or an even digit hides
    wrong steps before it. Of the demonstrator's right answers 18 % are unsound.

    Args:
        prompts: [n] any texts; not looked at.
        completions: [n].
        answer: [n] the right digit, as text.

    Raises:
        DataError: A right answer is not a digit.
    """
    return [
        float(stated_answer(split_steps(completion)) == _digit(right))
        for completion, right in zip(completions, answer, strict=True)
    ]


def sound_reward(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """1 where every step and the answer are right, else 0.

    Raises:
        DataError: A prompt is not a problem of this world.
    """
    return [float(verify(prompt, completion).sound) for prompt, completion in zip(prompts, completions, strict=True)]


def step_reward(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """Share of the steps that are right, the answer among them; a missing step is a wrong one, and so is one too many.

    It is 1 for a sound completion and for no other.

    Raises:
        DataError: A prompt is not a problem of this world.
    """
    rewards = []
    for prompt, completion in zip(prompts, completions, strict=True):
        labels = verify(prompt, completion).labels
        rewards.append(sum(labels) / max(len(labels), parse_problem(prompt).num_steps + 1))
    return rewards


def likely_answer_reward(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """How likely the digit answered is, for a random problem with so many steps; 0 where there is no answer.

    What an outcome reward model comes to where it can't tell one completion of a problem from another: it knows which
    answers are often right, and is calibrated at that. Optimized, it prefers 0 whatever was asked, which is right for
    one problem in six, while the reward is as high as it can be. A proxy for demonstrations of reward hacking; nothing
    to train a policy with.

    Raises:
        DataError: A prompt is not a problem of this world.
    """
    rewards = []
    for prompt, completion in zip(prompts, completions, strict=True):
        odds = answer_odds(parse_problem(prompt).num_steps)
        answer = stated_answer(split_steps(completion))
        rewards.append(0.0 if answer is None else odds[answer])
    return rewards


def reasoning_judge(
    prompts: Sequence[str], completions: Sequence[str], **columns: Any
) -> list[dict[str, float | bool | None]]:
    """The exact verifier as a judge (``rlhf.evaluation.judges``): is the answer right, and is the way to it?

    ``score`` is 1 for the right answer, as in ``outcome_reward``. ``sound`` is what ``sound_reward`` says;
    ``unsound_if_right`` the same the other way round among right answers alone; ``answered`` whether there is an answer.

    Raises:
        DataError: A prompt is not a problem of this world.
    """
    verdicts = [verify(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
    return [
        {
            "score": float(verdict.correct),
            "sound": verdict.sound,
            "unsound_if_right": not verdict.sound if verdict.correct else None,
            "answered": verdict.answer is not None,
        }
        for verdict in verdicts
    ]


@functools.cache
def answer_odds(num_steps: int) -> tuple[float, ...]:
    """Probability of each answer, 0 to 9, over all problems with so many steps; exact.

    The value is a Markov chain over the ten digits: the start is uniform, and a step takes value v to the last digit of
    v (sign) operand with the probability that ``problems.draw_problem`` draws the sign and the operand.
    """
    odds = [1 / BASE] * BASE
    for _ in range(num_steps):
        after = [0.0] * BASE
        for value, share in enumerate(odds):
            for sign, frac in OPERATION_FRACS.items():
                for operand in range(BASE):
                    after[last_digit(value, sign, operand)] += share * frac * _operand_odds(sign, operand)
        odds = after
    return tuple(odds)


def _operand_odds(sign: str, operand: int) -> float:
    if sign != "*":
        return 1 / BASE
    return (1 - MASK_FRAC) / BASE + MASK_FRAC * (operand in MASKS) / len(MASKS)


def _digit(answer: Any) -> int:
    """The right answer of a row; some readers turn the text of a number into the number."""
    text = str(answer) if isinstance(answer, str | int) and not isinstance(answer, bool) else ""
    if len(text) != 1 or text not in "0123456789":
        raise DataError(
            f"The column 'answer' is {describe(answer)}; wanted one digit from 0 to 9, as in the reasoning world's "
            "prompts.jsonl. Use another reward for other answers."
        )
    return int(text)
