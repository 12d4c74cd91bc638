"""One completion that is being sampled, by any engine: from its next token to text, and to its end."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rlhf.serving.generation import Event, Failed, Failure, FinishReason, GenerationRequest, Piece, TokenLogprobs
from rlhf.serving.text_stream import TextStream


@dataclass(slots=True)
class Row:
    """One completion that is being sampled."""

    request: GenerationRequest
    index: int
    """Which of the request's completions."""
    stream: TextStream
    constraint: Any
    seed: np.uint64
    age: int = 0
    """Tokens sampled."""
    is_over: bool = False
    seen: Tensor | None = None
    """bool [V] tokens of prompt and completion, for a repetition penalty."""


def advanced(row: Row, token: int, logprobs: TokenLogprobs | None, ends: Container[int]) -> Event:
    """Note a row's token.

    Args:
        row: Goes on by the token, or is over.
        token: Below 0 where the model's numbers were not finite.
        logprobs: Of the token, where they were asked for.
        ends: Tokens that end a completion.
    """
    if token < 0:
        row.is_over = True
        return Failed(Failure.NOT_FINITE, "The model gave a number that is not finite: its weights may be damaged.")
    row.age += 1
    reason: FinishReason | None = None
    is_end = token in ends and not row.request.ignore_eos
    text = "" if is_end else row.stream.push(token)
    if is_end or row.stream.is_stopped or not _may_go_on(row, token):
        reason = "stop"
    elif row.age >= row.request.sampling.max_new_tokens:
        reason = "length"
    if reason is not None:
        row.is_over = True
        text += row.stream.finish()
    if row.seen is not None:
        row.seen[token] = True
    return Piece(
        index=row.index,
        text=text,
        tokens=[token],
        logprobs=[logprobs] if logprobs is not None else [],
        finish_reason=reason,
    )


def _may_go_on(row: Row, token: int) -> bool:
    """Whether what the row must obey leaves room for more."""
    return row.constraint is None or bool(row.constraint.accept(token))
