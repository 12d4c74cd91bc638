"""`rlhf gate` and `rlhf registry`: exit codes, JSON, and what is refused at the door."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

from rlhf.config.model import ModelConfig
from rlhf.errors import ConfigError, DataError, GateError, ModelError, UndecidedGateError
from rlhf.files import sha256
from rlhf.models.policy import PolicyModel
from rlhf.registry.registry import Registry
from tests.fixtures.gated import model, told


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [model(folder / str(seed), seed) for seed in range(2)]


@pytest.fixture
def room(tmp_path, monkeypatch, models):
    """A working folder whose registry has a champion."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlhf.pipeline.run.write_report", lambda run: run / "report.html")
    Registry("registry").promote(models[0], reason="first")
    return tmp_path


def settings(folder, decision):
    path = folder / f"{decision}.yaml"
    path.write_text(yaml.safe_dump({"require": [told(decision)]}))
    return path


@pytest.mark.parametrize(("decision", "code"), [("pass", 0), ("fail", 20), ("undecided", 21)])
def test_the_exit_code_is_the_decision_and_a_model_alone_is_only_compared(call, room, models, decision, code):
    actual, out, _ = call("gate", models[1], "--against", "champion", "--config", settings(room, decision), "--json")
    document = json.loads(out)
    assert actual == code
    assert document["decision"] == decision
    assert document["champion"]["version"] == 1
    assert len(Registry("registry").history()) == 1
    assert (room / document["evidence_file"]).is_file()
    assert call("gate", "--replay", document["evidence_file"], "--quiet")[0] == code


def test_the_folder_of_a_stage_is_compared_and_promoted_as_its_model(call, room, models):
    stage = room / "runs" / "mine" / "dpo"
    shutil.copytree(models[1], stage / "model")
    assert call("gate", stage, "--config", settings(room, "pass"), "--quiet")[0] == 0
    assert call("registry", "promote", stage)[0] == 0
    assert Registry("registry").version(2).source == str(stage / "model")


def test_a_promoted_adapter_says_which_base_it_still_needs(call, room, models):
    adapted = ModelConfig.of({"path": str(models[0]), "lora": {"rank": 2}})
    PolicyModel.from_pretrained(adapted).save_pretrained(room / "adapter")
    for words in (
        ("registry", "promote", room / "adapter"),
        ("registry", "show"),
        ("gate", room / "adapter", "--config", settings(room, "pass"), "--promote"),
    ):
        assert str(models[0]) in call(*words)[1]
    assert str(models[0]) not in call("registry", "promote", models[1])[1]
    assert call("registry", "promote", models[1], "--json")[0] == 0


def test_without_a_champion_the_next_step_is_named(call, room, models):
    shutil.rmtree(room / "registry")
    code, _, err = call("gate", models[1], "--config", settings(room, "pass"))
    assert (code, "`rlhf registry promote MODEL`" in err) == (ModelError.exit_code, True)
    code, _, err = call("registry", "show")
    assert (code, "`rlhf registry promote MODEL`" in err) == (ModelError.exit_code, True)


def test_a_second_decision_is_not_told_as_the_persons_own_force(call, room, models):
    good = settings(room, "pass")
    assert "done again" not in "".join(call("gate", models[1], "--config", good)[1:])
    again = "".join(call("gate", models[1], "--config", good)[1:])
    assert "done again" in again
    assert "--force" not in again


def test_promote_promotes_and_the_next_comparison_is_made_anew(call, room, models):
    assert call("gate", models[1], "--config", settings(room, "pass"), "--promote", "--quiet")[0] == 0
    registry = Registry("registry")
    assert registry.aliases() == {"champion": 2}
    code, out, _ = call("gate", models[1], "--config", settings(room, "pass"), "--json")
    assert (code, json.loads(out)["champion"]["version"]) == (0, 2)


@pytest.mark.parametrize("consequence", ["rollback", "stop"])
def test_a_recipe_is_run_and_its_last_gate_counts(call, room, models, consequence):
    recipe = room / "recipe.yaml"
    gates = {
        "one": {"kind": "gate", "candidate": str(models[1]), "require": [told("pass")]},
        "two": {"kind": "gate", "candidate": str(models[0]), "require": [told("fail")], "on_fail": consequence},
    }
    recipe.write_text(yaml.safe_dump({"name": "r", "stages": gates}))
    code, out, _ = call("gate", recipe)
    assert code == 20
    assert "two" in out or "fail" in out
    assert [event.action for event in Registry("registry").history()] == ["promote", "promote", "refuse"]
    assert call("gate", recipe, "--stage", "one", "--quiet")[0] == 0


