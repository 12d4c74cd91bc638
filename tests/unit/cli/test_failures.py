"""How the command line ends: one line, an exit code of its own, and the trace only for who asks."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from rlhf import cli
from rlhf.cli import failures
from rlhf.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    InterruptedRun,
    MemoryLimitError,
    MissingExtraError,
    ModelError,
    RewardError,
    RLHFError,
    RunBusyError,
    StorageError,
    TrainingError,
    UnknownNameError,
)

CLASSES = [
    ConfigError, UnknownNameError, DataError, ModelError, RewardError, TrainingError, CheckpointError, MissingExtraError,
    StorageError, MemoryLimitError, RunBusyError, InterruptedRun,
]  # fmt: skip


def fail(monkeypatch, error, *words):
    """Run the command line with a command that raises."""

    def broken() -> None:
        raise error

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr(sys, "argv", ["rlhf", "run", "recipe.yaml", *words])
    cli.main()


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_an_error_of_ours_is_one_line_with_its_notes(error, monkeypatch, capsys):
    raised = error("The disk is on fire; put it out.")
    raised.add_note("In stage 'sft'.")
    with pytest.raises(SystemExit) as caught:
        fail(monkeypatch, raised)
    assert caught.value.code == error.exit_code
    out, err = capsys.readouterr()
    title = "stopped" if error is InterruptedRun else "error"
    assert err == f"{title}: The disk is on fire; put it out.\nIn stage 'sft'.\n"
    assert out == ""


def test_exit_codes_tell_kinds_apart():
    codes = {
        error.exit_code for error in CLASSES if error is not UnknownNameError
    }  # a misspelt name is a wrong setting
    assert len(codes) == len(CLASSES) - 1
    assert not codes & {0, RLHFError.exit_code, failures.OUR_FAULT, failures.NOTHING_TO_SAVE}


def test_a_fault_of_ours_is_a_line_and_its_trace_waits_in_a_file(monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        fail(monkeypatch, ZeroDivisionError("division by zero"))
    assert caught.value.code == 70
    err = capsys.readouterr().err
    assert err.startswith("unexpected error: ZeroDivisionError: division by zero\n")
    assert "Traceback" not in err
    path = Path(re.search(r"with (\S+), which holds the trace", err)[1])
    trace = path.read_text()
    assert trace.startswith("rlhf run recipe.yaml\n")
    assert "test_failures.py" in trace
    assert "ZeroDivisionError: division by zero" in trace
    path.unlink()


def test_where_no_file_can_be_written_the_line_comes_all_the_same(monkeypatch, capsys):
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(failures.tempfile, "mkstemp", full)
    with pytest.raises(SystemExit):
        fail(monkeypatch, ZeroDivisionError("division by zero"))
    assert "--debug prints its trace" in capsys.readouterr().err


def test_debug_may_stand_anywhere_and_prints_the_trace_besides(monkeypatch, capsys):
    monkeypatch.setenv(failures.DEBUG, "")
    with pytest.raises(SystemExit) as caught:
        fail(monkeypatch, DataError("row 3 is empty"), "--debug", "seed=1")
    assert caught.value.code == DataError.exit_code
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("error: row 3 is empty\n")
    assert sys.argv == ["rlhf", "run", "recipe.yaml", "seed=1"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_where_there_is_nothing_to_save(number, monkeypatch, capsys):
    before = signal.getsignal(number)

    def waiting() -> None:
        os.kill(os.getpid(), number)
        time.sleep(5)

    monkeypatch.setattr(cli, "app", waiting)
    monkeypatch.setattr(sys, "argv", ["rlhf", "data", "check", "rows.jsonl"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "stopped: Interrupted, with nothing to save.\n"
    assert signal.getsignal(number) == before
