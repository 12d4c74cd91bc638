"""What a setting is for one tensor: filters, gradients over layers, and which level of the file wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlhf.errors import ConfigError, did_you_mean
from rlhf.merging.merge_method import MergeMethod, Parameter
from rlhf.merging.method_table import known_settings

Levels = Iterable[Mapping[str, Any] | None]
"""Settings from the level that wins to the one that loses: source, slice, module, file."""


def value_of(setting: Any, parameter: Parameter, *, name: str, at: float) -> Any:
    """A setting for one tensor.

    Args:
        setting: A scalar; a list of scalars over the layers, between whose numbers lines are drawn; ``{filter, value}`` or a list of
            them, of which the first counts whose filter is part of the tensor's name (``*``, or none, is part of every name).
        parameter: Whose type it has.
        name: The tensor's.
        at: Where its layer is between the first (0) and the last (1) of the slice; 0 for tensors of no layer.

    Returns:
        The value; None where no filter matches.
    """
    if isinstance(setting, Mapping):
        setting = [setting]
    if not isinstance(setting, list):
        return parameter.read(setting)
    if isinstance(setting[0], Mapping):
        for item in setting:
            wanted = item.get("filter")
            if wanted in (None, "*") or wanted in name:
                return value_of(item["value"], parameter, name=name, at=at)
        return None
    anchors = [parameter.read(item) for item in setting]
    if parameter.kind in (bool, str):
        return anchors[int(at * (len(anchors) - 1))]
    scaled = at * (len(anchors) - 1)
    left = int(scaled)
    right = min(len(anchors) - 1, left + 1)
    share = scaled - left
    return parameter.read((1 - share) * anchors[left] + share * anchors[right])


def resolved(parameter: Parameter, levels: Levels, *, name: str, at: float, of: str) -> Any:
    """The value of the first level that has one, or the default.

    Raises:
        ConfigError: No level has one and the method has no default; or a value has the wrong type. Names both.
    """
    for level in levels:
        if level is None or parameter.name not in level:
            continue
        try:
            value = value_of(level[parameter.name], parameter, name=name, at=at)
        except ValueError as err:
            raise ConfigError(f"parameters.{parameter.name}{of}: {err}.") from None
        if value is not None:
            return value
    if parameter.required:
        raise ConfigError(
            f"parameters.{parameter.name} is missing{of} for the tensor {name}; the merge method has no default for it. Give it below the "
            "model, or below the file's `parameters`."
        )
    return parameter.default


def settings_for(
    method: MergeMethod,
    sources: Sequence[tuple[str, str, Mapping[str, Any] | None]],
    above: Sequence[Mapping[str, Any] | None],
    *,
    name: str,
    at: float,
) -> dict[str, Any]:
    """All settings of a method for one tensor, by keyword.

    Args:
        method: Whose settings they are.
        sources: Model, its tensor's name and its own settings, of each model that the method combines.
        above: The levels over them.
        name: The output's tensor.
        at: See ``value_of``.

    Raises:
        ConfigError: One is missing, has the wrong type, or the method gives no result with them.
    """
    settings: dict[str, Any] = {}
    for parameter in method.parameters.values():
        if not parameter.each:
            settings[parameter.keyword] = resolved(parameter, above, name=name, at=at, of="")
            continue
        values = [
            resolved(parameter, (own, *above), name=tensor, at=at, of=f" of {model}") for model, tensor, own in sources
        ]
        settings[parameter.keyword] = None if all(value is None for value in values) else values
    if method.complaint is not None and (why := method.complaint(settings)) is not None:
        raise ConfigError(f"{why} (for the tensor {name}).")
    return settings


def check_names(method: MergeMethod, name: str, levels: Levels) -> list[str]:
    """Settings that other methods have and this one has not.

    Raises:
        ConfigError: A setting that no method has.
    """
    unused = []
    known = known_settings() | method.parameters.keys()
    for level in levels:
        for key in level or {}:
            if key not in known:
                hint = did_you_mean(key, known)
                raise ConfigError(
                    f"parameters.{key}: merge method {name} has no such setting.{hint} It has: {', '.join(method.parameters)}."
                )
            if key not in method.parameters and key not in unused:
                unused.append(key)
    return unused
