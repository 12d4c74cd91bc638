"""Embeddings and output projections that lie in parts of the vocabulary and compute where they lie: no rank has one whole.

Of V tokens and n ranks, rank r has the rows ``[r ceil(V / n), (r + 1) ceil(V / n))``, which is how ``torch.distributed.tensor`` cuts the
first dimension. A lookup fetches the distinct rows that a batch needs from the ranks that have them, and its backward pass brings their
gradients back. The projection is in ``rlhf.models.vocab_parallel_logprobs``.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3, arXiv:1909.08053, where all ranks read the same tokens; here each reads its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from rlhf.distributed.sharding import VOCABULARY, ShardOptions, compute_device, is_shard, shard_mesh, whole

# torch 2.13 has new names, and warns of the old ones
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyPart:
    """Which rows of a weight this rank has, and the ranks that have the others."""

    first: int
    size: int
    vocabulary: int
    """Rows of all ranks."""
    per_rank: int
    """Rows of each but the last ones."""
    group: Any
    rank: int
    num_ranks: int

    @classmethod
    def of(cls, weight: Tensor) -> Self:
        """Of a shard that is cut by its first dimension alone, between replicas or without them."""
        placed: Any = weight
        group = placed.device_mesh.get_group(placed.device_mesh.ndim - 1)
        rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
        vocabulary = len(weight)
        per_rank = -(-vocabulary // num_ranks)
        first = min(vocabulary, rank * per_rank)
        return cls(
            first=first, size=min(per_rank, vocabulary - first), vocabulary=vocabulary, per_rank=per_rank,
            group=group, rank=rank, num_ranks=num_ranks,
        )  # fmt: skip

    def most(self, count: int, device: torch.device) -> int:
        """The largest of the ranks' numbers."""
        counts = torch.tensor([count], device=device)
        dist.all_reduce(counts, dist.ReduceOp.MAX, group=self.group)
        return int(counts)

    def gather(self, rows: Tensor) -> Tensor:
        """[n R, ...] of [R, ...] on every rank, in the order of the ranks."""
        gathered = rows.new_empty(self.num_ranks * len(rows), *rows.shape[1:])
        _all_gather(gathered, rows.contiguous(), group=self.group)
        return gathered

    def sum_own(self, rows: Tensor) -> Tensor:
        """[R, ...] this rank's part of the sum over ranks of [n R, ...]."""
        own = rows.new_empty(len(rows) // self.num_ranks, *rows.shape[1:])
        _reduce_scatter(own, rows.contiguous(), group=self.group)
        return own

    def max_in_place(self, values: Tensor) -> None:
        """Over ranks."""
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)

    def sum_in_place(self, values: Tensor) -> None:
        """Over ranks."""
        dist.all_reduce(values, group=self.group)


def local_part(shard: Tensor, device: torch.device) -> Tensor:
    """This rank's rows of a parameter, on the device that computes with them.

    Its gradient is taken for the whole of this rank's rows among the ranks that share the parameter, and summed over replicas.
    """
    from torch.distributed.tensor import Partial

    placed: Any = shard
    if len(placed.placements) == 1:
        local: Tensor = placed.to_local()
    else:
        sums = [Partial() if placement.is_replicate() else placement for placement in placed.placements]
        local = placed.redistribute(placements=placed.placements).to_local(grad_placements=sums)
    return local.to(device)


