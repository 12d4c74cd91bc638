"""Log-probabilities of given tokens straight from hidden states: no ``[tokens, vocabulary]`` tensor ever exists.

Forward runs over tiles of rows with one reused buffer and keeps only each row's log-sum-exp; backward recomputes logits over
tiles of the vocabulary, so that each row of the weight's gradient is written once. Softmax arithmetic is in float32 (float64
for float64 input), the matrix products in the type of autocast or of the weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

FORWARD_TILE = 1 << 22
BACKWARD_TILE = 1 << 22
"""Logits alive at once; 4M float32 numbers are 16 MB, which stays near a CPU's cache and keeps a GPU busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitTransform:
    """What a family does between its output projection and the softmax: ``softcap * tanh(scale * x / softcap)``."""

    scale: float = 1.0
    """Cohere multiplies by ``logit_scale``, Granite divides by ``logits_scaling``."""
    softcap: float | None = None
    """Gemma 2's ``final_logit_softcapping``."""

    def __call__(self, logits: Tensor, temperature: float) -> Tensor:
        """Final logits, divided by the temperature; changes ``logits`` in place."""
        if self.softcap is not None:
            logits.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap / temperature)
        elif self.scale != temperature:
            logits.mul_(self.scale / temperature)
        return logits

    def slope(self, final: Tensor, temperature: float) -> Tensor | float:
        """Derivative of the final logits by the raw ones, from the final ones."""
        if self.softcap is None:
            return self.scale / temperature
        capped = final * (temperature / self.softcap)
        return (1 - capped * capped) * (self.scale / temperature)


class TokenLogprobs(NamedTuple):
    """What ``token_logprobs`` gives; None for what was not asked for."""

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
    """Log-probability of one token for each row, in nats, and what else a loss asks of the row's whole distribution.

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
    logprobs, *extras = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, token, temperature, transform or LogitTransform(), wanted, dtype
    )
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
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        with_entropy, with_mean, with_collision = wanted
        rows, vocabulary = hidden.shape[0], weight.shape[0]
        hidden_c, weight_c = hidden.to(dtype), weight.to(dtype)
        target = hidden.new_empty(rows, dtype=exact)
        logsumexp = hidden.new_empty(rows, dtype=exact)
        entropy, mean, collision = (hidden.new_empty(rows if asked else 0, dtype=exact) for asked in wanted)
        tile = max(1, min(rows, FORWARD_TILE // vocabulary))
        buffer = hidden.new_empty(tile, vocabulary, dtype=dtype)
        for first in range(0, rows, tile):
            here = slice(first, min(first + tile, rows))
            raw = torch.mm(hidden_c[here], weight_c.T, out=buffer[: here.stop - first])
            logits = raw.to(exact)
            if bias is not None:
                logits.add_(bias)
            logits = transform(logits, temperature)
            target[here] = logits.gather(1, token[here, None]).squeeze(1)
            logsumexp[here] = torch.logsumexp(logits, dim=1)
            if with_mean:
                mean[here] = logits.mean(1) - logsumexp[here]
            if with_entropy or with_collision:
                probs = (logits - logsumexp[here, None]).exp_()
            if with_collision:  # at least 1 / V, so its logarithm is always finite
                collision[here] = probs.square().sum(1).log()
            if with_entropy:
                entropy[here] = logsumexp[here] - probs.mul_(logits).sum(1)
        ctx.save_for_backward(hidden, weight, bias, token, target, logsumexp, entropy)
        ctx.settings = (temperature, transform, wanted, dtype, exact)
        ctx.mark_non_differentiable(collision)
        return target - logsumexp, entropy, mean, collision

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx, grad_logprobs: Tensor, grad_entropy: Tensor, grad_mean: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, token, target, logsumexp, entropy = ctx.saved_tensors  # type: ignore[attr-defined]
        temperature, transform, (with_entropy, with_mean, _), dtype, exact = ctx.settings  # type: ignore[attr-defined]
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]  # type: ignore[attr-defined]
        rows, vocabulary = hidden.shape[0], weight.shape[0]
        hidden_c, weight_c = hidden.to(dtype), weight.to(dtype)
        grad_hidden = torch.zeros_like(hidden, dtype=exact) if needs_hidden else None
        grad_weight = torch.empty_like(weight) if needs_weight else None
        grad_bias = torch.empty_like(bias) if needs_bias else None
        tile = max(1, min(vocabulary, BACKWARD_TILE // max(rows, 1)))
        for first in range(0, vocabulary, tile):
            here = slice(first, min(first + tile, vocabulary))
            logits = torch.mm(hidden_c, weight_c[here].T).to(exact)
            if bias is not None:
                logits.add_(bias[here])
            logits = transform(logits, temperature)
            slope = transform.slope(logits, temperature)
            probs = (logits - logsumexp[:, None]).exp_()
            grad = probs * -(grad_logprobs + grad_mean if with_mean else grad_logprobs)[:, None]
            if with_mean:  # d mean/dlogit = 1 / V - p
                grad.add_(grad_mean[:, None], alpha=1 / vocabulary)
            if with_entropy:  # dH/dlogit = -p (log p + H)
                grad.addcmul_(probs * -grad_entropy[:, None], logits - (logsumexp - entropy)[:, None])
            grad = grad.mul_(slope)
            grad_c = grad.to(dtype)
            if grad_hidden is not None:
                grad_hidden += torch.mm(grad_c, weight_c[here])
            if grad_weight is not None:
                grad_weight[here] = torch.mm(grad_c.T, hidden_c).to(weight.dtype)
            if grad_bias is not None:
                grad_bias[here] = grad.sum(0)
        # the target's own +1, kept out of the tiles and in full precision
        own = grad_logprobs * transform.slope(target, temperature)
        if grad_hidden is not None:
            grad_hidden += own[:, None] * weight[token]
        if grad_weight is not None:
            grad_weight.index_add_(0, token, (own[:, None] * hidden).to(weight.dtype))
        if grad_bias is not None:
            grad_bias.index_add_(0, token, own.to(grad_bias.dtype))
        grad_hidden = grad_hidden.to(hidden.dtype) if grad_hidden is not None else None
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None
