"""A context compressor, trained."""

from __future__ import annotations

from rlhf.config.context_compression import CompressorStage
from rlhf.data.datasets import SFTDataset
from rlhf.data.message_text import counted
from rlhf.models.context_compressor import ContextCompressor
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import load_policy, num_rows, open_datasets
from rlhf.pipeline.stages.train import train
from rlhf.version import __version__


def run_compressor(stage: CompressorStage, at: StageContext) -> StageOutcome:
    """Queries, projection and adapter that put a context into vectors of one model."""
    policy = load_policy(stage.model, at, seed=seed_of(stage.seed))
    compressor = ContextCompressor(policy, num_vectors=stage.num_vectors, lora=stage.lora, seed=seed_of(stage.seed))
    rows, held_out = open_datasets(stage, at, SFTDataset, None, policy, {})
    result, metrics = train(stage, at, compressor, rows, held_out)
    card = {"stage": at.name, "version": __version__, "data": stage.data, "metrics": metrics}
    compressor.save_pretrained(at.folder / "compressor", card=card)
    loss = metrics.get("eval/loss", metrics["loss/nll"])
    full = f", {metrics['eval/full_loss']:.3f} with whole contexts" if "eval/full_loss" in metrics else ""
    return StageOutcome(
        f"{num_rows(rows, 'row')}, {counted(result.steps, 'step')}, {counted(stage.num_vectors, 'vector')} a context, "
        f"loss {loss:.3f} nats/token{full}",
        metrics,
    )
