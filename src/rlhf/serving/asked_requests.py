"""A request that is with the engine, as the routes know it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf.config.policy import SamplingConfig
from rlhf.serving.served_policy import ServedPolicy


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is with the engine."""

    id: str
    name: str
    """Of the model that answers."""
    model: ServedPolicy
    num_prompt_tokens: int
    num_samples: int
    sampling: SamplingConfig
    seed: int
    search: Mapping[str, Any] | None = None
    """How the completion was looked for; None where it was sampled."""
    prompt: Sequence[int] = ()
    """Token ids; empty where the completion was looked for."""
    queued_ns: int = field(default_factory=time.time_ns)
    """Since the epoch."""
