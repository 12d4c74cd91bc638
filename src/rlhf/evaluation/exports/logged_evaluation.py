"""What is written of an evaluation for other viewers: every sample with its scores, and every number with its interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf.data.contracts import Prompt
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.reference_texts import references_of
from rlhf.evaluation.records import Evaluation
from rlhf.rollout.types import Completion

JUDGE, REWARD = "judge_score", "reward_score"
"""Names of scores; those of the metrics that are their means."""
ANSWERS = ("answer", "target")
"""Columns that are shown as a prompt's target where it has no reference text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSample:
    """One completion."""

    id: str
    epoch: int
    """Which of its prompt's completions it is, from 1."""
    input: str | list[dict[str, Any]]
    target: list[str]
    """Empty where nothing says what would be right."""
    output: str
    truncated: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    """Only those that were given."""
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Score -> further numbers from the scorer."""
    unscored: Mapping[str, str] = field(default_factory=dict)
    """Score that was asked for and not given -> why."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMetric:
    """One number, as an estimate of ``evaluation.json`` has it: value, low, high, n, confidence."""

    name: str
    estimate: Mapping[str, Any]
    unit: str = ""
    gain: Mapping[str, Any] | None = None
    """The difference from the baseline."""

    @property
    def measured(self) -> bool:
        """Whether there is a number."""
        value = self.estimate.get("value")
        return value is not None and math.isfinite(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvaluation:
    """A whole evaluation."""

    task: str
    """Such as ``demo/evaluation``: the run and the stage."""
    model: str
    dataset: str
    samples: Sequence[LoggedSample]
    metrics: Sequence[LoggedMetric]
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Settings of sampling, with our names."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    """Number that could not be measured -> why."""
    started: str = ""
    completed: str = ""
    """Times in UTC, ISO 8601."""


def metrics_of(document: Mapping[str, Any]) -> tuple[list[LoggedMetric], dict[str, str]]:
    """The numbers of an ``evaluation.json``, those of its metrics and those against a baseline; and why others are missing."""
    by_name: dict[str, LoggedMetric] = {}
    part = document.get("metrics") or {}
    for changes in (part.get("changes") or {}, document.get("changes") or {}):
        for name, change in changes.items():
            gain = change.get("gain") or {}
            known = gain if gain.get("value") is not None else None
            by_name.setdefault(
                name, LoggedMetric(name=name, estimate=change["after"], unit=change.get("unit", ""), gain=known)
            )
    if (rate := document.get("win_rate")) is not None:
        estimate = {"value": rate["rate"], "low": rate["low"], "high": rate["high"], "n": rate["num_prompts"]}
        estimate["confidence"] = rate["confidence"]
        by_name["win_rate"] = LoggedMetric(name="win_rate", estimate=estimate, unit="share")
    if (gold := by_name.get("gold")) is not None and JUDGE not in by_name:  # the same number by its other name
        by_name[JUDGE] = LoggedMetric(name=JUDGE, estimate=gold.estimate, unit=gold.unit, gain=gold.gain)
    missing = {name: str(why) for held in (part, document) for name, why in (held.get("missing") or {}).items()}
    missing |= {
        name: str(metric.estimate.get("reason") or "it was not measured")
        for name, metric in by_name.items()
        if not metric.measured and name not in missing
    }
    return list(by_name.values()), missing


def samples_of(inputs: MetricInputs, evaluation: Evaluation | None = None) -> Iterator[LoggedSample]:
    """The policy's completions with the scores that were asked for; nobody is asked again.

    Args:
        inputs: Of the policy.
        evaluation: Where a judge compared it with a baseline: brings its verdicts.
    """
    if "completions" not in vars(inputs) and inputs.given is None:
        return  # no metric wanted completions
    verdicts, details, reasons = _verdicts(inputs, evaluation)
    before = _baseline_texts(inputs)
    place = 0
    for prompt, group in zip(inputs.prompts, inputs.completions, strict=True):
        for epoch, completion in enumerate(group, 1):
            own = {name: values[place] for name, values in verdicts.items()}
            given = {name: value for name, value in own.items() if value is not None and math.isfinite(value)}
            why = {name: reasons.get((name, place), "it gave no score") for name in own if name not in given}
            more = {
                name: {part: values[place] for part, values in parts.items()}
                for name, parts in details.items()
                if name in given
            }
            yield _sample(prompt, completion, epoch, given, more, why, before[place] if before else None)
            place += 1


def _sample(
    prompt: Prompt,
    completion: Completion,
    epoch: int,
    scores: Mapping[str, float],
    details: Mapping[str, Mapping[str, Any]],
    unscored: Mapping[str, str],
    before: str | None,
) -> LoggedSample:
    return LoggedSample(
        id=prompt.id, epoch=epoch, input=prompt.messages or prompt.text, target=_target(prompt), output=completion.text,
        truncated=completion.truncated, input_tokens=len(prompt.ids), output_tokens=len(completion.tokens),
        scores=scores, details=details, unscored=unscored, metadata={} if before is None else {"baseline_completion": before},
    )  # fmt: skip


def _verdicts(
    inputs: MetricInputs, evaluation: Evaluation | None
) -> tuple[dict[str, Sequence[float | None]], dict[str, dict[str, Sequence[Any]]], dict[tuple[str, int], str]]:
    """Score -> [S] values, score -> further numbers, and why single values are missing."""
    verdicts: dict[str, Sequence[float | None]] = {}
    details: dict[str, dict[str, Sequence[Any]]] = {}
    reasons: dict[tuple[str, int], str] = {}
    judged = vars(inputs).get("judged") or (evaluation.judged if evaluation is not None else None)
    if judged is not None:
        verdicts[JUDGE], details[JUDGE] = judged.scores, dict(judged.metrics)
    if (scored := vars(inputs).get("scored")) is not None:
        verdicts[REWARD], details[REWARD] = scored.scores, dict(scored.per_component)
        reasons |= {(REWARD, place): why for place, why in scored.errors.items()}
    return verdicts, details, reasons


def _baseline_texts(inputs: MetricInputs) -> list[str]:
    """[S] the baseline's completions; none where nobody asked it for them, or as many."""
    other = inputs.baseline
    if other is None or ("completions" not in vars(other) and other.given is None):
        return []
    texts = [completion.text for group in other.completions for completion in group]
    return texts if len(texts) == sum(map(len, inputs.completions)) else []


def _target(prompt: Prompt) -> list[str]:
    known = references_of(prompt)
    if known:
        return known
    name = next((name for name in ANSWERS if prompt.columns.get(name) not in (None, "", [])), None)
    return [] if name is None else [str(prompt.columns[name])]
