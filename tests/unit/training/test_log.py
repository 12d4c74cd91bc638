from __future__ import annotations

import io
import json
import math
from types import SimpleNamespace

import pytest
from rich.console import Console

from rlhf.errors import MissingExtraError
from rlhf.files import write_json, write_jsonl
from rlhf.training.log import TrainingLogger, append_jsonl, read_jsonl
from rlhf.training.progress import ProgressBar


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_events_are_appended_one_object_a_line(tmp_path):
    log = TrainingLogger(tmp_path / "run", stage="sft")
    log.write("note", message="hällo")
    log.metrics(3, {"loss/train": 0.5})
    log.for_stage("ppo").alarm("[0.1, 0.2] is [bold]odd[/bold]", step=7, kl=2.0)
    events = lines(tmp_path / "run" / "events.jsonl")
    assert [{k: v for k, v in event.items() if k != "time"} for event in events] == [
        {"stage": "sft", "event": "note", "message": "hällo"},
        {"stage": "sft", "event": "metrics", "step": 3, "metrics": {"loss/train": 0.5}},
        {"stage": "ppo", "event": "alarm", "step": 7, "message": "[0.1, 0.2] is [bold]odd[/bold]", "kl": 2.0},
    ]
    assert all(event["time"] > 1.7e9 for event in events)


def test_numbers_that_were_not_measured_are_null(tmp_path):
    log = TrainingLogger(tmp_path, stage="s")
    log.metrics(1, {"a": math.nan, "b": -math.inf, "c": 1.0})
    log.write("note", table=[{"x": math.inf}, (math.nan, 2)])
    first, second = lines(tmp_path / "events.jsonl")
    assert first["metrics"] == {"a": None, "b": None, "c": 1.0}
    assert second["table"] == [{"x": None}, [None, 2]]


def test_without_a_folder_events_stay_in_memory():
    log = TrainingLogger(stage="s")
    log.metrics(1, {"a": 1.0})
    log.rollouts([{"step": 1}])
    log.sync()
    log.go_back_to(0)
    assert [event["metrics"] for event in log.read("metrics")] == [{"a": 1.0}]


def test_only_the_stages_own_events_of_a_kind_are_read(tmp_path):
    log = TrainingLogger(tmp_path, stage="sft")
    log.metrics(1, {"a": 1.0})
    log.metrics(1, {"eval/a": 2.0}, event="eval")
    log.for_stage("ppo").metrics(1, {"a": 3.0})
    assert [event["metrics"] for event in log.read("metrics")] == [{"a": 1.0}]


def test_going_back_forgets_what_came_after_and_nothing_else(tmp_path):
    other = TrainingLogger(tmp_path, stage="other")
    other.metrics(9, {"a": 1.0})
    log = TrainingLogger(tmp_path, stage="ppo")
    log.write("note", message="kept: it has no step")
    for step in (1, 2, 3):
        log.metrics(step, {"a": float(step)})
        log.rollouts([{"step": step, "text": "x"}, {"step": step, "text": "y"}])
    rows = tmp_path / "ppo" / "prompts.jsonl"
    rows.write_text('{"step": 99, "mine": true}\nnot json\n')
    log.go_back_to(2)
    assert [event["step"] for event in log.read("metrics")] == [1, 2]
    assert len(log.read("note")) == 1
    assert [event["step"] for event in other.read("metrics")] == [9]
    assert [row["step"] for row in lines(tmp_path / "ppo" / "rollouts.jsonl")] == [1, 1, 2, 2]
    assert rows.read_text() == '{"step": 99, "mine": true}\nnot json\n', "other people's files are not touched"


def test_half_a_line_of_a_killed_process_spoils_no_other(tmp_path):
    path = tmp_path / "events.jsonl"
    append_jsonl(path, [{"a": 1}])
    with path.open("a") as file:
        file.write('{"a": 2, "b": {"c": 3}')
    append_jsonl(path, [{"a": 4}])
    assert read_jsonl(path) == [{"a": 1}, {"a": 4}]
    assert read_jsonl(tmp_path / "absent.jsonl") == []


def test_people_see_alarms_and_progress_without_markup_getting_in_the_way(tmp_path):
    out = io.StringIO()
    log = TrainingLogger(tmp_path, console=Console(file=out, width=200), stage="ppo")
    log.alarm("accuracy [0.9, 1.0] of [red] \x1b[1m")
    log.say("[bold]sft[/] done")
    assert out.getvalue() == "! accuracy [0.9, 1.0] of [red] \\x1b[1m\nsft done\n"


