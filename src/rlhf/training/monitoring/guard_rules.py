"""What each guard calls unhealthy: pure functions of a metric's newest value and of what it was before.

Limits that are relative look at medians, which a single odd value does not move: of the first values for a drift, of
the last ones for a spike. Each function says nothing until it knows enough to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from rlhf.config.guards import (
    ClipFracGuard,
    EntropyGuard,
    GradNormGuard,
    KLGuard,
    LengthGuard,
    RatioGuard,
    RepetitionGuard,
    RewardJumpGuard,
    StepKLGuard,
)
from rlhf.formatting import percentage

FIRST = 5
"""Values of a metric whose median is where it started."""
RECENT = 5
"""Values whose median is where it is now, for metrics of which one value means little."""
WINDOW = 100
"""Values before those that say what is usual."""
MIN_STEPS = 20
"""Gradient norms before one is compared with them: the first ones come from warm-up."""
MIN_CHANGES, MAX_CHANGES = 8, 20
"""Changes of the mean score before one is compared with them, and how many at most."""
SHORT_KL = 15.0
"""Nats per sequence that the shortest completions may drift by default."""
FAR = 2.0
"""Times its limit at which a single rollout's KL is an alarm."""
MOVED = 0.25
"""Rise of the mean score, in deviations of single scores, below which it did not move."""
MAD_TO_DEVIATION = 1.4826
"""A normal variable's standard deviation over its median absolute deviation."""

