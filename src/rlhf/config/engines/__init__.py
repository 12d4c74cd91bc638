"""Who samples completions while a policy learns: this process, or vLLM in a process of its own; one module for each kind of engine."""

from __future__ import annotations

from rlhf.config.engines.engine import EngineConfig, MismatchConfig, is_lowered
from rlhf.config.engines.engine_table import ENGINE_KINDS, FREE_OF_ENGINES, EngineSpec, engines_of
from rlhf.config.engines.local import (
    DraftModelConfig,
    LocalEngineConfig,
    PromptLookupConfig,
    RolloutWeights,
    SpeculateConfig,
)
from rlhf.config.engines.vllm import VLLMEngineConfig

__all__ = [
    "ENGINE_KINDS",
    "FREE_OF_ENGINES",
    "DraftModelConfig",
    "EngineConfig",
    "EngineSpec",
    "LocalEngineConfig",
    "MismatchConfig",
    "PromptLookupConfig",
    "RolloutWeights",
    "SpeculateConfig",
    "VLLMEngineConfig",
    "engines_of",
    "is_lowered",
]
