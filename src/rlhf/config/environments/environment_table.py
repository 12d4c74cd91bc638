"""Every kind of environment, and what a recipe's ``environment:`` may be."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from rlhf.config.base import BaseConfig
from rlhf.config.environments.environment_base import EnvironmentBase
from rlhf.config.environments.openenv_server import OpenEnvConfig
from rlhf.config.environments.python_class import PythonEnvironmentConfig
from rlhf.config.environments.trl_class import TRLEnvironmentConfig
from rlhf.config.environments.verifiers_taskset import VerifiersEnvironmentConfig

ENVIRONMENT_KINDS: tuple[type[EnvironmentBase], ...] = (
    PythonEnvironmentConfig,
    TRLEnvironmentConfig,
    OpenEnvConfig,
    VerifiersEnvironmentConfig,
)
"""Every kind of environment; one line more is one kind more. The first is meant where no kind is named."""


def _with_kind(value: Any) -> Any:
    """Settings with their kind; a plain text is the source of the first."""
    first = ENVIRONMENT_KINDS[0].kind_name()
    if isinstance(value, str):
        return {"kind": first, "source": value}
    if not isinstance(value, Mapping):
        return value
    return value if "kind" in value else {"kind": first, **value}


if TYPE_CHECKING:
    EnvironmentSpec = Any  # any EnvironmentBase
else:
    EnvironmentSpec = Annotated[
        reduce(or_, ENVIRONMENT_KINDS), Field(discriminator="kind"), BeforeValidator(_with_kind)
    ]
    """An environment; a plain text stands for a Python class with defaults, and settings without a kind are those of one."""


def environments_of(stage: BaseConfig) -> dict[str, EnvironmentBase]:
    """Key and settings of every environment of a stage."""
    values = {key: getattr(stage, key) for key in type(stage).model_fields}
    return {key: value for key, value in values.items() if isinstance(value, EnvironmentBase)}
