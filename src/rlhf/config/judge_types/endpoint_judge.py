"""A model behind an endpoint as a judge."""

from __future__ import annotations

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from rlhf.config.judge_base import PromptedJudgeConfig


class EndpointJudgeConfig(PromptedJudgeConfig):
    """A model behind an OpenAI-compatible endpoint for chat completions."""

    builds = "rlhf.rewards.pairwise.endpoint_judge:build_endpoint_judge"
    not_deciding = PromptedJudgeConfig.not_deciding | {
        "api_key_variable", "length_key", "max_cost", "input_price", "output_price", "requests_per_minute", "concurrency",
        "timeout_seconds", "deadline_seconds", "retries", "backoff_seconds",
    }  # fmt: skip
    type: Literal["endpoint"] = "endpoint"
    url: str
    """Such as `https://api.openai.com/v1`; `/chat/completions` is added where it is missing."""
    model: str
    """What the endpoint calls it."""
    api_key_variable: str | None = None
    """Environment variable that holds the key; none is sent without. The key itself is never written down."""
    temperature: float | None = Field(0.0, ge=0)
    """Null leaves it out, for models that refuse it."""
    length_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the endpoint calls that limit."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Sent with every request in addition to the rest."""
    max_cost: float | None = Field(None, gt=0)
    """Dollars that this judge may cost, what its cache has recorded included; needs both prices. Asking ends before it is exceeded."""
    input_price: float | None = Field(None, ge=0)
    """Dollars for a million tokens that are sent."""
    output_price: float | None = Field(None, ge=0)
    """Dollars for a million tokens that are answered."""
    requests_per_minute: float | None = Field(None, gt=0)
    """At most so many, retries included; null for no limit."""
    concurrency: int = Field(4, ge=1)
    """Requests at a time."""
    timeout_seconds: float = Field(120.0, gt=0)
    """For one answer, from connecting to the last byte; what takes longer is asked again."""
    deadline_seconds: float = Field(600.0, gt=0)
    """For one verdict with all its retries and waits."""
    retries: int = Field(5, ge=0)
    """Further attempts after a refused connection, a timeout, a status of 408, 425, 429 or 500 and above, or an answer that is no chat
    completion."""
    backoff_seconds: float = Field(1.0, gt=0)
    """Waited before the first retry, twice as long before each further one; `Retry-After` counts instead where it is sent."""

    @property
    @override
    def prices(self) -> tuple[float | None, float | None]:
        """As set."""
        return self.input_price, self.output_price

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            sound = False
        if not sound:
            raise ValueError("an endpoint is named by a full address such as https://api.openai.com/v1")
        if parts.username is not None or parts.password is not None or parts.query:
            raise ValueError("keep secrets out of the address: name the environment variable in api_key_variable")
        return url

    @model_validator(mode="after")
    def _can_be_counted(self) -> Self:
        if self.max_cost is not None and (self.input_price is None or self.output_price is None):
            raise ValueError("max_cost needs input_price and output_price, in dollars for a million tokens")
        for name in ("model", "messages", "stream", "n", self.length_key):
            if name in self.arguments:
                raise ValueError(f"arguments may not hold {name!r}, which the judge sets itself")
        return self
