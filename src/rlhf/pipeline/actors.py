"""The actors that work for a run, where its recipe's ``launch`` asks for some."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from rlhf.config.engines import engines_of
from rlhf.config.launch import RayLaunchConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.distributed.current_cluster import working_for_this_process
from rlhf.distributed.ray_cluster import RayCluster
from rlhf.errors import InterruptedRun, TrainingError


@contextmanager
def actors_of(recipe: RecipeConfig, undone: Collection[str]) -> Iterator[None]:
    """Inside, pools of the recipe's launch work for this process; afterwards no actor is left.

    Args:
        recipe: What is run.
        undone: Names of the stages that are to be made. Where one of them samples, places are reserved at once, else at the first use.

    Raises:
        MissingExtraError: There is no Ray.
        ConfigError: There is no such cluster, or it has no room.
        TrainingError: Its head was lost; what was done by then is saved.
    """
    launch = recipe.launch
    if not isinstance(launch, RayLaunchConfig):
        yield
        return
    lost: list[str] = []

    def stop(why: str) -> None:
        lost.append(why)
        os.kill(os.getpid(), signal.SIGTERM)  # saves, as for anyone who asks

    cluster = RayCluster(
        launch, head_lost=None if launch.num_ranks else stop
    )  # the process that started the ranks ends them
    try:
        if cluster.pools and any(engines_of(recipe.stages[name]) for name in undone):
            cluster.open()
        with working_for_this_process(cluster):
            yield
    except InterruptedRun as err:
        if lost:
            raise TrainingError(f"{lost[0]}, so the run was stopped. {err}") from err
        raise
    finally:
        cluster.close()
