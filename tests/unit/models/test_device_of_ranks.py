"""Which GPU is whose, where several ranks train one model."""

from __future__ import annotations

import pytest
import torch

from rlhf.distributed import ranks as module
from rlhf.distributed.ranks import Ranks, own_gpu
from rlhf.models.device import device_problem_of_ranks, resolve_device


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """``machine(gpus, size, gpu, shared)``: torch has so many GPUs, and this process is one of ``size`` ranks."""

    def make(gpus: int, *, size: int = 2, gpu: int | None = None, shared: bool = False) -> Ranks:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        ranks = Ranks()
        ranks.size, ranks.gpu, ranks.gpu_is_shared = size, gpu, shared
        monkeypatch.setattr(module, "_current", ranks)
        return ranks

    return make


@pytest.mark.parametrize(
    ("gpus", "local_rank", "expected"),
    [(0, 0, None), (4, 3, 3), (2, 3, None), (1, 3, 0)],
    ids=["no GPU", "its own", "too few", "the only one that it sees"],
)
def test_a_rank_takes_the_gpu_of_its_number(gpus, local_rank, expected, machine):
    machine(gpus)
    assert own_gpu(local_rank) == expected


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_models_of_a_rank_lie_on_its_gpu(name, machine):
    machine(4, size=4, gpu=2)
    assert resolve_device(name) == torch.device("cuda", 2)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert resolve_device("cpu") == torch.device("cpu")


def test_ranks_of_which_one_has_no_gpu_are_on_the_cpu_only_where_that_is_asked_for(machine):
    ranks = machine(2, size=4)
    assert resolve_device("auto") == torch.device("cpu")
    assert device_problem_of_ranks("cpu", ranks) is None
    for name in ("auto", "cuda", "cuda:1"):
        assert "start as many" in (device_problem_of_ranks(name, ranks) or "")


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_ranks_share_no_gpu(name, machine):
    ranks = machine(1, gpu=0, shared=True)
    assert "same GPU" in (device_problem_of_ranks(name, ranks) or "")


def test_ranks_with_gpus_of_their_own_take_no_number(machine):
    ranks = machine(2, gpu=0)
    assert device_problem_of_ranks("auto", ranks) is None
    assert device_problem_of_ranks("cuda", ranks) is None
    assert device_problem_of_ranks("cuda:0", ranks) is not None, "the other rank would compute there too"


def test_without_gpus_ranks_are_on_the_cpu(machine):
    ranks = machine(0)
    assert device_problem_of_ranks("auto", ranks) is None
