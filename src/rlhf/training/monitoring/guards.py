"""Watches the metrics of a training run and raises an alarm where one leaves what is healthy.

``rlhf.training.monitoring.guard_rules`` defines what is healthy; this module adds memory, actions and silence: a guard that raised an alarm
about a metric raises none until the metric was within limits ten times in a row, so that a person reads one line for each excursion.

    ppo/ref_kl -----+                        +-> Alarm(guard, step, metric, value, limit, action, message, evidence)
    grad_norm  -----+-> Guards.check(step) --+
    ...        -----+                        +-> nothing, as in nearly all steps
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rlhf.config.guards import GuardsConfig
from rlhf.training.monitoring.guard_rules import COLUMNS, WATCHED, WATCHES, Breach, Evidence, MetricHistory, Past

CLEAN_CHECKS = 10
"""Values within limits after which a guard that spoke may speak again."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """What a guard says at one step."""

    guard: str
    step: int
    metric: str
    value: float
    limit: float | None
    """The bound that was crossed; None where there is none, as for a number that is none."""
    action: Literal["warn", "penalize", "stop", "restore"]
    message: str
    evidence: Evidence | None = None
    samples: Sequence[Mapping[str, Any]] | None = None
    """What shows it, where the guard has chosen; None where the worst of the rows are to be looked for."""
    false_alarms: str | None = None
    """How often the guard is wrong in healthy runs, where that was measured."""
    good_step: int | None = None
    """Newest step whose weights showed nothing yet, where it is not the step before."""

    def fields(self) -> dict[str, Any]:
        """For ``TrainingLogger.alarm``, in addition to message and step."""
        return {
            "guard": self.guard,
            "metric": self.metric,
            "value": self.value,
            "limit": self.limit,
            "action": self.action,
            **({} if self.false_alarms is None else {"false_alarms": self.false_alarms}),
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """What a detector of an algorithm's own said of what it looked at."""

    about: str
    """Names the detector; one alarm is raised for each time that it is not well."""
    alarm: Alarm | None
    """None where all is well."""


