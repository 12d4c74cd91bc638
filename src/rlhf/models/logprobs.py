"""Log-probabilities of given tokens straight from hidden states: no ``[tokens, vocabulary]`` tensor ever exists.

Forward and backward run over the same tiles of the vocabulary, with all rows at once and two reused buffers. Forward keeps
each row's log-sum-exp of each tile, and the probabilities of as many tiles as ``KEPT_BYTES`` hold; backward makes those of
the other tiles again, to the same bits, and each row of the weight's gradient is written once. Softmax arithmetic is in
float32 (float64 for float64 input), the matrix products in the type of autocast or of the weight.

With Z the log-sum-exp of a row and Z_t that of a tile, the probabilities of a tile are ``softmax_t * exp(Z_t - Z)``. So a
row's factor never touches the tile: it goes to the hidden states on one side of the product, and to the result on the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from rlhf.native.compiled_mode import is_in_c
from rlhf.native.kernels import ROW_SUM_DTYPES, RowSums, row_sums

TILE = 1 << 21
"""Logits alive at once on a CPU: 8 MB of float32, which stays near its cache."""
GPU_TILE = 1 << 25
"""Logits alive at once on a GPU: 128 MiB of float32. With ``TILE``, 6,000 tokens and a vocabulary of 152,000 would be 475 tiles of some
twenty kernels each, and a GPU would wait for each of them to be started."""
BLOCK = 64
"""A tile is a multiple of this wide where it can be: kernels compute in blocks, and oneDNN compiles one more for a rest."""
KEPT_BYTES = 1 << 25
"""Of probabilities that stay from forward to backward: a constant, whatever the batch and the vocabulary. What is kept saves one of
four products with the output embedding, and a softmax."""


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

    def applied(self, logits: Tensor, temperature: float) -> Tensor:
        """The same as a new tensor, for autograd to follow as often as wanted."""
        if self.softcap is not None:
            return torch.tanh(logits * (self.scale / self.softcap)) * (self.softcap / temperature)
        return logits * (self.scale / temperature)

    def slope(self, final: Tensor, temperature: float) -> Tensor | float:
        """Derivative of the final logits by the raw ones, from the final ones."""
        if self.softcap is None:
            return self.scale / temperature
        capped = final * (temperature / self.softcap)
        return (1 - capped * capped) * (self.scale / temperature)


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


def tile_logits(device: torch.device) -> int:
    """How many logits may be alive at once."""
    return TILE if device.type == "cpu" else GPU_TILE


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
        tiles = _Tiles(hidden, weight, bias, temperature, transform, dtype, in_c=is_in_c())
        rows, exact = hidden.shape[0], tiles.exact
        target = hidden.new_zeros(rows, dtype=exact)
        of_tiles = hidden.new_empty(len(tiles), rows, dtype=exact)
        expected, squares = (hidden.new_empty(len(tiles) if asked else 0, rows, dtype=exact) for asked in wanted[::2])
        total = hidden.new_zeros(rows if with_mean else 0, dtype=exact)
        kept: list[Tensor] = []
        num_kept = tiles.num_kept if goes_back and not _bends(transform, with_entropy, with_mean) else 0
        for number, here in enumerate(tiles):
            sums = tiles.sums(here, wanted, keeps=number < num_kept)
            if sums.probs is not None:
                kept.append(sums.probs)
            column = token - here.start
            inside = (column >= 0) & (column < sums.logits.shape[1])
            own = sums.logits.gather(1, column.clamp(0, sums.logits.shape[1] - 1)[:, None]).squeeze(1)
            target = torch.where(inside, own.to(exact), target)
            of_tiles[number] = sums.logsumexp
            if sums.expected is not None:
                expected[number] = sums.expected
            if sums.squares is not None:
                squares[number] = sums.squares
            if sums.total is not None:
                total += sums.total
        logsumexp = torch.logsumexp(of_tiles, 0)
        share = (of_tiles - logsumexp).exp_()  # of each tile in a row's probability
        entropy = logsumexp - (share * expected).sum(0) if with_entropy else expected.new_empty(0)
        # at least 1 / V, so its logarithm is always finite
        collision = (share * share * squares).sum(0).log_() if with_collision else squares.new_empty(0)
        mean = total / weight.shape[0] - logsumexp if with_mean else total
        ctx.save_for_backward(hidden, weight, bias, token, target, logsumexp, share, entropy)
        ctx.settings = (temperature, transform, wanted, dtype)
        ctx.in_c = tiles.in_c  # the same bits again
        ctx.kept = kept  # neither inputs nor outputs, and let go of one after the other
        ctx.mark_non_differentiable(collision)
        return target - logsumexp, entropy, mean, collision

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx, grad_logprobs: Tensor, grad_entropy: Tensor, grad_mean: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, token, target, logsumexp, share, entropy = ctx.saved_tensors  # type: ignore[attr-defined]
        temperature, transform, (with_entropy, with_mean, _), dtype = ctx.settings  # type: ignore[attr-defined]
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]  # type: ignore[attr-defined]
        in_c: bool = ctx.in_c  # type: ignore[attr-defined]
        tiles = _Tiles(hidden, weight, bias, temperature, transform, dtype, in_c=in_c)
        exact = tiles.exact
        grad_hidden = torch.zeros_like(hidden, dtype=exact) if needs_hidden else None
        grad_weight = torch.empty_like(weight) if needs_weight else None
        grad_bias = torch.empty_like(bias) if needs_bias else None
        # one factor a row is all there is, unless a term bends the softmax itself
        plain = not _bends(transform, with_entropy and bool(grad_entropy.any()), with_mean)
        kept: list[Tensor] = ctx.kept  # type: ignore[attr-defined]
        for number, here in enumerate(tiles):
            if plain:
                grad = kept.pop(0) if kept else tiles.softmax(here)
                factor = share[number] * -grad_logprobs
            else:
                logits = tiles.logits(here)
                probs = (logits - logsumexp[:, None]).exp_()
                grad = probs * -(grad_logprobs + grad_mean if with_mean else grad_logprobs)[:, None]
                if with_mean:  # d mean/dlogit = 1 / V - p
                    grad.add_(grad_mean[:, None], alpha=1 / weight.shape[0])
                if with_entropy:  # dH/dlogit = -p (log p + H)
                    grad.addcmul_(probs * -grad_entropy[:, None], logits - (logsumexp - entropy)[:, None])
                if transform.softcap is not None:
                    grad.mul_(transform.slope(logits, temperature))
                grad = grad.to(dtype)
                factor = torch.ones_like(logsumexp)
            if grad_hidden is not None:
                grad_hidden.addcmul_(torch.mm(grad, tiles.weight_of(here)).to(exact), factor[:, None])
            if grad_weight is not None:
                grad_weight[here] = torch.mm(grad.T, (tiles.hidden * factor[:, None]).to(dtype))
            if grad_bias is not None:
                grad_bias[here] = (grad * factor[:, None]).sum(0) * tiles.scale
        # the target's own +1, kept out of the tiles and in full precision
        own = grad_logprobs * transform.slope(target, temperature)
        if grad_hidden is not None:
            grad_hidden.mul_(tiles.scale).add_(own[:, None] * weight[token])
        if grad_weight is not None:
            grad_weight.index_add_(0, token, (own[:, None] * hidden).to(weight.dtype))
        if grad_bias is not None:
            grad_bias.index_add_(0, token, own.to(grad_bias.dtype))
        grad_hidden = grad_hidden.to(hidden.dtype) if grad_hidden is not None else None
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None, None


def _bends(transform: LogitTransform, by_entropy: bool, by_mean: bool) -> bool:
    """Whether the gradient by the logits is more than the softmax times a factor for each row."""
    return transform.softcap is not None or by_entropy or by_mean


class _Tiles:
    """Logits of all rows over one part of the vocabulary after another, in buffers that are used again."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        temperature: float,
        transform: LogitTransform,
        dtype: torch.dtype,
        *,
        in_c: bool,
    ) -> None:
        self.exact = torch.promote_types(hidden.dtype, torch.float32)
        # a scale goes into the hidden states, where it costs nothing; a soft-cap needs the raw logits
        self.scale = transform.scale / temperature if transform.softcap is None else 1.0
        self.hidden, self.weight = (hidden * self.scale).to(dtype), weight
        self.bias = None if bias is None else bias * self.scale
        self.transform, self.temperature = transform, temperature
        plain = bias is None and transform.softcap is None and hidden.device.type == "cpu" and dtype in ROW_SUM_DTYPES
        self.in_c = plain and in_c
        wide = tile_logits(hidden.device) // max(1, hidden.shape[0])
        self.width = max(1, min(weight.shape[0], wide - wide % BLOCK if wide > BLOCK else wide))
        self.raw = hidden.new_empty(hidden.shape[0] * self.width, dtype=dtype)
        self.cast = None if weight.dtype == dtype else weight.new_empty(self.width, weight.shape[1], dtype=dtype)
        self.cast_is: slice | None = None
        """The tile whose weights ``cast`` holds."""
        self.wide = self.raw if dtype == self.exact else hidden.new_empty(self.raw.shape, dtype=self.exact)

    def __len__(self) -> int:
        return -(-self.weight.shape[0] // self.width)

    def __iter__(self) -> Iterator[slice]:
        for first in range(0, self.weight.shape[0], self.width):
            yield slice(first, min(first + self.width, self.weight.shape[0]))

    def weight_of(self, here: slice) -> Tensor:
        """[tile, H] in the type of the products, cast where they are wanted next; the next tile overwrites them."""
        if self.cast is None:
            return self.weight[here]
        weight = self.cast[: here.stop - here.start]
        if self.cast_is != here:
            weight.copy_(self.weight[here])
            self.cast_is = here
        return weight

    def logits(self, here: slice) -> Tensor:
        """[M, tile] final logits in the exact type; the next call overwrites them."""
        raw = self._product(here)
        logits = raw if raw.dtype == self.exact else self._part(self.wide, here).copy_(raw)
        if self.bias is not None:
            logits.add_(self.bias[here])
        return logits if self.transform.softcap is None else self.transform(logits, self.temperature)

    def sums(self, here: slice, wanted: tuple[bool, bool, bool], *, keeps: bool) -> RowSums:
        """What the forward pass takes from a tile; the next call overwrites its logits.

        Args:
            here: The tile.
            wanted: Entropy, mean and collision, as ``token_logprobs`` was asked.
            keeps: Also the probabilities among the tile's own tokens, in a separate tensor.
        """
        if self.in_c:
            return row_sums(
                self._product(here),
                expected=wanted[0],
                squares=wanted[2],
                total=wanted[1],
                probs=self.raw.new_empty(self._part(self.raw, here).shape) if keeps else None,
            )
        with_entropy, with_mean, with_collision = wanted
        logits = self.logits(here)
        kept = self.softmax_of(logits, here) if keeps else None
        log_probs = torch.log_softmax(logits, 1)
        probs = torch.softmax(logits, 1) if with_entropy or with_collision else log_probs
        return RowSums(
            logits,
            # both maxima belong to one token, and a log-probability near 0 takes nothing from the other's digits
            logits.amax(1) - log_probs.amax(1),
            torch.linalg.vecdot(probs, logits) if with_entropy else None,
            torch.linalg.vecdot(probs, probs) if with_collision else None,
            logits.sum(1) if with_mean else None,
            kept,
        )

    @property
    def num_kept(self) -> int:
        """Tiles whose probabilities ``KEPT_BYTES`` hold."""
        return KEPT_BYTES // max(1, self.raw.nbytes)

    def softmax(self, here: slice) -> Tensor:
        """[M, tile] probabilities among the tile's own tokens, in the type of the products."""
        if self.in_c:
            raw = self._product(here)
            row_sums(raw, probs=raw)
            return raw
        return self.softmax_of(self.logits(here) if self.bias is not None else self._product(here), here)

    def softmax_of(self, logits: Tensor, here: slice) -> Tensor:
        """The same of what ``logits`` has just given."""
        if self.bias is not None:
            return torch.softmax(logits, 1).to(self.hidden.dtype)
        return torch.softmax(self._part(self.raw, here), 1)  # the kernel adds up in float32 whatever it reads

    def _product(self, here: slice) -> Tensor:
        return torch.mm(self.hidden, self.weight_of(here).T, out=self._part(self.raw, here))

    def _part(self, buffer: Tensor, here: slice) -> Tensor:
        rows, width = self.hidden.shape[0], here.stop - here.start
        return buffer[: rows * width].view(rows, width)
