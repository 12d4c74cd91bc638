"""The report's section on capability suites."""

from __future__ import annotations

import json

import pytest

from rlhf.pipeline.report.capability_view import capabilities_view
from rlhf.pipeline.report.page import render
from rlhf.pipeline.report.run_data import StageRecord, read_run
from tests.fixtures.run_folder import write_run


def estimate(value, half=0.03):
    return {"value": value, "low": value - half, "high": value + half, "n": 100, "confidence": 0.95}


def suite(gain, decision):
    return {
        "margin": 0.05, "before": estimate(0.7), "after": estimate(0.7 + gain), "gain": estimate(gain),
        "ruling": {"decision": decision, "reason": f"because {gain}", "evidence": {}}, "repeat": {"flipped_frac": 0.02},
    }  # fmt: skip


DOCUMENT = {
    "settings": {"policy": "dpo", "baseline": "sft"},
    "decision": "fail",
    "suites": {"general": suite(0.0, "pass"), "safety": suite(-0.2, "fail"), "<b>odd</b>": suite(-0.05, "undecided")},
    "contamination": {
        "suites": {
            "general": {
                "num_items": 2,
                "of": 60,
                "items": [{"item": "7", "place": "data of stage sft, row 3", "words": "x"}],
            }
        },
        "unread": ["base (no rlhf run recorded it)"],
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("runs") / "r", num_prompts=40, curves=False)
    (folder / "keep").mkdir()
    (folder / "keep" / "capabilities.json").write_text(json.dumps(DOCUMENT))
    return folder


def test_the_page_says_what_was_lost_and_what_training_held(run):
    page = render(read_run(run), strict=True)
    assert "Capabilities were lost" in page
    assert "because -0.2" in page
    assert "2 of 60 items of general" in page
    assert "data of stage sft, row 3" in page
    assert "no rlhf run recorded it" in page
    assert "<b>odd</b>" not in page


def test_the_plot_has_a_line_for_each_suite_and_its_bound(run):
    [panel] = capabilities_view(read_run(run).stages["keep"])["panels"]
    assert "general: +0, -0.03 to +0.03, bound -0.05." in panel.svg
    assert "safety: -0.2" in panel.svg


def test_a_suite_without_a_number_is_in_the_table_and_not_in_the_plot():
    missing = {"value": None, "low": None, "high": None, "n": 0, "confidence": 0.95, "reason": "none"}
    stage = StageRecord("s", capabilities={"decision": "?", "suites": {"a": suite(0, "pass") | {"gain": missing}}})
    view = capabilities_view(stage)
    assert view["panels"] == []
    assert [row["name"] for row in view["rows"]] == ["a"]
    assert view["tone"] == "unknown"
