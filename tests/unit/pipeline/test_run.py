"""How a run ends before its end: what the user is told, what the log says, and what is kept."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest

from rlhf.distributed.ranks import Ranks
from rlhf.errors import (
    ConfigError,
    DataError,
    InterruptedRun,
    MemoryLimitError,
    RewardError,
    RunBusyError,
    StorageError,
)
from rlhf.pipeline.artifacts import RECORD, STARTED
from rlhf.pipeline.lock import locked
from rlhf.pipeline.report import write_report
from rlhf.training.log import read_jsonl
from tests.fixtures.cheap_stages import install, make, pipeline_of


def raising(err: BaseException):
    def stage(stage, at):
        raise err

    return stage


def last_event(folder: Path, stage: str) -> dict:
    return [e for e in read_jsonl(folder / "runs" / "loop" / "events.jsonl") if e["stage"] == stage][-1]


def full(folder: Path) -> OSError:
    return OSError(errno.ENOSPC, "No space left on device", str(folder / "runs" / "loop" / "reward" / "model" / "x"))


@pytest.mark.parametrize(
    ("err", "becomes", "event", "says"),
    [
        (RewardError("The reward failed."), RewardError, "stage_failed", "The reward failed."),
        (KeyError("a bug"), KeyError, "stage_failed", "KeyError: 'a bug'"),
        (MemoryError("unable"), MemoryLimitError, "stage_failed", "Stage 'reward' ran out of memory"),
        (InterruptedRun("Stopped by SIGTERM."), InterruptedRun, "stage_interrupted", "Stopped by SIGTERM."),
        (KeyboardInterrupt(), KeyboardInterrupt, "stage_interrupted", "KeyboardInterrupt"),
        (SystemExit(3), SystemExit, "stage_failed", "SystemExit: 3"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_however_a_stage_ends_the_log_says_so_and_the_rest_is_kept(tmp_path, monkeypatch, err, becomes, event, says):
    done = install(monkeypatch, reward=raising(err))
    with pytest.raises(becomes) as caught:
        pipeline_of(tmp_path).run()
    actual = last_event(tmp_path, "reward")
    assert actual["event"] == event
    assert says in actual["message"]
    if becomes in (RewardError, MemoryLimitError):
        where, report = caught.value.__notes__
        assert where.startswith(f"In stage 'reward' of {tmp_path / 'runs' / 'loop'}")
        assert "are kept" in where
        assert report == f"Report: {tmp_path / 'runs' / 'loop' / 'report.html'}"
    if becomes is InterruptedRun:
        assert "the same command goes on from there" in caught.value.__notes__[0]
    run = tmp_path / "runs" / "loop"
    assert (run / "pairs" / RECORD).exists()
    assert (run / "reward" / STARTED).exists()
    assert not (run / "reward" / RECORD).exists()
    done.clear()
    install(monkeypatch)
    pipeline_of(tmp_path).run()
    assert (run / "evaluation" / RECORD).exists()


def test_a_failed_run_has_a_report_that_names_the_failure_and_a_later_success_has_no_trace_of_it(tmp_path, monkeypatch):
    def half(stage, at):
        at.log.metrics(7, {"loss/train": 1.0})
        raise RewardError("The cow ate the reward.")

    install(monkeypatch, reward=half)
    monkeypatch.setattr("rlhf.pipeline.run.write_report", write_report)
    with pytest.raises(RewardError):
        pipeline_of(tmp_path).run()
    page = (tmp_path / "runs" / "loop" / "report.html").read_text()
    assert "This run did not finish" in page
    assert "The stage reward failed: The cow ate the reward.<" in page
    install(monkeypatch)
    monkeypatch.setattr("rlhf.pipeline.run.write_report", write_report)
    pipeline_of(tmp_path).run()
    assert "The cow ate" not in (tmp_path / "runs" / "loop" / "report.html").read_text()


def test_a_page_that_can_t_be_written_does_not_hide_why_the_run_failed(tmp_path, monkeypatch):
    def breaks(run_dir):
        raise ValueError("no page")

    install(monkeypatch, reward=raising(RewardError("The reward failed.")))
    monkeypatch.setattr("rlhf.pipeline.run.write_report", breaks)
    with pytest.raises(RewardError, match="The reward failed"):
        pipeline_of(tmp_path).run()


def test_a_first_stage_that_fails_does_not_say_that_something_was_kept(tmp_path, monkeypatch):
    install(monkeypatch, world=raising(DataError("No rows.")), pairs=raising(DataError("No rows.")))
    with pytest.raises(DataError) as caught:
        pipeline_of(tmp_path).run()
    assert "kept" not in caught.value.__notes__[0]


def test_an_error_about_rows_names_the_key_that_they_are_read_for(tmp_path, monkeypatch):
    def reads(stage, at):
        with at.naming("data"):
            raise DataError("These are no pairs.")

    install(monkeypatch, reward=reads)
    with pytest.raises(DataError) as caught:
        pipeline_of(tmp_path).run()
    assert any("stages.reward.data" in note for note in caught.value.__notes__)


def test_a_full_disk_in_a_stage_is_one_message_with_path_and_what_to_do(tmp_path, monkeypatch):
    install(monkeypatch, reward=raising(full(tmp_path)))
    with pytest.raises(StorageError) as caught:
        pipeline_of(tmp_path).run()
    for words in (str(tmp_path / "runs" / "loop" / "reward" / "model" / "x"), "free", "start the same command again"):
        assert words in str(caught.value)
    assert "In stage 'reward'" in caught.value.__notes__[0]
    assert last_event(tmp_path, "reward")["event"] == "stage_failed"


def test_a_disk_too_full_for_the_log_still_gives_the_first_message(tmp_path, monkeypatch):
    pipeline = pipeline_of(tmp_path)

    def fills_up(stage, at):
        def write(*args, **fields):
            raise full(tmp_path)

        monkeypatch.setattr(type(at.log), "write", write)
        raise full(tmp_path)

    install(monkeypatch, reward=fills_up)
    with pytest.raises(StorageError, match="Can't write"):
        pipeline.run()


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_folder_that_can_t_be_written_is_told_before_anything_is_trained(tmp_path, monkeypatch, code):
    done = install(monkeypatch)
    pipeline = pipeline_of(tmp_path)

    def mkdir(self, *args, **kwargs):
        raise OSError(code, os.strerror(code), str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(StorageError, match=r"Can't write .*runs"):
        pipeline.run()
    assert not done


def test_an_output_folder_that_is_a_file_is_named(tmp_path, monkeypatch):
    done = install(monkeypatch)
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match=r"runs/loop .*file.*output_dir="):
        pipeline_of(tmp_path).run()
    assert not done


def test_a_data_file_that_can_t_be_read_is_named_with_its_setting(tmp_path, monkeypatch):
    done = install(monkeypatch)
    pipeline = pipeline_of(tmp_path)

    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("rlhf.pipeline.artifacts.sha256_once", refused)
    with pytest.raises(DataError, match=r"stages\.sft\.data .*sft\.jsonl .*Permission denied"):
        pipeline.run(only_for="sft")
    assert not done


def test_a_file_in_the_place_of_a_stage_s_folder_is_named(tmp_path, monkeypatch):
    install(monkeypatch)
    (tmp_path / "runs" / "loop").mkdir(parents=True)
    (tmp_path / "runs" / "loop" / "pairs").write_text("notes")
    with pytest.raises(ConfigError, match=r"loop/pairs .*file.*stage 'pairs'"):
        pipeline_of(tmp_path).run()
    assert (tmp_path / "runs" / "loop" / "pairs").read_text() == "notes"


def test_a_run_folder_in_use_is_refused_and_left_as_it_is(tmp_path, monkeypatch):
    done = install(monkeypatch)
    pipeline_of(tmp_path).run()
    folder = tmp_path / "runs" / "loop"
    with locked(folder), pytest.raises(RunBusyError, match="this same process"):
        pipeline_of(tmp_path).run(force=True)
    assert len(done) == 7
    pipeline_of(tmp_path).run()


def test_a_signal_stops_a_stage_that_does_not_train_and_the_same_call_goes_on(tmp_path, monkeypatch):
    def is_stopped(stage, at):
        os.kill(os.getpid(), signal.SIGTERM)
        return make(stage, at)

    done = install(monkeypatch, evaluate=is_stopped)
    with pytest.raises(InterruptedRun, match="SIGTERM"):
        pipeline_of(tmp_path).run()
    assert last_event(tmp_path, "evaluation")["event"] == "stage_interrupted"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    done = install(monkeypatch)
    pipeline_of(tmp_path).run()
    assert done == ["evaluation"]


def test_a_data_file_that_changes_while_it_is_read_spoils_no_result(tmp_path, monkeypatch):
    data = tmp_path / "sft.jsonl"

    def changes(stage, at):
        data.write_text('{"prompt": "a", "completion": "changed"}\n')
        return make(stage, at)

    install(monkeypatch, sft=changes)
    with pytest.raises(DataError, match=rf"{data} was changed.*'sft'"):
        pipeline_of(tmp_path).run()
    assert not (tmp_path / "runs" / "loop" / "sft" / RECORD).exists()
    done = install(monkeypatch)
    pipeline_of(tmp_path).run()
    assert done[0] == "sft"


def test_a_data_file_that_changes_between_two_stages_is_seen_by_the_second(tmp_path, monkeypatch):
    data = tmp_path / "sft.jsonl"
    install(monkeypatch)
    pipeline_of(tmp_path).run()

    def changes(stage, at):
        data.write_text('{"prompt": "a", "completion": "changed"}\n')
        return make(stage, at)

    done = install(monkeypatch, reward=changes)
    pipeline_of(tmp_path, reward__epochs=4).run()
    assert done == ["reward", "ppo", "alone", "evaluation"]


def test_the_summary_of_a_run_under_way_holds_nothing_that_is_to_be_done_again(tmp_path, monkeypatch):
    install(monkeypatch)
    pipeline_of(tmp_path).run()
    install(monkeypatch, ppo=raising(KeyError("a bug")))
    with pytest.raises(KeyError, match="a bug"):
        pipeline_of(tmp_path, ppo__gamma=0.9).run()
    summary = json.loads((tmp_path / "runs" / "loop" / "summary.json").read_text(encoding="utf-8"))
    assert list(summary["stages"]) == ["world", "sft", "pairs", "reward"]


def test_alarms_of_an_attempt_with_other_settings_are_history(tmp_path, monkeypatch):
    def alarmed(stage, at):
        outcome = make(stage, at)
        if stage.epochs == 3:
            at.log.alarm("It went wrong.", step=1, guard="kl", value=30.0)
        return outcome

    install(monkeypatch, sft=alarmed)
    told = pipeline_of(tmp_path).run()["alarms"]
    assert [(alarm["stage"], alarm["message"], alarm["value"]) for alarm in told] == [("sft", "It went wrong.", 30.0)]
    assert pipeline_of(tmp_path, sft__epochs=2).run()["alarms"] == []


@pytest.mark.parametrize(
    "message", ["Stopped by SIGINT.", "Stopped by SIGINT at step 3 of 9, and all of it is saved; the same command goes on from there."]
)  # fmt: skip
def test_how_to_go_on_is_said_once(tmp_path, monkeypatch, message):
    def stopped(stage, at):
        raise InterruptedRun(message)

    install(monkeypatch, sft=stopped)
    with pytest.raises(InterruptedRun) as caught:
        pipeline_of(tmp_path).run()
    text = "\n".join([str(caught.value), *caught.value.__notes__])
    assert text.count("the same command goes on from there") == 1
    assert f"In stage 'sft' of {tmp_path / 'runs' / 'loop'}" in text


class TwoRanks(Ranks):
    """Rank 0 of two, whose other one does nothing."""

    size = 2


def test_what_ranks_cannot_do_is_refused_before_a_finished_stage_is_made_again(tmp_path, monkeypatch):
    done = install(monkeypatch)
    pipeline_of(tmp_path).run()
    done.clear()
    again = pipeline_of(tmp_path, reward__compiled=True)
    again.ranks = TwoRanks()
    with pytest.raises(ConfigError, match=r"stages\.reward: compiled"):
        again.run()
    assert not done
    assert (tmp_path / "runs" / "loop" / "reward" / RECORD).exists()
