"""A model that writes completions, as the server knows it, for both engines: this process, or vLLM in a process of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from rlhf.config.policy import SamplingConfig
from rlhf.rollout.prefix_prefill import PromptReading
from rlhf.serving.constraints import JsonConstraints
from rlhf.serving.generation import Event, GenerationRequest

DEFAULT_CONTEXT = 4096
"""Tokens of prompt and completion, for a model whose config names no limit."""


@dataclass(slots=True)
class Joining:
    """A request whose prompt is being read."""

    request: GenerationRequest
    reading: PromptReading | None
    """None where prompts are taken whole."""
    cached_tokens: int | None
    """Of the prompt, that an earlier request had read; None where the batch tells of it later, by ``Accepted``."""
    is_over: bool = False


class Batch(Protocol):
    """The completions of one model that are being sampled; used by the scheduler's thread alone."""

    @property
    def num_rows(self) -> int:
        """Live completions."""
        ...

    @property
    def can_join(self) -> bool:
        """Whether a request may begin now."""
        ...

    @property
    def shared(self) -> Hashable:
        """What only one of several batches uses at a time; the batch itself where it shares nothing."""
        ...

    @property
    def cached_tokens(self) -> int:
        """Keys and values that live rows may come to hold."""
        ...

    def begin(self, request: GenerationRequest) -> Joining:
        """Look for what is known of a prompt."""
        ...

    def read_ahead(self, joining: Joining, num_tokens: int) -> int:
        """Read some of a prompt; tells how many tokens."""
        ...

    def forget(self, joining: Joining) -> None:
        """Of a request that is over before its prompt was read."""
        ...

    def join(self, several: list[Joining]) -> None:
        """Read what is left of the prompts, and let their rows live."""
        ...

    def drop(self, request_id: str) -> None:
        """Let a request's rows end without a further word."""
        ...

    def sample(self) -> list[tuple[GenerationRequest, Event]]:
        """Tokens of the rows, which may end them; ``feed`` comes next."""
        ...

    def feed(self) -> None:
        """Rows that are over leave."""
        ...


class ServedPolicy:
    """One model with its own batch; ``how`` and ``reset`` are a subclass's."""

    kind = "policy"
    """It writes completions."""
    source: str
    """Where it was loaded from."""
    tokenizer: PreTrainedTokenizerBase
    fingerprint: str
    """Hash of the weights."""
    context: int
    """Most tokens of a prompt with its completion."""
    vocabulary: int
    ends: Sequence[int]
    """Tokens that end a completion."""
    constraints: JsonConstraints | None
    """Makes completions obey a schema; None where that can't be done."""
    batch: Batch
    max_prefill_tokens: int
    """Prompt tokens that may be read at once while no completion is being sampled."""
    version: int | None = None
    """In the registry; None for weights that are in none."""

    @property
    def how(self) -> str:
        """How it is sampled from, for people."""
        raise NotImplementedError

    @property
    def prefix_used_frac(self) -> float:
        """Share of the room for prompts that were read which is used; 0 where it is not known."""
        return 0.0

    def complaint(self, sampling: SamplingConfig) -> str | None:
        """Why completions can't be drawn in this way; None where they can."""
        return None

    def running(self) -> AbstractContextManager[object]:
        """Around everything that computes with it."""
        return nullcontext()

    def reset(self) -> None:
        """A new batch without rows, after the old one failed."""
        raise NotImplementedError

    def close(self) -> None:
        """End what it has started outside this process."""


def needed_tokens(request: GenerationRequest) -> int:
    """Keys and values that a request may come to hold."""
    return len(request.prompt) + request.num_samples * request.sampling.max_new_tokens
