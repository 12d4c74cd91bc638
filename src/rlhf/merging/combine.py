"""One tensor of the output: its parents read, aligned, combined by the method, measured and rounded once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import ConfigError, ModelError, RLHFError, text_of
from rlhf.merging.arithmetic import distance, task_vectors
from rlhf.merging.merge_plan import MergePlan, TensorTask
from rlhf.merging.safetensors_file import Files
from rlhf.seeds import derive_seed

Surveyed = Mapping[str, Mapping[str, float]]
"""Keyword -> model -> value."""


def merged_tensor(plan: MergePlan, task: TensorTask, found: Surveyed, files: Files) -> tuple[Tensor, dict[str, Any]]:
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
    notes: dict[str, Any] = {}
    result = _called(plan, task, tensors, base, found, notes)
    row["result_norm"] = distance(result, None)
    if base is not None:
        row["result_distance"] = distance(result, base)
    row |= {
        key: dict(zip(task.models, value, strict=True)) if isinstance(value, list) else value
        for key, value in notes.items()
    }
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


def _called(
    plan: MergePlan,
    task: TensorTask,
    tensors: list[Tensor],
    base: Tensor | None,
    found: Surveyed,
    notes: dict[str, Any],
) -> Tensor:
    method, given = plan.method, dict(task.settings)
    for parameter in method.parameters.values():
        value = given.get(parameter.keyword)
        if parameter.each and not isinstance(value, list | None):
            given[parameter.keyword] = [value] * len(tensors)
    if "name" in method.given:
        given["name"] = task.name
    if "seeds" in method.given:
        given["seeds"] = [derive_seed(plan.config.seed, "merging", task.name, label) for label in task.models]
    if "notes" in method.given:
        given["notes"] = notes
    for keyword, values in found.items():
        given[keyword] = [values[label] for label in task.models]
    shape = tensors[0].shape if tensors else base.shape if base is not None else torch.Size()
    try:
        with torch.no_grad():
            result = method.function(tensors, base, **given)
    except RLHFError:
        raise
    except Exception as err:
        raise ModelError(
            f"merge method {plan.config.merge_method} failed on {task.name}: {type(err).__name__}: {text_of(err)}."
        ) from err
    if not isinstance(result, Tensor) or result.shape != shape:
        what = f"a tensor of shape {list(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
        raise ModelError(
            f"merge method {plan.config.merge_method} gave {what} for {task.name}; expected a tensor of shape {list(shape)}."
        )
    return result


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
    found = plan.method.survey(settings, Deltas())
    if found and any(
        task.models != models or task.settings.get("density") != tasks[0].settings.get("density") for task in tasks
    ):
        raise ConfigError(
            "parameters.density: what is asked of whole models takes one value for all tensors, no gradient, filter or slices."
        )
    return {keyword: dict(zip(models, values, strict=True)) for keyword, values in found.items()}