Column = Literal["kl", "score", "length", "repetition", "ratio"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Which samples show what an alarm is about."""

    column: Column
    """Of the samples."""
    largest: bool = True
    """Or the smallest."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A value that left its limit."""

    value: float
    limit: float
    message: str
    """What it is, what was found, what was allowed, what to do."""
    evidence: Evidence | None = None


@dataclass(slots=True)
class Past:
    """What a metric was before now."""

    first: list[float] = field(default_factory=list)
    """Its first values, ``FIRST`` at most."""
    last: list[float] = field(default_factory=list)
    """Its newest values, oldest first."""

    @property
    def start(self) -> float | None:
        """Where it started; None until that is known."""
        return median(self.first) if len(self.first) == FIRST else None

    def recent(self, value: float) -> float | None:
        """Where it is, this value included; None until that is known."""
        return median([*self.last[1 - RECENT :], value]) if len(self.last) >= RECENT - 1 else None

    def add(self, value: float) -> None:
        """Take note of a value."""
        if len(self.first) < FIRST:
            self.first.append(value)
        self.last.append(value)
        del self.last[: -(WINDOW + RECENT)]


@dataclass(frozen=True, slots=True)
class MetricHistory:
    """What a guard may look at in addition to its own metric."""

    now: Mapping[str, float]
    """The finite metrics of a step; those of the algorithm without its name before them."""
    past: Mapping[str, Past] = field(default_factory=dict)
    """The watched ones before it."""

    def start_and_recent(self, key: str) -> tuple[float, float] | None:
        """Where another metric started and where it is now; None until both are known."""
        if key not in self.now or key not in self.past:
            return None
        start, recent = self.past[key].start, self.past[key].recent(self.now[key])
        return None if start is None or recent is None else (start, recent)


def kl_breach(config: KLGuard, value: float, past: Past, history: MetricHistory) -> Breach | None:
    """KL to the reference beyond its limit twice in a row, or far beyond it: a few completions that run away lift one mean.

    Completions that grew have no more room than at first.
    """
    lengths = history.start_and_recent("length_mean")
    length = lengths[0] if lengths else history.now.get("length_mean", 0.0)
    limit = config.limit if config.limit is not None else max(SHORT_KL, config.per_token * length)
    lasting = min(value, past.last[-1]) if past.last else 0.0
    if max(lasting, value / FAR) <= limit:
        return None
    a_token = f" ({value / history.now['length_mean']:.2g} per token)" if history.now.get("length_mean") else ""
    message = (
        f"KL to the reference is {value:.3g} nats per sequence{a_token}, above the limit of {limit:.3g}: so far from its start "
        "the policy may be gaming the reward. Look at the samples; raise kl.coef, or lower the learning rate."
    )
    return Breach(value, limit, message, Evidence("kl"))


def entropy_breach(config: EntropyGuard, value: float, past: Past, history: MetricHistory) -> Breach | None:
    """Entropy that is used up, or that explodes."""
    start = past.start
    lowest = max(config.min_nats, config.min_frac * start) if start is not None else config.min_nats
    since = f" (it was {start:.3g} at first)" if start is not None else ""
    if value < lowest:
        message = (
            f"Entropy fell to {value:.3g} nats per token, below the limit of {lowest:.3g}{since}: the policy says nearly "
            "always the same and learns little more. Raise entropy_coef or kl.coef, or stop earlier."
        )
        return Breach(value, lowest, message, Evidence("repetition"))
    if start is not None and value > start + config.max_rise:
        message = (
            f"Entropy rose to {value:.3g} nats per token, above the limit of {start + config.max_rise:.3g}{since}: the "
            "policy is coming apart. Lower the learning rate or entropy_coef."
        )
        return Breach(value, start + config.max_rise, message, Evidence("kl"))
    return None


def grad_norm_breach(config: GradNormGuard, value: float, past: Past, history: MetricHistory) -> Breach | None:
    """A gradient norm many times the usual one, for one step or for several."""
    recent, earlier = past.recent(value), past.last[: 1 - RECENT]
    if recent is None or len(earlier) < MIN_STEPS or (usual := median(earlier)) <= 0:
        return None
    if recent > config.sustained * usual:
        norm, times, how = (
            recent,
            config.sustained,
            f"The gradient norm has been about {recent:.3g} for {RECENT} steps",
        )
    elif value > config.spike * usual:
        norm, times, how = value, config.spike, f"The gradient norm jumped to {value:.3g}"
    else:
        return None
    message = (
        f"{how}, {norm / usual:.0f} times its running median of {usual:.3g} (limit {times:.3g} times). Look at the rows "
        "of this step; lower the learning rate, or lengthen its warm-up."
    )
    return Breach(norm, times * usual, message)


def reward_jump_breach(config: RewardJumpGuard, value: float, past: Past, history: MetricHistory) -> Breach | None:
    """A mean score that changed far more between two rollouts than it ever did."""
    scores = past.last[-MAX_CHANGES - 1 :]
    if len(scores) <= MIN_CHANGES:
        return None
    changes = [abs(after - before) for before, after in pairwise(scores)]
    scale = max(MAD_TO_DEVIATION * median(changes), 0.1 * history.now.get("score_std", 0.0))
    before = scores[-1]
    if scale <= 0 or abs(value - before) <= config.deviations * scale:
        return None
    rose = value > before
    limit = before + config.deviations * scale * (1 if rose else -1)
    advice = (
        "the policy may have found a way to please the scorer. Read the best of them"
        if rose
        else "the scorer or the policy broke. Read the worst of them"
    )
    message = (
        f"The mean score {'leapt' if rose else 'fell'} from {before:.3g} to {value:.3g} between two rollouts, "
        f"{abs(value - before) / scale:.0f} times its usual change (limit {config.deviations:.3g} times, {limit:.3g}): "
        f"{advice}."
    )
    return Breach(value, limit, message, Evidence("score", largest=rose))


def length_breach(config: LengthGuard, value: float, past: Past, history: MetricHistory) -> Breach | None:
    """Completions much longer or shorter than at first."""
    start, recent = past.start, past.recent(value)
    if start is None or recent is None or start <= 0:
        return None
    grew = recent > start * config.factor
    if not grew and recent >= start / config.factor:
        return None
    limit = start * config.factor if grew else start / config.factor
    advice = "Score for content, or penalize length" if grew else "The reward may favor saying little"
    message = (
        f"Completions {'grew' if grew else 'shrank'} to {recent:.3g} tokens from {start:.3g} at first (limit {limit:.3g}). "
        f"{_drift(history) or advice}; raise guards.length.factor if this is wanted."
    )
    return Breach(recent, limit, message, Evidence("length", largest=grew))


def cut_breach(config: LengthGuard, value: float, past: Past, history: MetricHistory) -> Breach | None:
    """Many more completions cut by the length limit than at first; ``value`` is the share that ended by themselves."""
    start, recent = past.start, past.recent(value)
    if start is None or recent is None or recent >= start - config.max_cut_rise:
        return None
    limit = start - config.max_cut_rise
    message = (
        f"{percentage(1 - recent, 0)} of the completions are cut by max_new_tokens, against {percentage(1 - start, 0)} "
        f"at first (limit {percentage(1 - limit, 0)}). "
        f"{_drift(history) or 'Set missing_eos_penalty or overlong, or allow more tokens'}; raise guards.length.max_cut_rise if this "
        "is wanted."
    )
    return Breach(recent, limit, message, Evidence("length"))


def _drift(history: MetricHistory) -> str:
    """What to do where completions changed and the score did not rise: the reward did not ask for it. Else the empty text."""
    scores, spread = history.start_and_recent("score_mean"), history.now.get("score_std")
    if scores is None or spread is None or scores[1] - scores[0] > MOVED * spread:
        return ""
    return (
        f"The mean score did not rise with it ({scores[1]:.3g}, {scores[0]:.3g} at first): the reward does not ask for this, the "
        "policy drifts. Raise kl.coef, or lower the learning rate"
    )


def repetition_breach(config: RepetitionGuard, value: float, past: Past, history: MetricHistory) -> Breach | None:
    """Completions that repeat themselves more than at first."""
    start, recent = past.start, past.recent(value)
    if start is None or recent is None or recent <= start + config.max_rise:
        return None
    message = (
        f"{percentage(recent)} of the completions' three-token runs are repeats, against {percentage(start)} at first (limit "
        f"{percentage(start + config.max_rise)}): the policy goes round in circles. Raise kl.coef, or penalize repetition."
    )
    return Breach(recent, start + config.max_rise, message, Evidence("repetition"))


def clip_frac_breach(config: ClipFracGuard, value: float, past: Past, history: MetricHistory) -> Breach | None:
    """Many tokens beyond the clipping bounds, step after step."""
    recent = past.recent(value)
    if recent is None or recent <= config.limit:
        return None
    message = (
        f"{percentage(recent)} of the tokens are clipped in a typical step, above the limit of {percentage(config.limit)}: the policy moves "
        "too far on one rollout. Lower the learning rate or epochs_per_rollout."
    )
    return Breach(recent, config.limit, message, Evidence("ratio"))


def step_kl_breach(config: StepKLGuard, value: float, past: Past, history: MetricHistory) -> Breach | None:
    """Updates that leave the policy far from the one that sampled what they learn from."""
    recent = past.recent(value)
    if recent is None or recent <= config.limit:
        return None
    message = (
        f"In a typical step the policy is {recent:.2g} nats per token from the one that sampled the rollout, above the limit of "
        f"{config.limit:.2g}: what it learns from is no longer its own. Lower the learning rate or epochs_per_rollout, or set "
        "stop_at_kl."
    )
    return Breach(recent, config.limit, message, Evidence("ratio"))


def ratio_breach(config: RatioGuard, value: float, past: Past, history: MetricHistory) -> Breach | None:
    """A token that became far more likely than when it was sampled."""
    if value <= config.limit:
        return None
    message = (
        f"A token became {value:.3g} times more likely than when it was sampled, above the limit of {config.limit:.3g}. "
        "Lower the learning rate or epochs_per_rollout, or set stop_at_kl."
    )
    return Breach(value, config.limit, message, Evidence("ratio"))


def overflow_breach(config: RatioGuard, value: float, past: Past, history: MetricHistory) -> Breach | None:
    """Ratios that no longer fit into a float."""
    if value <= 0:
        return None
    message = (
        f"The probability ratio of {percentage(value, 2)} of the tokens overflows, where none should: the policy has nothing in common "
        "with the one that sampled. Lower the learning rate; check that the sampler has the trainer's weights."
    )
    return Breach(value, 0.0, message, Evidence("ratio"))


Detector = Callable[[Any, float, Past, MetricHistory], Breach | None]

WATCHES: dict[str, tuple[tuple[str, Detector], ...]] = {
    "kl": (("ref_kl", kl_breach),),
    "entropy": (("loss/entropy", entropy_breach),),
    "grad_norm": (("grad_norm", grad_norm_breach),),
    "reward_jump": (("score_mean", reward_jump_breach),),
    "length": (("length_mean", length_breach), ("eos_frac", cut_breach)),
    "repetition": (("repetition", repetition_breach),),
    "clip_frac": (("clip_frac", clip_frac_breach),),
    "step_kl": (("kl_mean", step_kl_breach),),
    "ratio": (("ratio_max", ratio_breach), ("ratio_overflow_frac", overflow_breach)),
}
"""Guard -> the metrics it looks at, each with what it looks for; keys are those of ``GuardsConfig``, less ``finite``."""

OF_CHANGES = frozenset({"reward_jump"})
"""Guards whose limit bounds the step from one value to the next, and not the metric itself."""
WATCHED = frozenset(key for watches in WATCHES.values() for key, _ in watches)
COLUMNS: dict[str, Column] = {
    "ref_kl": "kl",
    "score_mean": "score",
    "length_mean": "length",
    "eos_frac": "length",
    "repetition": "repetition",
    "ratio_max": "ratio",
}
"""Metric -> the samples' column that it is the mean or the extreme of."""
