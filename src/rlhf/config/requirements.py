"""What a gate can require of a candidate: one class for each kind, and the function that decides it, by text.

require:
  - {kind: at_least, metric: judge_score, value: 3.5}
  - {kind: non_inferior, suite: general}
  - {kind: better, metric: win_rate}
  - {kind: no_alarm, alarms: [kl, length]}
  - my_package.my_gates:function
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, FiniteFloat, field_validator, model_validator

from rlhf.config.base import FUNCTION, FunctionName, InputPath, Kind
from rlhf.config.capabilities import SuiteSource
from rlhf.config.metric_table import Metric, metric_named
from rlhf.errors import UnknownNameError


def metric_of(name: str) -> str:
    """The metric of a name such as ``judge_score/correct``: what is before the slash names it, the rest is a part of it."""
    return name if FUNCTION.match(name) else name.partition("/")[0]


class Requirement(Kind):
    """What every kind of requirement has. A new kind is a class like those below, its line in ``REQUIREMENTS``, and a function."""

    decides: ClassVar[str]
    """``module:function`` below ``rlhf.evaluation.gates``: takes the requirement, ``Measurements`` and a confidence, gives a ``Ruling``."""
    name: str | None = None
    """What results call it; by default its kind and what it is about."""

    @property
    def compares(self) -> bool:
        """Whether it needs a champion to compare with."""
        return False

    @property
    def about(self) -> str:
        """What it is about, for its name."""
        return ""

    @property
    def label(self) -> str:
        """What results call it."""
        return self.name or f"{self.kind} {self.about}".strip()

    def metrics_read(self) -> Sequence[str]:
        """Metrics that must be measured; ``metric/part`` for a part."""
        return ()

    def suites_read(self) -> Sequence[Any]:
        """Suites that must be asked."""
        return ()


class MeasuredRequirement(Requirement):
    """A requirement on a metric or on a suite's mean score."""

    metric: str | None = None
    """A metric as `rlhf evaluate` knows them, `metric/part` for a part of one (`judge_score/correct`), or `package.module:name`."""
    suite: SuiteSource | None = None
    """A bundled suite by its name, a YAML file, or settings."""

    @field_validator("metric")
    @classmethod
    def _is_a_metric(cls, name: str | None) -> str | None:
        if name is not None:
            try:
                metric_named(metric_of(name))
            except UnknownNameError as err:
                raise ValueError(str(err)) from None
        return name

    @model_validator(mode="after")
    def _is_about_one_thing(self) -> Self:
        if (self.metric is None) == (self.suite is None):
            raise ValueError("give either `metric` or `suite`: what is measured")
        return self

    @property
    def about(self) -> str:
        """The metric, or the suite as it was written."""
        if self.metric is not None:
            return self.metric
        return self.suite if isinstance(self.suite, str) else str(getattr(self.suite, "name", ""))

    def metrics_read(self) -> Sequence[str]:
        """The one that it is about."""
        return () if self.metric is None else (self.metric,)

    def suites_read(self) -> Sequence[Any]:
        """The one that it is about."""
        return () if self.suite is None else (self.suite,)


class ComparingRequirement(MeasuredRequirement):
    """A requirement on the difference from the champion."""

    lower_is_better: bool = False
    """Whether less is better, as of toxicity: a rise is the loss then, and a fall the gain."""

    @property
    def compares(self) -> bool:
        """It does."""
        return True

    @model_validator(mode="after")
    def _champion_has_it_too(self) -> Self:
        metric = None if self.metric is None else metric_named(metric_of(self.metric))
        if isinstance(metric, Metric) and not metric.of_baseline and "baseline" not in metric.needs:
            raise ValueError(
                f"the metric {self.metric!r} is not measured of the champion, so there is no difference; give it a bound with `at_least` "
                "or `at_most`"
            )
        return self


