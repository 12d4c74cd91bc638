"""What a recipe can't ask of several ranks yet, by its settings alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rlhf.config.launch import LaunchConfig, RayLaunchConfig
from rlhf.config.training import TrainConfig


def refused_settings(config: TrainConfig) -> list[str]:
    """The settings of a trainer or its stage that ranks can't do yet, as people write them; empty for none."""
    model = getattr(config, "model", None)
    asked: Mapping[str, Any] = {
        "compiled": config.compiled,
        "lm_coef": getattr(config, "lm_coef", 0),  # the language head is outside the model that lies in shards
        "autocast: float16": config.autocast == "float16",
        "async_rollouts": getattr(config, "max_staleness", 0) > 0,
        "an environment with an engine outside of the trainer": getattr(config, "environment", None)
        and not getattr(getattr(config, "engine", None), "in_this_process", True),
        "model.compile": getattr(model, "compile", False),
        "fsdp.vocab_parallel": config.fsdp.vocab_parallel and not config.takes_vocab_parallel,
        "kl: {estimator: exact} with fsdp.vocab_parallel": config.fsdp.vocab_parallel
        and getattr(getattr(config, "kl", None), "estimator", None) == "exact",
        "model.lora.quantize_4bit": getattr(getattr(model, "lora", None), "quantize_4bit", False),
    }
    return [name for name, value in asked.items() if value] + (
        _refused_with_deepspeed(config) if config.deepspeed else []
    )


def _refused_with_deepspeed(config: TrainConfig) -> list[str]:
    """What is done with weights and gradients by their names, which DeepSpeed keeps to itself."""
    asked: Mapping[str, Any] = {
        "ema_decay": config.ema_decay,
        "l2_coef": config.l2_coef,
        "ewc": getattr(config, "ewc", None),
        "lr_find": config.lr_find,
        "early_stopping": config.early_stopping,
        "a critic": getattr(config, "value_model", None),
        "fsdp": config.fsdp != type(config.fsdp)(),
    }
    return [f"{name} with deepspeed" for name, value in asked.items() if value]


def refused_of_stage(stage: Any, launch: LaunchConfig | None = None) -> list[str]:
    """What of a stage ranks can't do yet, with the pools of a launch; a stage that trains nothing is rank 0's, which refuses nothing."""
    refused = refused_settings(stage) if stage.trains else []
    if getattr(stage, "environment", None) is not None and "engines" in _pools_of(launch):
        refused.append("an environment with engines of a pool")
    return refused


def refused_pools(launch: LaunchConfig) -> list[str]:
    """Keys of the pools that do what ranks do by themselves."""
    return [f"launch.pools.{role}" for role in _pools_of(launch) if role != "engines"]


def _pools_of(launch: LaunchConfig | None) -> Collection[str]:
    return launch.pools.by_role() if isinstance(launch, RayLaunchConfig) else ()


def refused_in_one_process(config: Any) -> str | None:
    """What of a trainer or a stage only ranks can do; None for nothing."""
    if getattr(config, "deepspeed", None) is None:
        return None
    return (
        "deepspeed is for several ranks, and this is one process: start them with `deepspeed --num_gpus=N --module rlhf run RECIPE` or "
        "`launch: {launcher: torchrun, processes: N}`, or leave it out"
    )
