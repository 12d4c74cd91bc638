"""Settings of the pull towards a reference policy: its weight, and what adapts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, create_model, model_validator

from rlhf.config.base import BaseConfig

KLPlace = Literal["reward", "loss", "none"]
KLEstimator = Literal["k1", "k2", "k3", "abs", "mse", "exact"]
OF_CONTROLLERS = {
    "horizon": "proportional",
    "error_clip": "proportional",
    "tolerance": "doubling",
    "factor": "doubling",
    "step_size": "constraint",
}
"""Keys of ``KLConfig`` that one controller has -> which one."""


def default_of(config: BaseConfig, key: str) -> object:
    """What a class of settings has where nothing is given."""
    return type(config).model_fields[key].default


class _WarmupOfKL(BaseConfig):
    """A weight of the KL that begins elsewhere and goes to `kl.coef` in a straight line."""

    rollouts: int = Field(ge=1)
    """After so many rollouts of the policy the weight is `kl.coef`; the first one has `from`."""

    @property
    def start(self) -> float:
        """``from``, which Python keeps for itself."""
        value: float = getattr(self, "from")
        return value


if TYPE_CHECKING:
    KLWarmupConfig = _WarmupOfKL
else:
    _START = Field(0.0, ge=0, description="Weight in the first rollout; above or below `kl.coef`.")
    KLWarmupConfig = create_model(
        "KLWarmupConfig",
        __base__=_WarmupOfKL,
        __module__=__name__,
        __doc__=_WarmupOfKL.__doc__,
        **{"from": (float, _START)},
    )


class KLConfig(BaseConfig):
    """The penalty for moving away from the reference policy."""

    where: KLPlace = "reward"
    """Subtracted from each token's reward, added to the loss, or only measured."""
    estimator: KLEstimator = "k1"
    """Per-token estimate (Schulman 2020, "Approximating KL divergence"): k1 in the reward, k3 or k2 in the loss; `exact` is
    the divergence itself, summed over the vocabulary at every token."""
    coef: float = Field(0.1, ge=0)
    """Weight."""
    target: float | None = Field(None, gt=0)
    """Adapt the weight to this KL, nats per sequence; null for a fixed weight."""
    controller: Literal["proportional", "doubling", "constraint"] = "proportional"
    """How the weight is adapted to the KL to the reference, once a rollout: in proportion to the error (Ziegler et al. 2019,
    section 2.2, arXiv:1909.08593); doubled beyond 1.5 times the target and halved below it by as much (the rule of Schulman et
    al. 2017, section 4, whose KL was the one to the policy before the update); or as the multiplier of the constraint
    KL <= target, 0 while it holds (arXiv:2310.12773)."""
    horizon: int = Field(10_000, ge=1)
    """Sequences over which the adaptive weight changes by at most about a fifth; for `proportional`."""
    error_clip: float = Field(0.2, gt=0)
    """The relative error of the KL counts up to this; for `proportional`."""
    tolerance: float = Field(1.5, gt=1)
    """The weight stays while the KL is within this factor of the target; for `doubling`."""
    factor: float = Field(2.0, gt=1)
    """What the weight is multiplied or divided by outside; for `doubling`."""
    step_size: float = Field(0.01, gt=0)
    """Change of the weight after a rollout whose KL is twice the target; for `constraint`."""
    min_coef: float | None = Field(None, gt=0)
    """The adapted weight is never below this; by default 0.001 with `proportional` and 0.0001 with `doubling`, or `coef` where that
    is lower. That of `constraint` goes down to 0."""
    max_coef: float | None = Field(None, gt=0)
    """The adapted weight is never above this; by default 10, and 100 with `doubling`, or `coef` where that is higher."""
    warmup: KLWarmupConfig | None = None
    """Go from another weight to `coef` over the first rollouts, in a straight line; where there is a target, it is adapted after
    that. Null for `coef` from the start."""
    measure_every: int | None = Field(1, ge=1)
    """Where it has no weight (`where: none`): ask the reference in the first rollout and every this many, each of which costs a
    forward pass; null for the first alone. What watches the KL sees no other rollouts."""
    unbiased: bool = False
    """In the loss, by `k3`: weigh each token's estimate by its ratio, so that its gradient is that of the KL itself, also after
    several steps on a rollout (DeepSeek-V3.2, arXiv:2512.02556)."""

    def is_measured(self, rollout: int) -> bool:
        """Whether the reference is asked in this rollout, counted from 0."""
        return rollout % self.measure_every == 0 if self.measure_every is not None else rollout == 0

    @model_validator(mode="after")
    def _is_known_where_it_acts(self) -> Self:
        if self.measure_every != 1 and self.where != "none":
            raise ValueError(
                f"kl.measure_every belongs to a KL without weight (`where: none`); where it is {self.where!r}, every rollout needs it"
            )
        return self

    @model_validator(mode="after")
    def _can_pull(self) -> Self:
        if self.where == "loss" and self.estimator == "k1":
            raise ValueError("k1 pulls nowhere as a loss (its gradient is 0 on average); use `estimator: k3` or `k2`")
        if self.unbiased and (self.where != "loss" or self.estimator != "k3"):
            raise ValueError(
                f"kl.unbiased weighs the estimate k3 in the loss; kl.where is {self.where!r} and kl.estimator {self.estimator!r}"
            )
        return self

    @model_validator(mode="after")
    def _can_be_adapted(self) -> Self:
        if self.target is None and self.controller != "proportional":
            raise ValueError(f"kl.controller {self.controller!r} adapts the weight to `kl.target`, and there is none")
        if self.target is not None and self.controller != "constraint" and self.where != "none" and self.coef == 0:
            raise ValueError(
                f"kl.controller {self.controller!r} multiplies the weight, and kl.coef is 0; give one above 0"
            )
        for key, controller in OF_CONTROLLERS.items():
            if getattr(self, key) != default_of(self, key) and self.controller != controller:
                raise ValueError(f"kl.{key} belongs to kl.controller {controller!r}; it is {self.controller!r}")
        return self

    @model_validator(mode="after")
    def _limits_hold_the_weight(self) -> Self:
        for key in ("error_clip", "tolerance", "factor", "min_coef", "max_coef"):
            if self.target is None and getattr(self, key) != default_of(self, key):
                raise ValueError(f"kl.{key} is for a weight that is adapted to `kl.target`, and there is none")
        if self.min_coef is not None and self.controller == "constraint":
            raise ValueError(
                "kl.min_coef: the weight of kl.controller 'constraint' is 0 while the constraint holds; leave it out"
            )
        low, high = self.min_coef or 0.0, self.max_coef
        if self.target is not None and (self.coef < low or (high is not None and self.coef > high)):
            raise ValueError(
                f"kl.coef ({self.coef:g}) is where the adapted weight begins, and must be between kl.min_coef and kl.max_coef"
            )
        return self

    @model_validator(mode="after")
    def _something_warms_up(self) -> Self:
        if self.warmup is not None and self.where == "none":
            raise ValueError(
                "kl.warmup is of the weight of the KL, which has none where kl.where is 'none'; leave it out"
            )
        return self


class MovingReferenceConfig(BaseConfig):
    """A reference that follows the policy: reference <- decay reference + (1 - decay) policy (TR-DPO; arXiv:2404.09656)."""

    every: int = Field(1, ge=1)
    """Rollouts between two moves; the first rollout has the reference as it was."""
    decay: float = Field(0.99, ge=0, lt=1)
    """Share of itself that the reference keeps at each move; 0 puts the policy in its place."""
