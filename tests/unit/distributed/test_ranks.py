"""What ranks tell each other, and how all of them end where one fails."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
import torch

from rlhf.cli.error_exit import Interrupted, signals_heeded
from rlhf.distributed.heartbeat import FAULT, Heartbeat
from rlhf.distributed.ranks import ProcessRanks, _is_lost_peer, current_ranks, launched_ranks
from rlhf.errors import DataError, InterruptedRun, TrainingError
from tests.fixtures.two_ranks import run_over_ranks


def talk_and_fail(how: str) -> None:
    """Rank 1 ends in the middle of what the others go on with."""
    ranks = current_ranks()
    assert ranks.gather(ranks.rank * 10) == [0, 10]
    if ranks.rank == 1 and how == "raises":
        raise DataError("rows.jsonl:7: no prompt")
    if ranks.rank == 1:
        os._exit(9)
    while True:
        ranks.gather(None)


def test_a_process_by_itself_exchanges_with_itself(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with launched_ranks() as ranks:
        assert (ranks.size, ranks.is_main, ranks.gather("x")) == (1, True, ["x"])
        ranks.order(None)
        err = ValueError("own")
        assert ranks.named(err) is err


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3", True),
        ("NCCL error: remote process exited", True),
        ("The tensor can't be stored in int8", False),
        ("expected a peer model of 4 layers", False),
    ],
)
def test_only_errors_of_the_transport_say_that_another_rank_is_gone(message, lost):
    assert _is_lost_peer(RuntimeError(message)) == lost
    assert _is_lost_peer(torch.distributed.DistNetworkError(message))


def test_a_rank_that_fails_ends_all_with_its_message(tmp_path):
    began = time.monotonic()
    main, other = run_over_ranks(talk_and_fail, "raises", folder=tmp_path)
    assert isinstance(main, TrainingError), main
    assert "Rank 1" in str(main)
    assert "rows.jsonl:7: no prompt" in str(main)
    assert isinstance(other, SystemExit), "rank 0 has said it"
    assert other.code == DataError.exit_code
    assert time.monotonic() - began < 120


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_all_within_seconds(tmp_path):
    main, other = run_over_ranks(talk_and_fail, "dies", folder=tmp_path)
    assert isinstance(main, TrainingError)
    assert other is None


class StoppedByLauncher(ProcessRanks):
    """Rank 0 of two, without the other: its launcher stops it while it finds out what became of that one."""

    def __init__(self, launch):
        self.rank, self.size, self._store, self._own_fault = 0, 2, torch.distributed.HashStore(), None
        self._store.set(FAULT, json.dumps({"rank": 1, "message": "rows.jsonl:7: no prompt"}))
        self.heartbeat = Heartbeat(self._store, 0, 2)

    def named(self, err):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().named(err)


@pytest.mark.parametrize(
    "err", [InterruptedRun("Stopped by SIGTERM."), Interrupted(), RuntimeError("connection reset")]
)
def test_rank_0_gives_the_message_of_the_rank_that_failed_whatever_signal_comes(err, monkeypatch):
    monkeypatch.setattr("rlhf.distributed.ranks.find_launch", lambda environ: "torchrun")
    monkeypatch.setattr("rlhf.distributed.ranks.ProcessRanks", StoppedByLauncher)
    with signals_heeded(), pytest.raises(TrainingError, match=r"Rank 1 failed: rows\.jsonl:7"), launched_ranks():
        raise err


def fail_and_be_stopped() -> str:
    """A rank that fails, and is told to end while it says so, because another one failed of the same."""
    ranks = current_ranks()
    own = DataError(f"rank {ranks.rank}: no prompt")
    assert ranks.named(own) is own
    ranks.gather(None)
    return str(ranks.named(InterruptedRun("Stopped by SIGTERM.")))


@pytest.mark.slow
def test_a_signal_that_follows_a_failure_does_not_hide_it(tmp_path):
    for message in run_over_ranks(fail_and_be_stopped, folder=tmp_path):
        assert "no prompt" in message