class BoundedRequirement(MeasuredRequirement):
    """A requirement on the candidate's own mean."""

    value: FiniteFloat
    """In the metric's own units."""

    @property
    def compares(self) -> bool:
        """Whether the metric itself is a comparison, as a win rate is."""
        metric = None if self.metric is None else metric_named(metric_of(self.metric))
        return isinstance(metric, Metric) and "baseline" in metric.needs


class AtLeast(BoundedRequirement):
    """The candidate's mean is above a value: PASS if the lower end of its one-sided interval is, FAIL if the upper end is below."""

    kind: Literal["at_least"] = "at_least"
    decides = "at_least:at_least"

    @property
    def label(self) -> str:
        """With the value, as one metric may have several."""
        return self.name or f"{self.about} at least {self.value:g}"


class AtMost(BoundedRequirement):
    """The candidate's mean is below a value, such as of toxicity: PASS if the upper end of its one-sided interval is."""

    kind: Literal["at_most"] = "at_most"
    decides = "at_most:at_most"

    @property
    def label(self) -> str:
        """With the value."""
        return self.name or f"{self.about} at most {self.value:g}"


class NonInferior(ComparingRequirement):
    """The candidate loses no more than a margin against the champion on the same prompts or items."""

    kind: Literal["non_inferior"] = "non_inferior"
    decides = "non_inferior:non_inferior"
    margin: float | None = Field(None, gt=0)
    """How much of the mean may be lost, in the metric's own units; of a suite its own `margin` by default."""

    @model_validator(mode="after")
    def _has_a_margin(self) -> Self:
        if self.margin is None and self.metric is not None:
            raise ValueError("give `margin`: how much of the metric's mean may be lost, chosen before the data")
        return self


class Better(ComparingRequirement):
    """The candidate is better than the champion: PASS if the whole two-sided interval of the gain is above `by`, FAIL if it is below."""

    kind: Literal["better"] = "better"
    decides = "better:better"
    by: float = Field(0.0, ge=0)
    """Smallest gain that counts, in the metric's own units; of `win_rate` what it is above one half."""


class NoAlarm(Requirement):
    """The guards of a training stage raised no alarm. A guard that was off, or a stage without a record, leaves it undecided."""

    kind: Literal["no_alarm"] = "no_alarm"
    decides = "no_alarm:no_alarm"
    stage: InputPath | None = None
    """The training stage, as `stage:NAME`; by default the one that made the candidate."""
    alarms: list[str] = Field(default_factory=list)
    """Names of guards and detectors, such as `kl` or `repetition_share`; by default all that watched."""

    @property
    def about(self) -> str:
        """Names, and the stage where one is named."""
        where = "" if self.stage is None else f" in {self.stage.removeprefix('stage:')}"
        return f"{', '.join(self.alarms)}{where}".strip()


class OwnRequirement(Requirement):
    """A function of your own, ``(measurements, **arguments) -> rlhf.evaluation.decision.Ruling``; see docs/gates.md."""

    kind: Literal["function"] = "function"
    decides = "own:own_requirement"
    function: FunctionName = Field(pattern=FUNCTION.pattern)
    """`package.module:name` or `path/to/file.py:name`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Given to it by keyword."""
    metrics: list[str] = Field(default_factory=list)
    """Metrics that it reads."""
    suites: list[SuiteSource] = Field(default_factory=list)
    """Suites that it reads."""

    @property
    def about(self) -> str:
        """The function's name."""
        return self.function.rpartition(":")[2]

    def metrics_read(self) -> Sequence[str]:
        """As given."""
        return self.metrics

    def suites_read(self) -> Sequence[Any]:
        """As given."""
        return self.suites


REQUIREMENTS: tuple[type[Requirement], ...] = (AtLeast, AtMost, NonInferior, Better, NoAlarm, OwnRequirement)
"""Every kind; a line more is a kind more."""


def _from_text(value: Any) -> Any:
    return {"kind": "function", "function": value} if isinstance(value, str) else value


if TYPE_CHECKING:
    RequirementSpec = Any  # any Requirement
else:
    RequirementSpec = Annotated[reduce(or_, REQUIREMENTS), Field(discriminator="kind"), BeforeValidator(_from_text)]
