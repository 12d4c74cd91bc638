"""Inputs of a verdict: the numbers of an evaluation, the end of training, and what training saw of judge and prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf.formatting import mapping, number


def value_of(change: Mapping[str, Any], side: str) -> float | None:
    value = number(mapping(change.get(side)).get("value"))
    return None if value is None or math.isnan(value) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Independence:
    """What training saw of judge and prompts, in words (``rlhf.pipeline`` reads it off recipes and lineage)."""

    warnings: tuple[str, ...] = ()
    """What a reader must know, in sentences."""
    better_only: str = ""
    """The title of a success that need not mean a better model; empty where nothing spoils it."""
    about_prompts: str = "prompts"
    about_judge: str = ""
    """A clause behind the judge's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAlarm:
    """A guard's alarm that still held in the last fifth of training."""

    guard: str
    metric: str
    step: int
    """Where it was raised."""
    limit: float | None = None
    value: float | None = None
    """Median in the last fifth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How the training of a policy ended; one of the stages between baseline and policy."""

    stage: str
    rollouts: int = 0
    """0 for a stage that samples nothing."""
    alarms: tuple[HeldAlarm, ...] = ()
    first: Mapping[str, float] = field(default_factory=dict)
    """Of the first rollout: kl_per_token, entropy, cut, empty, repetition."""
    last: Mapping[str, float] = field(default_factory=dict)
    """The same of the last fifth, in the mean."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        alarms = [
            {"guard": a.guard, "metric": a.metric, "step": a.step, "limit": a.limit, "value": a.value}
            for a in self.alarms
        ]
        return {
            "stage": self.stage, "rollouts": self.rollouts, "alarms": alarms, "first": dict(self.first), "last": dict(self.last),
        }  # fmt: skip

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Training:
        """From what ``to_dict`` gave."""
        return cls(
            stage=str(record.get("stage", "")),
            rollouts=int(number(record.get("rollouts")) or 0),
            alarms=tuple(
                HeldAlarm(
                    guard=str(alarm.get("guard", "")), metric=str(alarm.get("metric", "")),
                    step=int(number(alarm.get("step")) or 0), limit=number(alarm.get("limit")), value=number(alarm.get("value")),
                )
                for alarm in record.get("alarms") or ()
            ),
            first=mapping(record.get("first")),
            last=mapping(record.get("last")),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a verdict rests on."""

    policy: str = "the policy"
    baseline: str = "the baseline"
    judge: str = "the judge"
    win_rate: Mapping[str, Any] = field(default_factory=dict)
    """As in ``evaluation.json``: rate, low, high, wins, losses, ties, num_prompts, reason."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """As there: name -> before, after, gain: estimates."""
    kl_per_token: float | None = None
    """Nats, of the policy's samples."""
    hacking: Mapping[str, Any] = field(default_factory=dict)
    """As there: verdict and sentence; empty where no rollouts were judged."""
    training: tuple[Training, ...] = ()
    independence: Independence = Independence()
    unknown: tuple[str, ...] = ()
    """What could not be checked, in sentences."""

    @classmethod
    def of(cls, document: Mapping[str, Any], independence: Independence | None = None) -> Evidence:
        """From ``evaluation.json``, of whatever version, and what training saw of judge and prompts."""
        settings, changes = mapping(document.get("settings")), mapping(document.get("changes"))
        kl = mapping(document.get("kl"))
        total, length = value_of(kl, "k1"), value_of(mapping(changes.get("length")), "after")
        training = document.get("training")
        missing = mapping(document.get("missing"))
        why, untraced = missing.get("judge_unseen_frac"), missing.get("training")
        far = f"How far the answers lie from what the judge was trained on is not known: {why}."
        return cls(
            policy=str(settings.get("policy") or "the policy"),
            baseline=str(settings.get("baseline") or "the baseline"),
            judge=str(settings.get("judge") or "the judge"),
            win_rate=mapping(document.get("win_rate")),
            changes={name: mapping(change) for name, change in changes.items()},
            kl_per_token=total / length if total is not None and length else None,
            hacking=mapping(document.get("hacking")),
            training=tuple(Training.of(mapping(each)) for each in training) if isinstance(training, list) else (),
            independence=independence or Independence(),
            unknown=(*([far] if why else []), *([str(untraced)] if untraced else [])),
        )
