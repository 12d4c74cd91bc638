"""Policy against baseline on held-out prompts."""

from __future__ import annotations

from pathlib import Path

from rlhf.config.stages import EvaluateStage
from rlhf.data.datasets import PreferenceDataset
from rlhf.evaluation.evaluator import evaluate_policies
from rlhf.evaluation.overoptimisation import judge_rollouts
from rlhf.models.reward import RewardModel
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import load_policy, read_prompts
from rlhf.pipeline.stages.judging import open_judge


def run_evaluate(stage: EvaluateStage, at: StageContext) -> StageOutcome:
    """Policy against baseline on held-out prompts."""
    seed = seed_of(stage.seed)
    policy = load_policy(stage.policy, at, seed=seed)
    baseline = load_policy(stage.baseline, at, seed=seed)
    prompts = read_prompts(
        stage.prompts, policy, at, limit=stage.limit, max_prompt_length=stage.max_prompt_length, truncation="drop"
    )
    reward_model = RewardModel.from_pretrained(at.path(stage.reward_model)) if stage.reward_model else None
    pairs = PreferenceDataset(at.path(stage.pairs), policy.tokenizer) if stage.pairs else None
    judge = open_judge(stage.judge, at)
    with at.log.progress("evaluate", 2 * len(prompts) * stage.samples_per_prompt) as bar:
        evaluation = evaluate_policies(
            policy, baseline, prompts, judge,
            reward_model=reward_model, pairs=pairs, sampling=stage.sampling,
            samples_per_prompt=stage.samples_per_prompt, seed=seed, progress=bar.advance,
        )  # fmt: skip
    if stage.rollouts is not None:
        evaluation = evaluation.with_curve(judge_rollouts(Path(at.path(stage.rollouts)), judge))
    evaluation.write(at.folder / "evaluation.json")
    return StageOutcome(evaluation.headline(), evaluation.summary())
