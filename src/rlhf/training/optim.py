"""Optimizer, learning-rate schedule, gradient clipping and weight averaging: written once, used by the one loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from rlhf.config.training import Autocast, Schedule, TrainConfig
from rlhf.distributed.sharding import compute_device, is_shard, like, part, whole
from rlhf.errors import ConfigError, TrainingError, check_type

CLIP_EPS = 1e-6
"""Added to a norm that divides, as ``torch.nn.utils.clip_grads_with_norm_`` has it."""
NOTHING_TRAINABLE = "Nothing is trainable: every weight is frozen; unfreeze some or add an adapter."
MAX_SKIPPED_STEPS = 25
"""Steps in a row that float16 may skip: the loss scale starts at 2^16, and after so many halvings it is 0.002."""


@dataclass(frozen=True, slots=True)
class TrainedModule:
    """A module that the optimizer changes, and how fast."""

    name: str
    module: nn.Module
    learning_rate: float

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return compute_device(next(self.module.parameters()))


def learning_rate_factor(step: int, total_steps: int, *, warmup_frac: float, kind: Schedule, floor: float) -> float:
    """Share of the peak learning rate at a step, counted from 0.

        rises linearly over round(warmup_frac * total_steps) steps,
        then falls to ``floor`` along a half cosine or a line

    Returns:
        In (0, 1]; the last step stands one step before the end of the fall, so no step is spent at exactly 0.
    """
    warmup = round(warmup_frac * total_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if kind == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    fall = 0.5 * (1 + math.cos(math.pi * progress)) if kind == "cosine" else 1 - progress
    return floor + (1 - floor) * fall


def mixed_precision(kind: Autocast, device: torch.device) -> AbstractContextManager[object]:
    """Inside, matrix products run in this type; every forward of a run stands in one, so that all of them agree."""
    return nullcontext() if kind == "none" else torch.autocast(device.type, dtype=getattr(torch, kind))


def decay_groups(parameters: Iterable[nn.Parameter], *, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's parameter groups: matrices decay, parameters with one dimension (norms, biases) do not; no group is empty."""
    listed = list(parameters)
    decaying, others = [p for p in listed if p.ndim > 1], [p for p in listed if p.ndim <= 1]
    return [
        {"params": chosen, "weight_decay": decay}
        for decay, chosen in ((weight_decay, decaying), (0.0, others))
        if chosen
    ]


