"""The result of ``evaluate_model``: metrics by name, each a number with its interval, of a model and perhaps its baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rlhf.config.metric_table import Metric
from rlhf.errors import look_up
from rlhf.evaluation.intervals import Estimate, finite_or_none
from rlhf.evaluation.metrics.unit_statistics import CorpusStatistic, Measured, Statistic, difference_of
from rlhf.evaluation.paired_tests import holm
from rlhf.evaluation.records import SHARE, Change
from rlhf.seeds import derive_seed

MIN_GROUP = 5
"""Prompts of a group below which it is shown, and compared with nothing."""
NUM_IN_HEADLINE = 4
NO_BASELINE = "there is no baseline"
NOT_OF_BASELINE = "it is not a property of one model"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupValue:
    """A metric in one group of prompts."""

    estimate: Estimate
    difference: Estimate
    """From all other prompts."""
    p_value: float
    """That there is no difference; NaN where there is too little to say."""
    p_corrected: float
    """Holm's, over all groups and metrics of the evaluation."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "value": self.estimate.to_dict(),
            "difference": self.difference.to_dict(),
            "p_value": finite_or_none(self.p_value),
            "p_corrected": finite_or_none(self.p_corrected),
        }


@dataclass(frozen=True, kw_only=True)
class ModelEvaluation(Mapping[str, float]):
    """Metric -> number; NaN where it could not be measured, and then ``missing`` says why.

    found["kl_divergence"]                      the number
    found.interval("kl_divergence")             with its interval, an ``Estimate``
    found.interval("kl_divergence/per_token")   a further number of the same metric; ``parts`` lists them
    found.gain("reward_score")                  minus the baseline's, paired by prompt
    """

    metrics: Mapping[str, Metric]
    measured: Mapping[str, Measured]
    of_baseline: Mapping[str, Measured] = field(default_factory=dict)
    """Empty where there is no baseline."""
    prompt_ids: Sequence[str] = ()
    labels: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """What a metric's units are -> the group of each unit; empty where no column was named."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return self._estimates[look_up({key: key for key in self.measured}, name, kind="metric here")].value

    def __iter__(self) -> Iterator[str]:
        return iter(self.measured)

    def __len__(self) -> int:
        return len(self.measured)

    def interval(self, name: str) -> Estimate:
        """The number with its interval; ``metric/part`` for a part.

        Raises:
            UnknownNameError: It was not asked for, or has no such part.
        """
        return look_up(self._estimates, name, kind="metric here")

    def missing(self, name: str) -> str:
        """Why a number could not be measured; empty where it was."""
        interval = self.interval(name)
        return "" if interval.measured else interval.reason

    def parts(self, name: str) -> dict[str, Estimate]:
        """Further numbers of a metric, by the name of the part."""
        return {part: self._estimates[f"{name}/{part}"] for part in self.measured[name].parts}

    def gain(self, name: str) -> Estimate:
        """This model's minus the baseline's, paired by prompt; missing where there is no baseline."""
        self.interval(name)
        metric = name.partition("/")[0]
        if metric not in self.of_baseline:
            return Estimate.missing(NO_BASELINE if self.metrics[metric].of_baseline else NOT_OF_BASELINE)
        before = _statistics(self.of_baseline).get(name)
        if before is None:
            return Estimate.missing("the baseline has no such part")
        return _statistics(self.measured)[name].gain(before, seed=self._seed("gain", name))

    @cached_property
    def changes(self) -> dict[str, Change]:
        """Every number and part before and after, as ``evaluation.json`` holds them."""
        before = _statistics(self.of_baseline)
        changes = {}
        for name, estimate in self._estimates.items():
            metric, _, part = name.partition("/")
            was = before[name].estimate(seed=self._seed(name)) if name in before else Estimate.missing(NO_BASELINE)
            unit = SHARE if part and _is_share(self, name) else self.metrics[metric].unit
            changes[name] = Change(before=was, after=estimate, gain=self.gain(name), unit=unit)
        return changes

    @property
    def per_prompt(self) -> dict[str, dict[str, tuple[float | None, float | None]]]:
        """Metric -> prompt -> values of the baseline and of the model, None where there is none; of metrics that are a mean of such."""
        by_metric: dict[str, dict[str, tuple[float | None, float | None]]] = {}
        before = _statistics(self.of_baseline)
        for name, measured in self.measured.items():
            values = measured.value.per_unit if measured.over == "prompts" and measured.places is None else None
            if values is None or len(values) != len(self.prompt_ids):
                continue
            old = before[name].per_unit if name in before else None
            olds = [math.nan] * len(values) if old is None else old.tolist()
            by_metric[name] = {
                prompt: (finite_or_none(was), finite_or_none(now))
                for prompt, was, now in zip(self.prompt_ids, olds, values.tolist(), strict=True)
            }
        return by_metric

    @cached_property
    def groups(self) -> dict[str, dict[str, GroupValue]]:
        """Metric -> group -> its number, and its difference from all other prompts; empty without ``by``."""
        raw = {
            (name, group): self._group(name, measured.value, [n for n, label in enumerate(labels) if label == group])
            for name, measured in self.measured.items()
            if len(labels := self._labels_of(measured)) == measured.value.num_units
            for group in _in_order(labels)
        }
        tested = {key: p for key, (_, _, p) in raw.items() if math.isfinite(p)}
        corrected = dict(zip(tested, holm(list(tested.values())).tolist(), strict=True))
        by_metric: dict[str, dict[str, GroupValue]] = {}
        for (name, group), (estimate, difference, p_value) in raw.items():
            by_metric.setdefault(name, {})[str(group)] = GroupValue(
                estimate=estimate, difference=difference, p_value=p_value,
                p_corrected=corrected.get((name, group), math.nan),
            )  # fmt: skip
        return by_metric

    @property
    def ungrouped(self) -> dict[str, str]:
        """Metrics that ``groups`` leaves out -> why; empty without ``by``."""
        if not self.labels:
            return {}
        return {
            name: self.missing(name) or f"its {measured.over} have no such column"
            for name, measured in self.measured.items()
            if name not in self.groups
        }

    def to_dict(self) -> dict[str, Any]:
        """The part ``metrics`` of an ``evaluation.json``."""
        return {
            "settings": dict(self.settings),
            "changes": {name: change.to_dict() for name, change in self.changes.items()},
            "about": {name: dict(measured.about) for name, measured in self.measured.items() if measured.about},
            "groups": {
                name: {group: value.to_dict() for group, value in groups.items()}
                for name, groups in self.groups.items()
            },
            "ungrouped": self.ungrouped,
            "missing": {name: why for name in self._estimates if (why := self.missing(name))},
        }

    def summary(self) -> dict[str, float | None]:
        """Flat numbers, for ``summary.json``."""
        return {name: finite_or_none(estimate.value) for name, estimate in self._estimates.items()}

    def headline(self) -> str:
        """A one-line summary: the first metrics, and how many more there are."""
        shown = [
            f"{name} {value:.4g}" if math.isfinite(value) else f"{name} not measured" for name, value in self.items()
        ]
        more = f" and {len(shown) - NUM_IN_HEADLINE} more" if len(shown) > NUM_IN_HEADLINE else ""
        return f"{', '.join(shown[:NUM_IN_HEADLINE])}{more}, of {self.settings.get('policy')}"

    def _labels_of(self, measured: Measured) -> list[Any]:
        """The group of each of its units; none where the column says nothing of them."""
        labels = self.labels.get(measured.over, ())
        return list(labels) if measured.places is None else [labels[place] for place in measured.places if labels]

    def _group(self, name: str, statistic: Statistic, inside: list[int]) -> tuple[Estimate, Estimate, float]:
        among = set(inside)
        outside = [number for number in range(statistic.num_units) if number not in among]
        own, others = statistic.subset(inside), statistic.subset(outside)
        estimate = own.estimate(seed=self._seed("group", name))
        if min(len(inside), len(outside)) < MIN_GROUP:
            why = f"a group or the rest has fewer than {MIN_GROUP} units: too few to compare"
            return estimate, Estimate.missing(why), math.nan
        if isinstance(statistic, CorpusStatistic) and statistic.grows and len(inside) != len(outside):
            why = f"it changes with the number of texts, and there are {len(inside)} and {len(outside)}"
            return estimate, Estimate.missing(why), math.nan
        one, other = own.moments(seed=self._seed("own", name)), others.moments(seed=self._seed("others", name))
        if one is None or other is None:
            return estimate, Estimate.missing("a group or the rest has no measurable spread"), math.nan
        return estimate, *difference_of(one, other)

    @cached_property
    def _estimates(self) -> dict[str, Estimate]:
        return {name: each.estimate(seed=self._seed(name)) for name, each in _statistics(self.measured).items()}

    def _seed(self, *names: str) -> int:
        return derive_seed(int(self.settings.get("seed", 0)), "metric", *names)


def _statistics(measured: Mapping[str, Measured]) -> dict[str, Statistic]:
    """Of metrics and their parts, each metric before its parts."""
    statistics: dict[str, Statistic] = {}
    for name, each in measured.items():
        statistics[name] = each.value
        statistics |= {f"{name}/{part}": statistic for part, statistic in each.parts.items()}
    return statistics


def _is_share(model_evaluation: ModelEvaluation, name: str) -> bool:
    statistic = _statistics(model_evaluation.measured)[name]
    return bool(getattr(statistic, "share", False))


def _in_order(labels: Sequence[Any]) -> list[Any]:
    """Each once, as they first come; None, a row without the column, is no group."""
    return [label for label in dict.fromkeys(labels) if label is not None]