def fetched_rows(weight: Tensor, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of a weight in parts, from the ranks that have them; all ranks ask at once, each for its own, in as many collectives.

    Args:
        weight: [V, H] shard.
        ids: int64 [U], rising, on the device that computes.
        dtype: In which rows are sent.

    Returns:
        [U, H], differentiable in the weight.
    """
    part = VocabularyPart.of(weight)
    wanted = torch.bincount(ids // part.per_rank, minlength=part.num_ranks)
    table = part.gather(wanted[None])  # [who asks, who is asked]
    from_each, to_each = table[part.rank].tolist(), table[:, part.rank].tolist()
    asked = ids.new_empty(sum(to_each))
    dist.all_to_all_single(asked, ids, to_each, from_each, group=part.group)
    rows = F.embedding(asked - part.first, local_part(weight, ids.device)).to(dtype)
    fetched: Tensor = _Sent.apply(rows, to_each, from_each, part.group)  # type: ignore[no-untyped-call]
    return fetched


class _Sent(torch.autograd.Function):
    """``all_to_all_single`` with a gradient, which ``torch.distributed`` itself has for private and deprecated names alone."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, to_each: list[int], from_each: list[int], group: Any) -> Tensor:
        ctx.how = to_each, from_each, group
        received = rows.new_empty(sum(from_each), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), from_each, to_each, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        to_each, from_each, group = ctx.how
        return _Sent.apply(grad, from_each, to_each, group), None, None, None  # type: ignore[no-untyped-call]


def cut_vocabulary(root: nn.Module, modules: Sequence[nn.Module], options: ShardOptions) -> None:
    """Cut embeddings and an output projection by tokens, until ``rlhf.distributed.sharding.unshard``.

    Args:
        root: With the same weights on every rank; its other parameters are in shards already.
        modules: Inside it: ``nn.Embedding`` or what calls its forward, and ``nn.Linear``, tied or not.
        options: Of the root.
    """
    root.__dict__[VOCABULARY] = CutVocabulary(root, modules, options)


class CutVocabulary:
    """What a model that lies in shards has of its embeddings and its output projection.

    Args:
        root: The model.
        modules: Whose parameters are cut.
        options: How.
    """

    def __init__(self, root: nn.Module, modules: Sequence[nn.Module], options: ShardOptions) -> None:
        mesh = shard_mesh(next(modules[0].parameters()).device.type)
        own = {id(p): p for module in modules for p in module.parameters(recurse=False)}
        shards = {key: _cut(p, mesh, options) for key, p in own.items()}
        self.holders = [
            (module, name) for module in root.modules() for name, p in module._parameters.items() if id(p) in shards
        ]
        for module, name in self.holders:
            module._parameters[name] = shards[id(module._parameters[name])]
        self.dtype = options.param_dtype
        self.lookups = [_Lookup(module, self.dtype) for module in modules if isinstance(module, nn.Embedding)]

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, every rank has all rows, and no forward pass is a collective."""
        kept = [module._parameters[name] for module, name in self.holders]
        whole_ones = {id(p): self._whole(p) for p in {id(p): p for p in kept if p is not None}.values()}
        for (module, name), p in zip(self.holders, kept, strict=True):
            module._parameters[name] = whole_ones[id(p)]
        try:
            yield
        finally:
            for (module, name), p in zip(self.holders, kept, strict=True):
                module._parameters[name] = p

    def _whole(self, parameter: nn.Parameter) -> nn.Parameter:
        values = whole(parameter.detach()).to(compute_device(parameter), self.dtype or parameter.dtype)
        return nn.Parameter(values, parameter.requires_grad)

    def close(self) -> None:
        """Leave plain modules behind; the parameters are the caller's."""
        for lookup in self.lookups:
            lookup.remove()


def _cut(parameter: nn.Parameter, mesh: Any, options: ShardOptions) -> nn.Parameter:
    """A shard with this rank's rows in memory of their own."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    placements = [Replicate()] * (mesh.ndim - 1) + [Shard(0)]
    index, count = mesh.get_local_rank(mesh.ndim - 1), mesh.size(mesh.ndim - 1)
    per_rank = -(-len(parameter) // count)
    own = parameter.detach()[index * per_rank : (index + 1) * per_rank]
    own = own.to("cpu" if options.cpu_offload else parameter.device, copy=True)
    shard = DTensor.from_local(own, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride())
    return nn.Parameter(shard, parameter.requires_grad)


class _Lookup:
    """Hooks that give an embedding's own forward a small table with the rows of this batch alone."""

    def __init__(self, module: nn.Embedding, dtype: torch.dtype | None) -> None:
        self.dtype = dtype
        self.kept: tuple[Any, int | None] | None = None
        self.handles = [
            module.register_forward_pre_hook(self._before),
            # before hooks that others have added, and also where the forward raised
            module.register_forward_hook(self._after, prepend=True, always_call=True),
        ]

    def _before(self, module: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        weight = module._parameters["weight"]
        if not is_shard(weight):
            return None
        ids, *others = args
        distinct, places = torch.unique(ids, return_inverse=True)
        self.kept = weight, module.padding_idx
        rows = fetched_rows(weight, distinct, self.dtype or weight.dtype)
        at = [] if module.padding_idx is None else (distinct == module.padding_idx).nonzero().flatten().tolist()
        module._parameters["weight"], module.padding_idx = rows, (at[0] if at else None)
        return (places, *others)

    def _after(self, module: Any, args: Any, output: Any) -> None:
        if self.kept is not None:
            (module._parameters["weight"], module.padding_idx), self.kept = self.kept, None

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
