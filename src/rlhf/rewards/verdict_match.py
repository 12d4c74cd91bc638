"""Verdicts of a judge in training, compared with people's."""

from __future__ import annotations

from typing import Any

from rlhf.config.verdict_reward import VerdictRewardConfig
from rlhf.errors import RewardError
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.pairwise.templates import OUTCOMES, read_verdict
from rlhf.rewards.rules import completion_text
from rlhf.rewards.types import RewardContext


def build_verdict(spec: VerdictRewardConfig, at: RewardContext) -> FunctionReward:
    """A function with the standard signature, called in this process.

    An answer is read exactly as a judge's is (``read_verdict``): one verdict in its last line, and not cut. One that can't be read earns
    0 here, though as a judge's it would be no verdict at all: the right verdict is known, and a judge that does not say it is wrong.
    Were it left out, the policy would learn to be silent about what is hard.
    """

    def agreement(prompts: list[Any], completions: list[Any], *, ended: list[bool], **columns: Any) -> list[float]:
        wanted = columns.get(spec.column)
        if wanted is None:
            raise RewardError(
                f"The reward verdict reads the column {spec.column!r} of the prompts, and they have none; `judge_rows` writes it."
            )
        if wrong := [value for value in wanted if value not in OUTCOMES]:
            raise RewardError(
                f"The column {spec.column!r} holds {wrong[0]!r}; a verdict is one of {', '.join(OUTCOMES)}."
            )
        return [
            float(read_verdict(completion_text(said), cut=not end).first == OUTCOMES[right])
            for said, end, right in zip(completions, ended, wanted, strict=True)
        ]

    return FunctionReward(agreement, name=spec.name or "verdict", in_process=True, on_error=at.on_error)
