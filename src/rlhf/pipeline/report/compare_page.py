"""A page with two runs next to each other: results, differences, curves in one plot, and completions to the same prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf.files import write_text
from rlhf.formatting import mapping, plain_number
from rlhf.pipeline.report.page import environment
from rlhf.pipeline.report.plots import ONE, TWO, Panel, Series, line_panel, reuse_plots
from rlhf.pipeline.report.run_data import RunRecord, StageRecord, read_run, sorted_points
from rlhf.pipeline.report.views import PANELS, curves_of
from rlhf.pipeline.report.words import headline
from rlhf.pipeline.run_comparison import RunComparison, compare_runs, words_for

NUM_SAMPLES = 10
"""Prompts of each evaluation whose completions are shown."""
COLORS = (ONE, TWO)


@dataclass(frozen=True, slots=True)
class SamplePair:
    """What the policies of both runs wrote to one prompt."""

    prompt: str
    sides: tuple[Mapping[str, Any], Mapping[str, Any]]


def write_comparison(first: Path, second: Path, path: Path) -> Path:
    """Write the page about two run folders.

    Returns:
        ``path``.
    """
    with reuse_plots(path):
        page = render_comparison(read_run(first), read_run(second), compare_runs(first, second))
    write_text(path, page)
    return path


def render_comparison(
    first: RunRecord, second: RunRecord, run_comparison: RunComparison, *, strict: bool = False
) -> str:
    """The page.

    Args:
        first: What was found in one folder.
        second: In the other.
        run_comparison: How they differ.
        strict: Raise if the template uses an undefined variable.
    """
    both = (first, second)
    return environment(strict=strict).get_template("compare.jinja").render(
        names=run_comparison.runs,
        headlines=[headline(run) for run in both],
        results=[(words_for(name), _text(a), _text(b)) for name, a, b in run_comparison.headlines],
        numbers=[
            (words_for(name), _text(a), _text(b))
            for name, a, b in run_comparison.results if (name, a, b) not in run_comparison.headlines
        ],
        comparison=run_comparison,
        curves=[(stage.name, panels) for stage, other in _shared(*both) if (panels := shared_panels(stage, other, run_comparison.runs))],
        samples=[(stage.name, pairs) for stage, other in _shared(*both) if (pairs := sample_pairs(stage, other))],
        made=datetime.now(UTC),
    )  # fmt: skip


def shared_panels(first: StageRecord, second: StageRecord, names: tuple[str, str]) -> list[Panel]:
    """A panel for each metric that both logged, with a line for each run; metrics of no panel of the report are left out."""
    panels = []
    for spec in PANELS:
        for label, pattern in spec.lines.items():
            lines = [(run, curves_of(stage, pattern)) for run, stage in zip(names, (first, second), strict=True)]
            if not all(curves for _, curves in lines):
                continue
            series = [
                Series(run if len(curves) == 1 else f"{run}, {metric.partition('/')[0]}", *sorted_points(curve), color)
                for (run, curves), color in zip(lines, COLORS, strict=True)
                for metric, curve in curves.items()
            ]
            title = spec.title if len(spec.lines) == 1 else f"{spec.title}, {label}"
            panels.append(line_panel(title, series, unit=spec.unit))
    return panels


def sample_pairs(first: StageRecord, second: StageRecord) -> list[SamplePair]:
    """Completions of both policies to prompts that both evaluations show, in the order of the first."""
    others = {str(each.get("prompt")): mapping(each.get("after")) for each in _samples(second)}
    pairs = [
        SamplePair(str(each["prompt"]), (mapping(each.get("after")), others[str(each["prompt"])]))
        for each in _samples(first)
        if str(each.get("prompt")) in others
    ]
    return pairs[:NUM_SAMPLES]


def _shared(first: RunRecord, second: RunRecord) -> Iterator[tuple[StageRecord, StageRecord]]:
    """Stages of one name in both."""
    for name, stage in first.stages.items():
        if name in second.stages:
            yield stage, second.stages[name]


def _samples(stage: StageRecord) -> list[Mapping[str, Any]]:
    return [mapping(each) for each in mapping(stage.evaluation).get("samples") or []]


def _text(value: Any) -> str:
    if value is None:
        return "not measured"
    return plain_number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
