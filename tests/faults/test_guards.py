"""Guards in a running loop: they warn, stop, or bring the last good state back, and a resumed run hears the same alarms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf.errors import ConfigError, TrainingError
from rlhf.training.log import TrainingLogger
from tests.fixtures import toy

LONG: dict[str, Any] = {"rollouts": 8, "learning_rate": 3e-2, "kl": {"coef": 0.0}, "save_every": 4}
TIGHT = {"kl": {"limit": 0.5}}
"""Nats: a run at this learning rate leaves them behind in a few rollouts."""


def build(folder: Path, guards: Any, **settings: Any) -> Any:
    log = TrainingLogger(folder, stage="grpo")
    return toy.build_trainer("grpo", log=log, checkpoint_dir=folder / "grpo", guards=guards, **{**LONG, **settings})


def alarms(folder: Path, guard: str = "kl") -> list[dict[str, Any]]:
    return [event for event in TrainingLogger(folder, stage="grpo").read("alarm") if event.get("guard") == guard]


def steps(folder: Path) -> list[int]:
    return [event["step"] for event in TrainingLogger(folder, stage="grpo").read("metrics")]


def test_a_warning_shows_the_samples_that_raised_it_and_changes_no_bit(tmp_path):
    silent, warned = build(tmp_path / "silent", "off"), build(tmp_path / "warned", TIGHT)
    silent.train()
    warned.train()
    assert toy.largest_difference(toy.weights_of(silent), toy.weights_of(warned)) == 0.0
    assert alarms(tmp_path / "silent") == []
    (alarm,) = alarms(tmp_path / "warned")
    assert alarm["metric"] == "grpo/ref_kl"
    assert alarm["value"] > alarm["limit"] == 0.5
    assert alarm["action"] == "warn"
    assert len(alarm["samples"]) == 3
    kls = [sample["kl"] for sample in alarm["samples"]]
    assert kls == sorted(kls, reverse=True), "the samples furthest from the reference come first"
    assert {"id", "prompt", "completion", "score", "kl", "length"} <= alarm["samples"][0].keys()


def test_stop_ends_the_run_and_the_same_command_goes_on_once_the_limit_is_raised(tmp_path):
    guards = {"kl": {"limit": 0.5, "action": "stop"}}
    with pytest.raises(TrainingError) as caught:
        build(tmp_path, guards).train()
    message = str(caught.value)
    assert "the guard `kl` stopped the run at step" in message
    assert "under `guards:`" in message
    stopped = steps(tmp_path)
    (alarm,) = alarms(tmp_path)
    assert alarm["action"] == "stop"
    result = build(tmp_path, {"kl": {"limit": 1e6}}).train()
    assert result.steps > stopped[-1]
    assert steps(tmp_path) == sorted(set(steps(tmp_path))), "no step appears twice in the log"


def test_restore_goes_back_to_a_checkpoint_with_half_the_learning_rate(tmp_path):
    trainer = build(tmp_path, {"kl": {"limit": 0.5, "action": "restore"}, "max_restores": 1, "action": "off"})
    with pytest.raises(TrainingError, match=r"1 time.*guards\.max_restores"):
        trainer.train()
    first, second = alarms(tmp_path)
    assert first["action"] == "restore"
    assert first["restored_to"] < first["raised_at"] - 1, (
        "the weights of the step before are those that raised the alarm"
    )
    assert second["value"] != first["value"], "other weights, not the same rollout once more"
    assert first["step"] == first["restored_to"], "in the log the alarm stands where the run went on"
    assert first["learning_rate_scale"] == 0.5
    assert second["action"] == "stop"
    assert second["raised_at"] >= first["raised_at"], "with half the learning rate the limit is reached no earlier"
    assert steps(tmp_path) == list(range(1, second["raised_at"] + 1)), (
        "each step stands once: those taken back are gone"
    )
    rates = {e["step"]: e["metrics"]["learning_rate"] for e in TrainingLogger(tmp_path, stage="grpo").read("metrics")}
    whole = build(tmp_path / "whole", "off")
    whole.train()
    undisturbed = {
        e["step"]: e["metrics"]["learning_rate"]
        for e in TrainingLogger(tmp_path / "whole", stage="grpo").read("metrics")
    }
    after = [step for step in rates if step > first["restored_to"]]
    assert after
    for step in after:
        assert rates[step] == pytest.approx(undisturbed[step] / 2)


def test_a_restored_run_that_is_killed_goes_on_with_the_halved_learning_rate_and_the_count(tmp_path):
    guards = {"kl": {"limit": 0.5, "action": "restore"}, "max_restores": 1, "action": "off"}
    for _ in range(2):  # the second command finds the run after its restore, and ends at the same place
        with pytest.raises(TrainingError, match="went back 1 time"):
            build(tmp_path, guards).train()
    assert [alarm["action"] for alarm in alarms(tmp_path)].count("restore") == 1


def test_a_kill_between_the_alarm_of_a_restore_and_its_checkpoint_leaves_no_second_alarm(tmp_path, monkeypatch):
    guards = {"kl": {"limit": 0.5, "action": "restore"}, "max_restores": 1, "action": "off"}
    with pytest.raises(TrainingError):
        build(tmp_path / "whole", guards).train()

    class KilledError(BaseException):
        pass

    real = TrainingLogger.alarm

    def dying(log, text, **fields):
        real(log, text, **fields)
        if fields.get("action") == "restore":
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLogger, "alarm", dying)
        with pytest.raises(KilledError):
            build(tmp_path / "killed", guards).train()
    with pytest.raises(TrainingError):
        build(tmp_path / "killed", guards).train()
    told = [
        [(a["action"], a["raised_at"], a["value"]) for a in alarms(tmp_path / name)] for name in ("whole", "killed")
    ]
    assert told[0] == told[1]
    assert steps(tmp_path / "whole") == steps(tmp_path / "killed")


def test_the_checkpoint_of_the_best_evaluation_is_written_when_it_is_found_and_stays(tmp_path):
    log = TrainingLogger(tmp_path, stage="sft")
    stopping = {"early_stopping": {"metric": "eval/loss", "patience": None}, "eval_every": 1, "save_every": 100}
    trainer = toy.build_trainer(
        "sft", log=log, checkpoint_dir=tmp_path / "sft", held_out=True, keep_checkpoints=1, **stopping
    )
    trainer.train()
    losses = {event["step"]: event["metrics"]["eval/loss"] for event in log.read("eval")}
    del losses[max(losses)]  # the end of a run is no checkpoint: its model is the result
    best = min(losses, key=losses.__getitem__)
    assert f"checkpoint-{best:08d}" in [path.name for path in (tmp_path / "sft").iterdir()]


def test_restore_without_a_folder_for_checkpoints_is_refused_before_training():
    with pytest.raises(ConfigError, match=r"`restore`.*folder"):
        toy.build_trainer("grpo", guards="restore").train()


@pytest.mark.parametrize("name", toy.NAMES)
def test_the_toy_runs_raise_no_alarm(name, tmp_path):
    log = TrainingLogger(tmp_path, stage=name)
    toy.build_trainer(name, log=log, held_out=True).train()
    assert log.read("alarm") == []
