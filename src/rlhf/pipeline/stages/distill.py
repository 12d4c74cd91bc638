"""On-policy distillation."""

from __future__ import annotations

from rlhf.config.training_stages import DistillStage
from rlhf.data.datasets import SFTDataset
from rlhf.data.message_text import counted
from rlhf.data.pack import Group
from rlhf.formatting import rounded
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import build_reference
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import load_policy, longest_row, save_model
from rlhf.pipeline.stages.rl import open_policy_and_prompts, read_eval_prompts
from rlhf.pipeline.stages.train import train


def run_distill(stage: DistillStage, at: StageContext) -> StageOutcome:
    """A student that learned a teacher's distributions, on texts of its own."""
    policy, prompts = open_policy_and_prompts(stage, at)
    result, metrics = train(
        stage, at, policy, prompts,
        teacher=load_policy(stage.teacher, at, seed=seed_of(stage.seed)).requires_grad_(False),
        reference=build_reference(policy), demonstrations=_read_demonstrations(stage, policy, at),
        eval_prompts=read_eval_prompts(stage, policy, at),
    )  # fmt: skip
    save_model(policy, stage, at, metrics)
    curve = [e["metrics"] for e in at.log.read("metrics") if "distill/divergence" in e["metrics"]]
    if not curve:  # somebody removed events.jsonl while the stage was unfinished
        return StageOutcome(counted(result.steps, "step"), metrics)
    first, last = (curve[place]["distill/divergence"] for place in (0, -1))
    metrics |= {"distill/divergence_first": first, "distill/divergence_last": last}
    return StageOutcome(
        f"{counted(stage.rollouts, 'rollout')}, {counted(result.steps, 'step')}, divergence from the teacher "
        f"{rounded(first)} -> {rounded(last)} nats/token",
        metrics,
    )


def _read_demonstrations(stage: DistillStage, policy: PolicyModel, at: StageContext) -> list[Group]:
    """Rows for the prompts that the student does not complete itself; none where there are none."""
    if stage.data is None:
        return []
    limit = longest_row(None, policy)
    rows = SFTDataset(
        at.paths(stage.data), policy.tokenizer, max_length=limit, truncation="drop", on_bad_row=stage.on_bad_row
    )
    at.log.write("note", message=f"data: {rows.report.to_text()}")
    return list(rows)