class Guards:
    """All guards of one training run.

    Args:
        config: Limits and actions.
        name: Of the algorithm: its metrics are called ``<name>/ref_kl`` and so on.
    """

    def __init__(self, config: GuardsConfig, *, name: str) -> None:
        self.config = config
        self.name = name
        self.past: dict[str, Past] = {}
        self.clean: dict[str, int] = {}
        """``guard:metric`` of each alarm, and metrics that were not finite -> how many values within limits there were since."""
        self.restores = 0
        """How many times the run went back."""

    @property
    def quiet(self) -> bool:
        """Whether no guard has spoken without everything being well again since: such a checkpoint is a good one."""
        return not self.clean

    def check(self, step: int, metrics: Mapping[str, float], findings: Sequence[Finding] = ()) -> list[Alarm]:
        """Look at the metrics of one step; those that are absent are not looked at.

        Args:
            step: Counted from 1.
            metrics: Name to number.
            findings: Of the algorithm's own detectors, which have their own settings.

        Returns:
            New alarms, in the order of the settings; nearly always none.
        """
        short = {name.removeprefix(f"{self.name}/"): name for name in metrics}
        measured = {key: metrics[name] for key, name in short.items() if math.isfinite(metrics[name])}
        history, alarms = MetricHistory(measured, self.past), []
        for guard, watches in WATCHES.items():
            present = [(key, detect) for key, detect in watches if key in measured]
            if not present or self.config.action_of(guard) == "off":
                continue
            for key, detect in present:
                breach = detect(getattr(self.config, guard), measured[key], self._past(key), history)
                if self._speaks(f"{guard}:{key}", breached=breach is not None) and breach is not None:
                    alarms.append(self._alarm(guard, step, short[key], breach))
        alarms += self._not_finite(step, metrics)
        for finding in findings:
            if self._speaks(finding.about, breached=finding.alarm is not None) and finding.alarm is not None:
                alarms.append(self._within_restores(replace(finding.alarm, step=step)))
        for key in WATCHED & measured.keys():
            self._past(key).add(measured[key])
        return alarms

    def go_back(self, state: Mapping[str, Any]) -> None:
        """Forget what was seen after ``state_dict`` gave this state, and count that the run went back."""
        restores = self.restores + 1
        self.load_state_dict(state)
        self.restores = restores

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        past = {key: asdict(each) for key, each in self.past.items()}
        return {"past": past, "clean": dict(self.clean), "restores": self.restores}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.past = {key: Past(list(each["first"]), list(each["last"])) for key, each in state["past"].items()}
        self.clean = dict(state["clean"])
        self.restores = state["restores"]

    def _past(self, key: str) -> Past:
        return self.past.setdefault(key, Past())

    def _speaks(self, about: str, *, breached: bool) -> bool:
        """Whether there is news about a guard or a metric: once for each excursion."""
        if breached:
            news = about not in self.clean
            self.clean[about] = 0
            return news
        if about in self.clean:
            self.clean[about] += 1
            if self.clean[about] >= CLEAN_CHECKS:
                del self.clean[about]
        return False

    def _not_finite(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """One alarm for all metrics that are not numbers now."""
        if self.config.action_of("finite") == "off":
            return []
        loss_and_gradient = [name for name in metrics if name == "loss/train" or name.startswith("grad_norm")]
        if not all(math.isfinite(metrics[name]) for name in loss_and_gradient):
            return []  # the loop left this step out and said so; what else it spoilt is no news
        bad = [name for name in metrics if self._speaks(name, breached=not math.isfinite(metrics[name]))]
        if not bad:
            return []
        others = f" (and so {'are' if len(bad) > 2 else 'is'} {', '.join(bad[1:4])})" if len(bad) > 1 else ""
        message = (
            f"{bad[0]} is {metrics[bad[0]]}, where a number was expected{others}. Look at the samples of this step; if the "
            "policy's own numbers are among them, lower the learning rate."
        )
        column = COLUMNS.get(bad[0].removeprefix(f"{self.name}/"))
        breach = Breach(metrics[bad[0]], math.nan, message, Evidence(column) if column else None)
        return [self._alarm("finite", step, bad[0], breach)]

    def _alarm(self, guard: str, step: int, metric: str, breach: Breach) -> Alarm:
        action = self.config.action_of(guard)
        assert action != "off"
        limit = breach.limit if math.isfinite(breach.limit) else None
        return self._within_restores(
            Alarm(guard, step, metric, breach.value, limit, action, breach.message, breach.evidence)
        )

    def _within_restores(self, alarm: Alarm) -> Alarm:
        """The same, but a run that went back often enough stops."""
        if alarm.action != "restore" or self.restores < self.config.max_restores:
            return alarm
        times = f"{self.restores} time{'s' if self.restores != 1 else ''}"
        message = f"{alarm.message} The run went back {times} already (guards.max_restores), so it stops here."
        return replace(alarm, action="stop", message=message)


def gravest(alarms: Sequence[Alarm]) -> Literal["warn", "penalize", "stop", "restore"] | None:
    """What to do about several alarms of one step: stopping goes before going back; None where there are none."""
    return max((alarm.action for alarm in alarms), key=["warn", "penalize", "restore", "stop"].index, default=None)


def worst_samples(alarm: Alarm, samples: Iterable[Mapping[str, Any]], *, count: int = 5) -> list[dict[str, Any]]:
    """The samples that show best what an alarm is about.

    Args:
        alarm: With the column to look at.
        samples: Rows such as ``{prompt, completion, score, kl, length}``; where the column is absent their order stays.
        count: How many.
    """
    if alarm.samples is not None:
        return [dict(row) for row in alarm.samples[:count]]
    rows = [dict(row) for row in samples]
    if alarm.evidence is None:
        return rows[:count]
    column, sign = alarm.evidence.column, -1.0 if alarm.evidence.largest else 1.0

    def place(row: Mapping[str, Any]) -> tuple[int, float]:
        value = row.get(column)
        if not isinstance(value, int | float):
            return 2, 0.0
        return (1, sign * value) if math.isfinite(value) else (0, 0.0)  # what is not a number is the worst

    return sorted(rows, key=place)[:count]


def repetition(tokens: Sequence[Hashable], *, size: int = 3) -> float:
    """Share of a completion's runs of ``size`` tokens that stood in it before; 0 for a completion without two of them.

    1 - distinct / all, over runs that overlap. Going round in circles brings it towards 1.
    """
    count = len(tokens) - size + 1
    if count < 2:
        return 0.0
    return 1 - len({tuple(tokens[i : i + size]) for i in range(count)}) / count