def test_half_a_character_is_written_as_jsons_escape_and_read_back(tmp_path):
    half = "\ud800 of a pair"
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    log = TrainingLogger(tmp_path, console=Console(file=out, width=200), stage="ppo")
    log.alarm(half, samples=[{"completion": half}])
    log.say(half)
    log.rollouts([{"step": 1, "completion": half}, {"step": 2, "completion": half}])
    log.write("stage_failed", message=half)
    log.go_back_to(1)
    assert log.read("alarm")[0]["samples"] == [{"completion": half}]
    assert [row["completion"] for row in lines(tmp_path / "ppo" / "rollouts.jsonl")] == [half]
    out.seek(0)
    assert out.read() == "! \\ud800 of a pair\n\\ud800 of a pair\n"
    write_json(tmp_path / "a.json", {half: half})
    write_jsonl(tmp_path / "b.jsonl", [half])
    assert json.loads((tmp_path / "a.json").read_text()) == {half: half}
    assert json.loads((tmp_path / "b.jsonl").read_text()) == half


def test_off_a_terminal_progress_is_a_line_now_and_then(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("rlhf.training.progress.time.monotonic", lambda: clock.now)
    monkeypatch.setattr("rlhf.training.progress.time.strftime", lambda form: f"12:00:{clock.now:02.0f}")
    out = io.StringIO()
    with ProgressBar(Console(file=out, width=80), "sft_small", 40, done=4) as bar:
        for _ in range(36):
            clock.now += 1.0
            bar.advance("loss 0.5 [x]")
    assert out.getvalue().splitlines() == [
        "  12:00:10 sft_small 14/40 [0:00:10, 0:00:26 left] loss 0.5 [x]",
        "  12:00:20 sft_small 24/40 [0:00:20, 0:00:16 left] loss 0.5 [x]",
        "  12:00:30 sft_small 34/40 [0:00:30, 0:00:06 left] loss 0.5 [x]",
    ]


def test_on_a_terminal_progress_is_a_bar():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with TrainingLogger(console=console).progress("sft", 4) as bar:
        for _ in range(4):
            bar.advance("loss 0.5 [/oops]")
        bar.bar.refresh()
    assert "4/4" in out.getvalue()
    assert "[/oops]" in out.getvalue()


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    event_accumulator = EventAccumulator(str(folder))
    event_accumulator.Reload()
    return {
        tag: [(s.step, s.value) for s in event_accumulator.Scalars(tag)] for tag in event_accumulator.Tags()["scalars"]
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorboard's own, on import
def test_scalars_arrive_in_tensorboard_and_a_resume_takes_back_what_will_come_again(tmp_path):
    log = TrainingLogger(tmp_path, stage="sft", log_to=["tensorboard"])
    for step in (1, 2, 3):
        log.metrics(step, {"loss/train": float(step)})
    log.metrics(3, {"eval/loss": 9.0}, event="eval")
    log.close()
    folder = tmp_path / "tensorboard" / "sft"
    assert scalars(folder) == {"loss/train": [(1, 1.0), (2, 2.0), (3, 3.0)], "eval/loss": [(3, 9.0)]}

    resumed = TrainingLogger(tmp_path, stage="sft")
    resumed.track(["tensorboard", "tensorboard"])
    resumed.go_back_to(1)
    resumed.metrics(2, {"loss/train": 20.0})
    resumed.close()
    assert scalars(folder)["loss/train"] == [(1, 1.0), (2, 20.0)]


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_services_are_told_the_run_the_metrics_and_the_end(package, tmp_path, monkeypatch):
    import sys

    calls = []
    fake = SimpleNamespace(
        init=lambda **kwargs: calls.append(("init", kwargs)),
        log=lambda metrics, step: calls.append(("log", metrics, step)),
        finish=lambda: calls.append(("finish",)),
    )
    monkeypatch.setitem(sys.modules, package, fake)
    log = TrainingLogger(tmp_path / "quickstart", stage="ppo")
    log.track([package])
    assert calls == [], "nothing is opened before there is something to show"
    log.metrics(1, {"loss/train": 0.5})
    log.metrics(1, {"eval/loss": 0.7}, event="eval")
    log.close()
    assert calls == [
        ("init", {"project": "rlhf", "name": "quickstart/ppo"}),
        ("log", {"loss/train": 0.5}, 1),
        ("log", {"eval/loss": 0.7}, 1),
        ("finish",),
    ]


def test_a_tracker_that_is_not_installed_names_its_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "trackio", None)  # importing it raises ModuleNotFoundError
    with pytest.raises(MissingExtraError, match=r"pip install -e '.*\[track\]'"):
        TrainingLogger(log_to=["trackio"]).metrics(1, {"a": 1.0})
