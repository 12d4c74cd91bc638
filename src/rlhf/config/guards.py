"""Guards that watch a training run: what each of them allows, and what happens beyond it.

By default they only speak: an alarm is written and printed, shown in the report with the samples that raised it, and
no bit of the run changes. The limits lie well outside everything that the healthy runs of this project do and inside
what its runs without a KL penalty do; where the literature gives a number, the field names it.

    guards: off                                          none at all
    guards: stop                                         any alarm ends the run
    guards: {action: restore, entropy: off}              go back on any alarm, but do not look at entropy
    guards: {kl: {limit: 20, action: stop}}              one guard by itself, the others as they are
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from rlhf.config.base import BaseConfig


def as_written(value: Any) -> Any:
    """YAML 1.1 reads a bare ``off`` as false; anyone who writes it means the word."""
    return "off" if value is False else value


Action = Annotated[Literal["warn", "stop", "restore", "off"], BeforeValidator(as_written)]
"""``warn``: say so and go on. ``stop``: end the run, its last checkpoint stays. ``restore``: go back to the last good
checkpoint and halve the learning rate. ``off``: do not look."""


class Guarded(BaseConfig):
    """A section that a single word can stand for: its action."""

    @model_validator(mode="before")
    @classmethod
    def _word_for_the_section(cls, value: Any) -> Any:
        if isinstance(value, str | bool):
            return {} if value is True else {"action": value}
        return value


class GuardConfig(Guarded):
    """What happens when this guard raises an alarm."""

    action: Action | None = None
    """What an alarm does; by default what `guards.action` says."""


class KLGuard(GuardConfig):
    """Distance from the reference: far away, a learned reward is asked about texts that it has never seen."""

    limit: float | None = Field(None, gt=0)
    """Nats per sequence, for two rollouts in a row, or twice as much for one. By default 15, or what `per_token` allows where
    that is more: long completions have more room. How far one can go before the truth falls grows with the reward model
    (Gao et al. 2022, arXiv:2210.10760); healthy runs here stay below 7 at 12 tokens, but for single rollouts, and below 12
    at 64; gamed ones pass 15."""
    per_token: float = Field(0.25, gt=0)
    """Nats for each token of the mean completion of the first rollouts; without effect where `limit` is given. Healthy runs
    of 58 and 64 tokens here stay below 0.24; under 0.5 a run of PPO passed at 27 nats whose answers no longer ended."""


class EntropyGuard(GuardConfig):
    """Entropy of the policy: without any it no longer explores, and with too much it babbles."""

    min_frac: float = Field(0.05, ge=0, lt=1)
    """Lowest entropy as a share of that of the first rollouts. It falls in every run; healthy ones here keep 13 %, and
    learning ends where it is used up (Cui et al. 2025, arXiv:2505.22617)."""
    min_nats: float = Field(0.01, ge=0)
    """Lowest entropy in nats per token, whatever it was at first."""
    max_rise: float = Field(1.0, gt=0)
    """Largest rise over the first rollouts in nats per token; reward training lowers entropy, noise raises it."""


class GradNormGuard(GuardConfig):
    """Gradient norm before clipping, as a multiple of its running median."""

    sustained: float = Field(10.0, gt=1)
    """For the median of the last five steps. No healthy run here comes above 4."""
    spike: float = Field(100.0, gt=1)
    """For a single step. Clipping makes single spikes harmless: healthy runs have some of 30 times the median."""


class RewardJumpGuard(GuardConfig):
    """A mean score that leaps from one rollout to the next: an exploit was found, or the scorer broke."""

    deviations: float = Field(8.0, gt=0)
    """Largest change in robust deviations (1.48 times the median) of the changes before it, or in tenths of the deviation
    of single scores where that is more. Healthy runs here stay below 5."""


class LengthGuard(GuardConfig):
    """Length of completions: longer is the commonest thing that a reward model wrongly likes."""

    factor: float = Field(2.0, gt=1)
    """How many times longer or shorter than in the first rollouts. Length alone explains much of what reward training
    gains (Singhal et al. 2023, arXiv:2310.03716). Allow more where long reasoning is what you want."""
    max_cut_rise: float = Field(0.3, gt=0, le=1)
    """Largest rise of the share of completions that `max_new_tokens` cuts, over the first rollouts: near that limit a mean
    length has no room to double."""


class RepetitionGuard(GuardConfig):
    """Completions that go round in circles."""

    max_rise: float = Field(0.2, gt=0, le=1)
    """Largest rise of the mean share of repeated three-token runs over the first rollouts. Healthy runs here stay within
    0.03; a gamed reward reached 0.4."""


class ClipFracGuard(GuardConfig):
    """Share of tokens at the clipping bounds: what they could still teach is lost, the steps are too large."""

    limit: float = Field(0.3, gt=0, le=1)
    """For the median of the last five steps. Single steps of healthy runs here reach 0.13."""


class StepKLGuard(GuardConfig):
    """Distance from the policy that sampled a rollout, while it is learned from."""

    limit: float = Field(0.25, gt=0)
    """Nats per token, for the median of the last five steps. Healthy runs here stay below 0.09, single steps below 0.14;
    0.01 to 0.05 are usual bounds (`stop_at_kl`)."""


class RatioGuard(GuardConfig):
    """The token that gained most probability since it was sampled. Losing it is not an alarm: bad tokens are unlearned."""

    limit: float = Field(10_000.0, gt=1)
    """How many times more likely a token may become within the steps on one rollout. Healthy runs here stay
    near 10, but for one token of some 2,000. A ratio that overflows is an alarm at any limit."""


class FiniteGuard(GuardConfig):
    """Metrics that should be numbers. The loss and the gradient have their own: `max_nonfinite_steps`."""


class GuardsConfig(Guarded):
    """Watches training and raises alarms; a word in place of the section is the action of all."""

    action: Action = "warn"
    """What an alarm does, for every guard that says nothing else: `warn`, `stop`, `restore` (the last good checkpoint,
    with half the learning rate) or `off`."""
    max_restores: int = Field(2, ge=0)
    """How many times a run goes back; one alarm more stops it."""
    kl: KLGuard = KLGuard()
    """Distance from the reference."""
    entropy: EntropyGuard = EntropyGuard()
    """Collapse or explosion of the policy's entropy."""
    grad_norm: GradNormGuard = GradNormGuard()
    """Gradient norm against its running median."""
    reward_jump: RewardJumpGuard = RewardJumpGuard()
    """Leaps of the mean score."""
    length: LengthGuard = LengthGuard()
    """Drift of the completions' length."""
    repetition: RepetitionGuard = RepetitionGuard()
    """Rise of repetition."""
    clip_frac: ClipFracGuard = ClipFracGuard()
    """Share of clipped tokens."""
    step_kl: StepKLGuard = StepKLGuard()
    """Distance from the policy that sampled, within the steps on one rollout."""
    ratio: RatioGuard = RatioGuard()
    """Extremes of the probability ratio."""
    finite: FiniteGuard = FiniteGuard()
    """Metrics that are not numbers."""

    def action_of(self, guard: str) -> Literal["warn", "stop", "restore", "off"]:
        """What an alarm of this guard does."""
        config: GuardConfig = getattr(self, guard)
        return config.action or self.action

    def of_each(self) -> dict[str, GuardConfig]:
        """Every guard's own settings, by its name."""
        return {name: value for name, value in self if isinstance(value, GuardConfig)}
