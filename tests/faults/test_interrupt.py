"""Ctrl-C and SIGTERM: everything is saved, and the run goes on with the same bits."""

from __future__ import annotations

import os
import pty
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rlhf.errors import InterruptedRun
from rlhf.training.interrupt import signals_as_requests
from rlhf.training.log import TrainingLogger
from tests.fixtures import toy

SETTINGS: dict[str, Any] = {
    "dropout": 0.2,
    "held_out": True,
    "ema_decay": 0.9,
    "save_every": 100,
    "eval_every": 2,
}


class Signaling(TrainingLogger):
    """Sends this process a signal when a number of events was written."""

    def __init__(self, folder: Path, *, after: int, number: signal.Signals) -> None:
        super().__init__(folder, stage="run")
        self.after, self.number = after, number

    def write(self, *args: Any, **kwargs: Any) -> None:
        super().write(*args, **kwargs)
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), self.number)


class SignalingReward(toy.ShareOfGood):
    """Sends this process a signal in the middle of its n-th rollout."""

    def __init__(self, rollout: int) -> None:
        self.left = rollout

    def score(self, prompts: Any, completions: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().score(prompts, completions)


pytestmark = pytest.mark.usefixtures("hangups_end_a_run")


def build(name: str, folder: Path, log: TrainingLogger | None = None, **settings: Any) -> Any:
    log = log or TrainingLogger(folder, stage="run")
    return toy.build_trainer(name, log=log, checkpoint_dir=folder / "run", **{**SETTINGS, **settings})


def numbers(folder: Path) -> list[Any]:
    log = TrainingLogger(folder, stage="run")
    return [(e["event"], e["step"], e["metrics"]) for kind in ("metrics", "eval") for e in log.read(kind)]


def whole_run(name: str, folder: Path) -> Any:
    trainer = build(name, folder)
    trainer.train()
    return toy.weights_of(trainer), numbers(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", toy.NAMES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_the_run_goes_on_with_the_same_bits(name, number, tmp_path):
    weights, expected = whole_run(name, tmp_path / "whole")
    for after in (1, 2, 3, 4):
        folder = tmp_path / str(after)
        with pytest.raises(InterruptedRun, match=rf"{number.name}.*step \d+ of \d+.*saved"):
            build(name, folder, Signaling(folder, after=after, number=number)).train()
        assert list((folder / "run").glob("checkpoint-*")), "nothing was saved, though no checkpoint was due"
        trainer = build(name, folder)
        trainer.train()
        assert toy.largest_difference(toy.weights_of(trainer), weights) == 0.0
        assert sorted(numbers(folder), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_signal_in_a_rollout_or_an_evaluation_breaks_it_off_and_it_is_done_again(name, call, tmp_path):
    weights, expected = whole_run(name, tmp_path / "whole")
    with pytest.raises(InterruptedRun, match="saved"):
        build(name, tmp_path / "hurt", scorer=SignalingReward(call)).train()
    trainer = build(name, tmp_path / "hurt")
    trainer.train()
    assert toy.largest_difference(toy.weights_of(trainer), weights) == 0.0
    assert sorted(numbers(tmp_path / "hurt"), key=str) == sorted(expected, key=str)


def test_a_run_without_checkpoints_says_that_nothing_is_saved(tmp_path):
    log = Signaling(tmp_path, after=2, number=signal.SIGTERM)
    trainer = toy.build_trainer("sft", log=log)
    with pytest.raises(InterruptedRun, match="no checkpoints"):
        trainer.train()


def test_the_second_signal_leaves_at_once_and_names_the_last_checkpoint(tmp_path):
    with signals_as_requests() as request:
        os.kill(os.getpid(), signal.SIGINT)
        assert request.name == "SIGINT"
        with pytest.raises(InterruptedRun):
            os.kill(os.getpid(), signal.SIGINT)
        assert request.twice


def test_a_closed_terminal_saves_a_checkpoint_and_one_that_nohup_ignores_changes_nothing(tmp_path):
    with pytest.raises(InterruptedRun, match=r"SIGHUP.*saved"):
        build("sft", tmp_path / "closed", Signaling(tmp_path / "closed", after=2, number=signal.SIGHUP)).train()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        trainer = build("sft", tmp_path / "nohup", Signaling(tmp_path / "nohup", after=2, number=signal.SIGHUP))
        trainer.train()
    finally:
        signal.signal(signal.SIGHUP, before)
    weights, _ = whole_run("sft", tmp_path / "whole")
    assert toy.largest_difference(toy.weights_of(trainer), weights) == 0.0


ON_A_TERMINAL = """
import sys, time
from rich.progress import Progress
from rlhf.errors import InterruptedRun
from rlhf.training.interrupt import signals_as_requests
try:
    with signals_as_requests() as request, Progress(refresh_per_second=50) as bar:
        task = bar.add_task("a bar", total=None)
        print("ready", flush=True)
        while request.name is None:
            time.sleep(0.01)
        for _ in range(20):
            bar.update(task, advance=1, refresh=True)
            print("saving", flush=True)
        request.check()
except InterruptedRun as stop:
    open(sys.argv[1], "w").write(str(stop))
"""


def test_a_terminal_that_is_gone_breaks_nothing_that_is_printed_while_a_run_saves(tmp_path):
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-c", ON_A_TERMINAL, str(tmp_path / "said")])
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (tmp_path / "said").read_text() == "Stopped by SIGHUP."


def test_handlers_are_given_back_and_other_threads_are_left_alone():
    before = signal.getsignal(signal.SIGTERM)
    with signals_as_requests():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    seen: list[Any] = []

    def elsewhere() -> None:
        with signals_as_requests() as request:
            seen.append((request.name, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [(None, before)]
