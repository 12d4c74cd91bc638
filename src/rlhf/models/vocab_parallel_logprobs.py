"""Log-probabilities from an output projection that lies in parts of the vocabulary over ranks.

Each rank brings its own rows. In runs of as many rows on every rank, hidden states are gathered, each rank computes tiles of the logits
of its own tokens for all of them (``rlhf.models.vocabulary_tiles``), and two all-reduces make the whole softmax of it:

    m          = max over ranks and tiles t of Z_t           Z_t the log-sum-exp of a tile
    logsumexp  = m + log sum of exp(Z_t - m)
    logit      = sum over ranks of the token's own logit, 0 where a rank does not have the token

The backward pass gathers hidden states again, has the gradient of this rank's part of the weight complete, for the rows of all ranks, and
sums that of the hidden states where they came from (reduce-scatter). Every rank takes part in as many collectives, however many rows it has.

Sources: Shoeybi et al. 2019, "Megatron-LM", section 3, arXiv:1909.08053 (softmax over parts of a vocabulary); Wijmans et al. 2024, "Cut
your losses in large-vocabulary language models", arXiv:2411.09009 (tiles). torch's own ``loss_parallel`` gives a cross-entropy alone and
holds a rank's logits of all rows, for ranks that have the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf.distributed.vocab_parallel import VocabularyPart, local_part
from rlhf.models.logprobs import TokenLogprobs
from rlhf.models.vocabulary_tiles import (
    Gradients,
    LogitTransform,
    RowGradients,
    Softmax,
    TileSums,
    VocabularyTiles,
    bends,
    gradients_over_tiles,
    sums_over_tiles,
)

GATHERED_BYTES = 1 << 27
"""Of hidden states of all ranks that are gathered at once, 128 MiB: more rows go round in several runs."""
NO_TOKEN = -1
"""Of rows that only make the ranks' runs equally long; no rank has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    part: VocabularyPart
    temperature: float
    transform: LogitTransform
    wanted: tuple[bool, bool, bool]
    """Entropy, mean and collision."""
    dtype: torch.dtype
    """Of the products."""
    goes_back: bool


