"""Stages whose policy learns from rows of a file: fine-tuning, and learning from preferences or verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlhf.config.stages import OfflineStage
from rlhf.data.datasets import KTODataset, PreferenceDataset, SFTDataset
from rlhf.data.message_text import counted
from rlhf.data.streaming import StreamingPreferenceDataset, StreamingSFTDataset
from rlhf.models.load import disable_dropout
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import (
    choose_path,
    load_for_training,
    load_policy,
    num_rows,
    open_datasets,
    save_model,
)
from rlhf.pipeline.stages.train import train

DATASETS: Mapping[str, tuple[Any, Any, str]] = {
    "preference": (PreferenceDataset, StreamingPreferenceDataset, "pair"),
    "kto": (KTODataset, None, "completion"),
}
"""What a method learns from -> how it is read, in memory and as a stream, and what one row is called."""


def run_sft(stage: Any, at: StageContext) -> StageOutcome:
    """A fine-tuned policy."""
    policy = load_for_training(stage.model, at, seed=seed_of(stage.seed))
    options: dict[str, Any] = {"truncation": stage.truncation, "train_on": stage.train_on}
    rows, held_out = open_datasets(stage, at, SFTDataset, StreamingSFTDataset, policy, options)
    choose_path(policy, rows, at)
    result, metrics = train(stage, at, policy, rows, held_out)
    save_model(policy, stage, at, metrics)
    loss = metrics.get("eval/loss", metrics.get("loss/nll", metrics["loss/train"]))
    uniform = math.log(policy.model.config.get_text_config().vocab_size)
    if loss > uniform:
        at.log.alarm(
            f"{at.name}: the loss is {loss:.2f} nats per token, and guessing evenly among all tokens would give {uniform:.2f}. Does the "
            "tokenizer belong to this model, and is the text of the kind that it was trained on?"
        )
    more = f" ({len(held_out):,} more held out)" if stage.eval_frac and held_out is not None else ""
    return StageOutcome(
        f"{num_rows(rows, 'row')}{more}, {counted(result.steps, 'step')}, loss {loss:.3f} nats/token", metrics
    )


def run_preference(stage: Any, at: StageContext) -> StageOutcome:
    """A policy that learned which completions are better, or which are good."""
    policy = load_for_training(stage.model, at, seed=seed_of(stage.seed))
    disable_dropout(policy.model)  # both sides of a pair, and a reference, are compared without noise
    kind, streaming, noun = DATASETS[stage.rows_wanted]
    streaming = None if _scores_reference(stage) else streaming
    rows, held_out = open_datasets(stage, at, kind, streaming, policy, {"truncation": stage.truncation})
    choose_path(policy, rows, at)
    named = getattr(stage, "reference", None)
    reference = load_policy(named, at, seed=seed_of(stage.seed)).requires_grad_(False) if named is not None else None
    result, metrics = train(stage, at, policy, rows, held_out, reference=reference)
    save_model(policy, stage, at, metrics)
    return StageOutcome(
        f"{num_rows(rows, noun)}, {counted(result.steps, 'step')}, {_measured(stage.kind, metrics)}", metrics
    )


def _measured(kind: str, metrics: Mapping[str, float]) -> str:
    """Accuracy and margin, and of which rows: those held out, or else the few of the last step."""
    of = "eval" if "eval/accuracy" in metrics else kind
    accuracy, margin = metrics.get(f"{of}/accuracy"), metrics.get(f"{of}/reward_margin")
    if accuracy is None:
        return "accuracy not measured"
    counts = [metrics[name] for name in (f"{kind}/num_desirable", f"{kind}/num_undesirable") if name in metrics]
    which = f" ({counted(int(sum(counts)), 'row')})" if counts else ""
    whose = f"held-out accuracy {accuracy:.3f}" if of == "eval" else f"accuracy {accuracy:.3f} in the last step{which}"
    return whose if margin is None else f"{whose}, margin {margin:.2f}"


def _scores_reference(stage: OfflineStage) -> bool:
    """Whether a reference scores every row before the first step, so that a stream will not do."""
    return "reference" in type(stage).model_fields and not getattr(stage, "reference_free", False)
