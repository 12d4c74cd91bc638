"""Log-probabilities of given tokens straight from hidden states: no ``[tokens, vocabulary]`` tensor ever exists.

Forward and backward run over the same tiles of the vocabulary, with all rows at once and two reused buffers. Forward keeps
each row's log-sum-exp of each tile, and the probabilities of as many tiles as ``KEPT_BYTES`` hold; backward makes those of
the other tiles again, to the same bits, and each row of the weight's gradient is written once. Softmax arithmetic is in
float32 (float64 for float64 input), the matrix products in the type of autocast or of the weight.

With Z the log-sum-exp of a row and Z_t that of a tile, the probabilities of a tile are ``softmax_t * exp(Z_t - Z)``. So a
row's factor never touches the tile: it goes to the hidden states on one side of the product, and to the result on the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from rlhf.models.vocabulary_tiles import (
    Gradients,
    LogitTransform,
    RowGradients,
    Softmax,
    VocabularyTiles,
    bends,
    gradients_over_tiles,
    sums_over_tiles,
)
from rlhf.native.compiled_mode import is_in_c


class TokenLogprobs(NamedTuple):
    """Result of ``token_logprobs``; None for values that were not requested."""

    logprobs: Tensor
    """[M] nats."""
    entropy: Tensor | None = None
    """[M] nats."""
    mean_logprobs: Tensor | None = None
    """[M] nats."""
    log_collision_probs: Tensor | None = None
    """[M] nats, without gradient."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    token: Tensor,
    *,
    temperature: float = 1.0,
    transform: LogitTransform | None = None,
    with_entropy: bool = False,
    with_mean: bool = False,
    with_collision: bool = False,
) -> TokenLogprobs:
    """Log-probability of one token for each row, in nats, and other values of the row's whole distribution for a loss.

        logits              = transform(hidden @ weight.T + bias) / temperature
        logprob             = logits[token] - logsumexp(logits)
        entropy             = logsumexp(logits) - sum(softmax(logits) * logits)
        mean_logprob        = mean(logits) - logsumexp(logits)
        log_collision_prob  = log sum(softmax(logits)^2)

    Args:
        hidden: [M, H] last hidden states of the rows that predict.
        weight: [V, H] output embedding.
        bias: [V] or None.
        token: int64 [M].
        temperature: Divides the final logits; must be positive.
        transform: Scale and soft-cap of the family; None for neither.
        with_entropy: Also the entropy of each row's distribution, with gradient.
        with_mean: Also the mean over the vocabulary of each row's log-probabilities, with gradient.
        with_collision: Also the log-probability that two samples of a row's distribution agree, without gradient.

    Returns:
        [M] each, float32 (float64 for float64 input).
    """
    dtype = (
        torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else weight.dtype
    )
    wanted = (with_entropy, with_mean, with_collision)
    differentiable = any(x is not None and x.requires_grad for x in (hidden, weight, bias))
    with torch.autocast(hidden.device.type, enabled=False):  # it would round what sums are made of
        logprobs, *extras = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden, weight, bias, token, temperature, transform or LogitTransform(), wanted, dtype,
            differentiable and torch.is_grad_enabled(),
        )  # fmt: skip
    entropy, mean, collision = (extra if asked else None for extra, asked in zip(extras, wanted, strict=True))
    return TokenLogprobs(logprobs, entropy, mean, collision)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token: Tensor,
        temperature: float,
        transform: LogitTransform,
        wanted: tuple[bool, bool, bool],
        dtype: torch.dtype,
        goes_back: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with_entropy, with_mean, with_collision = wanted
        tiles = VocabularyTiles(hidden, weight, bias, temperature, transform, dtype, in_c=is_in_c())
        num_kept = tiles.num_kept if goes_back and not bends(transform, with_entropy, with_mean) else 0
        sums = sums_over_tiles(tiles, token, wanted, num_kept=num_kept)
        logsumexp = torch.logsumexp(sums.logsumexp, 0)
        share = (sums.logsumexp - logsumexp).exp_()  # of each tile in a row's probability
        entropy = logsumexp - (share * sums.expected).sum(0) if with_entropy else sums.expected.new_empty(0)
        # at least 1 / V, so its logarithm is always finite
        collision = (share * share * sums.squares).sum(0).log_() if with_collision else sums.squares.new_empty(0)
        mean = sums.total / weight.shape[0] - logsumexp if with_mean else sums.total
        ctx.save_for_backward(hidden, weight, bias, token, sums.target, logsumexp, share, entropy)
        ctx.settings = (temperature, transform, wanted, dtype)
        ctx.in_c = tiles.in_c  # the same bits again
        ctx.kept = sums.probs  # neither inputs nor outputs, and let go of one after the other
        ctx.mark_non_differentiable(collision)
        return sums.target - logsumexp, entropy, mean, collision

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx, grad_logprobs: Tensor, grad_entropy: Tensor, grad_mean: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, token, target, logsumexp, share, entropy = ctx.saved_tensors  # type: ignore[attr-defined]
        temperature, transform, (with_entropy, with_mean, _), dtype = ctx.settings  # type: ignore[attr-defined]
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]  # type: ignore[attr-defined]
        in_c: bool = ctx.in_c  # type: ignore[attr-defined]
        tiles = VocabularyTiles(hidden, weight, bias, temperature, transform, dtype, in_c=in_c)
        into = Gradients(
            torch.zeros_like(hidden, dtype=tiles.exact) if needs_hidden else None,
            torch.empty_like(weight) if needs_weight else None,
            torch.empty_like(bias) if needs_bias else None,
        )
        by_entropy = grad_entropy if with_entropy and bool(grad_entropy.any()) else None
        given = RowGradients(grad_logprobs, by_entropy, grad_mean if with_mean else None)
        kept: list[Tensor] = ctx.kept  # type: ignore[attr-defined]
        gradients_over_tiles(
            tiles, Softmax(logsumexp, share, entropy), given, into, kept=kept, vocabulary=weight.shape[0]
        )
        # the target's own +1, kept out of the tiles and in full precision
        own = grad_logprobs * transform.slope(target, temperature)
        if into.hidden is not None:
            into.hidden.add_(own[:, None] * weight[token])
        if into.weight is not None:
            into.weight.index_add_(0, token, (own[:, None] * hidden).to(weight.dtype))
        if into.bias is not None:
            into.bias.index_add_(0, token, own.to(into.bias.dtype))
        grad_hidden = into.hidden.to(hidden.dtype) if into.hidden is not None else None
        return grad_hidden, into.weight, into.bias, None, None, None, None, None, None
