"""Running out of memory: telling it from other errors, and what to lower, from the stage's own settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rlhf.config.model import ModelConfig
from rlhf.errors import MemoryLimitError, RLHFError

SIGNS = re.compile(
    r"can't allocate memory|not enough memory|out of memory|Cannot allocate memory|CUBLAS_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
"""How torch's allocators and the system say it in errors that have no class of their own."""
WANTED = re.compile(r"(?:tried to allocate|allocate) ([\d.]+ ?(?:[KMGT]i?B|bytes))", re.IGNORECASE)
SMALLEST_MICROBATCH = 256
"""Tokens; below this the weights are what fills the memory."""
SMALLEST_COMPLETION = 32
RANK = 16


@contextmanager
def memory_errors(name: str, stage: Any) -> Iterator[None]:
    """Whatever runs out of memory inside becomes one error that says what to lower.

    Args:
        name: Of the stage.
        stage: Its settings.

    Raises:
        MemoryLimitError: Instead of torch's, Python's and the system's own errors.
    """
    try:
        yield
    except RLHFError:
        raise
    except Exception as err:
        if not is_out_of_memory(err):
            raise
        asked = WANTED.search(str(err))
        for_what = f" when it asked for {asked[1]}" if asked else ""
        raise MemoryLimitError(f"Stage {name!r} ran out of memory{for_what}. {memory_advice(name, stage)}") from err


def is_out_of_memory(err: BaseException) -> bool:
    """Whether an error says that there was no memory left."""
    if isinstance(err, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(err, RuntimeError | OSError) and SIGNS.search(str(err)) is not None


def memory_advice(name: str, stage: Any) -> str:
    """What to lower, from what to what, in the order in which it costs least."""
    changes = list(_lower_activations(stage)) + list(_lower_sampling(stage)) + list(_lower_weights(stage))
    if not changes:
        return "Nothing in its settings would lower what it needs; it wants a machine with more memory, or a smaller model."
    lines = "".join(f"\n  stages.{name}.{change}" for change in changes)
    return f"Try these one after the other, then give the same command again:{lines}"


def _lower_activations(stage: Any) -> Iterator[str]:
    tokens = getattr(stage, "microbatch_tokens", None)
    if tokens is not None and tokens > SMALLEST_MICROBATCH:
        lower = max(SMALLEST_MICROBATCH, tokens // 4)
        yield f"microbatch_tokens={lower}    (is {tokens}; changes no result beyond rounding, and goes on from the last checkpoint)"
    model = getattr(stage, "model", None)
    if tokens is not None and isinstance(model, ModelConfig) and not model.gradient_checkpointing:
        yield "model.gradient_checkpointing=true    (is false; about 30 % slower)"


def _lower_sampling(stage: Any) -> Iterator[str]:
    sampling = getattr(stage, "sampling", None)
    if sampling is not None and sampling.max_new_tokens > SMALLEST_COMPLETION:
        yield f"sampling.max_new_tokens={sampling.max_new_tokens // 2}    (is {sampling.max_new_tokens})"
    for key in ("prompts_per_rollout", "samples_per_prompt", "completions_per_prompt"):
        value = getattr(stage, key, None)
        if isinstance(value, int) and value > 2:
            yield f"{key}={value // 2}    (is {value})"


def _lower_weights(stage: Any) -> Iterator[str]:
    if getattr(stage, "value_model", None) == "separate":
        yield "value_model=shared    (is separate; the critic becomes a head on the policy)"
    if getattr(stage, "num_models", 1) > 1:
        yield f"num_models=1    (is {stage.num_models})"
    for place in ("model", "policy", "baseline"):
        model = getattr(stage, place, None)
        if not isinstance(model, ModelConfig):
            continue
        trained = hasattr(stage, "microbatch_tokens")
        if trained and model.lora is None:
            yield f"{place}.lora={{rank: {RANK}}}    (is null; trains adapters instead of all weights)"
        if model.dtype == "float32":
            with_lora = ", together with lora" if trained and model.lora is None else ""
            yield f"{place}.dtype=bfloat16    (is float32{with_lora})"
        if model.lora is not None and not model.lora.quantize_4bit and torch.cuda.is_available():
            yield f"{place}.lora.quantize_4bit=true    (is false)"
