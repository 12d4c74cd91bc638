"""Rows that teach a model to judge: how the stage is declared."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf.config.base import FunctionName, InputPath, TextOrFile
from rlhf.config.stage_inputs import RowsInput, StageConfig, listed


class JudgeRowsStage(StageConfig):
    """Turn preference pairs into a judge's prompts, with the verdict that people gave: demonstrations for SFT, prompts for GRPO."""

    kind: Literal["judge_rows"]
    runs = "judge_rows:run_judge_rows"
    pairs: InputPath | list[InputPath]
    """Preference pairs, or comparisons with ties."""
    template: TextOrFile = "pairwise"
    """What the judge is asked, as of a judge of type `local`: give that judge the same."""
    chat: bool = True
    """Write each prompt as the message of a user, as a model with a chat template is asked when it judges; false for one without."""
    orders: Literal["both", "random"] = "both"
    """Show each pair in both orders, so that no place is right more often; or in one, drawn by chance."""
    rationale: FunctionName | None = None
    """`package.module:function(prompts, first, second, verdicts, **columns) -> list[str]` that gives the thoughts before each verdict."""
    rationale_column: str | None = None
    """Column of the pairs with those thoughts, in which `{chosen}` and `{rejected}` stand for the letter of each; in place of `rationale`."""
    limit: int | None = Field(None, ge=1)
    """Use only this many pairs, the first ones."""
    seed: int | None = Field(None, ge=0)
    """Of `orders: random`; the recipe's by default."""

    @model_validator(mode="after")
    def _thinks_in_one_way(self) -> Self:
        if self.rationale is not None and self.rationale_column is not None:
            raise ValueError("thoughts come from `rationale` or from `rationale_column`; leave one of the two out")
        return self

    def rows_read(self) -> list[RowsInput]:
        """Pairs, ties included."""
        return [RowsInput("pairs", listed(self.pairs), "comparison", limit=self.limit)]

    def files_written(self) -> dict[str, str | None]:
        """The same questions with and without an answer."""
        return {"demonstrations.jsonl": "completion", "prompts.jsonl": "prompt"}
