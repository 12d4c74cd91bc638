"""DeepSpeed's ZeRO in the place of FSDP2: its engine around a model, and whole weights where they are asked for.

Source: Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054. Only here is ``deepspeed`` imported.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlhf.distributed.sharding import CALL
from rlhf.errors import require

ResultT = TypeVar("ResultT")
WEIGHTS = 3
"""The stage at which weights are partitioned too."""


class _Caller(nn.Module):
    """Gives DeepSpeed, which knows calls of one module only, whatever is computed with the model's parameters."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, function: Callable[[], ResultT]) -> ResultT:
        return function()


class ZeroEngine:
    """A model that DeepSpeed trains; ``rlhf.distributed.sharding.inside_forward`` goes through it.

    Args:
        network: With the same weights on every rank.
        root: The part of it that ``inside_forward`` is called with.
        layers: Modules of ``root`` that are gathered one after the other; all other parameters stay whole from forward to backward.
        optimizer: Over what is trained; its groups hold partitions from here on.
        settings: DeepSpeed's.

    Raises:
        MissingExtraError: DeepSpeed is not installed.
    """

    def __init__(
        self,
        network: nn.Module,
        root: nn.Module,
        layers: Sequence[nn.Module],
        *,
        optimizer: torch.optim.Optimizer,
        settings: Mapping[str, Any],
    ) -> None:
        self._deepspeed = _imported(next(network.parameters()).device)
        self.caller, self.root = _Caller(network), root
        self.stage = int(settings["zero_optimization"]["stage"])
        if self.stage == WEIGHTS:
            inner = {id(p) for layer in layers for p in layer.parameters()}
            for parameter in root.parameters():
                if id(parameter) not in inner:
                    self._deepspeed.zero.register_external_parameter(self.caller, parameter)
        self.engine, *_ = self._deepspeed.initialize(
            model=self.caller, optimizer=optimizer, config=dict(settings), dist_init_required=False
        )
        self.world_size = torch.distributed.get_world_size()
        root.__dict__[CALL] = self

    def __call__(self, function: Callable[[], ResultT]) -> ResultT:
        """A forward pass."""
        result: ResultT = self.engine(function)
        return result

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients, as sums over ranks, where DeepSpeed takes means."""
        self.engine.backward(loss * self.world_size)

    def step(self) -> float:
        """Clip and update; the norm before, which is infinite where nothing was updated because it was not finite."""
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        return float(norm if norm is not None else 0.0)

    def drop_gradients(self) -> None:
        """Forget what was accumulated: DeepSpeed drops all of it with a gradient that is not finite."""
        self._step_on(lambda p: p.sum() * float("nan"))

    def link_moments(self) -> None:
        """Take a step on a gradient of zero, before which stages 1 and 2 give no moments; at a learning rate of 0 it changes no weight."""
        if self.stage != WEIGHTS:
            self._step_on(lambda p: p.sum() * 0.0)

    def _step_on(self, term: Callable[[Tensor], Tensor]) -> None:
        with self._gathered():
            self.backward(
                self(lambda: torch.stack([term(p) for p in self.caller.parameters() if p.requires_grad]).sum())
            )
        self.engine.step()

    @contextmanager
    def weights(self, *, changed: bool = False) -> Iterator[None]:
        """Inside, parameters are whole tensors; with ``changed``, what they hold at the end is what is trained on from."""
        with self._gathered(changed=changed):
            yield
        if changed:
            self.engine.optimizer.refresh_fp32_params()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, parameters are whole and no forward pass is a collective."""
        if self.stage != WEIGHTS:
            yield
            return
        offload = self.engine.optimizer.parameter_offload
        with self._gathered():
            offload._remove_module_hooks()  # as TRL's `unwrap_model_for_generation` does
            try:
                yield
            finally:
                offload.forward_hooks, offload.backward_hooks = [], []
                offload.setup_zero_stage3_hooks()

    @property
    def partitions(self) -> list[Tensor]:
        """What the optimizer takes its steps on, on this rank."""
        zero = self.engine.optimizer
        if self.stage == WEIGHTS:
            return list(zero.fp32_partitioned_groups_flat)
        return [partition for group in zero.optimizer.param_groups for partition in group["params"]]

    def moments(self, parameter: nn.Parameter, key: str) -> Tensor:
        """Of the optimizer, the whole of what it keeps for a parameter; all ranks ask at once."""
        whole: Tensor = self._deepspeed.utils.safe_get_full_optimizer_state(parameter, key)
        return whole

    def set_moments(self, parameter: nn.Parameter, key: str, value: Tensor) -> None:
        """The other side of ``moments``."""
        self._deepspeed.utils.safe_set_full_optimizer_state(parameter, value, key)

    def close(self) -> None:
        """Whole parameters and plain modules, and nothing of DeepSpeed left in them."""
        with self._gathered():
            plain = {id(p): nn.Parameter(p.detach().clone(), p.requires_grad) for p in self.caller.parameters()}
        self.root.__dict__.pop(CALL, None)
        self.engine.destroy()
        for module in self.caller.network.modules():
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[key] = plain[id(parameter)]

    @contextmanager
    def _gathered(self, *, changed: bool = False) -> Iterator[None]:
        if self.stage != WEIGHTS:
            yield
            return
        parameters = list(self.caller.parameters())
        with self._deepspeed.zero.GatheredParameters(parameters, modifier_rank=0 if changed else None):
            yield


def _imported(device: torch.device) -> Any:
    """DeepSpeed, for a kind of device, and quiet."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    deepspeed: Any = require("deepspeed", extra="deepspeed", needed_for="`deepspeed`")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".torch.distributed.* is deprecated", category=FutureWarning)
    if (
        device.type == "cpu"
    ):  # gloo does it; DeepSpeed would compile an operator of its own at the first start, for minutes
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(
            dist_backend="gloo" if device.type == "cpu" else "nccl", auto_mpi_discovery=False, verbose=False
        )
    return deepspeed
