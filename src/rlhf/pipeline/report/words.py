"""What the report says in words: its headline, times, and the filters of its templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from rlhf.evaluation.verdict import Tone, Verdict
from rlhf.formatting import duration, formatted, interval, mapping, number, percentage, plain_number, signed_number
from rlhf.pipeline.report.data import RunRecord, StageRecord

STATUS_WORDS = {"failed": "failed", "broken off": "started and never finished", "stopped": "was stopped"}


@dataclass(slots=True)
class Headline:
    """The verdict in plain words."""

    tone: Tone
    title: str
    sentences: list[str] = field(default_factory=list)
    verdicts: list[tuple[StageRecord, Verdict]] = field(default_factory=list)
    """On each evaluation. What one by itself says is among the sentences; of several each speaks for itself."""


def headline(run: RunRecord) -> Headline:
    """What a reader should take away: the verdict on each evaluation, and what went wrong."""
    if run.running:
        return _while_running(run)
    failed = [stage for stage in run.stages.values() if stage.status in STATUS_WORDS]
    trouble = [
        f"The stage {stage.name} {STATUS_WORDS[stage.status]}: {(stage.headline or 'see the log').rstrip('.')}."
        for stage in failed
    ]
    if not run.evaluations:
        return _without_evaluation(run, trouble)
    verdicts = [(stage, stage.verdict) for stage, _ in run.evaluations]
    if len(verdicts) == 1:
        ((_, only),) = verdicts
        found = Headline(only.tone, only.title, [*trouble, *only.sentences], verdicts)
    else:
        found = Headline(_tone_of_all(verdicts), _title_of_all(verdicts), trouble, verdicts)
    if failed and found.tone == Tone.GOOD:
        found.tone = Tone.MIXED
    return found


def _tone_of_all(verdicts: Sequence[tuple[StageRecord, Verdict]]) -> Tone:
    tones = {verdict.tone for _, verdict in verdicts}
    return tones.pop() if len(tones) == 1 else Tone.MIXED


def _title_of_all(verdicts: Sequence[tuple[StageRecord, Verdict]]) -> str:
    """``The model became better (evaluate_ppo, evaluate_grpo); no difference could be shown (evaluate_dpo)``."""
    by_title: dict[str, list[str]] = {}
    for stage, verdict in verdicts:
        by_title.setdefault(verdict.title, []).append(stage.name)
    told = "; ".join(f"{title[0].lower()}{title[1:]} ({', '.join(names)})" for title, names in by_title.items())
    return f"{told[0].upper()}{told[1:]}"


def _while_running(run: RunRecord) -> Headline:
    """How far it is; what an earlier result says is no outcome of what runs now."""
    now = [f"The stage {stage.name} is {stage.state}." for stage in run.stages.values() if stage.status == "running"]
    done = [f"{s.name}: {s.headline}." for s in run.stages.values() if s.status in ("done", "kept") and s.headline]
    return Headline(Tone.UNKNOWN, "This run is still running", [*now, *done])


def _without_evaluation(run: RunRecord, trouble: list[str]) -> Headline:
    """What was done, where no policy was compared with what it began as: often because none was trained."""
    told = [
        f"{stage.name}: {stage.headline}."
        for stage in run.stages.values()
        if stage.status in ("done", "kept") and stage.headline
    ]
    what = (
        "No policy was compared with what it began as, so that win rate, judge's score and distance were not measured; "
        "that takes a stage of kind `evaluate`."
    )
    if trouble:
        return Headline(Tone.BAD, "This run did not finish", [*trouble, *told, what])
    title = (
        "Done, without a comparison of policies" if told else "Nobody measured whether this run made the model better"
    )
    return Headline(Tone.UNKNOWN, title, [*told, what])


def moment(value: Any) -> str:
    """Epoch seconds or an ISO time."""
    try:
        if (found := number(value)) is not None:
            return datetime.fromtimestamp(found, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return datetime.fromisoformat(str(value)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def codes(sentence: Any) -> Markup:
    """A sentence whose words in backticks are set as code; whatever else it holds stays text."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(sentence))))


FILTERS: dict[str, Callable[..., Any]] = {
    "codes": codes,
    "plain": plain_number,
    "signed": signed_number,
    "percent": percentage,
    "interval": interval,
    "formatted": formatted,
    "seconds": duration,
    "moment": moment,
    "mapping": mapping,
}
"""What templates call them."""
