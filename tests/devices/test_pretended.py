"""The pretended GPU refuses what CUDA refuses and gives the CPU's numbers for the rest; without that its tests would prove nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlhf.data.pack import PackedBatch, pack
from tests.fixtures import toy
from tests.fixtures.pretend_gpu import GPU, OnGPU, pretend_gpu


@pytest.fixture(autouse=True)
def pretended():
    with pretend_gpu():
        yield


def test_tensors_of_two_devices_do_not_mix():
    here, there = torch.ones(3, device=GPU), torch.ones(3)
    for mixed in (lambda: here + there, lambda: there[here.long()], lambda: torch.where(here > 0, there, 0.0)):
        with pytest.raises(RuntimeError, match=r"two devices|same device"):
            mixed()


def test_scalars_copies_and_indices_on_the_cpu_do():
    here = torch.arange(4.0, device=GPU)
    assert (here * torch.tensor(2.0)).tolist() == [0, 2, 4, 6]
    assert here[torch.tensor([2, 0])].tolist() == [2, 0]
    here.copy_(torch.ones(4))
    assert here.cpu().numpy().sum() == 4


@pytest.mark.parametrize("read", [lambda x: x.numpy(), lambda x: memoryview(x.numpy())], ids=["numpy", "memory"])
def test_memory_is_not_read_without_a_copy(read):
    with pytest.raises((RuntimeError, TypeError)):
        read(torch.ones(2, device=GPU))


def test_a_generator_of_the_cpu_draws_nothing_here():
    with pytest.raises(RuntimeError, match="for generator"):
        torch.rand(3, device=GPU, generator=torch.Generator())
    with pytest.raises(RuntimeError, match="for generator"):
        torch.empty(3, device=GPU).exponential_(generator=torch.Generator())


def test_kernels_that_only_cpus_have_are_refused():
    with pytest.raises(NotImplementedError, match="CUDA"):
        torch.ops.mkldnn._reorder_linear_weight(torch.ones(4, 4, device=GPU))


def test_numbers_go_nowhere():
    x = torch.zeros(4, 4, device=GPU)
    x[[1, 2]] = 5.0
    x[0] = 1.0
    x[3].add_(2.0)
    x[:, 0].masked_fill_(torch.tensor([True, False, False, False], device=GPU), -1.0)
    held = torch.zeros(4, 4)
    held[[1, 2]], held[0], held[3] = 5.0, 1.0, 2.0
    held[0, 0] = -1.0
    assert torch.equal(x.cpu(), held)
    assert torch.where(x > 4, x, torch.finfo(x.dtype).min).cpu().min() < -1e38
    assert torch.tensor([1.5, 2.5], device=GPU).tolist() == x.new_tensor([1.5, 2.5]).tolist() == [1.5, 2.5]


def test_a_module_keeps_its_parameters_and_what_they_share():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    both = nn.Sequential(first, second)
    kept = first.weight
    both.to(GPU)
    assert first.weight is second.weight is kept
    assert isinstance(kept, OnGPU)
    both(torch.ones(1, 3, device=GPU)).sum().backward()
    torch.optim.AdamW(both.parameters(), fused=True).step()
    assert kept.grad is not None
    assert kept.grad.device == GPU


def test_a_batch_that_stays_on_the_cpu_is_found(monkeypatch):
    """The slip that these tests are there for: somebody forgets to move something."""
    monkeypatch.setattr(PackedBatch, "to", lambda self, device: self)
    policy = toy.build_policy().to(GPU)
    with pytest.raises(Exception, match=r"same device|cuda:0 and cpu"):
        policy.score(pack(toy.rows(2)))


def test_a_number_that_is_read_as_memory_is_found(monkeypatch):
    """Here the packed path breaks, and the check at the start takes another: a test must ask which path it was."""
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: self)
    policy = toy.build_policy().to(GPU)
    path = policy.choose_path(toy.rows(2))
    assert path.path != "packed"
    assert "numpy() is not supported" in path.reason
