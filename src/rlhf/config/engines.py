"""Who samples completions while a policy learns: this process, or vLLM in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rlhf.config.base import BaseConfig

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


def _from_text(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


class MismatchConfig(BaseConfig):
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


RolloutWeights = Literal["same", "bfloat16", "int8"]
"""What an engine multiplies with: the policy's weights, or a copy of them for sampling alone."""


class PromptLookupConfig(BaseConfig):
    """Guess what a completion says next from what followed the same tokens before (Saxena 2023, "Prompt lookup decoding"): in its
    prompt, in itself, or in another completion of the same prompt. Guesses change how fast is sampled, and not what."""

    kind: Literal["prompt_lookup"] = "prompt_lookup"
    ngram_tokens: int = Field(2, ge=1)
    """So many tokens must agree for what followed them to be guessed."""
    draft_tokens: int = Field(4, ge=1)
    """Most tokens guessed at once."""
    max_rows: int = Field(8, ge=1)
    """Guess only while at most so many completions are sampled side by side, as at the end of a rollout. With more, a pass is bound by
    arithmetic, and a wrong guess costs what a right one saves."""


class LocalEngineConfig(BaseConfig):
    """Sample in this process from the module that is trained."""

    kind: Literal["local"] = "local"
    weights: RolloutWeights = "same"
    """What linear layers multiply with while sampling: the policy's own weights, or a copy in a lower precision, made again for each
    rollout. What is sampled is then corrected by `importance`, and its distance from the policy measured in every rollout."""
    mismatch: MismatchConfig = MismatchConfig()
    """How far the engine's probabilities may lie from the trainer's, where its weights are a copy, or it plays episodes."""
    speculate: Annotated[PromptLookupConfig, BeforeValidator(_from_text)] | None = None
    """How to guess tokens and check several in one pass of the model: `prompt_lookup`, or its settings; null for a token at a time.
    See docs/rollouts.md for when it pays."""
    compiled: bool = False
    """Do a decoding step's norms, rotations, attention and drawing in C, in bfloat16 on a processor with AMX its matrix products too, which a
    compiler of this machine (`cc`, `gcc`, `clang` or $CC) makes at the first rollout: for models of Llama's shape on a CPU, others are
    sampled from as ever. Sums are added up in another order, so a
    completion may differ where its random number lies within rounding of the boundary between two tokens. Not with `speculate`."""

    @model_validator(mode="after")
    def _decodes_in_one_way(self) -> Self:
        if self.compiled and self.speculate is not None:
            raise ValueError("compiled decodes a token at a time, and speculate several; leave one of the two out")
        return self


class VLLMEngineConfig(BaseConfig):
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


def _with_kind(value: Any) -> Any:
    """Settings with their kind: `local` where none is named, as it is where no engine is.

    Raises:
        ValueError: None is named, and a key is there that only vLLM has.
    """
    named = _from_text(value)
    if not isinstance(named, Mapping) or "kind" in named:
        return named
    only_theirs = sorted(named.keys() & (VLLMEngineConfig.model_fields.keys() - LocalEngineConfig.model_fields.keys()))
    if only_theirs:
        raise ValueError(
            f"{only_theirs[0]} is a setting of vLLM's alone, and no kind is named; add `kind: vllm`, or leave it out"
        )
    return {"kind": "local", **named}


EngineSpec = Annotated[LocalEngineConfig | VLLMEngineConfig, Field(discriminator="kind"), BeforeValidator(_with_kind)]
"""An engine; a plain word stands for its kind with defaults, and settings without a kind are those of the local one."""


def is_lowered(engine: Any) -> bool:
    """Whether an engine samples with a copy of the weights in a lower precision.

    Args:
        engine: Its settings, or what a recipe says of them.
    """
    weights = engine.get("weights", "same") if isinstance(engine, Mapping) else getattr(engine, "weights", "same")
    return bool(weights != "same")


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
