"""What a merge method is: a function of tensors, whose keyword parameters are the settings of the YAML file."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from rlhf.errors import ConfigError
from rlhf.merging.tensor_parts import TensorParts

GIVEN = ("name", "seeds", "notes", "prepared")
"""Keyword parameters that are not settings: the tensor's name, a seed for each tensor, where to note numbers for the report, and what
``MergeMethod.prepare`` gave."""
KINDS = (bool, int, float, str)


def never(settings: Mapping[str, Any]) -> bool:
    """For methods that need whole tensors."""
    return False


def always(settings: Mapping[str, Any]) -> bool:
    """For methods that never do."""
    return True


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting of a method."""

    name: str
    """As the file has it."""
    keyword: str
    """As the function has it: ``lambda_`` for ``lambda``."""
    kind: type
    """bool, int, float or str."""
    choices: tuple[Any, ...] = ()
    """Of a ``Literal``."""
    default: Any = None
    required: bool = False
    each: bool = False
    """One value for each tensor (``list[float]``), in contrast to one for all."""
    is_share: bool = False
    """From 0 to 1."""

    def read(self, value: Any) -> Any:
        """A scalar of the file as the setting's type.

        Raises:
            ValueError: It is something else.
        """
        if self.kind is bool:
            known = {True: True, False: False, "true": True, "false": False}
            if not isinstance(value, bool | int | str) or value not in known:
                raise ValueError(f"{value!r} is neither true nor false")
            return known[value]
        if self.kind in (int, float):
            if isinstance(value, bool):
                raise ValueError(f"{value!r} is not a number")
            try:
                number = float(value)
            except ValueError:
                raise ValueError(f"{value!r} is not a number") from None
            if not math.isfinite(number):
                raise ValueError(f"{value!r} is not a finite number")
            if self.is_share and not 0 <= number <= 1:
                raise ValueError(f"{value!r} is not from 0 to 1")
            if self.kind is int and number != int(number):
                raise ValueError(f"{value!r} is not a whole number")
            return self.kind(number)
        if self.choices and value not in self.choices:
            raise ValueError(f"{value!r} is not one of {', '.join(map(str, self.choices))}")
        return str(value)


@dataclass(frozen=True)
class MergeMethod:
    """A method and what it needs.

    ``function(tensors, base, *, settings...)`` gives the merged tensor. ``tensors`` are one of each model, in float32 (float64 where
    asked for) and the function's to change; ``base`` is the base model's, not to be changed, or None. A keyword parameter is a setting
    of the file: annotated ``float``, ``int``, ``bool``, ``str`` or ``Literal`` for one value, ``list[float]`` and so on for one of each
    tensor; without a default it is required. ``name``, ``seeds`` and ``notes`` are given if the function has them.
    """

    function: Callable[..., Tensor]
    base: Literal["required", "optional", "model"] = "optional"
    """``model``: the base is one more tensor."""
    least: int = 1
    """Fewest tensors besides the base."""
    most: int | None = None
    """Most of them."""
    title: str = ""
    arxiv: str = ""
    shares: tuple[str, ...] = ()
    """Settings that are from 0 to 1."""
    complaint: Callable[[Mapping[str, Any]], str | None] | None = None
    """Settings of one tensor, by keyword -> why the method gives no result with them, or None."""
    survey: Callable[..., Mapping[str, list[Any]]] | None = None
    """Looks at all tensors before the merge: ``survey(settings, deltas)`` gives keywords with one value of each model, or nothing."""
    by_parts: Callable[[Mapping[str, Any]], bool] = never
    """Settings -> whether the function may be called with flat parts of the tensors, one after the other: each element of the result
    depends on nothing but the same element of each tensor and on ``prepared``."""
    prepare: Callable[[TensorParts, Mapping[str, Any]], Any] | None = None
    """Looks at one tensor of each model before the function does: ``prepare(parts, keywords)`` gives the function's ``prepared``."""
    held_bytes: int = 0
    """What ``prepare`` holds of each element of each model while a tensor is merged by parts."""

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Settings by their name in the file.

        Raises:
            ConfigError: The function has not the form of a method.
        """
        parameters = {}
        name = getattr(self.function, "__name__", repr(self.function))
        hints = typing.get_type_hints(self.function)
        signature = inspect.signature(self.function)
        positional = [
            p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if len(positional) != 2 or any(
            p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in signature.parameters.values()
        ):
            raise ConfigError(
                f"The merge method {name} has the parameters {signature}; expected (tensors, base, *, SETTINGS)."
            )
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in (*GIVEN, *self.surveyed):
                parameters[parameter.name.removesuffix("_")] = self._read(name, parameter, hints.get(parameter.name))
        return parameters

    @cached_property
    def surveyed(self) -> tuple[str, ...]:
        """Keywords that ``survey`` may give."""
        return tuple(getattr(self.survey, "gives", ()))

    @cached_property
    def taken(self) -> frozenset[str]:
        """All keywords that the function takes."""
        return frozenset(inspect.signature(self.function).parameters)

    def _read(self, method: str, parameter: inspect.Parameter, hint: Any) -> Parameter:
        inner = _without_none(hint)
        each = typing.get_origin(inner) is list
        inner = _without_none(typing.get_args(inner)[0]) if each else inner
        choices: tuple[Any, ...] = ()
        if typing.get_origin(inner) is Literal:
            choices, inner = typing.get_args(inner), str
        if inner not in KINDS:
            raise ConfigError(
                f"The merge method {method}: {parameter.name} is annotated {hint!r}; expected bool, int, float, str, a Literal, or a "
                "list of one of them."
            )
        required = parameter.default is parameter.empty
        return Parameter(
            parameter.name.removesuffix("_"), parameter.name, inner, choices, None if required else parameter.default, required, each,
            is_share=parameter.name in self.shares,
        )  # fmt: skip


def _without_none(hint: Any) -> Any:
    """``float`` for ``float | None``."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    options = [one for one in typing.get_args(hint) if one is not type(None)]
    return options[0] if len(options) == 1 else hint
