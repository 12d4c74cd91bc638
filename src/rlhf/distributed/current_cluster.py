"""The cluster whose actors work for this process, where a recipe's ``launch`` asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlhf.config.launch import PoolConfig
    from rlhf.distributed.ray_cluster import RayCluster

_current: RayCluster | None = None


@contextmanager
def working_for_this_process(cluster: RayCluster) -> Iterator[None]:
    """Inside, ``pool_of`` finds the cluster's pools."""
    global _current
    before, _current = _current, cluster
    try:
        yield
    finally:
        _current = before


def pool_of(role: str) -> tuple[RayCluster, PoolConfig] | None:
    """The cluster and the settings of the pool of a role; None where this process does the work."""
    if _current is None:
        return None
    settings = _current.pools.get(role)
    return None if settings is None else (_current, settings)
