"""Logits of all rows over one tile of a vocabulary after another, and what a softmax over all of it needs of them.

A weight may be a whole output projection (``rlhf.models.logprobs``), or the part of it that one rank holds
(``rlhf.models.vocab_parallel_logprobs``): what is summed over tiles is then summed over ranks as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

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


def tile_logits(device: torch.device) -> int:
    """How many logits may be alive at once."""
    return TILE if device.type == "cpu" else GPU_TILE


class VocabularyTiles:
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


def bends(transform: LogitTransform, by_entropy: bool, by_mean: bool) -> bool:
    """Whether the gradient by the logits is more than the softmax times a factor for each row."""
    return transform.softcap is not None or by_entropy or by_mean


class TileSums(NamedTuple):
    """Of rows over the tiles of a vocabulary, or of a rank's part of one."""

    target: Tensor
    """[M] final logit of each row's token; 0 where no tile holds it."""
    logsumexp: Tensor
    """[tiles, M]."""
    expected: Tensor
    """[tiles, M] mean logit under the softmax of a tile's own tokens; [0, M] where it is not wanted."""
    squares: Tensor
    """[tiles, M] sum of that softmax's squares, likewise."""
    total: Tensor
    """[M] sum of the logits; [0] where it is not wanted."""
    probs: list[Tensor]
    """[M, tile] that softmax itself, of as many tiles as are kept."""


def sums_over_tiles(
    tiles: VocabularyTiles, token: Tensor, wanted: tuple[bool, bool, bool], *, num_kept: int
) -> TileSums:
    """What a forward pass takes from the logits.

    Args:
        tiles: Of the rows.
        token: int64 [M], counted from the first row of the tiles' weight; others than its own are in no tile.
        wanted: Entropy, mean and collision.
        num_kept: Tiles whose probabilities are kept.
    """
    exact, rows = tiles.exact, len(token)
    target = tiles.hidden.new_zeros(rows, dtype=exact)
    of_tiles = tiles.hidden.new_empty(len(tiles), rows, dtype=exact)
    expected, squares = (tiles.hidden.new_empty(len(tiles) if asked else 0, rows, dtype=exact) for asked in wanted[::2])
    total = tiles.hidden.new_zeros(rows if wanted[1] else 0, dtype=exact)
    kept: list[Tensor] = []
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
    return TileSums(target, of_tiles, expected, squares, total, kept)


class Softmax(NamedTuple):
    """What the probabilities of rows are made of again."""

    logsumexp: Tensor
    """[M] over the whole vocabulary."""
    share: Tensor
    """[tiles, M] of each tile in a row's probability."""
    entropy: Tensor
    """[M] nats; [0] where it was not wanted."""


class RowGradients(NamedTuple):
    """Of a loss by what ``token_logprobs`` gives; None for what has none."""

    logprobs: Tensor
    """[M]."""
    entropy: Tensor | None
    """[M]."""
    mean: Tensor | None
    """[M]."""


class Gradients(NamedTuple):
    """Room for those that go on; None for what needs none."""

    hidden: Tensor | None
    """[M, H] in the exact type, zero at first."""
    weight: Tensor | None
    """[V, H]."""
    bias: Tensor | None
    """[V]."""


def gradients_over_tiles(
    tiles: VocabularyTiles,
    softmax: Softmax,
    given: RowGradients,
    into: Gradients,
    *,
    kept: list[Tensor],
    vocabulary: int,
    adds: bool = False,
) -> None:
    """The backward pass but for the term of each row's own token: by the log-sum-exp, the entropy and the mean.

    Args:
        tiles: As in the forward pass.
        softmax: From there.
        given: What comes back.
        into: Written to.
        kept: Probabilities of the first tiles, which are let go of.
        vocabulary: Tokens that the mean is over.
        adds: Add to the gradients of weight and bias; otherwise replace them.
    """
    logsumexp, share, entropy = softmax
    transform, temperature, dtype = tiles.transform, tiles.temperature, tiles.hidden.dtype
    # one factor a row is all there is, unless a term bends the softmax itself
    plain = not bends(transform, given.entropy is not None, given.mean is not None)
    for number, here in enumerate(tiles):
        if plain:
            grad = kept.pop(0) if kept else tiles.softmax(here)
            factor = share[number] * -given.logprobs
        else:
            logits = tiles.logits(here)
            probs = (logits - logsumexp[:, None]).exp_()
            grad = probs * -(given.logprobs if given.mean is None else given.logprobs + given.mean)[:, None]
            if given.mean is not None:  # d mean/dlogit = 1 / V - p
                grad.add_(given.mean[:, None], alpha=1 / vocabulary)
            if given.entropy is not None:  # dH/dlogit = -p (log p + H)
                grad.addcmul_(probs * -given.entropy[:, None], logits - (logsumexp - entropy)[:, None])
            if transform.softcap is not None:
                grad.mul_(transform.slope(logits, temperature))
            grad = grad.to(dtype)
            factor = torch.ones_like(logsumexp)
        if into.hidden is not None:
            into.hidden.addcmul_(torch.mm(grad, tiles.weight_of(here)).to(tiles.exact), factor[:, None])
        if into.weight is not None:
            by_weight = torch.mm(grad.T, (tiles.hidden * factor[:, None]).to(dtype))
            if adds:
                into.weight[here] += by_weight
            else:
                into.weight[here] = by_weight
        if into.bias is not None:
            by_bias = (grad * factor[:, None]).sum(0) * tiles.scale
            if adds:
                into.bias[here] += by_bias
            else:
                into.bias[here] = by_bias
    if into.hidden is not None:
        into.hidden.mul_(tiles.scale)
