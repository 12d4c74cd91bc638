"""What is said where ranks that `launch: torchrun` started end badly."""

from __future__ import annotations

import signal

import pytest
import torch.distributed.run as launcher
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from rlhf.distributed.torchrun import run_as_ranks
from rlhf.errors import InterruptedRun, TrainingError


def failing(monkeypatch, codes):
    """Ranks that end with these codes, one after the other."""
    failures = {}
    for number, (rank, code) in enumerate(codes.items()):
        failures[rank] = ProcessFailure(local_rank=rank, pid=1000 + rank, exitcode=code, error_file="<N/A>")
        failures[rank].timestamp = number

    def run(arguments):
        raise ChildFailedError("rlhf", failures)

    monkeypatch.setattr(launcher, "run", run)


def test_a_rank_that_was_killed_is_named_although_the_others_were_asked_to_stop(monkeypatch):
    failing(monkeypatch, {1: -signal.SIGKILL, 0: InterruptedRun.exit_code})
    with pytest.raises(TrainingError, match=r"Rank 1 .*SIGKILL"):
        run_as_ranks(2, ["run", "recipe.yaml"])


def test_ranks_that_are_asked_to_stop_have_more_than_half_a_minute_for_it(monkeypatch):
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    given = []
    monkeypatch.setattr(launcher, "run", lambda arguments: given.append(launcher.config_from_args(arguments)[0]))
    assert run_as_ranks(2, ["run", "recipe.yaml"]) == 0
    assert given[0].shutdown_timeout >= 600


@pytest.mark.parametrize(
    ("codes", "code"),
    [({0: 2, 1: 1}, 2), ({1: 6}, 6), ({1: 6, 0: 2}, 2)],
    ids=["rank 0's own", "another rank's", "rank 0's before another's"],
)
def test_the_exit_code_is_that_of_a_rank(monkeypatch, codes, code):
    failing(monkeypatch, codes)
    assert run_as_ranks(2, ["run", "recipe.yaml"]) == code
