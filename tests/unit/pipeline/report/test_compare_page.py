"""The page with two runs next to each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.pipeline.report.compare_page import render_comparison, sample_pairs, shared_panels, write_comparison
from rlhf.pipeline.report.run_data import RunRecord, StageRecord, read_run
from rlhf.pipeline.run_comparison import compare_runs
from tests.fixtures.run_folder import write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    """One run that learned, one that was gamed."""
    folder = tmp_path_factory.mktemp("runs")
    return tuple(write_run(folder / kind, kind=kind) for kind in ("healthy", "hacked"))


def page(*runs: Path) -> str:
    return render_comparison(*map(read_run, runs), compare_runs(*runs), strict=True)


def test_both_verdicts_and_both_numbers_are_on_the_page(runs):
    shown = page(*runs)
    for run in runs:
        assert run.name in shown
    assert "Results" in shown
    assert "Training curves" in shown
    assert "<script" not in shown


def test_a_curve_of_both_runs_is_one_panel_with_two_lines(runs):
    first, second = map(read_run, runs)
    [panel] = [
        each
        for each in shared_panels(first.stages["ppo"], second.stages["ppo"], ("a", "b"))
        if "KL, nats per seq" in each.unit
    ]
    assert [label for label, _ in panel.legend] == ["a", "b"]
    assert len({color for _, color in panel.legend}) == 2


def test_what_only_one_run_logged_has_no_panel():
    one, two = StageRecord("s"), StageRecord("s")
    one.curves = {"loss/train": {1: 1.0, 2: 0.5}, "grad_norm": {1: 1.0}}
    two.curves = {"loss/train": {1: 2.0, 2: 1.5}}
    [panel] = shared_panels(one, two, ("a", "b"))
    assert panel.title.startswith("Loss")


def test_completions_are_matched_by_prompt_not_by_place():
    def stage(*prompts: str) -> StageRecord:
        return StageRecord("e", evaluation={"samples": [{"prompt": p, "after": {"text": f"to {p}"}} for p in prompts]})

    pairs = sample_pairs(stage("q", "r", "s"), stage("s", "q"))
    assert [pair.prompt for pair in pairs] == ["q", "s"]
    assert all(side["text"] == f"to {pair.prompt}" for pair in pairs for side in pair.sides)


def test_runs_of_which_nothing_is_left_still_have_a_page(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.yaml").write_text("name: x\nstages: {}\n")
    written = write_comparison(tmp_path / "a", tmp_path / "b", tmp_path / "page.html")
    assert "Neither run has a result" in written.read_text()


def test_a_prompt_cannot_become_markup(runs):
    hostile = "<script>alert(1)</script>"
    actual = [read_run(run) for run in runs]
    for run in actual:
        for stage in run.stages.values():
            if stage.evaluation:
                stage.evaluation = {
                    **stage.evaluation,
                    "samples": [{"prompt": hostile, "after": {"text": hostile, "ended": True}}],
                }
    shown = render_comparison(*actual, compare_runs(*runs))
    assert isinstance(actual[0], RunRecord)
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
