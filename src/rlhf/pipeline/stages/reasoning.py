"""The reasoning world: problems, demonstrations, labeled solutions, a tokenizer."""

from __future__ import annotations

from rlhf.config.reasoning_stages import ReasoningStage
from rlhf.data.reasoning import build_reasoning, build_tokenizer
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of


def run_reasoning(stage: ReasoningStage, at: StageContext) -> StageOutcome:
    """The reasoning world's files."""
    world = build_reasoning(
        seed_of(stage.seed),
        at.folder,
        split_seed=stage.split_seed,
        num_demonstrations=stage.num_demonstrations,
        num_prompts=stage.num_prompts,
        num_test_prompts=stage.num_test_prompts,
    )
    build_tokenizer().save_pretrained(at.folder / "tokenizer")
    rows = world["rows"]
    return StageOutcome(
        f"{rows['sft.jsonl']} demonstrations, {rows['prompts.jsonl']} problems, {rows['test_prompts.jsonl']} held-out "
        "problems",
        rows,
    )
