"""What is asked of a served model, and what comes back token by token."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlhf.config.policy import SamplingConfig

FinishReason = Literal["stop", "length"]
"""The model's own end or a stop text, or the limit of tokens: OpenAI's words."""


class Failure(enum.Enum):
    """Why a request ended without an answer."""

    CANCELED = "canceled"
    TIMEOUT = "timeout"
    NOT_FINITE = "not_finite"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of a sampled token, in nats at temperature 1, and those of the likeliest tokens in its place."""

    logprob: float
    top: list[tuple[int, float]]
    """(token, log-probability), the likeliest first."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a completion grew by."""

    index: int
    """Which completion of the request, from 0."""
    text: str
    """Without the stop text that ended it; may be empty where a character is not complete."""
    tokens: list[int]
    logprobs: list[TokenLogprobs]
    """One for each token where they were asked for, else none."""
    finish_reason: FinishReason | None = None
    """None while it goes on."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request's prompt is read; its completions follow."""

    cached_tokens: int
    """Of the prompt, that an earlier request had read."""
    model: str
    """Fingerprint of the weights that answer."""


@dataclass(frozen=True, slots=True)
class Failed:
    """There will be no more of this request."""

    failure: Failure
    detail: str = ""


Event = Accepted | Piece | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt and how it is completed."""

    id: str
    prompt: Sequence[int]
    """Token ids, at least one."""
    sampling: SamplingConfig
    """``stop`` ends a completion and is left out of its text."""
    seed: int
    num_samples: int = 1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token -> added to its logit before the temperature."""
    top_logprobs: int | None = None
    """How many of the likeliest tokens are reported with each; None for no log-probabilities at all."""
    ignore_eos: bool = False
    """Go on to the limit of tokens; for measurements."""
    client: str = ""
    """Whose it is: clients take turns."""
    constraint: Callable[[], Any] | None = None
    """Makes what each completion's tokens must obey; see ``rlhf.serving.constraints``."""
    is_part: bool = False
    """Of a search: its client waits for the search, so its times are no client's."""
