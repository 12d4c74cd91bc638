"""Policy against baseline on held-out prompts."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf.config.stages import EvaluateStage
from rlhf.config.yaml_text import read_yaml
from rlhf.data.datasets import PreferenceDataset
from rlhf.errors import RewardError, RLHFError
from rlhf.evaluation.evaluator import evaluate_policies
from rlhf.evaluation.overoptimization import judge_rollouts
from rlhf.models.reward import RewardModel
from rlhf.pipeline.evidence import called, judge_called, judge_texts, training_between
from rlhf.pipeline.leakage import Leakage, recorded_leakage
from rlhf.pipeline.stages.context import StageContext, StageOutcome, resolved_reward, seed_of
from rlhf.pipeline.stages.inputs import load_policy, longest_row, read_prompts
from rlhf.pipeline.stages.judging import open_judge, tell_cuts
from rlhf.pipeline.validate.independence import leakage_in_recipe
from rlhf.pipeline.verdicts import independence_of
from rlhf.rollout.engines import build_engine


def run_evaluate(stage: EvaluateStage, at: StageContext) -> StageOutcome:
    """Policy against baseline on held-out prompts."""
    seed = seed_of(stage.seed)
    policy = load_policy(stage.policy, at, seed=seed)
    baseline = load_policy(stage.baseline, at, seed=seed)
    prompts = read_prompts(
        stage.prompts, policy, at, row_filter=stage.row_filter, workers=stage.data_workers,
        limit=stage.limit, max_prompt_length=stage.max_prompt_length, truncation="drop",
    )  # fmt: skip
    reward_model = RewardModel.from_pretrained(at.path(stage.reward_model)) if stage.reward_model else None
    pairs = None
    if stage.pairs and reward_model:  # it reads its own tokens, not the policy's, and no more than it was made for
        limits: Any = {"max_length": longest_row(None, reward_model), "truncation": "drop"}
        pairs = PreferenceDataset(at.path(stage.pairs), reward_model.tokenizer, **limits)
        at.log.write("note", message=f"pairs: {pairs.report.to_text()}")
    judge, knows = open_judge(stage.judge, at), judge_texts(resolved_reward(stage.judge, at), runs=at.run_dir.parent)
    whose = at.naming("judge", RewardError, what="The judge is")
    with whose, at.log.progress(at.name, 2 * len(prompts) * stage.samples_per_prompt) as bar:
        evaluation = evaluate_policies(
            policy, baseline, prompts, judge,
            reward_model=reward_model, pairs=pairs, sampling=stage.sampling,
            samples_per_prompt=stage.samples_per_prompt, seed=seed, progress=bar.advance,
            build_engine=functools.partial(build_engine, config=stage.engine),
            names=(called(stage.policy.path), called(stage.baseline.path)),
            judge_called=judge_called(stage.judge), judge_knows=None if isinstance(knows, str) else knows,
        )  # fmt: skip
    if stage.rollouts is not None:
        evaluation = evaluation.with_curve(judge_rollouts(Path(at.path(stage.rollouts)), judge))
    tell_cuts(judge, at, *evaluation.settings["proxy_cuts"])
    models = (at.model(model).path for model in (stage.policy, stage.baseline))
    training, untraced = training_between(*models, runs=at.run_dir.parent)
    missing = {"judge_unseen_frac": knows if isinstance(knows, str) else None, "training": untraced}
    evaluation = replace(
        evaluation,
        training=training,
        independence=independence_of(_seen(at)),
        missing={**evaluation.missing, **{name: why for name, why in missing.items() if why}},
    )
    evaluation.write(at.folder / "evaluation.json")
    return StageOutcome(evaluation.headline(), evaluation.summary())


def _seen(at: StageContext) -> Leakage | None:
    """What training saw of judge and prompts; None where nothing says."""
    if (recorded := recorded_leakage(at.folder)) is not None:
        return recorded
    try:
        return leakage_in_recipe(read_yaml(at.run_dir / "recipe.yaml"), at.name)
    except RLHFError:
        return None
