"""One tensor of the output: its parents read, aligned, combined by the method, measured, rounded once and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import ConfigError, ModelError
from rlhf.merging.arithmetic import task_vectors
from rlhf.merging.merge_plan import MergePlan, TensorTask, count_of
from rlhf.merging.method_call import MethodCall
from rlhf.merging.part_measurements import PartMeasurements
from rlhf.merging.safetensors_file import Files
from rlhf.merging.tensor_parts import Reader, TensorParts, in_file, in_memory

Write = Callable[[int, Tensor], None]
"""Takes (number of the first element, elements) of the result."""
Surveyed = Mapping[str, Mapping[str, float]]
"""Keyword -> model -> value."""


def merge_tensor(plan: MergePlan, task: TensorTask, surveyed: Surveyed, files: Files, write: Write) -> dict[str, Any]:
    """Merge a task's tensor; part by part where its method can.

    Args:
        plan: Of the merge.
        task: The tensor.
        surveyed: What the method asked of whole models.
        files: Open files.
        write: Gets the result in its final type, part after part.

    Returns:
        The tensor's row of the report.

    Raises:
        ModelError: A parent holds NaN or infinity, buffers differ, or the method failed; names the tensor.
    """
    row: dict[str, Any] = {"name": task.name, "shape": list(task.shape), "layer": task.layer}
    if not task.dtype.is_floating_point:
        write(0, _agreed(task, _inputs(plan, task, files)))
        return row
    settings = dict(task.settings) | {
        keyword: [values[label] for label in task.models] for keyword, values in surveyed.items()
    }
    by_parts = is_by_parts(plan, task)
    readers, whole = _readers(plan, task, files)
    base = None if task.base is None else readers[task.base]
    parts = TensorParts([readers[label] for label in task.models], base, count_of(task.shape), task.working)
    call = MethodCall.prepared(
        plan.method, plan.config.merge_method, parts, settings, name=task.name, models=task.models, seed=plan.config.seed
    )  # fmt: skip
    measured = PartMeasurements(task)
    start = 0
    for tensors, base_part in parts if by_parts else [([whole[m] for m in task.models], whole.get(task.base or ""))]:
        measured.inputs(tensors, base_part)
        result = call(tensors, base_part)
        write(start, measured.result(result, base_part, call.named_notes()))
        start += result.numel()
    return row | measured.row()


def is_by_parts(plan: MergePlan, task: TensorTask) -> bool:
    """Whether parts of a task's tensors are merged one after the other."""
    return task.dtype.is_floating_point and bool(task.shape) and plan.method.by_parts(task.settings)


def is_read_by_parts(plan: MergePlan, task: TensorTask) -> bool:
    """Whether no tensor of a task is in memory as a whole: rows of joined vocabularies and adapters need that."""
    aligned = task.is_vocabulary and plan.vocabulary is not None
    adapted = any(plan.parents[label].adapters for label, _ in task.sources)
    return is_by_parts(plan, task) and not aligned and not adapted


def _readers(plan: MergePlan, task: TensorTask, files: Files) -> tuple[Mapping[str, Reader], Mapping[str, Tensor]]:
    """How parts of each model's tensor are read, and whole tensors where they are needed."""
    if is_read_by_parts(plan, task):
        places = {label: plan.parents[label].places[name] for label, name in task.sources}
        return {label: in_file(files, place, task.working) for label, place in places.items()}, {}
    whole = _inputs(plan, task, files)
    return {label: in_memory(tensor) for label, tensor in whole.items()}, whole


def _inputs(plan: MergePlan, task: TensorTask, files: Files) -> dict[str, Tensor]:
    inputs = {label: plan.parents[label].read(files, name, task.working) for label, name in task.sources}
    if task.is_vocabulary and plan.vocabulary is not None:
        base = plan.config.base_model.text if plan.config.base_model else None
        return plan.vocabulary.align(inputs, base)
    return inputs


def _agreed(task: TensorTask, inputs: Mapping[str, Tensor]) -> Tensor:
    """A buffer of whole numbers, which must be the same in all models."""
    first, *others = inputs.items()
    for label, tensor in others:
        if not torch.equal(tensor, first[1]):
            raise ModelError(
                f"{task.name} holds whole numbers that differ in {first[0]} and {label}; they can't be merged."
            )
    return first[1]


def survey(plan: MergePlan, files: Files) -> Surveyed:
    """What the method wants to know of whole models before it merges; empty for most.

    Raises:
        ConfigError: The method asks for what differs between tensors.
    """
    if plan.method.survey is None:
        return {}
    tasks = [task for task in plan.tasks if task.dtype.is_floating_point]
    if not tasks:
        return {}
    settings = dict(tasks[0].settings)
    models = tasks[0].models

    class Deltas:
        def __iter__(self) -> Iterator[list[Tensor]]:
            for task in tasks:
                inputs = _inputs(plan, task, files)
                assert task.base is not None
                yield task_vectors([inputs[label] for label in task.models], inputs[task.base])

    each = {p.keyword for p in plan.method.parameters.values() if p.each}
    settings |= {key: [settings[key]] * len(models) for key in each if not isinstance(settings[key], list)}
    by_keyword = plan.method.survey(settings, Deltas())
    if by_keyword and any(
        task.models != models or task.settings.get("density") != tasks[0].settings.get("density") for task in tasks
    ):
        raise ConfigError(
            "parameters.density: what is asked of whole models takes one value for all tensors, no gradient, filter or slices."
        )
    return {keyword: dict(zip(models, values, strict=True)) for keyword, values in by_keyword.items()}
