"""Seconds of collectives by the bytes that pass the slowest link.

Of a tensor of B bytes over n ranks, each rank receives B (n - 1) / n of it in a gather, sends as much in a reduce-scatter, and both in an
all-reduce. Ranks of several nodes do it in a ring through all of them, in which every accelerator has an adapter of its own:

    gather = max(B (n - 1) / n / within, B (m - 1) / m / (n / m * between))    m nodes, n / m ranks in each

Sources: nccl-tests, doc/PERFORMANCE.md (algorithm and bus bandwidth); Rajbhandari et al. 2020, arXiv:1910.02054, section 7
(communication of ZeRO's stages). What of a link is reached is assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlhf.scale.clusters import Cluster

LINK_SHARE = 0.8
"""Of the published speed; nccl-tests on eight H100 report 360 to 370 of 450 GB/s for an all-reduce of gigabytes."""
START_SECONDS = 2e-5
"""Of one collective, however small: its launch and a trip round the ring inside a node; assumed."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that exchange something."""

    cluster: Cluster
    size: int
    """Ranks in all."""
    per_node: int
    """Of them in each node."""

    @classmethod
    def over(cls, cluster: Cluster, size: int, *, stride: int = 1) -> Group:
        """So many ranks, of which each stands for ``stride`` accelerators next to each other."""
        return cls(cluster, size, max(1, min(size, cluster.gpus_per_node // stride)))

    def gather(self, size: float, *, times: int = 1) -> float:
        """Seconds of a gather of tensors that are so large in all, and of a reduce-scatter.

        Args:
            size: Bytes of the whole tensors.
            times: Tensors that are gathered one after the other.
        """
        if self.size == 1:
            return 0.0
        nodes = math.ceil(self.size / self.per_node)
        inside = size * (self.size - 1) / self.size / self.cluster.within_node if self.per_node > 1 else 0.0
        outside = 0.0
        if nodes > 1:
            assert self.cluster.between_nodes is not None, "one node has no links to others"
            outside = size * (nodes - 1) / nodes / (self.per_node * self.cluster.between_nodes)
        return max(inside, outside) / LINK_SHARE + times * START_SECONDS * nodes

    def all_reduce(self, size: float, *, times: int = 1) -> float:
        """Seconds of a sum of tensors over ranks: a reduce-scatter and a gather."""
        return 2 * self.gather(size, times=times)
