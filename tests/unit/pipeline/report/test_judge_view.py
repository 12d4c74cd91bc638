"""What the report says of a judge that a policy learned from."""

from __future__ import annotations

import json
import shutil

import pytest

from rlhf.pipeline.report.judge_view import PROXY, proxy_called
from rlhf.pipeline.report.page import render
from rlhf.pipeline.report.run_data import read_run
from rlhf.pipeline.report.words import headline
from tests.fixtures.run_folder import write_run

RECORD = {
    "name": "judge", "mode": "points", "needs_siblings": False, "judge": "clever-model", "judge_hash": "x",
    "criteria": {"correct": 2.0, "polite": 1.0}, "score_range": [0, 1], "questions": 200, "unparsed": 10, "cost": 0.25,
    "max_requests": 5000, "certificate_problem": "The judge clever-model has no certificate.",
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run", num_prompts=60, curves=False)


@pytest.fixture
def run(written, tmp_path):
    folder = shutil.copytree(written, tmp_path / "run")

    def with_record(**changes):
        (stage,) = [path.parent for path in folder.glob("*/rollouts.jsonl")] or [folder / "ppo"]
        stage.mkdir(exist_ok=True)
        (stage / "judge_rewards.json").write_text(json.dumps({"k": {**RECORD, **changes}}))
        return read_run(folder), stage.name

    return with_record


def test_the_first_line_says_that_a_judge_is_not_certified_and_its_section_what_it_was_asked(run):
    record, stage = run()
    record.stages[stage].uncertified = [RECORD["certificate_problem"]]
    assert headline(record).sentences[0] == f"{stage}: {RECORD['certificate_problem']}"
    page = render(record, strict=True)
    for text in ("clever-model", "200", "5.0", "0.2500", "5,000", "correct", "has no certificate"):
        assert text in page
    certified, _ = run(certificate_problem="", cost=None)
    assert "certificate" not in " ".join(headline(certified).sentences)
    assert "is not known" in render(certified, strict=True)


def test_the_curve_names_the_judge_and_says_what_it_can_t_show(run):
    record, stage = run(needs_siblings=True)
    (evaluation,) = [actual for actual, _ in record.judged]
    parents = record.manifest["artifacts"][evaluation.name]["parents"]
    parents["rollouts"] = f"stage:{stage}/rollouts.jsonl@key"
    called, note = proxy_called(record, evaluation)
    assert "clever-model" in called
    assert "same at every step" in note
    assert called in render(record, strict=True)
    parents["rollouts"] = "stage:other/rollouts.jsonl@key"
    assert proxy_called(record, evaluation) == (PROXY, "")


def test_a_record_that_is_damaged_leaves_the_page_whole(run):
    record, stage = run()
    record.stages[stage].judge_rewards = {"k": {"questions": "many"}, "l": 3}
    assert 'id="judges"' in render(record, strict=True)
