"""Activations that are recomputed: the same gradients, and how often a product of weights is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf.data.pack import pack
from rlhf.models.adapters import enable_checkpointing
from tests.fixtures import toy


class CountProducts(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*args, **(kwargs or {}))


def gradients(**settings: Any) -> tuple[list[torch.Tensor], int]:
    """Of the toy policy's packed score, and how many products of matrices they took."""
    policy = toy.build_policy(dtype=torch.float64).train()
    if settings:
        enable_checkpointing(policy.model, selective=settings["selective"])
    batch = pack(toy.rows(4))
    policy.choose_path(toy.rows(2))
    with CountProducts() as products:
        policy.score(batch).logprobs.sum().backward()
    return [p.grad for p in policy.model.parameters() if p.grad is not None], products.count


@pytest.mark.parametrize("selective", [False, True])
def test_recomputing_changes_no_gradient(selective):
    plain, recomputed = gradients()[0], gradients(selective=selective)[0]
    assert all(torch.equal(one, other) for one, other in zip(plain, recomputed, strict=True))


def test_selective_recomputes_no_product_of_weights():
    plain, everything, selective = (gradients(**how)[1] for how in ({}, {"selective": False}, {"selective": True}))
    assert plain == selective < everything
