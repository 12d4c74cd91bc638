"""What a format must be able to do: refuse, write, read back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from rlhf.export.source_model import SourceModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """What was asked for; checked against the table of formats before."""

    quantization: str
    dtype: str
    shard_bytes: int

    @property
    def is_exact(self) -> bool:
        """Whether the outputs must be those of the original, up to the order of additions."""
        return self.quantization == "none" and self.dtype == "float32"


@dataclass(slots=True)
class WrittenModel:
    """What a writer says of its files."""

    files: list[str]
    """The files to hand on, the model first."""
    notes: list[str] = field(default_factory=list)
    """What a user of these files should know."""
    tensors: list[TensorDifference] = field(default_factory=list)
    """Each weight, read back from the files; empty for a format that keeps no weight by its name."""


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A weight as it was read back."""

    name: str
    stored_as: str
    """Type in the file."""
    difference: float
    """Largest absolute one from the original."""
    allowed: float
    """What rounding to this type can do, at the place where most of it was used up."""

    @property
    def passed(self) -> bool:
        """Whether it is not more than that."""
        return self.difference <= self.allowed


class OpenedModel(ABC):
    """A written model, read back from its files and ready to answer."""

    @abstractmethod
    def outputs(self, row: Sequence[int]) -> Tensor:
        """Float32 logits [T, V] of a row of T token ids; of a reward model its score [1]."""

    def greedy(self, prompts: Sequence[Sequence[int]], length: int) -> list[list[int]]:
        """The likeliest next token, so often; a format with a cache of its own uses it here.

        Args:
            prompts: Token ids; of different lengths.
            length: Tokens for each.
        """
        rows = [list(prompt) for prompt in prompts]
        for row in rows:
            for _ in range(length):
                row.append(int(self.outputs(row)[-1].argmax()))
        return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]


class FormatWriter(ABC):
    """Writes one format.

    Args:
        source: What is exported.
        settings: What was asked for.
    """

    def __init__(self, source: SourceModel, settings: ExportSettings) -> None:
        self.source, self.settings = source, settings

    @abstractmethod
    def check(self) -> None:
        """Refuse what the format can't hold, before anything is written.

        Raises:
            ModelError: Naming it.
        """

    @abstractmethod
    def write(self, folder: Path) -> WrittenModel:
        """Write the model into an empty folder, and read its weights back."""

    @abstractmethod
    def open(self, folder: Path) -> OpenedModel:
        """Read it back as a program that uses it would."""
