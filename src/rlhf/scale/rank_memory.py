"""Bytes that each rank holds of a model, by how weights, gradients and optimizer state are divided over ranks.

    sharding        divided over the ranks that share a model            source
    replicated      nothing                                              data parallelism
    zero-1          optimizer state                                      Rajbhandari et al. 2020, arXiv:1910.02054, section 5.1
    zero-2          optimizer state, gradients                           section 5.2
    zero-3          optimizer state, gradients, weights                  section 5.3
    full_shard      the same, by torch's FSDP2                           Zhao et al. 2023, arXiv:2304.11277
    hybrid_shard    the same inside a node; nodes hold copies            section 3.2.2 of it

Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053) divides everything by its size before that. Offloading (Ren et al. 2021,
arXiv:2101.06840) keeps optimizer state and master weights in the memory of the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sharding = Literal["replicated", "zero-1", "zero-2", "zero-3", "full_shard", "hybrid_shard"]
SHARDINGS: tuple[Sharding, ...] = ("replicated", "zero-1", "zero-2", "zero-3", "full_shard", "hybrid_shard")
SHARDED_WEIGHTS: tuple[Sharding, ...] = ("zero-3", "full_shard", "hybrid_shard")
SHARDED_GRADIENTS: tuple[Sharding, ...] = ("zero-2", *SHARDED_WEIGHTS)
SHARDED_OPTIMIZER: tuple[Sharding, ...] = ("zero-1", *SHARDED_GRADIENTS)
GATHERED_LAYERS = 2
"""Layers whose weights are whole at a time where weights are sharded: the one at work and the next one, which is fetched beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBytes:
    """Bytes of one whole model."""

    weights: float
    gradients: float = 0.0
    master: float = 0.0
    """float32 copies of weights that compute in half precision."""
    optimizer: float = 0.0
    """AdamW's two averages."""
    num_layers: int = 1
    num_outside: float = 0.0
    """Share of the weights that belongs to no layer: embeddings and output projection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBytes:
    """Bytes of a model on one rank."""

    weights: float
    gathered: float
    """Of weights that are whole for a moment while the rest is sharded."""
    gradients: float
    master: float
    optimizer: float
    host: float = 0.0
    """In the memory of the host, for this rank."""

    @property
    def on_device(self) -> float:
        """In the accelerator's memory for good. ``gathered`` comes on top, of one model at a time."""
        return self.weights + self.gradients + self.master + self.optimizer


def rank_bytes(
    model: ModelBytes,
    *,
    sharding: Sharding,
    shard_size: int,
    tensor_size: int = 1,
    offload: bool = False,
    vocab_parallel: bool = False,
) -> RankBytes:
    """What one rank holds of a model.

    Args:
        model: Its whole bytes.
        sharding: What is divided.
        shard_size: Ranks that it is divided over.
        tensor_size: Ranks that compute each layer together.
        offload: Whether optimizer state and master weights are in the host's memory.
        vocab_parallel: Whether embeddings and output projection compute in parts, and are not gathered.
    """
    of_weights = shard_size if sharding in SHARDED_WEIGHTS else 1
    of_gradients = shard_size if sharding in SHARDED_GRADIENTS else 1
    of_optimizer = shard_size if sharding in SHARDED_OPTIMIZER else 1
    gathered = 0.0
    if of_weights > 1:
        in_layers = model.weights * (1 - model.num_outside) * min(1.0, GATHERED_LAYERS / model.num_layers)
        outside = 0.0 if vocab_parallel else model.weights * model.num_outside
        whole = (outside + in_layers) / tensor_size
        gathered = whole * (1 - 1 / of_weights)
    master, optimizer = (part / tensor_size / of_optimizer for part in (model.master, model.optimizer))
    return RankBytes(
        weights=model.weights / tensor_size / of_weights,
        gathered=gathered,
        gradients=model.gradients / tensor_size / of_gradients,
        master=0.0 if offload else master,
        optimizer=0.0 if offload else optimizer,
        host=master + optimizer if offload else 0.0,
    )
