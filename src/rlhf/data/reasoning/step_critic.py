"""The exact verifier as a critic of searches: it names the first wrong step, and keeps what stands before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf.data.reasoning.verify import split_steps, verify


def step_critic(
    prompts: Sequence[str], completions: Sequence[str], rejected: Sequence[str | None]
) -> list[dict[str, Any] | None]:
    """What is wrong with each solution; None for a sound one.

    It knows the truth, so a search with it shows what a perfect critic would bring and not what one that learned brings.

    Args:
        prompts: [n] problems of this world.
        completions: [n] their solutions.
        rejected: [n] not looked at: a step is right or wrong by itself.

    Raises:
        DataError: A prompt is not a problem of this world.
    """
    return [_critique(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]


def _critique(prompt: str, completion: str) -> dict[str, Any] | None:
    verdict, steps = verify(prompt, completion), split_steps(completion)
    if verdict.sound:
        return None
    if verdict.first_wrong is None:
        return {"text": "Every step is right, and the solution is not complete.", "keep": len(completion)}
    number = verdict.first_wrong
    return {
        "text": f"Step {number + 1}, {steps[number]!r}, is wrong; the steps before it are right.",
        "keep": sum(map(len, steps[:number])),
    }
