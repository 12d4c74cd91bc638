"""Training a reward model."""

from __future__ import annotations

from typing import Any

from rlhf.config.stages import RewardStage
from rlhf.data.datasets import PreferenceDataset
from rlhf.data.streaming import StreamingPreferenceDataset
from rlhf.data.words import counted
from rlhf.evaluation.evaluator import judge_reward_model
from rlhf.evaluation.records import SCHEMA
from rlhf.files import write_json
from rlhf.models.reward import RewardModel
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import choose_path, num_rows, open_datasets, save_model
from rlhf.training.reward import RewardModelTrainer


def run_reward(stage: RewardStage, at: StageContext) -> StageOutcome:
    """A reward model."""
    seed = seed_of(stage.seed)
    model = RewardModel.from_policy(
        at.model(stage.model),
        head=stage.head,
        head_dropout=stage.head_dropout,
        num_models=stage.num_models,
        num_heads=stage.num_heads,
        seed=seed,
    )
    options: dict[str, Any] = {"truncation": stage.truncation}
    train, held_out = open_datasets(stage, at, PreferenceDataset, StreamingPreferenceDataset, model, options)
    choose_path(model, train, at)
    result = RewardModelTrainer(model, stage, train, held_out, log=at.log, checkpoint_dir=at.folder).train()
    metrics = {**result.metrics, **result.evaluation}
    accuracy = "nothing held out"
    if held_out is not None:
        quality = judge_reward_model(model, held_out, seed=seed)
        write_json(at.folder / "evaluation.json", {"schema": SCHEMA, "reward_model": quality.to_dict()})
        found = quality.accuracy
        metrics |= {"eval/accuracy": found.value, "eval/accuracy_low": found.low, "eval/accuracy_high": found.high}
        accuracy = f"held-out accuracy {found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
    save_model(model, stage, at, metrics)
    return StageOutcome(f"{num_rows(train, 'pair')}, {counted(result.steps, 'step')}, {accuracy}", metrics)
