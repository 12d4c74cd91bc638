"""A method called on one tensor of each model, with what it asks for, and its result checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import ModelError, RLHFError, text_of
from rlhf.merging.merge_method import MergeMethod
from rlhf.seeds import derive_seed


def called(
    method: MergeMethod,
    method_name: str,
    tensors: list[Tensor],
    base: Tensor | None,
    settings: Mapping[str, Any],
    *,
    name: str,
    models: Sequence[str],
    seed: int,
) -> tuple[Tensor, dict[str, Any]]:
    """The merged tensor, and what the method noted for the report: a list it noted has one number for each model.

    Args:
        method: To call.
        method_name: What errors call it.
        tensors: One of each model, in arithmetic's type; the method may overwrite them.
        base: The base's, or None.
        settings: By keyword; one value where a method takes one for each model stands for all.
        name: The tensor's.
        models: As the file names them; what is drawn for one depends on its name, not on its place.
        seed: The merge's.

    Raises:
        ModelError: The method failed, or gave something else than a tensor of this shape; names the tensor.
    """
    given = dict(settings)
    for parameter in method.parameters.values():
        value = given.get(parameter.keyword)
        if parameter.each and value is not None and not isinstance(value, list):
            given[parameter.keyword] = [value] * len(tensors)
    notes: dict[str, Any] = {}
    seeds = [derive_seed(seed, "merging", name, model) for model in models]
    given |= {key: value for key, value in (("name", name), ("seeds", seeds), ("notes", notes)) if key in method.given}
    shape = tensors[0].shape if tensors else base.shape if base is not None else torch.Size()
    try:
        with torch.no_grad():
            result = method.function(tensors, base, **given)
    except RLHFError:
        raise
    except Exception as err:
        raise ModelError(f"merge method {method_name} failed on {name}: {type(err).__name__}: {text_of(err)}.") from err
    if not isinstance(result, Tensor) or result.shape != shape:
        what = f"a tensor of shape {list(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
        raise ModelError(
            f"merge method {method_name} gave {what} for {name}; expected a tensor of shape {list(shape)}."
        )
    named = {
        key: dict(zip(models, value, strict=True)) if isinstance(value, list) and len(value) == len(models) else value
        for key, value in notes.items()
    }
    return result, named
