"""One process to a run folder, and a message that says which one has it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rlhf.errors import RunBusyError
from rlhf.pipeline.lock import FILE, age_in_words, is_locked, locked

HOLD = """
import sys, time
from pathlib import Path
from rlhf.pipeline.lock import locked
with locked(Path(sys.argv[1])):
    print("have it", flush=True)
    time.sleep(60)
"""


def test_another_process_is_refused_and_the_owner_named(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "have it\n"
        assert is_locked(tmp_path)
        with pytest.raises(RunBusyError) as caught, locked(tmp_path):
            pass
        message = str(caught.value)
        for words in (str(tmp_path), f"process {child.pid} on ", ", for ", "second", "-c", "Wait for it or end it"):
            assert words in message
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    assert json.loads((tmp_path / FILE).read_text())["pid"] == child.pid, "a killed owner can't clear its name"
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        pass


def test_the_same_process_is_named_as_such(tmp_path):
    with locked(tmp_path), pytest.raises(RunBusyError, match="this same process"), locked(tmp_path):
        pass
    assert not is_locked(tmp_path)


def test_a_look_at_the_lock_leaves_no_file(tmp_path):
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', "process 12 since 2024"])
def test_an_odd_lock_file_blocks_nobody(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with locked(tmp_path):
        assert json.loads((tmp_path / FILE).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize(("alive", "refused"), [(True, True), (False, False)])
def test_where_the_file_system_knows_no_locks_the_record_decides(tmp_path, monkeypatch, alive, refused):
    def flock(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    child = subprocess.Popen(["sleep", "60"])
    if not alive:
        child.kill()
        child.wait()
    import socket

    owner = {"pid": child.pid, "host": socket.gethostname(), "since": time.time() - 7300, "command": "rlhf run x.yaml"}
    (tmp_path / FILE).write_text(json.dumps(owner))
    try:
        assert is_locked(tmp_path) is refused
        if refused:
            with pytest.raises(RunBusyError, match=r"2 hours \(rlhf run x\.yaml\)"), locked(tmp_path):
                pass
        else:
            with locked(tmp_path):
                pass
    finally:
        if alive:
            child.kill()
            child.wait()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "less than a second"),
        (1, "1 second"),
        (119, "1 minute"),
        (7200, "2 hours"),
        (90_000, "1 day"),
        (-5, "less than a second"),
    ],
)
def test_ages_are_told_in_words(seconds, words):
    assert age_in_words(seconds) == words
