"""The page of a run's report: its sections, each from a view and a template."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from rlhf.evaluation.verdict import Tone
from rlhf.files import write_text
from rlhf.formatting import mapping
from rlhf.pipeline.kinds import REWARD_MODEL
from rlhf.pipeline.report.alarms import SHOWN, alarm_kinds, alarm_views
from rlhf.pipeline.report.capability_view import capabilities_view
from rlhf.pipeline.report.gate_view import gate_view, registry_views
from rlhf.pipeline.report.judge_view import judges_view, proxy_called
from rlhf.pipeline.report.plots import reuse_plots
from rlhf.pipeline.report.run_data import RunRecord, StageRecord, read_run
from rlhf.pipeline.report.search_view import search_view
from rlhf.pipeline.report.template_cache import kept_templates
from rlhf.pipeline.report.views import (
    changes_view,
    hacking_view,
    metrics_view,
    outcome_view,
    reward_views,
    samples_view,
    solving_view,
    stage_curves,
)
from rlhf.pipeline.report.words import FILTERS, Headline, headline

logger = logging.getLogger(__name__)

FILE_NAME = "report.html"
INTERNAL_NOTES = ("Scoring path: ", "Self-checks at ")
"""Prefixes of notes that are not shown: self-checks that passed. Failed ones raise an alarm, which is shown."""
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page; ``templates/<name>.jinja`` renders what ``view`` returns, or nothing if that is empty."""

    name: str
    title: str
    """Its heading, on the page and in the list of contents."""
    view: Callable[[RunRecord], dict[str, Any]]


def write_report(run_dir: Path | str) -> Path:
    """Write ``report.html`` into a run folder, from the files in it.

    Returns:
        Its path.
    """
    run = read_run(run_dir)
    path = Path(run_dir) / FILE_NAME
    with reuse_plots(path):
        page = render(run)
    write_text(path, page)
    return path


def render(run: RunRecord, *, strict: bool = False) -> str:
    """The page.

    Args:
        run: What was found in the folder.
        strict: Raise if a section can't be shown or its template uses an undefined variable. Otherwise the section
            shows the error: a report is written after hours of work, and one unexpected file must not prevent the rest.
    """
    templates = environment(strict=strict)
    sections = [_section(templates, section, run, strict=strict) for section in SECTIONS]
    page = templates.get_template("page.jinja")
    verdict = _headline(run, strict=strict)
    shown = [section for section, text in zip(SECTIONS, sections, strict=True) if text.strip()]
    return page.render(run=run, sections=sections, contents=shown[1:], headline=verdict, made=datetime.now(UTC))


@functools.cache
def environment(*, strict: bool = False) -> jinja2.Environment:
    """What renders the templates, the same for all pages of a process; ``strict`` raises where one uses an undefined variable."""
    jinja = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        bytecode_cache=kept_templates(),
        autoescape=True,
        undefined=jinja2.StrictUndefined if strict else jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= FILTERS
    return jinja


def _section(templates: jinja2.Environment, section: Section, run: RunRecord, *, strict: bool) -> Markup:
    try:
        template = templates.get_template(f"{section.name}.jinja")
        return Markup(template.render(run=run, title=section.title, **section.view(run)))
    except Exception as err:
        if strict:
            raise
        logger.exception("The report's section %r can't be shown", section.name)
        why = f"this section can't be shown: {type(err).__name__}: {err}."
        return Markup(templates.get_template("broken.jinja").render(section=section, why=why))


def _headline(run: RunRecord, *, strict: bool) -> Headline:
    try:
        return headline(run)
    except Exception:
        if strict:
            raise
        return Headline(Tone.UNKNOWN, "The result can't be read")


def _result(run: RunRecord) -> dict[str, Any]:
    top = headline(run)
    return {
        "headline": top,
        "outcomes": [outcome_view(*both) for both in top.verdicts],
        "qualities": [(_names(stages), mapping(quality)) for stages, quality in run.reward_models],
        "in_training": run.accuracy_in_training,
        "num_alarms": sum(len(stage.alarms) for stage in run.stages.values()),
        "alarm_kinds": alarm_kinds(run),
        "total_seconds": sum(stage.seconds or 0.0 for stage in run.stages.values()),
    }


def _names(stages: Sequence[StageRecord]) -> str:
    return ", ".join(stage.name for stage in stages)