def clip_gradients(parameters: Sequence[Tensor], limit: float) -> float:
    """Scale the gradients down, all by one factor, to at most this norm; returns the norm that they had."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm, scale = _norm_and_scale(gradients, limit)
    for (
        gradient
    ) in gradients:  # not times its inverse: one of several models, or on a GPU, learns as it would alone here
        part(gradient).div_(scale.to(gradient.device))
    return float(norm)


def _norm_and_scale(gradients: Sequence[Tensor], limit: float) -> tuple[Tensor, Tensor]:
    norm = whole(nn.utils.get_total_norm(gradients))
    exact = norm.to(torch.promote_types(norm.dtype, torch.float32))
    return norm, ((exact + CLIP_EPS) / limit).clamp(min=1)


def create_optimizer(
    model: nn.Module,
    *,
    learning_rate: float = 2e-5,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    total_steps: int | None = None,
    schedule: Schedule = "cosine",
    warmup_frac: float = 0.1,
    min_learning_rate_frac: float = 0.0,
) -> tuple[torch.optim.AdamW, LambdaLR]:
    """AdamW over a model's trainable parameters and its schedule, for a loop of one's own; trainers make theirs from a config.

    The parameter groups and rates are the trainers'. Call ``optimizer.step()``, then ``scheduler.step()``.

    Args:
        model: At least one parameter requires a gradient.
        learning_rate: Peak.
        weight_decay: Decoupled, of parameters with more than one dimension.
        betas: AdamW's running averages.
        eps: AdamW's denominator.
        total_steps: Optimizer steps of the schedule; None keeps the rate constant, without warm-up.
        schedule: How the rate falls after warm-up: ``cosine``, ``linear`` or ``constant``.
        warmup_frac: Share of the steps in which the rate rises, in [0, 1).
        min_learning_rate_frac: Where the schedule ends, as a share of the peak.

    Raises:
        ConfigError: A setting is out of its range, or nothing is trainable.
    """
    check_type(model, nn.Module, name="model", expected="a module whose parameters are trained, such as a PolicyModel")
    config = TrainConfig(
        learning_rate=learning_rate, weight_decay=weight_decay, betas=betas, eps=eps, schedule=schedule,
        warmup_frac=warmup_frac, min_learning_rate_frac=min_learning_rate_frac,
    )  # fmt: skip
    if total_steps is not None and total_steps < 1:
        raise ConfigError(f"total_steps is {total_steps}; expected 1 or more, or None for a constant rate.")
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = decay_groups(trainable, weight_decay=config.weight_decay)
    if not groups:
        raise ConfigError(NOTHING_TRAINABLE)
    adamw = torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=eps, fused=_can_fuse(trainable))

    def factor(step: int) -> float:
        if total_steps is None:
            return 1.0
        return learning_rate_factor(
            step, total_steps, warmup_frac=warmup_frac, kind=schedule, floor=min_learning_rate_frac
        )

    return adamw, LambdaLR(adamw, factor)


class Optimizer:
    """AdamW over several modules with one schedule; each module's gradient is clipped by itself.

    Matrices get weight decay; parameters with one dimension (norms, biases) do not. float16 has a loss scale.
    """

    adds_whole_gradients = True
    """Whether gradients of parameters that every rank has whole are still to be added up over ranks when a step is complete."""

    def __init__(
        self, modules: Sequence[TrainedModule], config: TrainConfig, *, total_steps: int, name: str = "training"
    ) -> None:
        """Collect what is trainable; a parameter that two modules share belongs to the first.

        Args:
            modules: At least one.
            config: Settings.
            total_steps: Length of the schedule.
            name: What errors call the run.

        Raises:
            ConfigError: Nothing is trainable, or half-precision weights were asked to be trained with a loss scale.
        """
        self.config = config
        self.total_steps = total_steps
        self.name = name
        self.parameters_of: dict[str, list[nn.Parameter]] = {}
        groups: list[dict[str, Any]] = []
        seen: set[int] = set()
        for trained in modules:
            fresh = [p for p in trained.module.parameters() if p.requires_grad and id(p) not in seen]
            seen.update(map(id, fresh))
            self.parameters_of[trained.name] = fresh
            groups += [
                {**group, "peak": trained.learning_rate}
                for group in decay_groups(fresh, weight_decay=config.weight_decay)
            ]
        self.parameters = [p for parameters in self.parameters_of.values() for p in parameters]
        if not groups:
            raise ConfigError(NOTHING_TRAINABLE)
        if config.autocast == "float16" and any(p.dtype == torch.float16 for p in self.parameters):
            raise ConfigError("autocast is float16, and so are the weights; train float32 weights (`dtype: float32`).")
        self.device = compute_device(self.parameters[0])
        self.adamw = torch.optim.AdamW(
            groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=_can_fuse(self.parameters)
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.autocast == "float16")
        self.skipped = 0
        """Steps in a row whose gradient was not finite."""
        self.scale = 1.0
        """Share of the schedule's learning rate that is used; a guard may lower it."""

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients."""
        self.scaler.scale(loss).backward()

    def step(self, step: int) -> dict[str, float]:
        """Clip, take one step at the schedule's learning rate, clear gradients.

        Args:
            step: Optimizer steps taken before this one.

        Returns:
            ``learning_rate`` (of the first module), ``grad_norm/<module>`` before clipping, and ``grad_norm`` of all. A gradient
            that is not finite changes nothing: no step is taken, and ``grad_norm`` says so.

        Raises:
            TrainingError: float16 skipped ``MAX_SKIPPED_STEPS`` in a row: the scaler lowers the loss scale each time.
        """
        config = self.config
        factor = self._factor(step)
        for group in self.adamw.param_groups:
            group["lr"] = group["peak"] * factor * self.scale
        self.scaler.unscale_(self.adamw)
        limit = config.max_grad_norm if config.max_grad_norm is not None else math.inf
        norms = {name: self._clip(parameters, limit) for name, parameters in self.parameters_of.items()}
        total = math.hypot(*norms.values())
        self._count_skipped(total, step)
        if math.isfinite(total) or self.scaler.is_enabled():
            self.scaler.step(self.adamw)
            self.scaler.update()
        vars(self.adamw).pop("grad_scale", None)
        self.clear()
        parts = {f"grad_norm/{name}": norm for name, norm in norms.items()} if len(norms) > 1 else {}
        return {"learning_rate": self.adamw.param_groups[0]["lr"], "grad_norm": total, **parts}

    def _clip(self, parameters: Sequence[Tensor], limit: float) -> float:
        """Norm of the gradient, which is no longer than the limit afterwards, or once AdamW has read it."""
        if not self._clips_in_step:
            return clip_gradients(parameters, limit)
        norm, scale = _norm_and_scale([p.grad for p in parameters if p.grad is not None], limit)
        # A pass over all gradients less: where torch.amp.GradScaler puts what a fused optimizer is to divide by.
        self.adamw.grad_scale = scale  # type: ignore[attr-defined]
        return float(norm)

    @property
    def _clips_in_step(self) -> bool:
        """Whether AdamW's kernel may divide by the scale as it reads: one for all, in float32, and no loss scale besides."""
        return (
            len(self.parameters_of) == 1
            and self.device.type == "cpu"
            and all(group["fused"] for group in self.adamw.param_groups)
            and not self.scaler.is_enabled()
            and all(p.dtype != torch.float64 and not is_shard(p) for p in self.parameters)
        )

    def has_finite_gradient(self, loss: Tensor) -> bool:
        """Whether the gradient of a loss is finite; there must be none before, and there is none after."""
        loss.backward()
        finite = all(p.grad is None or bool(torch.isfinite(part(p.grad)).all()) for p in self.parameters)
        self.clear()
        return finite

    def whole_weights(self, *, changed: bool = False) -> AbstractContextManager[None]:
        """Inside, parameters may be read, and with ``changed`` written, by their names; they may always, but where DeepSpeed has them."""
        return nullcontext()

    def close(self) -> None:
        """Leave plain modules behind."""

    def learning_rate(self, step: int) -> float:
        """Of the first module, in the step after ``step`` others."""
        return float(self.adamw.param_groups[0]["peak"] * self._factor(step) * self.scale)

    def _factor(self, step: int) -> float:
        config = self.config
        return learning_rate_factor(
            step,
            self.total_steps,
            warmup_frac=config.warmup_frac,
            kind=config.schedule,
            floor=config.min_learning_rate_frac,
        )

    def clear(self) -> None:
        """Forget the gradients."""
        # None, not zeros: AdamW passes over a parameter without gradient, and must do so after a resume as before it
        self.adamw.zero_grad(set_to_none=True)

    @property
    def searches_scale(self) -> bool:
        """Whether a gradient that is not finite is part of the search for a loss scale (float16), and no fault."""
        return self.scaler.is_enabled()

    def _count_skipped(self, norm: float, step: int) -> None:
        self.skipped = 0 if math.isfinite(norm) else self.skipped + 1
        if self.scaler.is_enabled() and self.skipped > MAX_SKIPPED_STEPS:
            raise TrainingError(
                f"{self.name}: float16 can't hold the gradient, {self.skipped} steps in a row were skipped up to step "
                f"{step + 1}; use bfloat16 or no autocast."
            )

    def state_dict(self) -> dict[str, Any]:
        """Moments, loss scale, and what became of the learning rate."""
        return {
            "adamw": self.adamw.state_dict(),
            "scaler": self.scaler.state_dict(),
            "skipped": self.skipped,
            "scale": self.scale,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.adamw.load_state_dict({**state["adamw"], "state": self._in_shards(state["adamw"]["state"])})
        self.scaler.load_state_dict(state["scaler"])
        self.skipped = state["skipped"]
        self.scale = state["scale"]

    def _in_shards(self, moments: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
        """AdamW's state as its parameters lie; a count of steps has no shape of theirs."""
        numbered = [parameter for group in self.adamw.param_groups for parameter in group["params"]]
        return {
            number: {
                name: like(value, numbered[number]) if value.shape == numbered[number].shape else value
                for name, value in values.items()
            }
            for number, values in moments.items()
        }


class WeightAverage:
    """Exponential moving average of trained parameters, kept next to them in float32 or wider.

        average <- decay * average + (1 - decay) * weight,   decay = min(config, (1 + t) / (10 + t))

    with t the updates so far. Sources: Polyak & Juditsky 1992; the warm-up of the decay is TensorFlow's
    ``ExponentialMovingAverage`` rule.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, decay: float) -> None:
        self.parameters = list(parameters)
        self.decay = decay
        self.updates = 0
        self.average = [p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True) for p in self.parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Fold the current weights in."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        for average, parameter in zip(self.average, self.parameters, strict=True):
            average.lerp_(parameter.to(average.dtype), 1 - decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model holds the average inside, and its own weights again, to the bit, outside."""
        kept = [p.detach().clone() for p in self.parameters]
        self.copy_to_model()
        try:
            yield
        finally:
            copy_tensors(kept, self.parameters)

    def copy_to_model(self) -> None:
        """From now on the model holds the average."""
        copy_tensors(self.average, self.parameters)

    def state_dict(self) -> dict[str, Any]:
        """Averages and count."""
        return {"average": self.average, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        copy_tensors(state["average"], self.average)
        self.updates = state["updates"]


@torch.no_grad()
def copy_tensors(source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    """Copy values into tensors that stay where they are, in their own type."""
    for theirs, mine in zip(source, target, strict=True):
        mine.copy_(like(theirs, mine))


def _can_fuse(parameters: Sequence[Tensor]) -> bool:
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