def vocab_parallel_logprobs(
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
    """``rlhf.models.logprobs.token_logprobs`` of a weight in parts, which all ranks ask for at once, each for its own rows.

    Args:
        hidden: [M, H]; M may be another on each rank.
        weight: [V, H] shard of ``rlhf.distributed.vocab_parallel.cut_vocabulary``.
        bias: [V] shard, or None.
        token: int64 [M], any of the V.
        temperature: Divides the final logits; must be positive.
        transform: Scale and soft-cap of the family; None for neither.
        with_entropy: Also the entropy of each row's distribution, with gradient.
        with_mean: Also the mean over the vocabulary of each row's log-probabilities, with gradient.
        with_collision: Also the log-probability that two samples of a row's distribution agree, without gradient.

    Returns:
        [M] each, float32 (float64 for float64 input).
    """
    kind = hidden.device.type
    wanted = (with_entropy, with_mean, with_collision)
    differentiable = any(x is not None and x.requires_grad for x in (hidden, weight, bias))
    settings = _Settings(
        part=VocabularyPart.of(weight), temperature=temperature, transform=transform or LogitTransform(), wanted=wanted,
        dtype=torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype,
        goes_back=differentiable and torch.is_grad_enabled(),
    )  # fmt: skip
    own = [None if x is None else local_part(x, hidden.device) for x in (weight, bias)]
    with torch.autocast(kind, enabled=False):  # it would round what sums are made of
        logprobs, *extras = _VocabParallelLogprobs.apply(hidden, *own, token, settings)  # type: ignore[no-untyped-call]
    entropy, mean, collision = (extra if asked else None for extra, asked in zip(extras, wanted, strict=True))
    return TokenLogprobs(logprobs, entropy, mean, collision)


class _Run(NamedTuple):
    """Rows of all ranks that go round together, and what their backward pass needs."""

    first: int
    """Of this rank's rows."""
    length: int
    """Rows of each rank, some of which may have fewer."""
    token: Tensor
    """[n length] counted from the first of this rank's tokens."""
    target: Tensor
    softmax: Softmax


class _VocabParallelLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, token: Tensor, settings: _Settings
    ) -> tuple[Tensor, ...]:
        part, wanted = settings.part, settings.wanted
        most = part.most(len(hidden), hidden.device)
        length = max(1, GATHERED_BYTES // (part.num_ranks * hidden.shape[1] * hidden.element_size()))
        starts = range(0, most, length)
        once = settings.goes_back and len(starts) == 1
        runs, kept, values = [], [], []
        for first in starts:
            here = min(length, most - first)
            states = part.gather(_padded(hidden[first : first + here], here, 0))
            tokens = part.gather(_padded(token[first : first + here], here, NO_TOKEN)) - part.first
            tiles = _tiles(states, weight, bias, settings)
            bent = bends(settings.transform, wanted[0], wanted[1])
            sums = sums_over_tiles(tiles, tokens, wanted, num_kept=tiles.num_kept if once and not bent else 0)
            target, softmax, of_rows = _over_ranks(sums, part, wanted)
            mine = slice(part.rank * here, part.rank * here + len(hidden[first : first + here]))
            values.append([rows[mine] for rows in of_rows])
            if settings.goes_back:
                runs.append(_Run(first, here, tokens, target, softmax))
                kept = sums.probs
        exact = torch.promote_types(hidden.dtype, torch.float32)
        results = [torch.cat(rows) for rows in zip(*values, strict=True)]
        results = results or [hidden.new_empty(0, dtype=exact) for _ in range(4)]
        ctx.save_for_backward(hidden, weight, bias)
        ctx.settings, ctx.runs, ctx.kept = settings, runs, kept
        ctx.mark_non_differentiable(results[3])
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor, grad_mean: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        settings: _Settings = ctx.settings
        part, (with_entropy, with_mean) = settings.part, settings.wanted[:2]
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        nothing = torch.zeros_like(grad_logprobs)
        given = torch.stack(
            [grad_logprobs, grad_entropy if with_entropy else nothing, grad_mean if with_mean else nothing], 1
        )
        grad_hidden = torch.zeros_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        grad_bias = torch.zeros_like(bias) if needs_bias else None
        for number, run in enumerate(ctx.runs):
            mine = slice(run.first, run.first + run.length)
            states = part.gather(_padded(hidden[mine], run.length, 0))
            of_all = part.gather(_padded(given[mine], run.length, 0))
            by_logprobs, by_entropy, by_mean = of_all.unbind(1)
            tiles = _tiles(states, weight, bias, settings)
            into = Gradients(
                torch.zeros_like(states, dtype=tiles.exact) if needs_hidden else None, grad_weight, grad_bias
            )
            rows = RowGradients(
                by_logprobs,
                by_entropy if with_entropy and bool(by_entropy.any()) else None,
                by_mean if with_mean else None,
            )
            gradients_over_tiles(
                tiles, run.softmax, rows, into, kept=ctx.kept, vocabulary=part.vocabulary, adds=number > 0
            )
            _add_target_gradients(run, by_logprobs, states, weight, settings, into)
            if grad_hidden is not None and into.hidden is not None:
                own = part.sum_own(into.hidden)
                grad_hidden[mine] = own[: len(grad_hidden[mine])].to(hidden.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None


def _tiles(states: Tensor, weight: Tensor, bias: Tensor | None, settings: _Settings) -> VocabularyTiles:
    """By torch: ``compiled`` is for one process."""
    return VocabularyTiles(states, weight, bias, settings.temperature, settings.transform, settings.dtype, in_c=False)


def _padded(rows: Tensor, length: int, value: float) -> Tensor:
    """[length, ...] with more rows of a value behind."""
    return torch.cat([rows, rows.new_full((length - len(rows), *rows.shape[1:]), value)])


def _over_ranks(
    sums: TileSums, part: VocabularyPart, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Softmax, tuple[Tensor, ...]]:
    """Each row's own logit, its softmax, and what ``token_logprobs`` gives of it, from this rank's tiles and those of the others."""
    with_entropy, with_mean, with_collision = wanted
    highest = sums.target.new_full(sums.target.shape, -torch.inf)
    if len(sums.logsumexp):
        highest = sums.logsumexp.amax(0)
    part.max_in_place(highest)
    weights = (sums.logsumexp - highest).exp_()
    nothing = torch.zeros_like(highest)
    of_ranks = torch.stack(
        [
            weights.sum(0),
            sums.target,
            (weights * sums.expected).sum(0) if with_entropy else nothing,
            sums.total if with_mean else nothing,
            (weights * weights * sums.squares).sum(0) if with_collision else nothing,
        ]
    )
    part.sum_in_place(of_ranks)
    total_weight, target, expected, total, squares = of_ranks.unbind()
    of_weight = total_weight.log()
    logsumexp = highest + of_weight
    empty = highest.new_empty(0)
    entropy = logsumexp - expected / total_weight if with_entropy else empty
    mean = total / part.vocabulary - logsumexp if with_mean else empty
    collision = squares.log() - 2 * of_weight if with_collision else empty
    return (
        target,
        Softmax(logsumexp, weights / total_weight, entropy),
        (target - logsumexp, entropy, mean, collision),
    )


def _add_target_gradients(
    run: _Run, by_logprobs: Tensor, states: Tensor, weight: Tensor, settings: _Settings, into: Gradients
) -> None:
    """Each token's own +1, by the rank that has the token."""
    here = ((run.token >= 0) & (run.token < len(weight))).nonzero().flatten()
    token = run.token[here]
    own = by_logprobs[here] * _at(settings.transform.slope(run.target, settings.temperature), here)
    if into.hidden is not None:
        into.hidden.index_add_(0, here, (own[:, None] * weight[token]).to(into.hidden.dtype))
    if into.weight is not None:
        into.weight.index_add_(0, token, (own[:, None] * states[here]).to(weight.dtype))
    if into.bias is not None:
        into.bias.index_add_(0, token, own.to(into.bias.dtype))


def _at(slope: Tensor | float, rows: Tensor) -> Tensor | float:
    return slope[rows] if isinstance(slope, Tensor) else slope
