"""The engine over vLLM."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, field_validator
from typing_extensions import override

from rlhf.config.engines.engine import EngineConfig
from rlhf.errors import ConfigError, MissingExtraError, RLHFError, pip_line

OURS = (
    "dtype",
    "enable_prompt_embeds",
    "generation_config",
    "kv_cache_memory_bytes",
    "load_format",
    "logprobs_mode",
    "max_model_len",
    "model",
    "seed",
    "skip_tokenizer_init",
    "tokenizer",
)
"""Arguments of ``vllm.LLM`` that the engine gives itself: another value would break what it promises."""
LOWEST_TEMPERATURE = 0.01
"""vLLM samples at this temperature where a lower one above 0 is asked for."""


class VLLMEngineConfig(EngineConfig):
    """Sample with vLLM, in a process of its own that is given the weights before each rollout."""

    builds = "rlhf.rollout.vllm:build_vllm"
    free_to_change = frozenset(
        {"python", "env", "kv_cache_gib", "start_timeout_seconds", "timeout_seconds", "mismatch"}
    )

    kind: Literal["vllm"] = "vllm"
    python: str | None = None
    """Interpreter of the environment that has vLLM, such as `/opt/vllm/bin/python`; null for this one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the engine's weights and products; `auto` is the trainer's: that of `autocast`, else of its weights."""
    max_model_len: int | None = Field(None, ge=1)
    """Longest prompt with its completion, in tokens; the model's own limit by default, which may want more memory for keys and
    values than there is."""
    kv_cache_gib: int | None = Field(None, ge=1)
    """Memory of keys and values; by default 1 on a CPU, and on a GPU what vLLM's `gpu_memory_utilization` leaves."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `vllm.LLM`, such as `tensor_parallel_size` or `gpu_memory_utilization`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the engine's process, such as `CUDA_VISIBLE_DEVICES`."""
    start_timeout_seconds: float = Field(900.0, gt=0)
    """For vLLM to start: on a GPU it compiles."""
    timeout_seconds: float = Field(600.0, gt=0)
    """For one rollout, or one loading of weights. An engine that takes longer is ended and started again, once."""
    any_version: bool = False
    """Take a version of vLLM outside those that this engine is known to work with."""

    @field_validator("options")
    @classmethod
    def _leaves_ours_alone(cls, options: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(options.keys() & set(OURS))
        if taken:
            raise ValueError(
                f"{taken[0]!r} is set by the engine itself; `dtype`, `max_model_len` and `kv_cache_gib` have settings of their own"
            )
        return options

    @override
    def complaint(self, sampling: Any) -> str | None:
        """Filters and penalties, and temperatures close to 0."""
        for key in ("top_k", "top_p", "min_p", "repetition_penalty"):
            if getattr(sampling, key) != type(sampling).model_fields[key].default:
                return (
                    f"sampling.{key} is {getattr(sampling, key)}, but vLLM reports one log-probability for a token, and with filters "
                    f"or penalties two are needed; leave {key} out, or take `engine: local`"
                )
        if 0 < sampling.temperature < LOWEST_TEMPERATURE:
            return (
                f"sampling.temperature is {sampling.temperature:g}, and vLLM samples at {LOWEST_TEMPERATURE} at least"
            )
        return None

    @override
    def missing(self) -> Iterator[tuple[str, str, type[RLHFError]]]:
        """An environment with vLLM."""
        if self.python is None and importlib.util.find_spec("vllm") is None:
            why = (
                "There is no vLLM in this environment. It pins its own torch, so install it in a separate environment (docs/vllm.md) "
                "and set engine.python to its interpreter, such as /opt/vllm/bin/python. To install it in this one: "
                f"{pip_line('vllm')}"
            )
            yield "python", why, MissingExtraError
        if self.python is not None and shutil.which(self.python) is None:
            why = f"There is no interpreter {self.python}; set it to that of the environment with vLLM."
            yield "python", why, ConfigError
