"""Contexts in fewer tokens: how the stages are declared that make rows with contexts, train a compressor and compare ways to shorten."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlhf.config.base import InputPath
from rlhf.config.model import LoRAConfig, ModelConfig
from rlhf.config.stage_inputs import OfflineStage, RowsInput, StageConfig, listed
from rlhf.config.training import MOST_EPOCHS, OfflineConfig


class ContextsStage(StageConfig):
    """Build contexts of the embedded world whose claims are true nowhere else, with a question about one of them."""

    kind: Literal["contexts"]
    runs = "contexts:run_contexts"
    seed: int | None = Field(None, ge=0)
    """Seeds claims and questions; the recipe's by default."""
    num_rows: int = Field(20_000, ge=1)
    """Contexts to learn from."""
    num_test_rows: int = Field(500, ge=1)
    """Contexts that no stage trains on."""
    num_claims: int = Field(6, ge=1, le=104)
    """Claims in a context for tests; contexts to learn from have 1 to as many."""

    def files_written(self) -> dict[str, str | None]:
        """The same rows with their context apart, and in the prompt."""
        return {
            "contexts.jsonl": "completion",
            "test_contexts.jsonl": "completion",
            "sft.jsonl": "completion",
        }


class CompressorConfig(OfflineConfig):
    """Learning to compress contexts into vectors: answers as likely as with the context, by the distributions of the model that reads it."""

    takes_vocab_parallel: ClassVar[bool] = False
    """Each rank has the whole model."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak learning rate."""
    epochs: float | None = Field(1, gt=0, le=MOST_EPOCHS)
    """Passes over the data."""
    distill_frac: float = Field(0.5, ge=0, le=1)
    """Share of the divergence from the model that reads the whole context in the loss; the rest is the negative log-likelihood of the
    completions."""
    nested: bool = True
    """Answer each row from the first 1, 2, 4 ... of its vectors, drawn by chance, so that a compressor can be used with fewer than it has."""
    max_length: int | None = Field(None, ge=2)
    """Longest prompt and completion in tokens, without the context."""
    max_context_length: int | None = Field(None, ge=1)
    """Longest context in tokens; a longer one is an error."""


class CompressorStage(CompressorConfig, OfflineStage):
    """Train a context compressor of a model; the model itself stays as it is."""

    rows_for = "sft"
    leaves = "files"
    kind: Literal["compressor"]
    runs = "compressor:run_compressor"
    trainer = "rlhf.training.compressor:CompressorTrainer"
    measures = ("eval/loss", "eval/full_loss", "eval/divergence")
    num_vectors: int = Field(4, ge=1)
    """Vectors that a context becomes."""
    lora: LoRAConfig | None = LoRAConfig()
    """An adapter of the encoding alone; null to learn queries and a projection only."""

    @model_validator(mode="after")
    def _all_rows_are_there(self) -> Self:
        if self.streaming:
            raise ValueError("streaming: contexts are tokenized before the first step; leave streaming out")
        return self

    def files_written(self) -> dict[str, str | None]:
        """What was learned, without the model."""
        return {"compressor/": None}


class ContextCompareStage(StageConfig):
    """Answer the same questions with whole contexts, without them, and with shortened ones: accuracy kept against tokens saved."""

    kind: Literal["context_compare"]
    runs = "context_compare:run_context_compare"
    policy: ModelConfig
    """Who answers."""
    data: InputPath | list[InputPath]
    """Rows with `context`, `prompt` and the `completion` that is right."""
    compressors: list[InputPath] = Field(default_factory=list)
    """Folders of compressors, such as `stage:NAME/compressor`; each was trained for `policy`."""
    num_vectors: list[int] | None = None
    """How many of their vectors to use, the first ones; null for all. Fewer make sense where a compressor was trained with `nested`."""
    extractive_tokens: list[int] = Field(default_factory=lambda: [8, 16])
    """Budgets of the extractive compressor, in tokens."""
    max_new_tokens: int = Field(64, ge=1)
    """Where an answer is cut."""
    limit: int | None = Field(None, ge=1)
    """Use only this many rows, the first of the file."""

    def rows_read(self) -> list[RowsInput]:
        """Questions with contexts."""
        return [RowsInput("data", listed(self.data), "sft", limit=self.limit)]

    def files_written(self) -> dict[str, str | None]:
        """What was measured, and every answer."""
        return {"evaluation.json": None, "answers.jsonl": None}