def _changes(run: RunRecord) -> dict[str, Any]:
    return {"comparisons": [changes_view(*both) for both in run.evaluations]}


def _samples(run: RunRecord) -> dict[str, Any]:
    return {"comparisons": [samples_view(*both) for both in run.evaluations]}


def _hacking(run: RunRecord) -> dict[str, Any]:
    without = [(stage, mapping(evaluation.get("missing")).get("curve")) for stage, evaluation in run.evaluations]
    return {
        "hackings": [hacking_view(*judged, proxy=proxy_called(run, judged[0])) for judged in run.judged],
        "not_judged": [(stage.name, why) for stage, why in without if why],
    }


def _reward(run: RunRecord) -> dict[str, Any]:
    reasons = (mapping(evaluation.get("missing")).get("reward_model") for _, evaluation in run.evaluations)
    return {
        "rewards": reward_views(run),
        "in_training": run.accuracy_in_training,
        "expected": run.compares or any(stage.kind == REWARD_MODEL for stage in run.stages.values()),
        "why_missing": next((why for why in reasons if why), None),
    }


def _judges(run: RunRecord) -> dict[str, Any]:
    return {"judged": [judges_view(stage) for stage in run.stages.values() if stage.judge_rewards]}


def _solving(run: RunRecord) -> dict[str, Any]:
    return {"solvings": [solving_view(*part) for part in run.parts("solving")]}


def _search(run: RunRecord) -> dict[str, Any]:
    return {"searches": [search_view(*part) for part in run.parts("search")]}


def _contexts(run: RunRecord) -> dict[str, Any]:
    return {"comparisons": [{"stage": stage, "part": part} for stage, part in run.parts("contexts")]}


def _metrics(run: RunRecord) -> dict[str, Any]:
    return {"measurements": [metrics_view(*part) for part in run.parts("metrics")]}


def _capabilities(run: RunRecord) -> dict[str, Any]:
    return {"reports": [capabilities_view(stage) for stage in run.stages.values() if stage.capabilities]}


def _gates(run: RunRecord) -> dict[str, Any]:
    return {
        "gates": [gate_view(stage) for stage in run.stages.values() if stage.gate],
        "registries": registry_views(run.stages.values()),
    }


def _process(run: RunRecord) -> dict[str, Any]:
    return {"processes": [{"stage": stage, "quality": part} for stage, part in run.parts("process_reward_model")]}


def _profiles(run: RunRecord) -> dict[str, Any]:
    profiles = [(stage, stage.profile) for stage in run.stages.values() if stage.profile is not None]
    return {"profiles": [(stage, profile, mapping(profile.get("activities"))) for stage, profile in profiles]}


def _alarms(run: RunRecord) -> dict[str, Any]:
    notes = [
        (stage, note)
        for stage in run.stages.values()
        for note in stage.notes
        if not str(note.get("message", "")).startswith(INTERNAL_NOTES)
    ]
    return {"alarms": alarm_views(run), "shown": SHOWN, "notes": notes}


SECTIONS: tuple[Section, ...] = (
    Section("result", "Result", _result),
    Section("changes", "What changed", _changes),
    Section("metrics", "Metrics", _metrics),
    Section("solving", "Problems solved", _solving),
    Section("search", "Search", _search),
    Section("contexts", "Contexts in fewer tokens", _contexts),
    Section("gates", "Gates", _gates),
    Section("capabilities", "Capabilities", _capabilities),
    Section("samples", "Before and after", _samples),
    Section("hacking", "Was the reward gamed?", _hacking),
    Section("judges", "Judges as rewards", _judges),
    Section("process", "Process reward model", _process),
    Section("reward", "Reward model", _reward),
    Section(
        "stages",
        "Stages",
        lambda run: {"longest": max((stage.seconds or 0.0 for stage in run.stages.values()), default=0.0)},
    ),
    Section(
        "curves",
        "Training curves",
        lambda run: {"curves": [stage_curves(stage) for stage in run.stages.values() if stage.curves]},
    ),
    Section("profile", "Where the time went", _profiles),
    Section("alarms", "Alarms and notes", _alarms),
    Section(
        "lineage",
        "Lineage",
        lambda run: {
            "artifacts": mapping(run.manifest.get("artifacts")),
            "empty_hash": hashlib.sha256().hexdigest(),
        },
    ),
    Section("recipe", "How to reproduce this run", lambda run: {}),
)
