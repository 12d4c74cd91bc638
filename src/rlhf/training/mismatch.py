"""How far the sampler's probabilities lie from the trainer's, in every rollout; and where too far, why.

The measure is the mean of |p_engine - p_trainer| over the sampled tokens, as verl's FAQ has it: below 0.005 kernels and rounding,
above 0.01 a fault. The cause is found by measuring: with which temperature, with or without the adapter, or with whose weights would
the engine's numbers be right? Stale weights give themselves away by saying an earlier rollout's completions again, with the same
log-probabilities, since a sample depends on nothing else than the weights and its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf.config.engines import MismatchConfig, is_lowered
from rlhf.config.policy import RLConfig, SamplingConfig
from rlhf.errors import TrainingError
from rlhf.models.policy import PolicyModel
from rlhf.rollout.engines import exactly, innermost, is_exact
from rlhf.rollout.types import Completion, RolloutEngine
from rlhf.training.metrics import Metrics
from rlhf.training.rollouts import Rollout

METRIC = "rollout/prob_gap"
FITS = 0.25
"""A cause explains a gap where it leaves at most this share of it."""

Rescore = Callable[[Rollout, float], Tensor]
"""float32 [M] the policy's log-probabilities of a rollout's sampled tokens, at a temperature."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a rollout was asked with, so that it can be asked again."""

    sampling: SamplingConfig
    seed: int
    rollout_index: int
    version: int


@dataclass(frozen=True, slots=True)
class _Earlier:
    rollout: Rollout
    """One prompt's completions."""
    old: Tensor
    """[M] the trainer's log-probabilities of them, then."""
    asked: Asked


def probability_gap(first: Tensor, second: Tensor) -> float:
    """Mean |p - q| over tokens.

    Args:
        first: [M] log-probabilities, nats.
        second: [M].
    """
    return float((first.double().exp() - second.double().exp()).abs().mean())


