"""Who takes a run's steps: AdamW on the weights as they lie here, or DeepSpeed."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.config.training import TrainConfig
from rlhf.distributed.ranks import current_ranks
from rlhf.training.deepspeed_optimizer import DeepSpeedOptimizer
from rlhf.training.optim import Optimizer, TrainedModule


def build_optimizer(modules: Sequence[TrainedModule], config: TrainConfig, *, total_steps: int, name: str) -> Optimizer:
    """DeepSpeed's where the config names its file and there are ranks; see ``Optimizer``."""
    kind = DeepSpeedOptimizer if config.deepspeed is not None and current_ranks().size > 1 else Optimizer
    return kind(modules, config, total_steps=total_steps, name=name)
