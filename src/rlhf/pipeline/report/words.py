"""The report's texts: its headline, times, and the filters of its templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from rlhf.evaluation.verdict import Tone, Verdict
from rlhf.formatting import duration, formatted, interval, mapping, number, percentage, plain_number, signed_number
from rlhf.pipeline.report.gate_view import gate_view
from rlhf.pipeline.report.run_data import RunRecord, StageRecord

STATUS_WORDS = {"failed": "failed", "broken off": "started but did not finish", "stopped": "was stopped"}


@dataclass(slots=True)
class Headline:
    """The verdict in plain words."""

    tone: Tone
    title: str
    sentences: list[str] = field(default_factory=list)
    verdicts: list[tuple[StageRecord, Verdict]] = field(default_factory=list)
    """Of each evaluation. A single one's sentences are among `sentences`; several are shown separately."""


def headline(run: RunRecord) -> Headline:
    """The main result: judges that nobody measured, the verdict on each evaluation, and which stages failed."""
    top = _result(run)
    by_problem: dict[str, list[str]] = {}
    for stage in run.stages.values():
        for problem in stage.uncertified:
            by_problem.setdefault(problem, []).append(stage.name)
    top.sentences[:0] = [f"{', '.join(dict.fromkeys(names))}: {problem}" for problem, names in by_problem.items()]
    return top


def _result(run: RunRecord) -> Headline:
    if run.running:
        return _while_running(run)
    failed = [stage for stage in run.stages.values() if stage.status in STATUS_WORDS]
    trouble = [
        f"The stage {stage.name} {STATUS_WORDS[stage.status]}: {(stage.headline or 'see the log').rstrip('.')}."
        for stage in failed
    ]
    gates = [gate_view(stage) for stage in run.stages.values() if stage.gate]
    if not run.evaluations:
        return _of_gates(run, gates, trouble) if gates else _without_evaluation(run, trouble)
    verdicts = [(stage, stage.verdict) for stage, _ in run.evaluations]
    if len(verdicts) == 1:
        ((_, only),) = verdicts
        top = Headline(only.tone, only.title, [*trouble, *only.sentences], verdicts)
    else:
        top = Headline(_tone_of_all(verdicts), _title_of_all(verdicts), trouble, verdicts)
    if failed and top.tone == Tone.GOOD:
        top.tone = Tone.MIXED
    return top


def _tone_of_all(verdicts: Sequence[tuple[StageRecord, Verdict]]) -> Tone:
    tones = {verdict.tone for _, verdict in verdicts}
    return tones.pop() if len(tones) == 1 else Tone.MIXED


def _title_of_all(verdicts: Sequence[tuple[StageRecord, Verdict]]) -> str:
    """``The model became better (evaluate_ppo, evaluate_grpo); no difference could be shown (evaluate_dpo)``."""
    by_title: dict[str, list[str]] = {}
    for stage, verdict in verdicts:
        by_title.setdefault(verdict.title, []).append(stage.name)
    joined = "; ".join(f"{title[0].lower()}{title[1:]} ({', '.join(names)})" for title, names in by_title.items())
    return f"{joined[0].upper()}{joined[1:]}"


def _while_running(run: RunRecord) -> Headline:
    """The progress; earlier results are not the outcome of the current run."""
    now = [f"The stage {stage.name} is {stage.state}." for stage in run.stages.values() if stage.status == "running"]
    done = [f"{s.name}: {s.headline}." for s in run.stages.values() if s.status in ("done", "kept") and s.headline]
    return Headline(Tone.UNKNOWN, "This run is still running", [*now, *done])


def _of_gates(run: RunRecord, gates: Sequence[Mapping[str, Any]], trouble: list[str]) -> Headline:
    """What the last gate decided, and all that gates said."""
    said = [f"{view['stage'].name}: {view['candidate']} {view['heading']}." for view in gates]
    last = gates[-1]
    title = f"The last gate: {last['candidate']} {last['heading']}"
    if trouble:
        return Headline(Tone.BAD, "This run did not finish", [*trouble, *said])
    return Headline(
        Tone(last["tone"]), title, [*said, *(f"{s.name}: {s.headline}." for s in run.stages.values() if s.headline)]
    )


def _without_evaluation(run: RunRecord, trouble: list[str]) -> Headline:
    """What was done if no policy was compared with its baseline, often because none was trained."""
    done = [
        f"{stage.name}: {stage.headline}."
        for stage in run.stages.values()
        if stage.status in ("done", "kept") and stage.headline
    ]
    what = (
        "No policy was compared with a baseline, so win rate, judge's score and distance were not measured; "
        "add a stage of kind `evaluate` to measure them."
    )
    if trouble:
        return Headline(Tone.BAD, "This run did not finish", [*trouble, *done, what])
    title = "Done, without a comparison of policies" if done else "Whether this run improved the model was not measured"
    return Headline(Tone.UNKNOWN, title, [*done, what])


def moment(value: Any) -> str:
    """Epoch seconds or an ISO time."""
    try:
        if (seconds := number(value)) is not None:
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return datetime.fromisoformat(str(value)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def codes(sentence: Any) -> Markup:
    """A sentence with words in backticks formatted as code; everything else stays text."""
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
"""By their name in templates."""
