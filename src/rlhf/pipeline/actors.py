"""The actors that work for a run, where its recipe's ``launch`` asks for some."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from rlhf.config.engines import engines_of
from rlhf.config.launch import RayLaunchConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.distributed.current_cluster import working_for_this_process
from rlhf.distributed.ray_cluster import RayCluster


@contextmanager
def actors_of(recipe: RecipeConfig, undone: Collection[str]) -> Iterator[None]:
    """Inside, pools of the recipe's launch work for this process; afterwards no actor is left.

    Args:
        recipe: What is run.
        undone: Names of the stages that are to be made. Where one of them samples, places are reserved at once, else at the first use.

    Raises:
        MissingExtraError: There is no Ray.
        ConfigError: There is no such cluster, or it has no room.
    """
    launch = recipe.launch
    if not isinstance(launch, RayLaunchConfig):
        yield
        return
    cluster = RayCluster(launch)
    try:
        if cluster.pools and any(engines_of(recipe.stages[name]) for name in undone):
            cluster.open()
        with working_for_this_process(cluster):
            yield
    finally:
        cluster.close()
