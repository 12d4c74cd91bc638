"""The embedded world: facts, demonstrations, prompts."""

from __future__ import annotations

import json

from rlhf.config.file_stages import WorldStage
from rlhf.data.world import build_world, train_tokenizer
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of


def run_world(stage: WorldStage, at: StageContext) -> StageOutcome:
    """The embedded world's files."""
    world = build_world(seed_of(stage.seed), at.folder, split_seed=stage.split_seed, num_documents=stage.num_documents)
    rows = world["rows"]
    if stage.vocab_size is not None:
        texts = [
            json.loads(line)["text"] for line in (at.folder / "pretrain.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        train_tokenizer(texts, stage.vocab_size).save_pretrained(at.folder / "tokenizer")
    return StageOutcome(
        f"{rows['sft.jsonl']} demonstrations, {rows['prompts.jsonl']} prompts, {rows['test_prompts.jsonl']} held-out prompts",
        rows,
    )