def test_what_could_let_a_model_pass_by_mistake_is_an_error(call, room, models):
    good = settings(room, "pass")
    assert call("gate", models[1], "--against", "champoin", "--config", good)[0] == ModelError.exit_code
    assert call("gate", models[1])[0] == ConfigError.exit_code
    assert call("gate")[0] == ConfigError.exit_code
    assert call("gate", models[1], "--config", good, "promote=true")[0] == ConfigError.exit_code
    recipe = room / "r.yaml"
    recipe.write_text(yaml.safe_dump({"name": "r", "stages": {"world": {"kind": "world"}}}))
    assert call("gate", recipe)[0] == ConfigError.exit_code
    gates = {"one": {"kind": "gate", "candidate": str(models[1]), "require": [{"kind": "better", "suite": "format"}]}}
    recipe.write_text(yaml.safe_dump({"name": "r", "stages": gates}))
    assert call("gate", recipe, "--against", "champoin")[0] == ModelError.exit_code
    assert Registry("registry").aliases() == {"champion": 1}
    broken = room / "gate.json"
    broken.write_text("{}")
    assert call("gate", "--replay", broken)[0] == DataError.exit_code
    code, _, err = call("gate", "--replay", "nosuch.json")
    assert (code, "Errno" in err) == (DataError.exit_code, False)


def test_a_changed_file_does_not_replay(call, room, models):
    call("gate", models[1], "--config", settings(room, "fail"), "--quiet")
    path = room / "runs" / "gate" / "gate" / "gate.json"
    written = path.read_text()
    for old, new in (('"fail"', '"pass"'), ('"version": 1', '"version": 2')):
        assert old in written
        path.write_text(written.replace(old, new, 1))
        assert call("gate", "--replay", path)[0] == DataError.exit_code


def test_the_registry_is_listed_shown_and_rolled_back(call, room, models):
    evidence = room / "why.json"
    evidence.write_text("{}")
    code, out, _ = call("registry", "promote", models[1], "--reason", "better", "--evidence", evidence, "--json")
    assert code == 0
    assert json.loads(out)["version"] == 2
    assert json.loads(out)["event"]["evidence"]["file"] == str(evidence)
    listed = json.loads(call("registry", "list", "--json")[1])
    assert listed["aliases"] == {"champion": 2}
    assert [each["version"] for each in listed["versions"]] == [1, 2]
    assert "0002" in call("registry", "list")[1]
    shown = json.loads(call("registry", "show", "champion", "--json")[1])
    assert [event["reason"] for event in shown["history"]] == ["first", "better"]
    assert json.loads(call("registry", "show", "1", "--json")[1])["aliases"] == []
    text = call("registry", "show")[1]
    assert "better" in text
    assert sha256(evidence) in text
    code, out, _ = call("registry", "rollback", "--reason", "complaints")
    assert code == 0
    assert "version 1 now" in out
    assert json.loads(call("registry", "rollback", "--to", "2", "--json")[1])["event"]["previous"] == 1
    (room / "registry" / "versions" / "0001" / "version.json").write_text("{")
    assert json.loads(call("registry", "list", "--json")[1])["damaged"].keys() == {"1"}
    assert "damaged" in call("registry", "list")[1]
    shutil.copytree(models[1], room / "short")
    (room / "short" / "model.safetensors").write_bytes((models[1] / "model.safetensors").read_bytes()[:-8])
    assert call("registry", "promote", room / "short")[0] == ModelError.exit_code
    assert call("registry", "show", "champoin")[0] == ModelError.exit_code
    assert call("registry", "rollback", "--to", "9")[0] == ModelError.exit_code
    assert call("registry", "promote", room)[0] == ModelError.exit_code
    assert call("registry", "promote", models[1], "--evidence", "none.json")[0] == ModelError.exit_code
    assert call("registry", "list", "--registry", "elsewhere")[0] == ModelError.exit_code
    assert not (room / "elsewhere").exists()


def test_a_gate_s_file_promotes_only_the_model_that_it_passed(call, room, models):
    path = room / "runs" / "gate" / "gate" / "gate.json"
    for decision, code in (("fail", GateError.exit_code), ("undecided", UndecidedGateError.exit_code)):
        call("gate", models[1], "--config", settings(room, decision), "--quiet")
        assert call("registry", "promote", models[1], "--evidence", path)[0] == code
    assert call("gate", models[1], "--config", settings(room, "pass"), "--quiet")[0] == 0
    assert call("registry", "promote", models[0], "--evidence", path)[0] == ModelError.exit_code, "another model"
    written = path.read_text()
    path.write_text(written.replace('"version": 1', '"version": 2', 1))
    assert call("registry", "promote", models[1], "--evidence", path)[0] == DataError.exit_code
    assert len(Registry("registry").history()) == 1
    path.write_text(written)
    assert call("registry", "promote", models[1], "--evidence", path)[0] == 0
    assert Registry("registry").aliases() == {"champion": 2}
