"""kill -9 between a decision and its end: the next run finishes with one line of history, not two and not none."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from rlhf.errors import ModelError
from rlhf.files import sha256
from rlhf.pipeline.stages import gate
from rlhf.registry import registry as registry_module
from rlhf.registry.history import FILE, read_history
from rlhf.registry.registry import AliasMovedError, Registry
from tests.fixtures.gated import gated, model, told


def die(*_args, **_kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def half_a_line(folder, event):
    with (folder / FILE).open("ab") as file:
        file.write(b'{"time": "2026')
        file.flush()
    die()


def before(module, name):
    return lambda: setattr(module, name, die)


def after(module, name):
    def patch():
        original = getattr(module, name)

        def done(*args, **kwargs):
            original(*args, **kwargs)
            die()

        setattr(module, name, done)

    return patch


MOMENTS = {
    "before the decision is written": before(gate, "write_json"),
    "behind the decision": after(gate, "write_json"),
    "before the version is copied": before(registry_module.shutil, "copytree"),
    "behind the version, before the history": before(registry_module, "append_event"),
    "within the line of history": lambda: setattr(registry_module, "append_event", half_a_line),
    "behind the history, before the link": after(registry_module, "append_event"),
    "behind the link, before the model": before(gate, "write_folder_aside"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [str(model(folder / str(seed), seed)) for seed in range(2)]


def run_and_die(pipeline, patch):
    """In a child; gives the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            patch()
            pipeline.run()
        finally:
            os._exit(9)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("decision", ["pass", "fail"])
def test_one_line_of_history_whenever_a_gate_is_killed(moment, decision, models, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf.pipeline.run.write_report", lambda run: run / "report.html")
    registry = Registry(tmp_path / "registry")
    registry.promote(models[0])
    pipeline = gated(tmp_path, {"gate": {"candidate": models[1], "require": told(decision)}})
    assert run_and_die(pipeline, MOMENTS[moment]) == signal.SIGKILL
    pipeline.run()
    events = read_history(registry.folder)
    passed = decision == "pass"
    assert [event.action for event in events] == ["promote", "promote" if passed else "refuse"]
    run = tmp_path / "runs" / "run" / "gate"
    assert events[-1].evidence["sha256"] == sha256(run / "gate.json")
    assert registry.aliases() == {"champion": 2 if passed else 1}
    link = registry.folder / "champion" / "model.safetensors"
    assert sha256(link) == sha256(run / "model" / "model.safetensors") == sha256(f"{models[passed]}/model.safetensors")
    assert len(registry.versions()) == 1 + passed
    for version in registry.versions():
        registry.verify(version.number)
    assert not list(registry.folder.rglob("*.tmp"))


def test_a_decision_against_a_champion_of_before_is_made_again(models, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf.pipeline.run.write_report", lambda run: run / "report.html")
    registry = Registry(tmp_path / "registry")
    pipeline = gated(tmp_path, {"gate": {"candidate": models[1], "require": told("pass")}})
    assert run_and_die(pipeline, MOMENTS["behind the decision"]) == signal.SIGKILL
    written = sha256(tmp_path / "runs" / "run" / "gate" / "gate.json")
    registry.promote(models[0], reason="by hand, meanwhile")
    pipeline.run()
    events = registry.history()
    assert [(event.previous, event.version) for event in events] == [(None, 1), (1, 2)]
    assert events[-1].evidence["sha256"] != written


@pytest.mark.parametrize("times", [1, gate.MAX_ATTEMPTS])
def test_a_gate_measures_again_where_another_process_promotes_meanwhile(times, models, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf.pipeline.run.write_report", lambda run: run / "report.html")
    registry = Registry(tmp_path / "registry")
    registry.promote(models[0])
    measured = []
    decide = gate._decided

    def meanwhile(*args):
        decision = decide(*args)
        measured.append(decision["champion"]["version"])
        if len(measured) <= times:
            registry.promote(models[len(measured) % 2], reason="meanwhile")
        return decision

    monkeypatch.setattr(gate, "_decided", meanwhile)
    pipeline = gated(tmp_path, {"gate": {"candidate": models[1], "require": told("pass")}})
    if times == 1:
        pipeline.run()
        assert measured == [1, 2]
        assert [event.previous for event in registry.history()] == [None, 1, 2]
    else:
        with pytest.raises(AliasMovedError, match="decide again"):
            pipeline.run()
        assert len(measured) == gate.MAX_ATTEMPTS
        assert registry.history()[-1].reason == "meanwhile"


@pytest.mark.parametrize("promotes", [True, False])
def test_weights_that_nobody_measured_are_never_promoted(promotes, models, tmp_path, monkeypatch):
    """The candidate's file is replaced while the gate decides."""
    monkeypatch.setattr("rlhf.pipeline.run.write_report", lambda run: run / "report.html")
    candidate = model(tmp_path / "candidate", 2)
    measured = sha256(candidate / "model.safetensors")
    registry = Registry(tmp_path / "registry")
    registry.promote(models[0])
    decide = gate._decided

    def meanwhile(*args):
        decision = decide(*args)
        shutil.copyfile(f"{models[1]}/model.safetensors", candidate / "model.safetensors")
        return decision

    monkeypatch.setattr(gate, "_decided", meanwhile)
    settings = {"candidate": str(candidate), "require": told("pass"), "promote": promotes}
    pipeline = gated(tmp_path, {"gate": settings})
    with pytest.raises(ModelError, match="changed"):
        pipeline.run()
    assert registry.aliases() == {"champion": 1}
    assert len(registry.versions()) == len(registry.history()) == 1
    monkeypatch.setattr(gate, "_decided", decide)
    pipeline.run()  # measures what is there now
    again = sha256(tmp_path / "runs" / "run" / "gate" / "model" / "model.safetensors")
    assert again == sha256(candidate / "model.safetensors") != measured
