"""An environment of verifiers v1, played in a process that has verifiers."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator
from typing_extensions import override

from rlhf.config.base import TextOrFile
from rlhf.config.environments.environment_base import EnvironmentBase, ToolFormatName
from rlhf.errors import ConfigError, RLHFError


class VerifiersEnvironmentConfig(EnvironmentBase):
    """An environment of verifiers v1: a taskset and the harness that plays it, in a process with an interpreter of its own."""

    builds = "rlhf.rollout.verifiers_environment:open_verifiers"
    played_by = "the process of verifiers"
    kind: Literal["verifiers"]
    source: TextOrFile
    """Id of the taskset, as in `vf-eval`: a package that the interpreter has, or `path/to/file.py`, whose folder is put on its path."""
    python: str | None = None
    """Interpreter of the environment that has verifiers, such as `/opt/verifiers/bin/python`; null for this one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the environment, as they stand under `[env]` in a TOML of verifiers, such as
    `agent: {harness: {id: "null"}, runtime: {type: subprocess}}`."""
    max_sessions: int = Field(16, ge=1)
    """Episodes at a time; more wait for each other."""
    tool_format: ToolFormatName = "auto"
    """How the policy writes a call; `auto` is read off the chat template, and `plain` where prompts are plain text."""
    start_timeout_seconds: float = Field(300.0, gt=0)
    """For verifiers to be imported and the environment to be made."""
    timeout_seconds: float = Field(300.0, gt=0)
    """For one answer of the environment; the first includes the start of its harness and of its tool servers. One that takes longer
    ends its episode without a score; three in one rollout stop the run."""

    @field_validator("options")
    @classmethod
    def _can_be_passed_on(cls, options: dict[str, Any]) -> dict[str, Any]:
        if isinstance(options.get("taskset"), Mapping) and "id" in options["taskset"]:
            raise ValueError("the id of the taskset is `source`; leave taskset.id out")
        for place in _ids_of_nothing(options, ()):
            raise ValueError(
                f'{".".join(place)} is null, which is no name; the harness that is called so is written "null", in quotes'
            )
        return options

    @override
    def missing(self) -> Iterator[tuple[str, str, type[RLHFError]]]:
        """An interpreter with verifiers; whether a foreign one has it is seen when it is started."""
        if self.python is None and importlib.util.find_spec("verifiers") is None:
            why = (
                "There is no verifiers in this environment. Its pins differ from ours, so install it in a separate one (docs/environments.md) "
                "and set environment.python to its interpreter, such as /opt/verifiers/bin/python."
            )
            yield "python", why, ConfigError
        if self.python is not None and shutil.which(self.python) is None:
            why = f"There is no interpreter {self.python}; set it to that of the environment with verifiers."
            yield "python", why, ConfigError


def _ids_of_nothing(value: Any, place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Where YAML's null stands in place of an id."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "id" and inner is None:
                yield (*place, key)
            yield from _ids_of_nothing(inner, (*place, str(key)))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, inner in enumerate(value):
            yield from _ids_of_nothing(inner, (*place, str(number)))
