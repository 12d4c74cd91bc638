"""Training a reward model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.config.training_stages import RewardStage
from rlhf.config.typical_learning_rates import far_from_usual
from rlhf.data.datasets import ComparisonDataset, KTODataset, PreferenceDataset, RankingDataset, RatingDataset
from rlhf.data.message_text import counted
from rlhf.data.pack import Group
from rlhf.data.streaming import (
    StreamingComparisonDataset,
    StreamingKTODataset,
    StreamingPreferenceDataset,
    StreamingRankingDataset,
    StreamingRatingDataset,
)
from rlhf.distributed.ranks import current_ranks
from rlhf.evaluation.records import SCHEMA
from rlhf.evaluation.reward_model_quality import judge_reward_model
from rlhf.files import write_json
from rlhf.formatting import percentage
from rlhf.models.reward import RewardModel
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import choose_path, loading_to_train, num_rows, open_datasets, save_model
from rlhf.pipeline.stages.train import train
from rlhf.training.metrics import describe

DATASETS: Mapping[str, tuple[Any, Any, str]] = {
    "preference": (PreferenceDataset, StreamingPreferenceDataset, "pair"),
    "comparison": (ComparisonDataset, StreamingComparisonDataset, "comparison"),
    "ranking": (RankingDataset, StreamingRankingDataset, "ranking"),
    "rating": (RatingDataset, StreamingRatingDataset, "rating"),
    "kto": (KTODataset, StreamingKTODataset, "verdict"),
}
"""What the loss learns from -> how it is read, in memory and as a stream, and what one is called."""


def run_reward(stage: RewardStage, at: StageContext) -> StageOutcome:
    """A reward model."""
    seed = seed_of(stage.seed)
    with loading_to_train():
        model = RewardModel.from_policy(
            at.model(stage.model),
            head=stage.head,
            head_dropout=stage.head_dropout,
            head_hidden_size=stage.head_hidden_size,
            num_models=stage.num_models,
            num_heads=stage.num_heads,
            seed=seed,
        )
    options: dict[str, Any] = {"truncation": stage.truncation}
    kind, streaming, noun = DATASETS[stage.rows_wanted]
    rows, held_out = open_datasets(stage, at, kind, streaming, model, options)
    choose_path(model, rows, at)
    result, metrics = train(stage, at, model, rows, held_out)
    accuracy = "nothing held out"
    if held_out is not None:
        summary = describe(metrics, {"eval/accuracy": "accuracy", "eval/error": "error"})
        accuracy = f"held-out {summary}" if summary else f"held-out rows are all ties (loss {metrics['eval/loss']:.3f})"
        if pairs := pairs_of(held_out):
            quality = judge_reward_model(model, pairs, seed=seed)
            if current_ranks().is_main:
                write_json(at.folder / "evaluation.json", {"schema": SCHEMA, "reward_model": quality.to_dict()})
            interval = quality.accuracy
            metrics |= {
                "eval/accuracy": interval.value,
                "eval/accuracy_low": interval.low,
                "eval/accuracy_high": interval.high,
            }
            accuracy = f"held-out accuracy {interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
            if interval.low <= 0.5:
                at.log.alarm(
                    f"{at.log.stage}: the reward model is right on {percentage(interval.value)} of "
                    f"{counted(len(pairs), 'held-out pair')}, between "
                    f"{percentage(interval.low)} and {percentage(interval.high)}: no better than a coin, as far as these pairs tell. It took "
                    f"{counted(result.steps, 'step')} on {num_rows(rows, noun)}. {_remedy(stage, model)} before a policy learns from it.",
                    step=result.steps, guard="reward_accuracy", metric="eval/accuracy", value=interval.value, limit=0.5, action="warn",
                )  # fmt: skip
    save_model(model, stage, at, metrics)
    return StageOutcome(f"{num_rows(rows, noun)}, {counted(result.steps, 'step')}, {accuracy}", metrics)


def _remedy(stage: RewardStage, model: RewardModel) -> str:
    """What to try with a model that has learned nothing, the likeliest first."""
    is_lora = stage.model.lora is not None
    far = far_from_usual(stage.learning_rate, stage.kind, model.num_parameters // stage.num_models, is_lora=is_lora)
    if far is None:
        return "Train longer or on more rows, or hold out more,"
    usual, summary = far
    return f"The learning rate {summary}: set learning_rate={usual:g}, then train longer or on more rows,"


def pairs_of(groups: Sequence[Group]) -> Sequence[Group]:
    """The pairs in held-out rows of which one completion is better, chosen first: of a ranking every such two, of a tie none.

    Completions that were judged one by one have none.
    """
    pairs: list[Group] = []
    for group in groups:
        ranks = group.columns.get("ranks")
        if ranks is None:
            pairs += [group] if len(group.branches) == 2 and not group.columns.get("tied") else []
            continue
        for first, second in itertools.combinations(range(len(ranks)), 2):
            best, worst = (first, second) if ranks[first] < ranks[second] else (second, first)
            if ranks[best] < ranks[worst]:
                columns = {**group.columns, "id": f"{group.columns.get('id')}#{best}-{worst}"}
                pairs.append(Group(group.prefix, [group.branches[best], group.branches[worst]], columns))
    return pairs
