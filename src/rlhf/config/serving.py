"""How a model is served."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf.config.base import BaseConfig
from rlhf.config.engines import EngineSpec, LocalEngineConfig, VLLMEngineConfig

LOCAL_ONLY = {
    "compiled": "leave it out",
    "device": "set engine.env.CUDA_VISIBLE_DEVICES",
    "prefix_cache_tokens": "set engine.kv_cache_gib",
    "prefill_chunk_tokens": "set engine.options.max_num_batched_tokens",
}
"""Settings that vLLM does not take, and what to do in their place."""


class RayServeConfig(BaseConfig):
    """Reward models in replicas of Ray Serve."""

    replicas: int = Field(1, ge=1)
    """Of each reward model."""
    cpus: float = Field(1.0, ge=0)
    """Cores of each replica, as Ray counts them; also its threads of torch, at least one."""
    gpus: float = Field(0.0, ge=0)
    """GPUs of each replica; below 1 it shares one with others. With 0 it computes on the CPU."""
    memory_gib: float | None = Field(None, gt=0)
    """Memory of each replica, as Ray counts it; Ray does not hold a replica to it."""
    address: str | None = None
    """Of a running cluster: `HOST:PORT`, or `auto` for the one of this machine; null to start one here that ends with the server."""
    batch_wait_seconds: float = Field(0.005, ge=0)
    """How long a replica that has nothing to do waits for more rows than the first request's."""
    start_timeout_seconds: float = Field(300.0, gt=0)
    """For all replicas of a model to be ready."""


class ServingConfig(BaseConfig):
    """Limits and choices of a server."""

    engine: EngineSpec = LocalEngineConfig()
    """Who samples: this process (`local`), or `vllm` in a process of its own, with its settings as in a recipe."""
    max_batch_size: int = Field(32, ge=1)
    """Completions sampled side by side."""
    max_concurrent_requests: int = Field(100, ge=1)
    """Requests that wait or are answered; a further one is refused with status 429."""
    max_cache_tokens: int = Field(131_072, ge=1)
    """Tokens of prompts and completions whose keys and values are held at once."""
    prefix_cache_tokens: int = Field(32_768, ge=0)
    """Tokens of prompts that are kept for later prompts which begin alike; 0 keeps none."""
    prefill_chunk_tokens: int = Field(512, ge=1)
    """Prompt tokens read between two decoding steps while others are being answered."""
    score_batch_tokens: int = Field(16_384, ge=1)
    """Tokens that a reward model reads in one forward pass, for all requests together."""
    max_waiting_score_tokens: int = Field(1_048_576, ge=1)
    """Tokens of requests for scores that wait; where some wait, one that brings more is refused with status 429."""
    ray: RayServeConfig | None = None
    """Score with replicas of Ray Serve; null to score in the server's own process."""
    context_length: int | None = Field(None, ge=2)
    """Most tokens of a prompt with its completion; null for what the model was made for."""
    products: Literal["float32", "bfloat16"] = "float32"
    """Type of matrix products, keys and values; weights are read in float32."""
    compiled: bool = True
    """Decode in C where the model's shape allows it."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:N`; `auto` takes a GPU where there is one."""
    request_timeout_seconds: float = Field(600.0, gt=0)
    """For one request, waiting included."""
    drain_seconds: float = Field(30.0, ge=0)
    """How long requests that are being answered may take when the server is stopped."""
    reload_seconds: float = Field(2.0, gt=0)
    """How often the registry is asked whether an alias names another version."""
    max_completions: int = Field(16, ge=1)
    """Largest `n` of a request."""
    max_searches: int = Field(8, ge=1)
    """Requests with `search` that are answered at once; a further one is refused with status 429."""
    max_search_tokens: int = Field(32_768, ge=1)
    """Most tokens that one search may sample, whatever budget the request sets."""
    completion_days: float = Field(90.0, gt=0)
    """With a store: after so long a completion is deleted, and feedback on it is refused."""
    consent: Literal["assumed", "required"] = "assumed"
    """With a store: a request's completions are kept unless it says `consent: false` (`assumed`), or only if it says `consent: true`."""
    compare_every: int = Field(5, ge=0)
    """With a store: one in so many messages on the chat page gets two answers to choose from, on average; 0 for none."""
    trace_text: bool = False
    """With `--traces`: prompts and completions are in the spans."""
    score_share: float = Field(0.05, ge=0, le=1)
    """With `--reward` or `--reference`: share of the completions that is scored, or compared with the evaluation set."""
    drift_window: int = Field(200, ge=50)
    """Sampled completions that are compared with the evaluation set at once."""
    drift_false_alarms: float = Field(0.05, gt=0, lt=1)
    """Probability of a drift alarm in a week in which nothing changed."""

    @model_validator(mode="after")
    def _each_has_its_own(self) -> Self:
        if isinstance(self.engine, VLLMEngineConfig):
            theirs = sorted(self.model_fields_set & LOCAL_ONLY.keys())
            if theirs:
                raise ValueError(f"{theirs[0]} is of the local engine; with vLLM {LOCAL_ONLY[theirs[0]]}")
        elif named := sorted(self.engine.model_fields_set - {"kind"}):
            raise ValueError(
                f"engine.{named[0]} is of training; what the server samples with are `products` and `compiled`"
            )
        return self
