"""A reward server."""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rlhf.config.reward_base import RewardBase

SECRET_HEADER = re.compile(r"authorization|cookie|key|token|secret", re.IGNORECASE)
"""Names of HTTP headers whose values no file should hold."""


class ServiceRewardConfig(RewardBase):
    """A reward server, asked over HTTP."""

    builds = "rlhf.rewards.service:build_service"
    text_key = "url"
    kind: Literal["service"] = "service"
    url: str
    """Where to POST, such as `http://127.0.0.1:8000/score`."""
    format: Literal["rlhf", "openrlhf", "vllm", "sglang"] = "rlhf"
    """What it speaks. `rlhf` sends what a reward function gets and expects `{"scores": [...]}` or a bare list; `openrlhf` is
    OpenRLHF's remote reward model, `vllm` its `/pooling` or `/classify`, `sglang` its `/classify`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Sent with every request in addition to the rest, such as the `model` that vLLM wants."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers. `$NAME` in a value is the environment variable when the run starts, so that no secret is ever written
    down: `Authorization: Bearer $REWARD_TOKEN`. (`${NAME}`, with braces, a recipe replaces when it is read.)"""
    timeout_seconds: float = Field(60.0, gt=0)
    """For one answer, from connecting to the last byte; what takes longer is asked again."""
    deadline_seconds: float = Field(600.0, gt=0)
    """For one request with all its retries and waits; after it the run stops."""
    retries: int = Field(5, ge=0)
    """Further attempts after a refused connection, a timeout, or a status of 408, 425, 429 or 500 and above."""
    backoff_seconds: float = Field(1.0, gt=0)
    """Waited before the first retry, twice as long before each further one, less up to half by chance; `Retry-After` counts
    instead where the service sends it."""
    max_backoff_seconds: float = Field(60.0, gt=0)
    """The longest wait of ours."""
    request_size: int = Field(64, ge=1)
    """Completions in one request."""
    concurrency: int = Field(4, ge=1)
    """Requests at a time."""

    @field_validator("headers")
    @classmethod
    def _keeps_secrets(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if SECRET_HEADER.search(name) and "$" not in value:
                raise ValueError(
                    f"the value of {name!r} is a secret that would be written into the run's recipe.yaml; put it into the "
                    "environment and write $NAME, without braces"
                )
        return headers

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is not a number
            sound = False
        if not sound:
            raise ValueError("a reward service is named by a full address such as http://127.0.0.1:8000/score")
        if parts.username is not None or parts.password is not None:
            raise ValueError("put user and password into `headers`, with ${NAME} for the secret, not into the address")
        return url
