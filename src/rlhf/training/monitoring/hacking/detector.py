"""All detectors of reward hacking together, on texts and numbers: what a training loop feeds, and what a user can feed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from rlhf.config.hacking import HackingConfig
from rlhf.errors import ConfigError, check_type
from rlhf.training.monitoring.guards import repetition
from rlhf.training.monitoring.hacking.detector_table import DETECTORS
from rlhf.training.monitoring.hacking.observations import (
    Array,
    Detection,
    HeldOutObservation,
    RolloutObservation,
    words_of,
)
from rlhf.training.monitoring.hacking.repetition_share import longest_repeated_block

LARGEST = 1e6
"""Size of a statistic that is logged."""
HORIZON = 50
"""Evaluations that a run is planned with where nobody says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HackingAlarm:
    """What one detector says of one observation."""

    detector: str
    step: int
    metric: str
    value: float
    limit: float
    action: Literal["warn", "penalize", "stop", "restore"]
    message: str
    false_alarms: str
    """How often it is wrong in healthy runs."""
    places: tuple[int, ...] = ()
    """Completions that show it, the clearest first."""
    good_step: int | None = None
    """Newest step whose weights showed nothing yet, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HackingReport:
    """What the detectors say of n completions."""

    step: int
    alarms: list[HackingAlarm]
    flags: list[list[str]]
    """[n] detectors that point at each completion."""
    rewards: list[float]
    """[n] as they were."""
    adjusted_rewards: list[float]
    """[n] less the penalties of detectors whose action is `penalize`."""
    penalties: dict[str, list[float]] = field(default_factory=dict)
    """Detector -> [n] what it subtracted; only those that did."""
    values: dict[str, float] = field(default_factory=dict)
    """Metric -> statistic of each detector that knows enough."""


class RewardHackingDetector:
    """Watches rewards and completions, and the scores of a held-out judge, for signs that the reward is being hacked.

        detector = RewardHackingDetector({"repetition_share": "penalize"})
        detector.add_reference(prompts, completions)                  # of the policy before training
        report = detector.check(prompts, completions, rewards)        # after each rollout
        report.flags, report.adjusted_rewards, [alarm.message for alarm in report.alarms]
        detector.check_held_out(proxy_scores, judge_scores)           # now and then, on prompts that stay the same

    It has a state, and no model: who samples and judges calls it. A policy stage with a `judge` does all of this by itself.

    Args:
        config: Settings of each detector, as under `hacking` in a recipe: a ``HackingConfig``, a mapping, an action, or None for the
            defaults.
        horizon: Held-out evaluations planned, for the false-alarm rate of ``win_rate_drop``.

    Raises:
        ConfigError: A setting is wrong.
    """

    def __init__(
        self, config: HackingConfig | Mapping[str, Any] | str | None = None, *, horizon: int = HORIZON
    ) -> None:
        check_type(
            config, (HackingConfig, Mapping, str, type(None)), name="config", expected="a HackingConfig or its keys"
        )
        if not isinstance(config, HackingConfig):
            config = HackingConfig.of({"action": config} if isinstance(config, str) else dict(config or {}))
        self.actions: dict[str, Any] = {name: config.action_of(name) for name in DETECTORS}
        self.detectors: dict[str, Any] = {
            name: entry.build(getattr(config, name), **({"horizon": horizon} if name == "win_rate_drop" else {}))
            for name, entry in DETECTORS.items()
            if self.actions[name] != "off"
        }
        self.min_loop = config.repetition_share.min_words
        self.reference: dict[str, list[float]] = {}
        """Prompt -> completions of the starting policy, how many of them are flagged, and the sum of their log lengths."""
        self.num_checked = 0
        self.num_held_out = 0
        """Prompts of each held-out evaluation; 0 before the first."""
        self.counts: dict[str, int] = {}
        """Detector -> observations on which it raised an alarm."""

    def add_reference(self, prompts: Sequence[str], completions: Sequence[str]) -> None:
        """Compare repetition and length with these completions of the starting policy from now on.

        Args:
            prompts: [n] keys of the prompts, such as their texts: those that ``check`` is given later, or a random sample of them.
            completions: [n] texts.
        """
        _check_lengths(prompts=prompts, completions=completions)
        for prompt, completion in zip(prompts, completions, strict=True):
            words = words_of(completion)
            entry = self.reference.setdefault(prompt, [0.0, 0.0, 0.0])
            entry[0] += 1
            entry[1] += longest_repeated_block(words) >= self.min_loop
            entry[2] += math.log(max(len(words), 1))

    def check(
        self, prompts: Sequence[str], completions: Sequence[str], rewards: ArrayLike, *, step: int | None = None
    ) -> HackingReport:
        """Look at the completions of one rollout. Without ``add_reference``, the first rollout is the reference.

        Args:
            prompts: [n] the prompt of each completion; equal ones are one group.
            completions: [n] texts.
            rewards: [n] finite.
            step: What alarms call it; by default counted from 1.

        Raises:
            ConfigError: Lengths differ, or a reward is not finite.
        """
        numbers = np.asarray(rewards, dtype=np.float64)
        _check_lengths(prompts=prompts, completions=completions, rewards=numbers)
        if not np.isfinite(numbers).all():
            place = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise ConfigError(
                f"Reward {place} of {len(numbers)} is {numbers[place]}; leave completions without a reward out."
            )
        if not self.reference:
            self.add_reference(prompts, completions)
        self.num_checked += 1
        observation = self.observe(prompts, completions, numbers, step=self.num_checked if step is None else step)
        return self.check_observation(observation)

    def observe(
        self, prompts: Sequence[str], completions: Sequence[str], rewards: Array, *, step: int
    ) -> RolloutObservation:
        """What detectors are shown of a rollout."""
        texts = [words_of(completion) for completion in completions]
        groups: dict[str, int] = {}
        total = [sum(entry[k] for entry in self.reference.values()) for k in range(3)]
        known = [self.reference.get(prompt, total) for prompt in prompts]
        return RolloutObservation(
            step=step,
            rewards=rewards,
            groups=np.array([groups.setdefault(prompt, len(groups)) for prompt in prompts], dtype=np.int64),
            num_words=np.array([float(len(words)) for words in texts]),
            repeated_words=np.array([float(longest_repeated_block(words)) for words in texts]),
            trigram_rates=np.array([repetition(words) for words in texts]),
            reference_repeated=np.array([entry[1] / entry[0] for entry in known]),
            reference_log_words=np.array([entry[2] / entry[0] for entry in known]),
        )

    def check_observation(self, observation: RolloutObservation | HeldOutObservation) -> HackingReport:
        """The same where the numbers of each completion are known already."""
        is_rollout = isinstance(observation, RolloutObservation)
        rewards = observation.rewards if isinstance(observation, RolloutObservation) else observation.proxy
        alarms: list[HackingAlarm] = []
        flags: list[list[str]] = [[] for _ in rewards]
        penalties, values = {}, {}
        for name, detector in self.detectors.items():
            if (DETECTORS[name].looks_at == "rollout") != is_rollout:
                continue
            detection = detector.update(observation)
            if detector.value is not None and not math.isnan(detector.value):
                values[DETECTORS[name].metric] = _clipped(detector.value)
            if detection is not None:
                alarms.append(self._alarm(name, observation.step, detection))
                for place in detection.places:
                    flags[place].append(name)
            if self.actions[name] == "penalize" and (lost := detector.penalties(observation)).any():
                penalties[name] = lost
        adjusted = rewards - sum(penalties.values()) if penalties else rewards
        return HackingReport(
            step=observation.step,
            alarms=alarms,
            flags=flags,
            rewards=rewards.tolist(),
            adjusted_rewards=adjusted.tolist(),
            penalties={name: lost.tolist() for name, lost in penalties.items()},
            values=values,
        )

    def check_held_out(self, proxy: ArrayLike, judge: ArrayLike, *, step: int | None = None) -> HackingReport:
        """Look at one completion to each of the held-out prompts: the same prompts in the same order every time.

        Afterwards ``wants_anchor`` may be True; see ``set_anchor``.

        Args:
            proxy: [n] rewards, as trained for; NaN where there is none.
            judge: [n] scores of the held-out judge; NaN where there is none.
            step: What alarms call it; by default the number of rollouts checked.

        Raises:
            ConfigError: Lengths differ, from each other or from earlier ones.
        """
        scores = np.asarray(proxy, dtype=np.float64), np.asarray(judge, dtype=np.float64)
        _check_lengths(proxy=scores[0], judge=scores[1])
        self._check_same_prompts(len(scores[0]))
        place = self.num_checked if step is None else step
        return self.check_observation(HeldOutObservation(step=place, proxy=scores[0], judge=scores[1]))

    @property
    def wants_anchor(self) -> bool:
        """Whether the policy as it is has just become the best so far: sample ``anchor_completions`` of each held-out prompt from it, and
        give the judge's scores to ``set_anchor``."""
        return "win_rate_drop" in self.detectors and self.detectors["win_rate_drop"].wants_anchor

    @property
    def anchor_completions(self) -> int:
        """Completions of each prompt that an anchor needs."""
        return self.detectors["win_rate_drop"].anchor_completions if "win_rate_drop" in self.detectors else 0

    def set_anchor(self, judge: ArrayLike) -> None:
        """Give the judge's scores of the best policy so far: [n, anchor_completions], new samples, NaN where there is no score."""
        scores = np.asarray(judge, dtype=np.float64)
        if scores.ndim != 2:
            raise ConfigError(f"An anchor's scores have {scores.ndim} axes; give [prompts, completions].")
        self._check_same_prompts(len(scores))
        self.detectors["win_rate_drop"].set_anchor(scores)

    def report(self) -> dict[str, Any]:
        """What was found so far: by detector its action, its stated false-alarm rate, its newest statistic, and how many observations
        raised an alarm."""
        return {
            name: {
                "action": self.actions[name],
                "alarms": self.counts.get(name, 0),
                "value": None if detector.value is None else _clipped(detector.value),
                "false_alarms": DETECTORS[name].false_alarms,
            }
            for name, detector in self.detectors.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {
            "detectors": {name: detector.state_dict() for name, detector in self.detectors.items()},
            "reference": {prompt: list(entry) for prompt, entry in self.reference.items()},
            "num_checked": self.num_checked,
            "num_held_out": self.num_held_out,
            "counts": dict(self.counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken; a detector that was off then begins afresh."""
        for name, detector in self.detectors.items():
            if name in state["detectors"]:
                detector.load_state_dict(state["detectors"][name])
        self.reference = {prompt: list(entry) for prompt, entry in state["reference"].items()}
        self.num_checked, self.num_held_out = state["num_checked"], state["num_held_out"]
        self.counts = dict(state["counts"])

    def _alarm(self, name: str, step: int, detection: Detection) -> HackingAlarm:
        self.counts[name] = self.counts.get(name, 0) + 1
        entry = DETECTORS[name]
        return HackingAlarm(
            detector=name, step=step, metric=entry.metric, value=_clipped(detection.value), limit=detection.limit, action=self.actions[name],
            message=detection.message, false_alarms=entry.false_alarms, places=detection.places, good_step=detection.good_step,
        )  # fmt: skip

    def _check_same_prompts(self, count: int) -> None:
        if self.num_held_out not in (0, count):
            raise ConfigError(
                f"{count} held-out prompts, and {self.num_held_out} before; give the same ones in the same order every time."
            )
        self.num_held_out = count


def _clipped(value: float) -> float:
    """The same, finite: slopes that are all equal have t = infinity, and a log holds numbers."""
    return max(-LARGEST, min(LARGEST, value))


def _check_lengths(**values: Any) -> None:
    """Refuse columns of different lengths, and none at all."""
    lengths = {name: len(each) for name, each in values.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise ConfigError(
            f"{', '.join(f'{n} {name}' for name, n in lengths.items())}; give as many of each, at least one."
        )
