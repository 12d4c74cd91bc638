"""Attention on a CPU by few large products: equal to plain attention in value and gradient, however it is cut into tiles."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rlhf.models.tree_attention as module
from rlhf.data.pack import Branch, Group, pack
from rlhf.models.attention import AttentionSettings, PackedLayout, differentiable_twice

pytestmark = pytest.mark.numeric

HEADS, KV_HEADS, WIDTH, VALUE_WIDTH = 4, 2, 8, 6
SHAPES = {
    "a pair": [(3, 2, 4)],
    "no prefix of two": [(1, 5), (1, 7)],
    "side by side, padded": [(9, 2, 3), (8, 4, 4), (7, 1)],
    "long and short": [(40, 3, 1), (2, 60)],
}


def layout_of(lengths):
    batch = pack([Group([1] * prefix, [Branch([2] * n) for n in branches]) for prefix, *branches in lengths])
    return PackedLayout.of(batch), batch.num_tokens


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(num_rows, dtype=torch.float64):
    widths = ((HEADS, WIDTH), (KV_HEADS, WIDTH), (KV_HEADS, VALUE_WIDTH))
    return [draw(1, h, num_rows, d, seed=n, dtype=dtype).requires_grad_() for n, (h, d) in enumerate(widths)]


def attended(layout, tensors, settings, *, plainly=False):
    """Output and gradients for a random direction, by tiles or by torch's own attention."""
    run = layout.attend
    if plainly:
        with differentiable_twice():
            out = run(torch.nn.Identity(), *tensors, settings)
    else:
        out = run(torch.nn.Identity(), *tensors, settings)
    direction = draw(*out.shape, seed=9, dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad((out * direction).sum(), tensors)]


@pytest.fixture(params=["one tile", "tiles of three queries"])
def tiled(request, monkeypatch):
    if request.param != "one tile":
        monkeypatch.setattr(module, "TILE_SCORES", 1)
        monkeypatch.setattr(module, "LEAST_TILE", 3)


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("lengths", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("form", [{}, {"sliding_window": 3}, {"chunk": 4}], ids=str)
def test_values_and_gradients_are_those_of_plain_attention(lengths, form):
    layout, num_rows = layout_of(lengths)
    tensors = inputs(num_rows)
    settings = AttentionSettings(scaling=0.3, **form)
    ours, plain = (attended(layout, tensors, settings, plainly=plainly) for plainly in (False, True))
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_under_autocast_it_is_as_near_to_the_truth_as_torchs_own():
    layout, num_rows = layout_of([(60, 40, 30), (50, 20, 45)])
    exact = inputs(num_rows)
    settings = AttentionSettings(scaling=WIDTH**-0.5)
    truth = attended(layout, exact, settings, plainly=True)
    rounded = [x.detach().float().requires_grad_() for x in exact]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = attended(layout, rounded, settings)
        assert ours[0].dtype == torch.bfloat16
        torchs = attended(layout, rounded, settings, plainly=True)
    for mine, theirs, true in zip(ours, torchs, truth, strict=True):
        assert (mine - true).abs().mean() < 2 * (theirs - true).abs().mean()
        assert (mine - true).abs().mean() < 0.01 * true.abs().mean()


def test_scores_are_not_rounded_under_autocast():
    """Large scores: rounded to bfloat16 they would be off by tenths, and their factors rounded are what torch's kernel has."""
    layout, num_rows = layout_of([(60, 40, 30), (50, 20, 45)])
    exact = inputs(num_rows)
    settings = AttentionSettings(scaling=4.0)
    truth = attended(layout, exact, settings, plainly=True)[0]
    rounded = [x.detach().float().requires_grad_() for x in exact]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, torchs = (attended(layout, rounded, settings, plainly=plainly)[0] for plainly in (False, True))
    assert (ours - truth).abs().mean() < 0.5 * (torchs - truth).abs().mean()


def test_a_second_derivative_takes_the_plain_operations():
    layout, num_rows = layout_of([(3, 2, 4)])
    tensors = inputs(num_rows)
    settings = AttentionSettings(scaling=0.3)
    with differentiable_twice():
        out = layout.attend(torch.nn.Identity(), *tensors, settings).square().sum()
        (slope,) = torch.autograd.grad(out, tensors[:1], create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), tensors[:1])
    assert bend.abs().sum() > 0
    once = layout.attend(torch.nn.Identity(), *tensors, settings).square().sum()
    (slope,) = torch.autograd.grad(once, tensors[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_no_more_scores_are_alive_than_a_tile_holds(monkeypatch):
    monkeypatch.setattr(module, "TILE_SCORES", 1 << 14)
    monkeypatch.setattr(module, "LEAST_TILE", 8)
    layout, num_rows = layout_of([(300, 200, 220)])
    tensors = inputs(num_rows, torch.float32)

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    self.size = max(self.size, tensor.numel())
            return out

    settings = AttentionSettings(scaling=0.3)
    attended(layout, tensors, settings)  # masks are made once
    with Largest() as largest:
        attended(layout, tensors, settings)
    rows = max(x.numel() for x in tensors)  # keys are gathered with their prefix, once for each branch
    assert rows <= largest.size < 2 * rows < HEADS * 300 * 300 / 5
