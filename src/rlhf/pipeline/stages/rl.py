"""What the policy stages (PPO, GRPO) share: prompts, judges, the reference, and how they end."""

from __future__ import annotations

from typing import Any

from rlhf.config.stages import PolicyStage
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group
from rlhf.data.words import counted
from rlhf.models.load import disable_dropout
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference, build_reference
from rlhf.pipeline.stages.context import StageContext, StageOutcome, resolved_reward
from rlhf.pipeline.stages.inputs import (
    ROWS_FOR_SELF_CHECK,
    choose_path,
    load_for_training,
    load_policy,
    read_prompts,
    save_model,
)
from rlhf.pipeline.words import rounded
from rlhf.rewards.factory import build_reward
from rlhf.rewards.types import Scorer, listen
from rlhf.training.loop import TrainResult


def open_rl_inputs(
    stage: PolicyStage, at: StageContext, *, seed: int
) -> tuple[PolicyModel, list[Prompt], Scorer, Reference]:
    """The policy, what it is asked, who judges, and what it is held to."""
    policy = load_for_training(stage.model, at, seed=seed)
    disable_dropout(policy.model)  # a noisy policy's ratios differ from 1 before it has learned anything
    prompts = read_prompts(
        stage.prompts, policy, at,
        limit=stage.limit, max_prompt_length=stage.max_prompt_length, truncation=stage.truncation,
    )  # fmt: skip
    rows = [Group(prompt.ids, [Branch(prompt.ids[-1:])]) for prompt in prompts[:ROWS_FOR_SELF_CHECK]]
    choose_path(policy, rows, at)
    scorer = build_reward(
        [resolved_reward(spec, at) for spec in stage.reward], tokenizer=policy.tokenizer, on_error="report"
    )
    listen(scorer, at.log.alarm)
    if stage.reference is not None:
        return policy, prompts, scorer, load_policy(stage.reference, at, seed=seed).requires_grad_(False)
    return policy, prompts, scorer, build_reference(policy)


def read_eval_prompts(stage: PolicyStage, policy: PolicyModel, at: StageContext) -> list[Prompt]:
    """Held-out prompts; none where none were given."""
    if stage.eval_prompts is None:
        return []
    return read_prompts(
        stage.eval_prompts, policy, at,
        max_prompt_length=stage.max_prompt_length, truncation=stage.truncation,
    )  # fmt: skip


def finish_rl(name: str, policy: PolicyModel, result: TrainResult, stage: Any, at: StageContext) -> StageOutcome:
    """Save the policy, and say how far it came from its first rollout to its last."""
    metrics = {**result.metrics, **result.evaluation}
    save_model(policy, stage, at, metrics)
    curve = [e["metrics"] for e in at.log.read("metrics") if f"{name}/score_mean" in e["metrics"]]
    if not curve:  # somebody removed events.jsonl while the stage was unfinished
        return StageOutcome(counted(result.steps, "step"), metrics)
    first, last = (curve[place][f"{name}/score_mean"] for place in (0, -1))
    metrics |= {f"{name}/score_first": first, f"{name}/score_last": last}
    return StageOutcome(
        f"{counted(len(curve), 'rollout')}, {counted(result.steps, 'step')}, reward {rounded(first, sign=True)} -> "
        f"{rounded(last, sign=True)}, KL {rounded(curve[-1][f'{name}/ref_kl'])} nats/sequence",
        metrics,
    )
