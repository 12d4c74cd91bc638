"""Training a process reward model."""

from __future__ import annotations

from typing import Any

from rlhf.config.training_stages import ProcessRewardStage
from rlhf.data.datasets import PreferenceDataset, StepwiseDataset
from rlhf.data.message_text import counted
from rlhf.data.streaming import StreamingPreferenceDataset, StreamingStepwiseDataset
from rlhf.distributed.ranks import current_ranks
from rlhf.evaluation.intervals import Estimate
from rlhf.evaluation.process_quality import ProcessQuality, process_quality
from rlhf.evaluation.records import SCHEMA
from rlhf.files import write_json
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import choose_path, loading_to_train, num_rows, open_datasets, save_model
from rlhf.pipeline.stages.train import train


def run_prm(stage: ProcessRewardStage, at: StageContext) -> StageOutcome:
    """A judge of each step."""
    seed = seed_of(stage.seed)
    with loading_to_train():
        model = ProcessRewardModel.from_policy(
            at.model(stage.model),
            step_separator=stage.step_separator,
            aggregate=stage.aggregate,
            extra_layers=stage.extra_layers,
            head_dropout=stage.head_dropout,
            keep_language_head=stage.lm_coef > 0,
            seed=seed,
        )
    options: dict[str, Any] = {"truncation": stage.truncation}
    if stage.loss == "pairs":
        rows, held_out = open_datasets(stage, at, PreferenceDataset, StreamingPreferenceDataset, model, options)
    else:
        options["step_separator"] = stage.step_separator
        rows, held_out = open_datasets(stage, at, StepwiseDataset, StreamingStepwiseDataset, model, options)
    choose_path(model, rows, at)
    result, metrics = train(stage, at, model, rows, held_out)
    accuracy = "nothing held out"
    if held_out is not None and stage.loss == "pairs":
        accuracy = f"held-out accuracy {metrics['eval/accuracy']:.3f}"
    elif held_out is not None:
        quality = judge_steps(model, held_out, seed=seed)
        if current_ranks().is_main:
            write_json(at.folder / "evaluation.json", {"schema": SCHEMA, "process_reward_model": quality.to_dict()})
        metrics |= {"eval/first_wrong": quality.first_wrong.value, "eval/sound": quality.sound.value}
        metrics |= {"eval/f1": quality.f1.value, "eval/f1_low": quality.f1.low, "eval/f1_high": quality.f1.high}
        accuracy = (
            f"first wrong step {_words(quality.first_wrong)}, sound {_words(quality.sound)}, F1 {_words(quality.f1)}"
        )
    save_model(model, stage, at, metrics)
    noun = "pair" if stage.loss == "pairs" else "solution"
    return StageOutcome(f"{num_rows(rows, noun)}, {counted(result.steps, 'step')}, {accuracy}", metrics)


def judge_steps(model: ProcessRewardModel, solutions: StepwiseDataset, *, seed: int) -> ProcessQuality:
    """Whether it finds the first wrong step of held-out solutions and leaves sound ones alone; prompts are the units."""
    groups = list(solutions)
    order = sorted(range(len(groups)), key=lambda place: groups[place].num_tokens)
    judged = model.step_probabilities([groups[place] for place in order])
    scores = dict(zip(order, judged, strict=True))
    return process_quality(
        [[bool(label) for label in group.columns["labels"]] for group in groups],
        [scores[place] for place in range(len(groups))],
        seed=seed,
        units=[tuple(group.prefix) for group in groups],
    )


def _words(estimate: Estimate) -> str:
    if not estimate.measured:
        return f"not measured ({estimate.reason})"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
