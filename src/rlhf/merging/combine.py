"""One tensor of the output: its parents read, aligned, combined by the method, measured and rounded once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import ConfigError, ModelError
from rlhf.merging.arithmetic import distance, task_vectors
from rlhf.merging.merge_plan import MergePlan, TensorTask
from rlhf.merging.method_call import called
from rlhf.merging.safetensors_file import Files

Surveyed = Mapping[str, Mapping[str, float]]
"""Keyword -> model -> value."""


def merged_tensor(plan: MergePlan, task: TensorTask, surveyed: Surveyed, files: Files) -> tuple[Tensor, dict[str, Any]]:
    """A task's tensor in its final type, and its row of the report.

    Raises:
        ModelError: A parent holds NaN or infinity, buffers differ, or the method failed; names the tensor.
    """
    inputs = _inputs(plan, task, files)
    row: dict[str, Any] = {"name": task.name, "shape": list(task.shape), "layer": task.layer}
    if not task.dtype.is_floating_point:
        return _agreed(task, inputs), row
    norms = {label: distance(tensor, None) for label, tensor in inputs.items()}
    for label, norm in norms.items():
        if not torch.isfinite(torch.tensor(norm)) and not bool(torch.isfinite(inputs[label]).all()):
            raise ModelError(
                f"{label}: {dict(task.sources)[label]} holds NaN or infinity: its training diverged or the copy is damaged."
            )
    base = inputs.get(task.base) if task.base is not None else None
    if base is not None:
        row["base_norm"] = norms[str(task.base)]
        row["distance"] = {label: distance(inputs[label], base) for label in task.models}
    else:
        row["norm"] = norms
    tensors = [inputs[label] for label in task.models]
    settings = dict(task.settings) | {
        keyword: [values[label] for label in task.models] for keyword, values in surveyed.items()
    }
    result, notes = called(
        plan.method, plan.config.merge_method, tensors, base, settings, name=task.name, models=task.models, seed=plan.config.seed
    )  # fmt: skip
    row["result_norm"] = distance(result, None)
    if base is not None:
        row["result_distance"] = distance(result, base)
    row |= notes
    final = result.to(task.dtype)
    if not bool(torch.isfinite(torch.tensor(distance(final.to(task.working), None)))) and not bool(
        torch.isfinite(final).all()
    ):
        what = (
            f"it does not fit {str(task.dtype).removeprefix('torch.')}"
            if torch.isfinite(result).all()
            else "the method gave NaN or infinity"
        )
        raise ModelError(f"The merged tensor {task.name} is not finite: {what}.")
    return final, row


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
