"""The loop from Python with capability tests: a policy that lost something is left aside, and the loop goes on from the champion."""

from __future__ import annotations

import json

import pytest

from rlhf import RLHFOrchestrator, TrainingStage
from rlhf.errors import ConfigError, DataError, GateError, ModelError, RLHFError
from rlhf.files import sha256
from tests.fixtures.gated import model, told

SHORT = {"max_steps": 1, "batch_size": 2}
SUITE = {
    "name": "sums", "scorer": "exact", "margin": 0.9, "sampling": {"temperature": 0, "max_new_tokens": 2},
    "items": [{"id": str(n), "prompt": f"What is {n}?", "answer": "x"} for n in range(8)],
}  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return model(tmp_path_factory.mktemp("models") / "start", 0)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"prompt": "Who?", "completion": "he", "chosen": "he", "rejected": "she"}
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(4)))
    return path


def weights(folder):
    return sha256(folder / "model.safetensors")


def test_a_regression_is_rolled_back_and_another_process_knows(start, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf.pipeline.run.write_report", lambda run: run / "report.html")
    loop = RLHFOrchestrator(start, output_dir=tmp_path / "run", quiet=True, require=[told("pass")])
    loop.run_sft(rows, **SHORT)
    assert loop.stage is TrainingStage.SFT
    assert loop.models == {"sft": "stage:sft_gate"}
    assert weights(loop.folder_of("sft")) == weights(tmp_path / "run" / "sft" / "model")
    loop.require = [told("fail")]
    bad = loop.run_policy_optimization(rows, method="dpo", **SHORT)
    assert bad.settings["model"]["path"] == "stage:sft_gate"
    assert weights(loop.folder_of("policy")) == weights(tmp_path / "run" / "sft" / "model")
    assert [(each.action, each.version) for each in loop.decisions] == [("promote", 1), ("promote", 2), ("refuse", 2)]
    assert loop.decisions[-1].evidence["file"].endswith("dpo_gate/gate.json")
    again = RLHFOrchestrator(start, output_dir=tmp_path / "run", quiet=True, require=[told("pass")])
    assert again.models == loop.models
    assert loop.stage is TrainingStage.POLICY_OPTIMIZATION
    assert weights(again.save_models(tmp_path / "saved")["policy"]) == weights(again.registry.path())


def test_what_was_rolled_back_is_used_no_more(start, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf.pipeline.run.write_report", lambda run: run / "report.html")
    loop = RLHFOrchestrator(start, output_dir=tmp_path / "run", quiet=True, require=[told("pass")])
    loop.run_sft(rows, **SHORT)
    loop.run_policy_optimization(rows, method="dpo", **SHORT)
    assert loop.models == {"sft": "stage:sft_gate", "policy": "stage:dpo_gate"}
    sft, dpo = (weights(tmp_path / "run" / name / "model") for name in ("sft", "dpo"))

    assert loop.rollback(reason="complaints") == loop.registry.path(2)
    assert (weights(loop.folder_of("policy")), loop.models["sft"]) == (sft, "stage:sft_gate")
    assert weights(loop.save_models(tmp_path / "saved")["policy"]) == sft
    assert (loop.decisions[-1].action, loop.decisions[-1].reason) == ("rollback", "complaints")

    loop.registry.rollback()  # as the command line does
    again = RLHFOrchestrator(start, output_dir=tmp_path / "run", quiet=True, require=[told("pass")])
    for each in (loop, again):
        assert {weights(each.folder_of(role)) for role in ("sft", "policy")} == {weights(start)}
    next_one = again.run_policy_optimization(rows, method="ipo", **SHORT)
    assert next_one.settings["model"]["path"] == str(again.registry.path(1))
    assert again.models["policy"] == "stage:ipo_gate"

    again.rollback(to=3)
    assert weights(loop.folder_of("policy")) == dpo, "a version that is rolled back to counts again"
    assert weights(loop.folder_of("sft")) == weights(loop.registry.path())
    with pytest.raises(ModelError):
        again.rollback(to=9)


def test_suites_are_asked_before_and_after_with_evidence(start, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf.pipeline.run.write_report", lambda run: run / "report.html")
    loop = RLHFOrchestrator(start, output_dir=tmp_path / "run", quiet=True, suites=[SUITE])
    loop.run_sft(rows, **SHORT)
    document = json.loads((tmp_path / "run" / "sft_gate" / "gate.json").read_text())
    asked = document["measurements"]["suites"]["sums"]
    assert asked["champion"]["scores"].keys() == asked["candidate"]["scores"].keys()
    assert loop.decisions[0].reason.startswith("Where training starts")
    assert loop.decisions[1].action == ("promote" if document["decision"] == "pass" else "refuse")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"suites": ["generl"]}, "generl"),
        ({"suites": [{**SUITE, "margin": -1}]}, "margin"),
        ({"require": ["no_such_module_of_mine:gate"]}, "no_such_module_of_mine"),
        ({"require": [{"kind": "better", "metric": "win_rate"}]}, "judge"),
        ({"require": [told("pass")], "gate": {"confidence": 2}}, "confidence"),
        ({"require": [told("pass")], "gate": {"prompts": "no_such_file.jsonl"}}, "no_such_file"),
    ],
)
def test_a_gate_that_cannot_be_is_refused_before_anything_trains(start, tmp_path, given, named):
    with pytest.raises(RLHFError, match=named):
        RLHFOrchestrator(start, output_dir=tmp_path / "run", quiet=True, **given)
    assert not (tmp_path / "run").exists()


def test_a_gate_may_read_what_a_stage_will_write(start, tmp_path):
    gate = {"prompts": "stage:world/test_prompts.jsonl"}
    loop = RLHFOrchestrator(start, output_dir=tmp_path / "run", quiet=True, require=[told("pass")], gate=gate)
    assert loop.models == {}


def test_a_requirement_that_was_put_in_later_is_checked_too(start, rows, tmp_path):
    loop = RLHFOrchestrator(start, output_dir=tmp_path / "run", quiet=True)
    loop.require = [{"kind": "better", "metric": "no_such_metric"}]
    with pytest.raises(ConfigError, match="no_such_metric"):
        loop.run_sft(rows, **SHORT)
    assert loop.history == []


def test_an_error_leaves_the_champion_and_a_line_and_stop_stops(start, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf.pipeline.run.write_report", lambda run: run / "report.html")
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{")
    loop = RLHFOrchestrator(
        start, output_dir=tmp_path / "run", quiet=True, require=[told("fail")], on_regression="stop"
    )
    with pytest.raises(DataError):
        loop.run_sft(broken, **SHORT)
    assert loop.models == {}
    assert loop.decisions[-1].action == "refuse"
    assert "error" in loop.decisions[-1].reason
    with pytest.raises(GateError):
        loop.run_sft(rows, **SHORT)
    assert loop.models == {}
    assert RLHFOrchestrator(start, output_dir=tmp_path / "run", quiet=True, require=[told("fail")]).models == {}
