"""Whether this machine or cluster has what ``launch`` asks for, as far as that is known before anything is started."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rlhf.config.environments import EnvironmentBase
from rlhf.config.launch import RayLaunchConfig, TorchrunLaunchConfig, asked_of_ray, resource_words
from rlhf.config.rank_limits import refused_of_stage, refused_pools
from rlhf.config.threads import usable_cores
from rlhf.errors import ConfigError, MissingExtraError, pip_line
from rlhf.pipeline.doctor import probes
from rlhf.pipeline.validate.review import Review

RECORD = "artifact.json"


def check_launch(review: Review) -> None:
    """Compare what the launcher is asked for with this machine, and with the stages."""
    launch = review.recipe.launch
    if isinstance(launch, TorchrunLaunchConfig) or (isinstance(launch, RayLaunchConfig) and launch.num_ranks > 1):
        _check_ranks(review)
    if isinstance(launch, RayLaunchConfig):
        _check_pools(review, launch)
        _check_environments(review, launch)


def _check_ranks(review: Review) -> None:
    launch = review.recipe.launch
    run_dir = Path(review.recipe.output_dir) / review.recipe.name
    for key in refused_pools(launch):
        review.error(key, "ranks do this by themselves; leave it out (docs/ranks.md lists what ranks can do).")
    for name, stage in review.each_stage():
        if (run_dir / name / RECORD).is_file():
            continue
        for setting in refused_of_stage(stage, launch):
            review.error("", f"Several ranks can't do this yet: {setting} (docs/ranks.md lists what ranks can do).")


def _check_pools(review: Review, launch: RayLaunchConfig) -> None:
    if importlib.util.find_spec("ray") is None:
        review.error(
            "launch.launcher", f"ray needs the package 'ray'. Install it with: {pip_line('scale')}", MissingExtraError
        )
    if launch.gpus_per_node and review.recipe.device == "cpu":
        review.error(
            "launch.gpus_per_node",
            "`device: cpu` uses no GPU; give processes_per_node in its place, or another device.",
        )
    if launch.address is not None:
        review.leave(f"whether the cluster at {launch.address} has room for {'; '.join(asked_of_ray(launch))}")
        return
    asked = {"CPU": 0.0, "GPU": 0.0, "memory": 0.0}
    for pool in (launch.rank_pool, *launch.pools.by_role().values()):
        for name, amount in pool.resources.items():
            asked[name] += pool.replicas * amount
    has = {"CPU": float(usable_cores()), "GPU": asked["GPU"], "memory": float(probes.memory_bytes() or asked["memory"])}
    if not probes.may_have_gpu():
        has["GPU"] = 0.0
    lacking = [name for name in asked if asked[name] > has[name]]
    if lacking:
        wanted = {name: amount for name, amount in asked.items() if amount}
        review.error(
            "launch" if launch.num_ranks else "launch.pools",
            f"They ask for {resource_words(wanted)} ({'; '.join(asked_of_ray(launch))}), and a cluster that is started on this machine has "
            f"{resource_words({name: has[name] for name in lacking})}; lower them, or name a cluster in launch.address.",
            ConfigError,
        )


def _check_environments(review: Review, launch: RayLaunchConfig) -> None:
    """Which environments the pool plays, and whether its actors have the time for it."""
    pool = launch.pools.environments
    if pool is None:
        return
    for _, stage in review.each_stage():
        settings: EnvironmentBase | None = getattr(stage, "environment", None)
        if settings is None:
            continue
        if (player := settings.played_by) is not None:
            review.note(
                f"the environment ({settings.kind_name()}) stays in the process that trains, and the pool `environments` does nothing: "
                f"{player} plays the episodes"
            )
        elif (problem := settings.problem_in_actors(pool.timeout_seconds)) is not None:
            review.error("environment.timeout_seconds", problem)