class Mismatch:
    """Watches one run's sampler.

    Args:
        engine: Who samples.
        policy: Whose weights it should have.
        limits: From where on to speak, and to stop.
        rescore: The trainer's own log-probabilities.
        name: What messages call the run.
    """

    def __init__(
        self, engine: RolloutEngine, policy: PolicyModel, limits: MismatchConfig, rescore: Rescore, *, name: str
    ) -> None:
        self.engine = engine
        self.policy = policy
        self.limits = limits
        self.rescore = rescore
        self.name = name
        self._earlier: _Earlier | None = None
        self._spoke = False

    def look(self, rollout: Rollout, old: Tensor, asked: Asked, metrics: Metrics) -> dict[str, Any] | None:
        """Measure a rollout, before anything is learned from it.

        Args:
            rollout: As the engine gave it.
            old: [M] the trainer's log-probabilities of the sampled tokens, at the sampling temperature.
            asked: With what it was asked.
            metrics: Gets the gap.

        Returns:
            What an alarm says, at the first of several rollouts in a row whose gap is above ``warn_at``.

        Raises:
            TrainingError: The gap is above ``stop_at``.
        """
        sampled = rollout.sampled_logprobs
        gap = probability_gap(sampled, old)
        metrics.mean(METRIC, torch.tensor(gap), weight=len(old))
        spoke, self._spoke = self._spoke, not gap < self.limits.warn_at  # NaN speaks too
        if not self._spoke:
            self._remember(rollout, old, asked)
            return None
        stops = self.limits.stop_at is not None and not gap < self.limits.stop_at
        if spoke and not stops:
            return None
        limit, key = (self.limits.stop_at, "stop_at") if stops else (self.limits.warn_at, "warn_at")
        text = (
            f"{self.name}: the engine's probabilities of the {len(old)} sampled tokens differ from the trainer's by {gap:.2g} on "
            f"average, and {limit:g} is the limit (engine.mismatch.{key}): {self.explain(rollout, old, asked)}"
        )
        if stops:
            raise TrainingError(f"{text} Nothing was learned from this rollout.")
        return {"text": text, "guard": "engine", "metric": METRIC, "value": gap, "limit": limit, "action": "warn"}

    def explain(self, rollout: Rollout, old: Tensor, asked: Asked) -> str:
        """Why the engine's numbers are not the trainer's, in a sentence or two."""
        theirs, ours = self.engine.fingerprint(), self.policy.fingerprint()
        if theirs != ours:
            return (
                f"stale weights: the engine holds {theirs[:12]}..., and the trainer {ours[:12]}... (sha256 of all weights), so what it "
                "was given never reached it, or was changed there."
            )
        sampled, gap = rollout.sampled_logprobs, probability_gap(rollout.sampled_logprobs, old)
        others = {
            cause: probability_gap(sampled, logprobs) for cause, logprobs in self._otherwise(rollout, asked).items()
        }
        best = min(others, key=others.__getitem__, default="")
        if best and others[best] <= FITS * gap:
            return f"{best} (the gap is {others[best]:.2g} then)."
        if (version := self._stale_since(asked)) is not None:
            return (
                f"stale weights: asked again what it was asked at version {version}, the engine answers as it did then, though it says "
                f"that it has version {asked.version}."
            )
        if (left := self._left_by_own_weights(rollout, asked)) is not None and left <= FITS * gap:
            return (
                f"rounding: with the policy's own weights instead of the copy that engine.weights asks for, the gap is {left:.2g}. "
                "Take a copy of more bits (bfloat16), or `weights: same`; or raise the limit."
            )
        if (left := self._left_by_a_new_start(rollout, asked)) is not None and left <= FITS * gap:
            return (
                f"weights left behind: an engine that was started again with the same weights has a gap of {left:.2g}, so loading new "
                "ones into a running engine does not reach all of this model. Take engine: local, and report it with the model's family."
            )
        tried = "".join(f"; not {cause.split(':')[0]} ({left:.2g} left)" for cause, left in others.items())
        return (
            f"the cause is none that was looked for (its weights are the trainer's by their hash, and it does not repeat an earlier "
            f"version{tried}). It is {self.engine.health().detail}: another type or quantization than the trainer's, or a kernel that "
            "computes something else. Try engine.dtype: float32; or raise the limit and set `importance`."
        )

    def _otherwise(self, rollout: Rollout, asked: Asked) -> dict[str, Tensor]:
        """What the trainer would have measured had the engine made this or that mistake."""
        temperature = asked.sampling.temperature
        warm = temperature not in (0, 1)
        logprobs: dict[str, Tensor] = {}
        if warm:
            cause = f"temperature: the engine's log-probabilities are those at temperature 1, and it was asked to sample at {temperature:g}"
            logprobs[cause] = self.rescore(rollout, 1.0)
        if self.policy.has_adapter:
            with self.policy.adapter_off():
                logprobs[
                    "adapter not applied: the engine's log-probabilities are those of the base model without its adapter"
                ] = self.rescore(rollout, temperature)
                if warm:
                    logprobs[
                        "adapter not applied and temperature ignored: the engine's log-probabilities are those of the base model at 1"
                    ] = self.rescore(rollout, 1.0)
        return logprobs

    def _stale_since(self, asked: Asked) -> int | None:
        """The earlier version that the engine still samples with; None where it does not, or nothing is known of an earlier one."""
        earlier = self._earlier
        if earlier is None or earlier.asked.version == asked.version:
            return None
        then, prompt = earlier.asked, earlier.rollout.prompts[0]
        (again,) = self.engine.generate(
            [prompt],
            num_samples=len(earlier.rollout.completions),
            sampling=then.sampling,
            seed=then.seed,
            rollout_index=then.rollout_index,
        )
        if [c.tokens for c in again] != [c.tokens for c in earlier.rollout.completions]:
            return None
        answer = torch.tensor([number for c in again for number in c.logprobs])
        now = self.rescore(earlier.rollout, then.sampling.temperature)
        is_old = probability_gap(answer, earlier.old) <= FITS * probability_gap(answer, now)
        return then.version if is_old else None

    def _left_by_a_new_start(self, rollout: Rollout, asked: Asked) -> float | None:
        """The gap of the first prompt's completions by an engine that was started again; None for engines that can't be."""
        restart = getattr(innermost(self.engine), "restart", None)
        if restart is None or any(map(_is_episode, rollout.completions)):
            return None
        restart()
        return self._gap_when_asked_again(rollout, asked)

    def _left_by_own_weights(self, rollout: Rollout, asked: Asked) -> float | None:
        """The same by the policy's own weights; None for engines that have no others."""
        if not hasattr(innermost(self.engine), "exactly") or is_exact(self.engine):
            return None
        if any(map(_is_episode, rollout.completions)):
            return None
        with exactly(self.engine):
            return self._gap_when_asked_again(rollout, asked)

    def _gap_when_asked_again(self, rollout: Rollout, asked: Asked) -> float:
        prompts, count = rollout.prompts[:1], len(rollout.only({0}).completions)
        groups = self.engine.generate(
            prompts, num_samples=count, sampling=asked.sampling, seed=asked.seed, rollout_index=asked.rollout_index
        )
        fresh = Rollout.of(prompts, groups)
        return probability_gap(fresh.sampled_logprobs, self.rescore(fresh, asked.sampling.temperature))

    def _remember(self, rollout: Rollout, old: Tensor, asked: Asked) -> None:
        """The first prompt's completions, unless an environment spoke in them, which should not be asked for nothing."""
        one = rollout.only({0})
        if any(map(_is_episode, one.completions)):
            return
        count = sum(len(completion.logprobs) for completion in one.completions)
        self._earlier = _Earlier(one, old[:count].clone(), asked)


def build_mismatch(
    engine: RolloutEngine, policy: PolicyModel, config: RLConfig, rescore: Rescore, *, own_engine: bool, name: str
) -> Mismatch | None:
    """A watch over a sampler outside, or one with a copy of the weights; None for the trainer's own, which is the policy itself."""
    if own_engine and not is_lowered(config.engine):
        return None
    return Mismatch(engine, policy, config.engine.mismatch, rescore, name=name)


def _is_episode(completion: Completion) -> bool:
    return completion.turns != 1 or completion.scored is not None or completion.environment_reward is not None
