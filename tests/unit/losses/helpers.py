"""What every loss is put through: a tiny packed batch, a table in place of a model, two checks that take any loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlhf.data.pack import Branch, Group, PackedBatch, pack

VOCABULARY = 7

GROUPS = [
    Group(prefix=[1, 2], branches=[Branch([3, 4, 5]), Branch([6, 1])]),
    # a tool's answer between two turns of the model, and a tail that no loss may see
    Group(prefix=[4], branches=[Branch([2, 6, 3, 1, 0], scored=[True, False, False, True, False]), Branch([5])]),
]
"""Two pairs: a shared prefix, unscored tokens in the middle and at the end, a completion of one token."""


def double(*numbers: float, grad: bool = False) -> Tensor:
    """Flat float64 tensor."""
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=grad)


def gradient(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the sum of a loss."""
    return torch.autograd.grad(loss.sum(), inputs)


def row_logprobs(logits: Tensor, batch: PackedBatch) -> Tensor:
    """[M] log-probabilities where every row of the batch has logits of its own, [N, V]."""
    return logits.log_softmax(-1)[batch.score_at, batch.score_token]


def table_logprobs(table: Tensor, batch: PackedBatch) -> Tensor:
    """[M] log-probabilities of a bigram model [V, V]: parameters that all micro-batches share."""
    return table.log_softmax(-1)[batch.tokens[batch.score_at], batch.score_token]


def check_unscored_tokens_cannot_reach(loss_of: Callable[[Tensor, PackedBatch], Tensor]) -> None:
    """Gradients are exactly zero on rows that predict no scored token, and not zero on those that do."""
    batch = pack(GROUPS)
    logits = torch.randn(
        batch.num_tokens, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    (grad,) = gradient(loss_of(row_logprobs(logits, batch), batch), logits)
    reached = grad.abs().sum(-1) > 0
    expected = torch.zeros(batch.num_tokens, dtype=torch.bool)
    expected[batch.score_at] = True
    assert expected.sum() < batch.num_tokens, "the toy batch must have rows that predict nothing scored"
    assert torch.equal(reached, expected)


def check_parts_add_up(loss_of: Callable[[Tensor, PackedBatch, PackedBatch], Tensor]) -> None:
    """Two micro-batches give the loss and the gradient of one.

    ``loss_of(logprobs, part, whole)`` is one number for the part, with denominators counted over the whole.
    """
    table = torch.randn(
        VOCABULARY, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    ).requires_grad_()
    whole = pack(GROUPS)
    parts = [pack(GROUPS[:1]), pack(GROUPS[1:])]
    at_once = loss_of(table_logprobs(table, whole), whole, whole)
    in_parts = [loss_of(table_logprobs(table, part), part, whole) for part in parts]
    assert in_parts[0].ndim == at_once.ndim == 0
    assert in_parts[0] != in_parts[1], "parts that are equal would prove little"
    torch.testing.assert_close(torch.stack(in_parts).sum(), at_once, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(torch.stack(in_parts), table), gradient(at_once, table), rtol=1e-12, atol=1e-15)


def per_token(batch: PackedBatch, seed: int, scale: float = 1.0) -> Tensor:
    """[M] fixed numbers that belong to the tokens, whatever part of the batch they are met in."""
    generator = torch.Generator().manual_seed(seed)
    by_token = torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64, generator=generator) * scale
    return by_token[batch.tokens[batch.score_at], batch.score_token]
