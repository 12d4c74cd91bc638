"""Two models, layer by layer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from rlhf.config.merging import MergeConfig, ModelReference
from rlhf.errors import ConfigError, ModelError, kind_of
from rlhf.merging.layers import place_of, stacks
from rlhf.merging.merge_method import Parameter
from rlhf.merging.merger import ModelMerger
from rlhf.merging.parameters import value_of
from rlhf.merging.parents import open_parent

ALPHA = Parameter("alphas", "alphas", float)


@overload
def layer_wise_interpolation(
    model_a: nn.Module, model_b: nn.Module, alphas: float | Sequence[float], *, others: float | None = None
) -> nn.Module: ...
@overload
def layer_wise_interpolation(
    model_a: Path | str,
    model_b: Path | str,
    alphas: float | Sequence[float],
    *,
    others: float | None = None,
    folder: Path | str,
) -> Path: ...
def layer_wise_interpolation(
    model_a: Any, model_b: Any, alphas: float | Sequence[float], *, others: float | None = None, folder: Any = None
) -> Any:
    """(1 - alpha) A + alpha B, with an alpha for each layer.

    Args:
        model_a: A module, or a model's folder. alpha 0 is this model.
        model_b: Another of the same architecture, of the same kind of argument.
        alphas: One for all; one for each layer; or fewer, which are spread over the layers with lines between them.
        others: For embeddings, the last norm and the head; the first of ``alphas`` by default.
        folder: Where two folders' result is written; must not exist, or be empty.

    Returns:
        A new module on the first one's device, or the folder.

    Raises:
        ConfigError: ``alphas`` is empty, or has more numbers than the model has layers.
        ModelError: The models don't fit together.
    """
    anchors = [float(alphas)] if isinstance(alphas, int | float) else [float(alpha) for alpha in alphas]
    if not anchors:
        raise ConfigError("alphas is empty; give a number, or one for each layer.")
    if isinstance(model_a, nn.Module) and isinstance(model_b, nn.Module):
        if folder is not None:
            raise ConfigError("folder is for two folders; save the module that comes back.")
        return _modules(model_a, model_b, anchors, others)
    if not isinstance(model_a, Path | str) or not isinstance(model_b, Path | str):
        raise ConfigError(
            f"models are {kind_of(model_a)} and {kind_of(model_b)}; expected two modules (policy.model of a PolicyModel), or two folders."
        )
    if folder is None:
        raise ConfigError("Two folders are interpolated into a third; give folder=.")
    return _folders(str(model_a), str(model_b), anchors, others, Path(folder))


@torch.no_grad()
def _modules(first: nn.Module, second: nn.Module, anchors: list[float], others: float | None) -> nn.Module:
    theirs = dict(second.named_parameters())
    names = [name for name, _ in first.named_parameters()]
    if odd := sorted(theirs.keys() ^ set(names)):
        raise ModelError(
            f"Only one of the two models has the parameter {odd[0]}; only models of one architecture are merged."
        )
    counts = stacks(names)
    _check_count(anchors, max(counts.values(), default=0))
    made = copy.deepcopy(first)
    for name, parameter in made.named_parameters():
        other = theirs[name]
        if other.shape != parameter.shape:
            raise ModelError(
                f"{name} is {list(parameter.shape)} and {list(other.shape)}; tensors of different shapes are not merged."
            )
        alpha = _alpha(name, counts, anchors, others)
        working = torch.promote_types(parameter.dtype, torch.float32)
        mixed = (1 - alpha) * parameter.to(working) + alpha * other.to(parameter.device, working)
        parameter.copy_(mixed)
    return made


def _alpha(name: str, counts: dict[str, int], anchors: list[float], others: float | None) -> float:
    place = place_of(name)
    if place.layer is None or place.stack is None:
        return anchors[0] if others is None else others
    count = counts[place.stack]
    at = place.layer / (count - 1) if count > 1 else 1.0
    return float(value_of(anchors, ALPHA, name=name, at=at))


def _check_count(anchors: list[float], layers: int) -> None:
    if len(anchors) > max(1, layers):
        raise ConfigError(f"alphas has {len(anchors)} numbers, and the model has {layers} layers.")


def _folders(first: str, second: str, anchors: list[float], others: float | None, folder: Path) -> Path:
    parent = open_parent(ModelReference.of({"path": first}))
    stack = next(iter(parent.stacks), None)
    _check_count(anchors, parent.stacks[stack] if stack is not None else 0)

    def weight(values: list[float], other: float | None) -> Any:
        return values if other is None else [{"filter": f"{stack}.", "value": values}, {"value": other}]

    models = [
        {
            "model": first,
            "parameters": {"weight": weight([1 - alpha for alpha in anchors], None if others is None else 1 - others)},
        },
        {"model": second, "parameters": {"weight": weight(anchors, others)}},
    ]
    tree = {"merge_method": "linear", "models": models, "parameters": {"normalize": False}}
    ModelMerger(MergeConfig.of(tree, source="layer_wise_interpolation")).merge(folder)
    return folder
