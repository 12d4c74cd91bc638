"""An environment behind an OpenEnv server."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from rlhf.config.environments.environment_base import EnvironmentBase, ToolFormatName
from rlhf.errors import MissingExtraError, RLHFError, pip_line


class OpenEnvConfig(EnvironmentBase):
    """A server that speaks OpenEnv: a session is a websocket, or one episode after the other over HTTP."""

    builds = "rlhf.rollout.openenv_environment:open_openenv"
    played_by = "its server"
    kind: Literal["openenv"]
    source: str
    """Address of the server, such as `http://127.0.0.1:8000`; nothing else is ever asked, and a redirect is an error."""
    transport: Literal["websocket", "http"] = "websocket"
    """`websocket` has a session for each episode (`/ws`). `http` (`/reset`, `/step`) has none: episodes take turns, and a server that
    forgets the episode between two requests is refused before the run."""
    max_sessions: int = Field(16, ge=1)
    """Episodes at a time. The server is tried before the run, and episodes wait for each other where it takes fewer."""
    action: Literal["auto", "text", "tool"] = "auto"
    """What a turn of the policy is: `text`, the one text that the server's action has; `tool`, a call of a tool whose arguments are
    the action's fields. `auto` takes `text` where the action has one required field and that is a text."""
    action_field: str | None = None
    """Field of the action that gets the turn's text; null for its only required one."""
    observation_field: str | None = None
    """Field of the observation that the policy reads; null for its only text, or the whole as JSON where it has several fields."""
    reset_columns: list[str] | None = None
    """Columns of the prompt's row that `reset` is given beside `seed` and `episode_id`; null for all that JSON can hold."""
    tool_format: ToolFormatName = "auto"
    """How the policy writes a call; `auto` is read off the chat template, and `plain` where prompts are plain text."""
    role: str = "user"
    """Who says observations in a conversation with `action: text`."""
    max_response_bytes: int = Field(1_000_000, ge=1_000)
    """A longer answer of the server is an error."""

    @field_validator("source")
    @classmethod
    def _is_an_address(cls, source: str) -> str:
        try:
            parts = urlsplit(source)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is not a number
            sound = False
        if not sound:
            raise ValueError("an OpenEnv server is named by a full address such as http://127.0.0.1:8000")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise ValueError("the address holds a scheme, a host, a port and a path, and nothing else")
        return source.rstrip("/")

    @model_validator(mode="after")
    def _fields_belong_to_texts(self) -> Self:
        if self.action == "tool" and self.action_field is not None:
            raise ValueError("action_field belongs to action: text; with action: tool the policy writes every field")
        return self

    @property
    @override
    def speaker(self) -> str:
        return self.role

    @override
    def missing(self) -> Iterator[tuple[str, str, type[RLHFError]]]:
        """The package websockets."""
        if self.transport == "websocket" and importlib.util.find_spec("websockets") is None:
            why = f"Sessions over websockets need the package 'websockets'. To install it: {pip_line('environments')}"
            yield "transport", why, MissingExtraError
