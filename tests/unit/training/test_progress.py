from __future__ import annotations

import io

from rich.console import Console

from rlhf.training import progress
from rlhf.training.progress import ProgressBar


def test_a_last_batch_that_brings_more_than_was_wanted_does_not_pass_the_total(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    console = Console(file=io.StringIO())
    with ProgressBar(console, "pairs", 100) as bar:
        bar.advance(by=64)
        bar.advance(by=64)
    assert [line.split()[1:3] for line in console.file.getvalue().splitlines()] == [
        ["pairs", "64/100"],
        ["pairs", "100/100"],
    ]


def test_going_back_is_shown(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    console = Console(file=io.StringIO())
    with ProgressBar(console, "ppo", 10) as bar:
        bar.advance(by=5)
        bar.advance(by=-3)
    assert [line.split()[1:3] for line in console.file.getvalue().splitlines()] == [["ppo", "5/10"], ["ppo", "2/10"]]


def test_the_time_left_is_not_estimated_from_the_first_slow_step(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    console = Console(file=io.StringIO(), width=80)
    with ProgressBar(console, "dpo", 79) as bar:
        for seconds in (14.0, 1.0, 1.0, 1.0):
            clock[0] += seconds
            bar.advance()
    *early, last = console.file.getvalue().splitlines()
    assert not any("left" in line for line in early)
    assert "0:01:15 left" in last
