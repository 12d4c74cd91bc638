"""A learning-rate range test before the first step: a few updates at rising rates, measured, and taken back to the bit.

    offline (SFT, reward, DPO)    after every update, the loss of the rows of the first step; updates learn from the steps after it
    policy (PPO, GRPO)            the KL that every update costs, nats per token, on the first rollout, which they all learn from

Smith 2017 (arXiv:1506.01186) raises the rate within a run and looks where the loss falls and where it breaks; the loss here is that
of held rows, which is smoother. A policy's loss says nothing of the kind, and what ruins policies is the size of their steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlhf.data.pack import PackedBatch
from rlhf.training.algorithm import Totals
from rlhf.training.checkpoint import load_weights
from rlhf.training.checkpoint_folder import Snapshot
from rlhf.training.experience import RolloutExperience
from rlhf.training.metrics import Metrics
from rlhf.training.optim import mixed_precision

if TYPE_CHECKING:
    from rlhf.training.loop import Loop

Curve = Sequence[tuple[float, float]]
"""Rate and what was measured after an update at it, the start (rate 0) first."""

LOWEST, FACTOR, COUNT = 1e-7, 2.0, 21
"""Rates 1e-7, 2e-7, 4e-7 ... .1: one update at each, until it breaks."""
BREAKS_AT = 1.5
"""A loss so many times that of the start is broken."""
BELOW_LOWEST_LOSS = 8.0
"""Suggested is the rate with the lowest loss over this: one update at a rate survives what hundreds do not. Set before the
grid of docs/learning-rates.md was measured, which bears it out."""
SMALLEST_FALL = 0.005
"""A loss that never falls by this share of itself has shown nothing."""
LARGEST_KL = 1.0
"""Nats per token of one update after which nothing more is tried."""
KL_OF_A_STEP = 0.003
"""Nats per token that one update of a policy may cost; set and confirmed in the same way."""


def find_learning_rate(loop: Loop) -> None:
    """Measure, put everything back, write what was found; and take the rate, where the recipe says ``lr_find: use``.

    Args:
        loop: With the experience of its phase. Nothing is done without ``lr_find``, or after the first step.
    """
    config = loop.config
    if config.lr_find is None or loop.at.step > 0:
        return
    experience, modules = loop.experience, {trained.name: trained.module for trained in loop.modules}
    loop.experience = None  # it is not changed, and the run goes on with this very object
    before = Snapshot.of(modules, loop.state_dict())
    try:
        objective, curve = _measure(loop, experience)
    finally:
        loop.optimizer.clear()
        load_weights(modules, before.weights)
        loop.load_state_dict(before.state)
        loop.experience = experience
    suggested = rate_by_kl(curve) if objective == "kl" else rate_by_loss(curve)
    used = suggested is not None and config.lr_find == "use"
    if suggested is not None and used:
        for group in _groups(loop):
            group["peak"] = suggested
    what = "the KL of single updates" if objective == "kl" else "the loss of held rows"
    words = f"showed no rate to suggest; learning_rate {config.learning_rate:g} stays"
    if suggested is not None:
        words = f"suggests {suggested:g}" + (
            f", which is used in place of learning_rate {config.learning_rate:g}"
            if used
            else f"; learning_rate {config.learning_rate:g} stays"
        )
    message = f"{loop.name}: lr_find tried {len(curve) - 1} rates, and {what} {words}."
    loop.log.write(
        "lr_find", step=0, message=message, objective=objective, suggested=suggested, given=config.learning_rate, used=used,
        rates=[rate for rate, _ in curve], values=[value for _, value in curve],
    )  # fmt: skip
    loop.log.say(f"  {message}")


def rate_by_loss(curve: Curve) -> float | None:
    """The rate with the lowest loss, over ``BELOW_LOWEST_LOSS``; None where the loss did not fall."""
    start = curve[0][1]
    rate, lowest = min(
        (point for point in curve if math.isfinite(point[1])), key=lambda point: point[1], default=curve[0]
    )
    if not lowest < start - SMALLEST_FALL * abs(start):
        return None
    return _two_digits(rate / BELOW_LOWEST_LOSS)


def rate_by_kl(curve: Curve) -> float | None:
    """The rate whose update costs ``KL_OF_A_STEP``, between the rates around it on a line of logarithms; None where none does."""
    before = (0.0, 0.0)
    for rate, kl in curve:
        if kl < KL_OF_A_STEP:
            before = (rate, kl)
        elif before[1] <= 0 or not math.isfinite(kl):
            return _two_digits(rate / FACTOR)
        else:
            share = math.log(KL_OF_A_STEP / before[1]) / math.log(kl / before[1])
            return _two_digits(before[0] * (rate / before[0]) ** share)
    return None


def _measure(loop: Loop, experience: Any) -> tuple[str, Curve]:
    """The objective's name, and the curve."""
    steps = list(loop.algorithm.steps(0, experience))
    updates: Iterator[Sequence[PackedBatch]]
    measure: Callable[[], float]
    is_policy = isinstance(experience, RolloutExperience)
    if is_policy:
        updates, measure = itertools.cycle(steps), _KLOfUpdate(loop, steps[0])
    else:
        updates, measure = _later_steps(loop), lambda: _loss(loop, steps[0])
    groups, schedule = _groups(loop), loop.optimizer.learning_rate(0) / loop.config.learning_rate
    start = measure()
    worst = LARGEST_KL if is_policy else start + (BREAKS_AT - 1) * abs(start)
    curve = [(0.0, start)]
    for number in range(COUNT):
        rate = LOWEST * FACTOR**number
        for group in groups:
            group["peak"] = rate / schedule
        if not _update(loop, next(updates)):
            break
        curve.append((rate, measure()))
        if not curve[-1][1] <= worst:
            break
    return "kl" if is_policy else "loss", curve


