"""What a recipe can't ask of several ranks yet, by its settings alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf.config.training import TrainConfig


def refused_settings(config: TrainConfig) -> list[str]:
    """The settings of a trainer or its stage that ranks can't do yet, as people write them; empty for none."""
    asked: Mapping[str, Any] = {
        "compiled": config.compiled,
        "lm_coef": getattr(config, "lm_coef", 0),  # the language head is outside the model that lies in shards
        "autocast: float16": config.autocast == "float16",
        "async_rollouts": getattr(config, "async_rollouts", None),
        "an engine outside of the trainer": not getattr(getattr(config, "engine", None), "in_this_process", True),
        "model.compile": getattr(getattr(config, "model", None), "compile", False),
    }
    return [name for name, value in asked.items() if value]


def refused_of_stage(stage: Any) -> list[str]:
    """What of a stage ranks can't do yet; a stage that trains nothing is rank 0's alone, and nothing of it is refused."""
    return refused_settings(stage) if stage.trains else []
