"""AdamW whose state, gradients and weights DeepSpeed partitions, behind the face of ``rlhf.training.optim.Optimizer``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from rlhf.config.deepspeed import deepspeed_settings
from rlhf.config.training import TrainConfig
from rlhf.distributed.deepspeed_engine import ZeroEngine
from rlhf.distributed.ranks import current_ranks
from rlhf.distributed.sharding import whole
from rlhf.errors import ConfigError
from rlhf.models.score import base_model
from rlhf.models.sharded_models import transformer_layers
from rlhf.training.optim import Optimizer, TrainedModule

MOMENTS = ("exp_avg", "exp_avg_sq")


class DeepSpeedOptimizer(Optimizer):
    """One model. Its state is that of torch's AdamW over whole parameters, so checkpoints are those of one process.

    Raises:
        ConfigError: There are several models, weights that are trained are not float32, or the file contradicts the config.
    """

    adds_whole_gradients = False

    def __init__(
        self, modules: Sequence[TrainedModule], config: TrainConfig, *, total_steps: int, name: str = "training"
    ) -> None:
        super().__init__(modules, config, total_steps=total_steps, name=name)
        assert config.deepspeed is not None
        if len(modules) > 1:
            names = " and ".join(trained.name for trained in modules)
            raise ConfigError(f"{name}: DeepSpeed trains one model, and this trains {names}; use FSDP2 for it.")
        others = {p.dtype for p in self.parameters} - {torch.float32}
        if others:
            raise ConfigError(
                f"{name}: with `deepspeed` weights in {others.pop()} can't be trained; use dtype: float32 and autocast: bfloat16."
            )
        self._numbered: list[nn.Parameter] = [p for group in self.adamw.param_groups for p in group["params"]]
        self._groups = self.adamw.state_dict()["param_groups"]
        self._shapes = [p.shape for p in self._numbered]
        self._steps = 0
        """That AdamW took."""
        self._pending = False
        """Whether there are gradients."""
        network: Any = modules[0].module
        self._zero = ZeroEngine(
            network, base_model(network), transformer_layers(base_model(network)),
            optimizer=self.adamw, settings=deepspeed_settings(config.deepspeed, config),
        )  # fmt: skip
        # DeepSpeed looks for it after the first group's first step, when other groups would have none yet.
        for partition in self._zero.partitions:
            step = torch.zeros((), device=partition.device)
            self.adamw.state[partition] = {"step": step, **{key: torch.zeros_like(partition) for key in MOMENTS}}

    @override
    def backward(self, loss: Tensor) -> None:
        self._zero.backward(loss)
        self._pending = True

    @override
    def has_finite_gradient(self, loss: Tensor) -> bool:
        """By its loss alone: gradients of single rows can't be told apart here."""
        return bool(torch.isfinite(loss))

    @override
    def step(self, step: int) -> dict[str, float]:
        factor = self._factor(step)
        for group in self.adamw.param_groups:
            group["lr"] = group["peak"] * factor * self.scale
        norm, self._pending = self._zero.step(), False
        self._steps += math.isfinite(norm)
        return {"learning_rate": self.adamw.param_groups[0]["lr"], "grad_norm": norm}

    @override
    def clear(self) -> None:
        if self._pending:
            self._zero.drop_gradients()
            self._pending = False

    @override
    @contextmanager
    def whole_weights(self, *, changed: bool = False) -> Iterator[None]:
        with self._zero.weights(changed=changed):
            yield

    @override
    def close(self) -> None:
        self._zero.close()

    @override
    def state_dict(self) -> dict[str, Any]:
        """On rank 0; the others take part and keep nothing."""
        return {
            "adamw": {"state": self._whole_state(), "param_groups": self._groups},
            "scaler": self.scaler.state_dict(),
            "skipped": self.skipped,
            "scale": self.scale,
        }

    def _whole_state(self) -> dict[int, dict[str, Tensor]]:
        state: dict[int, dict[str, Tensor]] = {}
        for number, parameter in enumerate(self._numbered if self._steps else ()):
            moments = {key: self._zero.moments(parameter, key) for key in MOMENTS}
            if current_ranks().is_main:
                state[number] = {"step": torch.tensor(float(self._steps)), **{k: m.cpu() for k, m in moments.items()}}
        return state

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.skipped, self.scale = state["skipped"], state["scale"]
        moments = state["adamw"]["state"]
        if not moments and not self._steps:
            return
        for group in self.adamw.param_groups:
            group["lr"] = 0.0
        self._zero.link_moments()
        for number, parameter in enumerate(self._numbered):
            for key in MOMENTS:
                held = moments[number][key] if moments else torch.zeros(self._shapes[number])
                self._zero.set_moments(parameter, key, whole(held).to(self.device))
        self._steps = int(moments[0]["step"]) if moments else 0
        for kept in self.adamw.state.values():
            kept["step"] = torch.full_like(kept["step"], float(self._steps))