def _groups(loop: Loop) -> list[dict[str, Any]]:
    """What learns at ``learning_rate``; a critic with a rate of its own keeps it."""
    groups = loop.optimizer.adamw.param_groups
    return [group for group in groups if group["peak"] == loop.config.learning_rate]


def _later_steps(loop: Loop) -> Iterator[Sequence[PackedBatch]]:
    """Those of the phases after the first; rows come round again where a run has fewer."""
    for phase in itertools.count(1):
        yield from loop.algorithm.steps(phase, loop.algorithm.collect(phase, Metrics()))


def _update(loop: Loop, batches: Sequence[PackedBatch]) -> bool:
    """One update; False where its gradient is not finite."""
    for trained in loop.modules:
        trained.module.train()
    _before_step(loop, batches)
    if loop.stepper.add_gradients(batches, Metrics()) is not None:
        return False
    return math.isfinite(loop.algorithm.take_step(loop.optimizer, 0, batches)["grad_norm"])


def _loss(loop: Loop, batches: Sequence[PackedBatch]) -> float:
    """Of a step's rows; nothing is learned from them."""
    for trained in loop.modules:
        trained.module.eval()
    _before_step(loop, batches)
    totals = Totals.of(batches)
    with torch.no_grad(), _precision(loop):
        return math.fsum(float(loop.algorithm.loss(batch, totals, Metrics())) for batch in batches)


def _before_step(loop: Loop, batches: Sequence[PackedBatch]) -> None:
    with torch.no_grad(), _precision(loop):
        loop.algorithm.before_step(batches, Metrics())


def _precision(loop: Loop) -> AbstractContextManager[object]:
    return mixed_precision(loop.config.autocast, loop.optimizer.device)


class _KLOfUpdate:
    """KL(before || after) of the newest update, nats per token, on the tokens of a step.

    They were sampled by the policy before the first update: exact for that one, and close while the policy is.
    """

    def __init__(self, loop: Loop, batches: Sequence[PackedBatch]) -> None:
        trainer: Any = loop.algorithm
        self.loop, self.batches = loop, batches
        self.policy, self.temperature = trainer.policy, trainer.config.sampling.temperature
        self.newest: Tensor | None = None

    def __call__(self) -> float:
        before, self.newest = self.newest, self._logprobs()
        if before is None:
            return 0.0
        log_ratio = (self.newest - before).double()
        return float((log_ratio.expm1() - log_ratio).mean())

    def _logprobs(self) -> Tensor:
        self.policy.model.eval()
        device, temperature = self.policy.device, self.temperature
        with torch.no_grad(), _precision(self.loop):
            return torch.cat([self.policy.logprobs(b.to(device), temperature=temperature) for b in self.batches])


def _two_digits(rate: float) -> float:
    """More were not measured."""
    return float(f"{rate:.1e}")
