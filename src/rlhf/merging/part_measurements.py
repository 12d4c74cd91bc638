"""Numbers of one tensor for the report, gathered part by part, and the checks that nothing is NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import ModelError
from rlhf.merging.arithmetic import squared_distance
from rlhf.merging.merge_plan import TensorTask


class PartMeasurements:
    """Called with the inputs and then with the result of each part."""

    def __init__(self, task: TensorTask) -> None:
        """Of a task's tensor."""
        self._task = task
        self._names = dict(task.sources)
        self._squares: dict[str, float] = {}
        self._of_models: dict[str, float] = dict.fromkeys(task.models, 0.0)
        self._notes: dict[str, Any] = {}
        self._count = 0

    def inputs(self, tensors: Sequence[Tensor], base: Tensor | None) -> None:
        """What is about to be merged.

        Raises:
            ModelError: It holds NaN or infinity; names model and tensor.
        """
        if base is not None:
            self._add("base_norm", self._checked(str(self._task.base), base, None))
        for label, tensor in zip(self._task.models, tensors, strict=True):
            self._of_models[label] += self._checked(label, tensor, base)

    def result(self, result: Tensor, base: Tensor | None, notes: Mapping[str, Any]) -> Tensor:
        """What was merged, in its final type.

        Args:
            result: In arithmetic's type.
            base: The base's part.
            notes: Of the method.

        Raises:
            ModelError: It holds NaN or infinity, or does not fit its type.
        """
        square = squared_distance(result, None)
        self._add("result_norm", square)
        if base is not None:
            self._add("result_distance", squared_distance(result, base))
        self._note(notes, result.numel())
        final = result.to(self._task.dtype)
        if not math.sqrt(square) < torch.finfo(self._task.dtype).max and not bool(torch.isfinite(final).all()):
            what = (
                f"it does not fit {str(self._task.dtype).removeprefix('torch.')}"
                if torch.isfinite(result).all()
                else "the method gave NaN or infinity"
            )
            raise ModelError(f"The merged tensor {self._task.name} is not finite: {what}.")
        return final

    def row(self) -> dict[str, Any]:
        """For the report: norms are square roots of sums over parts, notes are means over elements."""
        of_models = {label: math.sqrt(square) for label, square in self._of_models.items()}
        norms = {key: math.sqrt(square) for key, square in self._squares.items()}
        key = "norm" if self._task.base is None else "distance"
        return norms | {key: of_models} | self._notes

    def _checked(self, label: str, tensor: Tensor, base: Tensor | None) -> float:
        square = squared_distance(tensor, base)
        if not math.isfinite(square) and not bool(torch.isfinite(tensor).all()):
            raise ModelError(
                f"{label}: {self._names[label]} holds NaN or infinity: its training diverged or the copy is damaged."
            )
        return square

    def _add(self, key: str, square: float) -> None:
        self._squares[key] = self._squares.get(key, 0.0) + square

    def _note(self, notes: Mapping[str, Any], count: int) -> None:
        before, self._count = self._count, self._count + count
        share = count / self._count if self._count else 1.0
        self._notes = {
            key: _mixed(self._notes[key], value, share) if before and key in self._notes else value
            for key, value in notes.items()
        }


def _mixed(before: Any, now: Any, share: float) -> Any:
    """The mean of what earlier parts noted and of what this one notes; anything but numbers is as it was noted last."""
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        return {key: _mixed(before.get(key, value), value, share) for key, value in now.items()}
    if isinstance(now, float):
        return before + (now - before) * share
    return now
