"""Problems for a policy that may use a calculator: demonstrations, problems to ask, a tokenizer."""

from __future__ import annotations

from rlhf.config.file_stages import CalculatorStage
from rlhf.data.calculator import build_calculator
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of


def run_calculator(stage: CalculatorStage, at: StageContext) -> StageOutcome:
    """The calculator's files."""
    rows = build_calculator(
        seed_of(stage.seed),
        at.folder,
        demonstrations=stage.num_demonstrations,
        prompts=stage.num_prompts,
        test_prompts=stage.num_test_prompts,
        tool_frac=stage.tool_frac,
    )
    return StageOutcome(
        f"{rows['sft.jsonl']} demonstrations, {rows['prompts.jsonl']} problems, {rows['test_prompts.jsonl']} held-out problems",
        rows,
    )
