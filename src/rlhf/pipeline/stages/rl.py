"""Stages whose policy learns from rewards of its own completions: prompts, judges, the reference, and how far it came."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rlhf.config.offload_limits import Offloadable
from rlhf.config.stage_inputs import PolicyStage
from rlhf.config.training_stages import DistillStage
from rlhf.data.contracts import Prompt
from rlhf.data.message_text import counted
from rlhf.data.pack import Branch, Group
from rlhf.formatting import rounded
from rlhf.models.device import placed_on
from rlhf.models.load import disable_dropout
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference, ReferenceModel, build_reference
from rlhf.pipeline.stages.context import StageContext, StageOutcome, resolved_reward, seed_of
from rlhf.pipeline.stages.episode_setup import open_episodes
from rlhf.pipeline.stages.inputs import (
    ROWS_FOR_SELF_CHECK,
    choose_path,
    language_model_term,
    load_for_training,
    load_policy,
    read_prompts,
    save_model,
)
from rlhf.pipeline.stages.stage_pools import ended_afterwards, pool_of_rewards, pooled_reference
from rlhf.pipeline.stages.train import train
from rlhf.rewards.environment import with_environment
from rlhf.rewards.factory import build_reward
from rlhf.rewards.types import Scorer, listen


def run_rl(stage: Any, at: StageContext) -> StageOutcome:
    """A policy that learned from rewards without a critic."""
    policy, prompts = open_policy_and_prompts(stage, at)
    return train_rl(stage, at, policy, prompts)


def train_rl(
    stage: PolicyStage, at: StageContext, policy: PolicyModel, prompts: list[Prompt], **named: Any
) -> StageOutcome:
    """Open who judges and what the policy is held to, train, save the policy, and say how far it came.

    Args:
        stage: Settings.
        at: Where the stage works.
        policy: Who learns.
        prompts: What it is asked.
        named: What else the trainer takes by name.
    """
    scorer = _build_scorer(stage, policy, at)
    listen(scorer, at.log.alarm)
    eval_prompts = read_eval_prompts(stage, policy, at)
    episodes = open_episodes(stage, policy, at, prompts)
    engine = None
    if episodes is not None:
        prompts, eval_prompts, engine = episodes.prepared(prompts), episodes.prepared(eval_prompts), episodes.engine()
    reference = _open_reference(stage, policy, at)
    with ended_afterwards(scorer, reference, episodes):
        result, metrics = train(
            stage, at, policy, prompts, scorer, reference=reference,
            judge=_open_judge(stage, at), eval_prompts=eval_prompts, engine=engine, name=stage.kind,
            ptx=language_model_term(stage, policy, at), **named,
        )  # fmt: skip
    save_model(policy, stage, at, metrics)
    curve = [e["metrics"] for e in at.log.read("metrics") if f"{stage.kind}/score_mean" in e["metrics"]]
    if not curve:  # somebody removed events.jsonl while the stage was unfinished
        return StageOutcome(counted(result.steps, "step"), metrics)
    first, last = (curve[place][f"{stage.kind}/score_mean"] for place in (0, -1))
    metrics |= {f"{stage.kind}/score_first": first, f"{stage.kind}/score_last": last}
    kls = [e[f"{stage.kind}/ref_kl"] for e in curve if f"{stage.kind}/ref_kl" in e]
    kl = f", KL estimate {rounded(kls[-1])} nats/sequence" if kls else ""
    return StageOutcome(
        f"{counted(len(curve), 'rollout')}, {counted(result.steps, 'step')}, reward {rounded(first, sign=True)} -> "
        f"{rounded(last, sign=True)}{kl}",
        metrics,
    )


def open_policy_and_prompts(stage: PolicyStage | DistillStage, at: StageContext) -> tuple[PolicyModel, list[Prompt]]:
    """Who learns, without dropout and with the path that it takes, and what it is asked."""
    policy = load_for_training(stage.model, at, seed=seed_of(stage.seed))
    disable_dropout(policy.model)  # a noisy policy's ratios differ from 1 before it has learned anything
    prompts = read_prompts(
        stage.prompts, policy, at, columns=stage.columns,
        limit=stage.limit, max_prompt_length=stage.max_prompt_length, truncation=stage.truncation, row_filter=stage.row_filter,
        workers=stage.data_workers,
    )  # fmt: skip
    rows = [Group(prompt.ids, [Branch(prompt.ids[-1:])]) for prompt in prompts[:ROWS_FOR_SELF_CHECK]]
    choose_path(policy, rows, at)
    return policy, prompts


def _open_reference(stage: PolicyStage, policy: PolicyModel, at: StageContext) -> Reference:
    """The policy as it is, or a model that is named."""
    if (pooled := pooled_reference(stage, policy, at)) is not None:
        return pooled
    if stage.reference is not None:
        with _loaded_for(stage, "reference"):
            return load_policy(stage.reference, at, seed=seed_of(stage.seed)).requires_grad_(False)
    return ReferenceModel(policy) if stage.moving_reference is not None else build_reference(policy)


def _build_scorer(stage: PolicyStage, policy: PolicyModel, at: StageContext) -> Scorer:
    """The rewards that the recipe names, and the environment's own."""
    specs = [resolved_reward(spec, at) for spec in stage.reward]
    where: dict[str, Any] = {"tokenizer": policy.tokenizer, "folder": at.folder, "pool": pool_of_rewards()}
    with _loaded_for(stage, "reward"):
        scorer = build_reward(specs, on_error="report", **where) if specs else None
    if scorer is not None and stage.environment is None:
        return scorer
    return with_environment(scorer)


def _open_judge(stage: PolicyStage, at: StageContext) -> Scorer | None:
    """Who judges held-out completions; None where nobody does."""
    if stage.judge is None:
        return None
    judging = importlib.import_module(f"{__package__}.judging")  # by text: who only watches is not in the stage's key
    with _loaded_for(stage, "reward"):
        judge: Scorer = judging.HeldOutJudge(judging.open_judge(stage.judge, at, on_error="report"))
    return judge


def _loaded_for(stage: PolicyStage, which: Offloadable) -> AbstractContextManager[object]:
    """Inside, frozen models are loaded where they wait: on the CPU where ``offload`` names them."""
    return placed_on("cpu") if which in stage.offload else nullcontext()


def read_eval_prompts(stage: PolicyStage | DistillStage, policy: PolicyModel, at: StageContext) -> list[Prompt]:
    """Held-out prompts; none where none were given."""
    if stage.eval_prompts is None:
        return []
    return read_prompts(
        stage.eval_prompts, policy, at, key="eval_prompts", columns=stage.columns,
        max_prompt_length=stage.max_prompt_length, truncation=stage.truncation,
    )  # fmt: skip
