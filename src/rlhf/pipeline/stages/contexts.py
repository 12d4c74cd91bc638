"""Contexts of the embedded world."""

from __future__ import annotations

from rlhf.config.context_compression import ContextsStage
from rlhf.data.world.contexts import build_contexts
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of


def run_contexts(stage: ContextsStage, at: StageContext) -> StageOutcome:
    """Rows with a context and a question."""
    rows = build_contexts(
        seed_of(stage.seed),
        at.folder,
        num_rows=stage.num_rows,
        num_test_rows=stage.num_test_rows,
        num_claims=stage.num_claims,
    )
    return StageOutcome(f"{rows['contexts.jsonl']:,} contexts, {rows['test_contexts.jsonl']:,} held out", rows)
