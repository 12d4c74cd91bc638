"""An environment that is a class for TRL's `environment_factory`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from rlhf.config.base import FunctionName, Names
from rlhf.config.environments.environment_base import EnvironmentBase, ToolFormatName
from rlhf.config.environments.python_class import names_a_class


class TRLEnvironmentConfig(EnvironmentBase):
    """A class as TRL's `environment_factory` takes it: `reset(**row)`, typed public methods that are tools, and `get_reward()`."""

    builds = "rlhf.rollout.trl_environment:open_trl"
    kind: Literal["trl"]
    source: FunctionName | dict[str, FunctionName]
    """`package.module:Class` or `path/to/file.py:Class`; a mapping of names to such classes lets the column `environment` of each row
    choose."""
    arguments: Annotated[dict[str, Any], Names.TEXT_OR_FILE] = Field(default_factory=dict)
    """Given to the class by keyword; a text that names a file belongs to the inputs of the stage."""
    tool_format: ToolFormatName = "auto"
    """How the policy writes a call; `auto` is read off the chat template, and `plain` where prompts are plain text."""

    @field_validator("source")
    @classmethod
    def _names_classes(cls, source: str | dict[str, str]) -> str | dict[str, str]:
        if isinstance(source, str):
            return names_a_class(source)
        if not source:
            raise ValueError("an empty mapping names no class")
        for text in source.values():
            names_a_class(text)
        return source
