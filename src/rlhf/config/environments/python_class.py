"""An environment that is a Python class with our own two methods."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from typing_extensions import override

from rlhf.config.base import FUNCTION, FunctionName, Names
from rlhf.config.environments.environment_base import EnvironmentBase


def names_a_class(text: str) -> str:
    """The text, if it names a class.

    Raises:
        ValueError: It does not.
    """
    if not FUNCTION.match(text):
        raise ValueError("an environment is named package.module:Class or path/to/file.py:Class")
    return text


class PythonEnvironmentConfig(EnvironmentBase):
    """A Python class with `reset(prompt)` and `step(text)`; its completions are episodes in which policy and environment take turns."""

    builds = "rlhf.rollout.python_environment:open_python"
    kind: Literal["python"] = "python"
    source: FunctionName
    """`package.module:Class` or `path/to/file.py:Class`, called once for each episode; it has `reset(prompt)` and
    `step(text)`, as `rlhf.rollout.environments.Environment` says."""
    arguments: Annotated[dict[str, Any], Names.TEXT_OR_FILE] = Field(default_factory=dict)
    """Given to the class by keyword; a text that names a file belongs to the inputs of the stage."""
    role: str = "user"
    """Who says the environment's words in a conversation; many templates know `tool`."""

    _names_a_class = field_validator("source")(names_a_class)

    @property
    @override
    def speaker(self) -> str:
        return self.role
