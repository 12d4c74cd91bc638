"""What people see of a run, and the plain copy of it."""

from __future__ import annotations

import logging
import re

import pytest
from rich.table import Table

from rlhf import TrainingLogger, setup_logging
from rlhf.errors import ConfigError

LIBRARY = logging.getLogger("rlhf")


@pytest.fixture(autouse=True)
def as_before():
    handlers, level = list(LIBRARY.handlers), LIBRARY.level
    yield
    for handler in [item for item in LIBRARY.handlers if item not in handlers]:
        LIBRARY.removeHandler(handler)
        handler.close()
    LIBRARY.setLevel(level)


@pytest.fixture
def unconfigured(monkeypatch):
    """Called in a test: no handler of pytest's is left."""
    return lambda: monkeypatch.setattr(logging.getLogger(), "handlers", [])


def lines_of(folder):
    lines = (folder / "run.log").read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [A-Z]+ ", line) for line in lines)
    return [line.partition(" ")[2] for line in lines]


def test_lines_and_warnings_are_printed_and_copied_without_markup(tmp_path, capsys, unconfigured):
    unconfigured()
    console = setup_logging(tmp_path / "run", plain=True)
    log = TrainingLogger(console=console)
    log.say("[bold]sft[/] done \x1b[1m")
    log.alarm("accuracy [0.9]")
    logging.getLogger("rlhf.models").warning("slow path")
    logging.getLogger("rlhf.models").info("not asked for")
    out, err = capsys.readouterr()
    assert out == "sft done \\x1b[1m\n! accuracy [0.9]\n"
    assert err == "slow path\n"
    assert lines_of(tmp_path / "run") == ["INFO sft done \\x1b[1m", "INFO ! accuracy [0.9]", "WARNING slow path"]


def test_a_progress_bar_leaves_nothing_in_the_file(tmp_path):
    console = setup_logging(tmp_path)
    console._force_terminal = True
    with TrainingLogger(console=console).progress("sft", 2) as bar:
        bar.advance()
    console.print("done")
    assert lines_of(tmp_path) == ["INFO done"]


def test_quiet_still_writes_the_file_and_level_takes_a_name(tmp_path, capsys):
    console = setup_logging(tmp_path, quiet=True, level="info")
    console.print("a line")
    logging.getLogger("rlhf.rewards").info("asked for")
    assert capsys.readouterr() == ("", "")
    assert lines_of(tmp_path) == ["INFO a line", "INFO asked for"]


def test_a_second_call_replaces_the_first(tmp_path, capsys, unconfigured):
    unconfigured()
    setup_logging(tmp_path / "first")
    setup_logging(tmp_path / "second")
    LIBRARY.warning("once")
    assert capsys.readouterr().err == "once\n"
    assert (tmp_path / "first" / "run.log").read_text(encoding="utf-8") == ""
    assert lines_of(tmp_path / "second") == ["WARNING once"]


def test_an_application_that_configured_logging_is_left_alone(monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    setup_logging()
    LIBRARY.warning("theirs to print")
    assert capsys.readouterr().err == ""


def test_what_terminals_would_obey_in_a_table_is_shown(tmp_path):
    table = Table("name")
    table.add_row("\x1b[31m")
    setup_logging(tmp_path, quiet=True).print(table)
    assert "\\x1b[31m" in (tmp_path / "run.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(("arguments", "key"), [({"level": "loud"}, "level"), ({"output_dir": __file__}, "output_dir")])
def test_wrong_arguments_are_refused(arguments, key):
    with pytest.raises(ConfigError, match=key):
        setup_logging(**arguments)
