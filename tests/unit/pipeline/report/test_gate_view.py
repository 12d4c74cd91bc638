"""The report's section on gates."""

from __future__ import annotations

import json
import shutil

import pytest

from rlhf.pipeline.report.gate_view import gate_view, registry_views
from rlhf.pipeline.report.page import render
from rlhf.pipeline.report.run_data import StageRecord, read_run
from rlhf.pipeline.report.words import headline
from tests.fixtures.run_folder import write_run

DOCUMENT = {
    "candidate": {"name": "dpo_2"},
    "champion": {"alias": "champion", "version": 1},
    "alias": "champion",
    "decision": "fail",
    "rulings": {
        "better win_rate": {
            "decision": "fail", "reason": "All of it below <0>.",
            "evidence": {"difference": -0.2175, "low": -0.25, "high": -0.18, "bound": 0.0, "n": 400},
        },
        "at_least": {"decision": "pass", "reason": "Enough.", "evidence": {"value": 0.7213, "low": 0.68, "high": 0.75, "bound": 0.2, "n": 400}},
        "no_alarm kl": {"decision": "undecided", "reason": "kl did not watch.", "evidence": {}},
        "non_inferior general": {"decision": "undecided", "reason": "Nobody.", "evidence": {"no_champion": True}},
    },
}  # fmt: skip
EVENT = {
    "time": "2026-11-24T03:45:46+00:00",
    "action": "refuse",
    "previous": 1,
    "version": 1,
    "candidate": "dpo_2/model",
    "reason": "lost",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("runs") / "r", num_prompts=40, curves=False)
    (folder / "gate_2").mkdir()
    (folder / "gate_2" / "gate.json").write_text(json.dumps(DOCUMENT))
    history = {"folder": "registry", "alias": "champion", "history": [EVENT]}
    (folder / "gate_2" / "registry.json").write_text(json.dumps(history))
    return folder


def test_the_page_shows_requirements_numbers_reasons_and_history(run):
    page = render(read_run(run), strict=True)
    section = page[page.index('<section id="gates">') :].partition("</section>")[0]
    for text in (
        "dpo_2 failed",
        "champion, version 1",
        "better win_rate",
        "kl did not watch.",
        "refuse",
        "lost",
        "1 → 1",
    ):
        assert text in section
    assert "All of it below &lt;0&gt;." in section
    assert "not compared" in section
    assert "0.72" in section
    assert "−0.22" in section or "-0.22" in section


def test_the_last_gate_is_the_headline_where_nothing_was_evaluated(run, tmp_path):
    shutil.copytree(run, tmp_path / "r")
    shutil.rmtree(tmp_path / "r" / "evaluation")
    top = headline(read_run(tmp_path / "r"))
    assert "dpo_2 failed" in top.title
    assert top.tone == "bad"
    assert headline(read_run(run)).title != top.title, "an evaluation goes first"


def test_a_run_without_gates_has_no_such_section(tmp_path):
    folder = write_run(tmp_path / "r", num_prompts=40, curves=False)
    assert 'id="gates"' not in render(read_run(folder), strict=True)


def test_what_is_no_decision_is_no_pass_and_the_newest_history_is_shown():
    view = gate_view(StageRecord("g", gate={"decision": "sure", "rulings": {"a": None}}))
    assert view["tone"] == "unknown"
    assert view["rows"][0]["decision"] == "undecided"
    stages = [
        StageRecord(name, releases={"folder": "r", "alias": "champion", "history": [EVENT] * count})
        for name, count in (("one", 1), ("two", 2))
    ]
    [shown] = registry_views(stages)
    assert len(shown["events"]) == 2
    assert registry_views([StageRecord("x")]) == []
