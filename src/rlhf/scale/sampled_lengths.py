"""Lengths of completions that a policy has sampled, from a run's ``rollouts.jsonl``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.errors import DataError
from rlhf.evaluation.overoptimization import read_rollouts
from rlhf.scale.engine_speed import Row


@dataclass(frozen=True, slots=True)
class SampledLengths:
    """Of groups of siblings, which share a prompt."""

    source: str
    """The file."""
    groups: list[tuple[int, list[int]]]
    """Tokens of each prompt, and of its completions."""

    @property
    def pooled(self) -> list[int]:
        """Tokens of each completion."""
        return [length for _, lengths in self.groups for length in lengths]

    def batches(self, count: int, *, groups: int, group_size: int, longest: int, seed: int) -> list[list[list[Row]]]:
        """Batches of groups that are drawn with replacement; siblings stay together where groups are as large as asked for."""
        draw = np.random.default_rng(seed)
        fitting = [group for group in self.groups if len(group[1]) == group_size]
        pooled = np.asarray(self.pooled)

        def drawn() -> list[Row]:
            if fitting:
                prompt, lengths = fitting[int(draw.integers(len(fitting)))]
            else:
                prompt = self.groups[int(draw.integers(len(self.groups)))][0]
                lengths = draw.choice(pooled, size=group_size).tolist()
            return [Row(0, prompt, min(int(length), longest)) for length in lengths]

        return [[drawn() for _ in range(groups)] for _ in range(count)]


def read_sampled_lengths(path: Path | str) -> SampledLengths:
    """Lengths of a file of rollouts: `rollouts.jsonl` of a policy stage, whose rows are one completion each, siblings next to each other.

    Raises:
        DataError: A row has no token ids of prompt and completion, or there is no row.
    """
    groups = [(prompt, lengths) for (_, _, prompt), lengths in _siblings(read_rollouts(path), str(path))]
    if not groups:
        raise DataError(f"{path} has no row; wanted the rollouts.jsonl of a stage that samples")
    return SampledLengths(str(path), groups)


def _siblings(rows: Any, source: str) -> Iterator[tuple[tuple[Any, Any, int], list[int]]]:
    def read() -> Iterator[tuple[tuple[Any, Any, int], int]]:
        for number, row in enumerate(rows, start=1):
            prompt, completion = row.get("prompt_ids"), row.get("completion_ids")
            if not isinstance(prompt, Sequence) or not isinstance(completion, Sequence) or not completion:
                raise DataError(
                    f"{source}, row {number}: no lists of token ids under prompt_ids and completion_ids; wanted the rollouts.jsonl of a stage "
                    "that samples"
                )
            yield (row.get("step"), tuple(prompt), len(prompt)), len(completion)

    for key, group in groupby(read(), key=lambda item: item[0]):
        yield key, [length for _, length in group]
