"""A method called on one tensor of each model, whole or part by part, with what it asks for, and its result checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from rlhf.errors import ModelError, RLHFError, text_of
from rlhf.merging.merge_method import MergeMethod
from rlhf.merging.tensor_parts import TensorParts
from rlhf.seeds import derive_seed

T = TypeVar("T")


@dataclass
class MethodCall:
    """A method with all that it is given for one tensor of the output.

    Args:
        method: To call.
        method_name: What errors call it.
        name: The tensor's.
        models: As the file names them; what is drawn for one depends on its name, not on its place.
        keywords: The function's; notes are put into ``notes``.
        notes: For the report, of the last call.
    """

    method: MergeMethod
    method_name: str
    name: str
    models: Sequence[str]
    keywords: dict[str, Any]
    notes: dict[str, Any]

    @classmethod
    def prepared(
        cls,
        method: MergeMethod,
        method_name: str,
        parts: TensorParts,
        settings: Mapping[str, Any],
        *,
        name: str,
        models: Sequence[str],
        seed: int,
    ) -> MethodCall:
        """With what the method wants to know of the tensors beforehand.

        Args:
            method: To call.
            method_name: What errors call it.
            parts: One tensor of each model.
            settings: By keyword; one value where a method takes one for each model stands for all.
            name: The tensor's.
            models: As the file names them.
            seed: The merge's.

        Raises:
            ModelError: The method failed; names the tensor.
        """
        keywords = dict(settings)
        for parameter in method.parameters.values():
            value = keywords.get(parameter.keyword)
            if parameter.each and value is not None and not isinstance(value, list):
                keywords[parameter.keyword] = [value] * len(models)
        notes: dict[str, Any] = {}
        keywords |= {
            "name": name,
            "notes": notes,
            "seeds": [derive_seed(seed, "merging", name, model) for model in models],
        }
        call = cls(method, method_name, name, models, {}, notes)
        if method.prepare is not None:
            prepare = method.prepare
            keywords["prepared"] = call._guarded(lambda: prepare(parts, keywords))
        call.keywords = {key: value for key, value in keywords.items() if key in method.taken}
        return call

    def __call__(self, tensors: list[Tensor], base: Tensor | None) -> Tensor:
        """The merged tensor, or the merged part.

        Args:
            tensors: One of each model, in arithmetic's type; the method may overwrite them.
            base: The base's, or None.

        Raises:
            ModelError: The method failed, or gave something else than a tensor of this shape; names the tensor.
        """
        shape = tensors[0].shape if tensors else base.shape if base is not None else torch.Size()
        result: Any = self._guarded(lambda: self.method.function(tensors, base, **self.keywords))
        if not isinstance(result, Tensor) or result.shape != shape:
            what = (
                f"a tensor of shape {list(result.shape)}"
                if isinstance(result, Tensor)
                else f"a {type(result).__name__}"
            )
            raise ModelError(
                f"merge method {self.method_name} gave {what} for {self.name}; expected a tensor of shape {list(shape)}."
            )
        return result

    def named_notes(self) -> dict[str, Any]:
        """What the method noted in the last call: a list has one number for each model."""
        return {
            key: dict(zip(self.models, value, strict=True))
            if isinstance(value, list) and len(value) == len(self.models)
            else value
            for key, value in self.notes.items()
        }

    def _guarded(self, function: Callable[[], T]) -> T:
        try:
            with torch.no_grad():
                return function()
        except RLHFError:
            raise
        except Exception as err:
            raise ModelError(
                f"merge method {self.method_name} failed on {self.name}: {type(err).__name__}: {text_of(err)}."
            ) from err
