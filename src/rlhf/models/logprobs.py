"""Log-probabilities of given tokens straight from hidden states: no ``[tokens, vocabulary]`` tensor ever exists.

Forward runs over tiles of rows with one reused buffer and keeps only each row's log-sum-exp; backward recomputes logits over
tiles of the vocabulary, so that each row of the weight's gradient is written once. Softmax arithmetic is in float32 (float64
for float64 input), the matrix products in the type of autocast or of the weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    token: Tensor,
    *,
    temperature: float = 1.0,
    transform: LogitTransform | None = None,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of one token for each row, in nats.

        logits = transform(hidden @ weight.T + bias) / temperature
        logprob = logits[token] - logsumexp(logits)
        entropy = logsumexp(logits) - sum(softmax(logits) * logits)

    Args:
        hidden: [M, H] last hidden states of the rows that predict.
        weight: [V, H] output embedding.
        bias: [V] or None.
        token: int64 [M].
        temperature: Divides the final logits; must be positive.
        transform: Scale and soft-cap of the family; None for neither.
        with_entropy: Also return the entropy of each row's distribution, with gradient.

    Returns:
        logprobs [M] and entropy [M] or None, float32 (float64 for float64 input).
    """
    dtype = (
        torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else weight.dtype
    )
    logprobs, entropy = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, token, temperature, transform or LogitTransform(), with_entropy, dtype
    )
    return logprobs, (entropy if with_entropy else None)


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
        with_entropy: bool,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        rows, vocabulary = hidden.shape[0], weight.shape[0]
        hidden_c, weight_c = hidden.to(dtype), weight.to(dtype)
        target = hidden.new_empty(rows, dtype=exact)
        logsumexp = hidden.new_empty(rows, dtype=exact)
        entropy = hidden.new_empty(rows if with_entropy else 0, dtype=exact)
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
            if with_entropy:
                probs = (logits - logsumexp[here, None]).exp_()
                entropy[here] = logsumexp[here] - probs.mul_(logits).sum(1)
        ctx.save_for_backward(hidden, weight, bias, token, target, logsumexp, entropy)
        ctx.settings = (temperature, transform, with_entropy, dtype, exact)
        return target - logsumexp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad_logprobs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, token, target, logsumexp, entropy = ctx.saved_tensors  # type: ignore[attr-defined]
        temperature, transform, with_entropy, dtype, exact = ctx.settings  # type: ignore[attr-defined]
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
            grad = probs * -grad_logprobs[:, None]
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
