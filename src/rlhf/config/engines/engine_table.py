"""The table of engines, and what a recipe's ``engine:`` may hold."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from rlhf.config.base import BaseConfig
from rlhf.config.engines.engine import EngineConfig, kind_from_text
from rlhf.config.kind_lines import classes_of_lines

ENGINE_KINDS: tuple[type[EngineConfig], ...] = classes_of_lines(
    "ENGINE_KINDS (rlhf/config/engines/engine_table.py)",
    EngineConfig,
    "engines.local:LocalEngineConfig",
    "engines.vllm:VLLMEngineConfig",
)
"""Every kind of engine; one line more is one kind more. The first is meant where no kind is named."""
FREE_OF_ENGINES = {key for kind in ENGINE_KINDS for key in kind.free_to_change}
"""Settings of engines that a resumed run may change."""


def _with_kind(value: Any) -> Any:
    """Settings with their kind: the first, where none is named, as it is where no engine is.

    Raises:
        ValueError: None is named, and there is a key that only another kind has.
    """
    named = kind_from_text(value)
    if not isinstance(named, Mapping) or "kind" in named:
        return named
    first, *others = ENGINE_KINDS
    for other in others:
        only_theirs = sorted(named.keys() & (other.model_fields.keys() - first.model_fields.keys()))
        if only_theirs:
            raise ValueError(
                f"{only_theirs[0]} is a setting of `{other.kind_name()}`, and no kind is named; add `kind: {other.kind_name()}`, or leave "
                "it out"
            )
    return {"kind": first.kind_name(), **named}


if TYPE_CHECKING:
    EngineSpec = Any  # any EngineConfig
else:
    EngineSpec = Annotated[reduce(or_, ENGINE_KINDS), Field(discriminator="kind"), BeforeValidator(_with_kind)]
    """An engine; a plain word stands for its kind with defaults, and settings without a kind are those of the first kind."""


def engines_of(stage: BaseConfig) -> dict[str, EngineConfig]:
    """Key and settings of every engine of a stage."""
    values = {key: getattr(stage, key) for key in type(stage).model_fields}
    return {key: value for key, value in values.items() if isinstance(value, EngineConfig)}
