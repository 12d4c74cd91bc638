"""Who samples completions while a policy learns: this process, or vLLM in a process of its own."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rlhf.config.base import Config

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


class MismatchConfig(Config):
    """How far the sampler's probabilities may lie from the trainer's own, on the tokens that were sampled.

    Measured in every rollout as mean |p_engine - p_trainer|. The limits are those of verl's FAQ.
    """

    warn_at: float = Field(0.005, gt=0, lt=1)
    """An alarm from here on."""
    stop_at: float | None = Field(0.01, gt=0, lt=1)
    """The run stops from here on, and says what the cause is as far as it can be measured; null to go on."""

    @model_validator(mode="after")
    def _warns_first(self) -> Self:
        if self.stop_at is not None and self.warn_at > self.stop_at:
            raise ValueError(f"warn_at ({self.warn_at:g}) must not lie above stop_at ({self.stop_at:g})")
        return self


class LocalEngineConfig(Config):
    """Sample in this process from the module that is trained."""

    kind: Literal["local"] = "local"


class VLLMEngineConfig(Config):
    """Sample with vLLM, in a process of its own that is given the weights before each rollout."""

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
    mismatch: MismatchConfig = MismatchConfig()
    """How far its probabilities may lie from the trainer's."""

    @field_validator("options")
    @classmethod
    def _leaves_ours_alone(cls, options: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(options.keys() & set(OURS))
        if taken:
            raise ValueError(
                f"{taken[0]!r} is set by the engine itself; `dtype`, `max_model_len` and `kv_cache_gib` have settings of their own"
            )
        return options


def _from_text(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


EngineSpec = Annotated[LocalEngineConfig | VLLMEngineConfig, Field(discriminator="kind"), BeforeValidator(_from_text)]
"""An engine; a plain word stands for its kind with defaults."""


def engine_complaint(engine: LocalEngineConfig | VLLMEngineConfig, sampling: Any) -> str | None:
    """Why an engine can't sample in this way; None where it can.

    Args:
        engine: Who samples.
        sampling: A ``rlhf.config.policy.SamplingConfig``.
    """
    if not isinstance(engine, VLLMEngineConfig):
        return None
    for key in ("top_k", "top_p", "min_p", "repetition_penalty"):
        if getattr(sampling, key) != type(sampling).model_fields[key].default:
            return (
                f"sampling.{key} is {getattr(sampling, key)}, but vLLM reports one log-probability for a token, and with filters "
                f"or penalties two are needed; leave {key} out, or take `engine: local`"
            )
    if 0 < sampling.temperature < LOWEST_TEMPERATURE:
        return f"sampling.temperature is {sampling.temperature:g}, and vLLM samples at {LOWEST_TEMPERATURE} at least"
    return None
