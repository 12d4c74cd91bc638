"""How the command line ends: one line, an exit code of its own, and the trace only for who asks."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from rlhf import cli
from rlhf.cli import error_exit
from rlhf.cli.options import console
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
    printable,
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x9b0m", "\\x1b[31mred\\x9b0m"),
        ("a\rb\x00\x7f", "a\\rb\\x00\\x7f"),
        ("abc\u202efed\u2066\u200f", "abc\\u202efed\\u2066\\u200f"),
        ("half \ud800", "half \\ud800"),
        ("two lines\n\tof Größe, 大小, שלום and 👩‍🚀\n", "two lines\n\tof Größe, 大小, שלום and 👩‍🚀\n"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_an_escape_and_other_text_as_it_is(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_no_control_code_of_an_error_or_its_notes_reaches_the_terminal(debug, monkeypatch, capsys):
    monkeypatch.setenv(error_exit.DEBUG, "")
    raised = RewardError("It raised ValueError: \x1b[31mred")
    raised.add_note("Inside the reward function: \x1b[31mred")
    with pytest.raises(SystemExit):
        fail(monkeypatch, raised, *debug)
    err = capsys.readouterr().err
    assert err.count("\\x1b[31mred") == 2 * (1 + len(debug))
    assert "\x1b" not in err


def test_no_control_code_in_a_line_or_a_table_reaches_the_terminal(capsys):
    table = Table("\x1b[1mname")
    table.add_row("\x1b[31mred")
    for thing in ("\x1b[31mred", table):
        console().print(thing, markup=False)
    out = capsys.readouterr().out
    assert out.count("\\x1b[31mred") == 2
    assert "\x1b" not in out


def test_exit_codes_tell_kinds_apart():
    codes = {
        error.exit_code for error in CLASSES if error is not UnknownNameError
    }  # a misspelled name is a wrong setting
    assert len(codes) == len(CLASSES) - 1
    assert not codes & {0, RLHFError.exit_code, error_exit.OUR_FAULT, error_exit.NOTHING_TO_SAVE}


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
    assert "test_error_exit.py" in trace
    assert "ZeroDivisionError: division by zero" in trace
    path.unlink()


def test_where_no_file_can_be_written_the_line_comes_all_the_same(monkeypatch, capsys):
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(error_exit.tempfile, "mkstemp", full)
    with pytest.raises(SystemExit):
        fail(monkeypatch, ZeroDivisionError("division by zero"))
    assert "--debug prints its trace" in capsys.readouterr().err


def test_debug_may_stand_anywhere_and_prints_the_trace_besides(monkeypatch, capsys):
    monkeypatch.setenv(error_exit.DEBUG, "")
    with pytest.raises(SystemExit) as caught:
        fail(monkeypatch, DataError("row 3 is empty"), "--debug", "seed=1")
    assert caught.value.code == DataError.exit_code
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("error: row 3 is empty\n")
    assert sys.argv == ["rlhf", "run", "recipe.yaml", "seed=1"]


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "told", "code"),
    [
        (RewardError("it raised ValueError: \ud800"), "error: it raised ValueError: \\ud800\n", RewardError.exit_code),
        (DataError("there is no file \udcff.jsonl"), "error: there is no file \\udcff.jsonl\n", DataError.exit_code),
        (ZeroDivisionError("\udfff"), "unexpected error: ZeroDivisionError: \\udfff\n", 70),
        (Unreadable(), "unexpected error: Unreadable: (its text can't be read)\n", 70),
    ],
)
@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_what_can_not_be_encoded_or_read_is_told_all_the_same(error, told, code, debug, monkeypatch, capfd):
    monkeypatch.setenv(error_exit.DEBUG, "")
    error.add_note("a note: \ud800")
    streams = [os.fdopen(os.dup(number), "w", encoding="utf-8", errors="strict") for number in (1, 2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    with pytest.raises(SystemExit) as caught:
        fail(monkeypatch, error, *debug)
    for stream in streams:
        stream.close()
    assert caught.value.code == code
    said = capfd.readouterr().err
    assert told in said
    assert "a note: \\ud800" in said
    assert said.startswith("Traceback") == bool(debug)
    for path in re.findall(r"with (\S+), which holds the trace", said):
        assert type(error).__name__ in Path(path).read_text(encoding="utf-8")
        Path(path).unlink()


@pytest.mark.usefixtures("hangups_end_a_run")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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


def test_what_is_kept_after_a_signal_is_told(monkeypatch, capsys):
    def waiting() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except BaseException as err:
            err.add_note("Files are kept in .out.merging.")
            raise

    monkeypatch.setattr(cli, "app", waiting)
    monkeypatch.setattr(sys, "argv", ["rlhf", "merge", "merge.yaml"])
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err
    assert "Files are kept in .out.merging." in said
    assert "nothing to save" not in said


def test_a_signal_while_an_error_is_printed_does_not_hide_it(monkeypatch, capsys):
    before, told = signal.getsignal(signal.SIGTERM), Console.print

    def print_late(*args, **options) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # of a launcher that saw another rank end
        told(*args, **options)

    monkeypatch.setattr(Console, "print", print_late)
    with pytest.raises(SystemExit) as caught:
        fail(monkeypatch, DataError("row 3 is empty"))
    assert caught.value.code == DataError.exit_code
    assert capsys.readouterr().err == "error: row 3 is empty\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_hangup_that_nohup_has_ignored_stays_ignored(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(cli, "app", lambda: os.kill(os.getpid(), signal.SIGHUP))
        monkeypatch.setattr(sys, "argv", ["rlhf", "data", "check", "rows.jsonl"])
        cli.main()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
