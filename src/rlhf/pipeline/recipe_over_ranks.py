"""A recipe over ranks: rank 0 runs it, and the others take part in the stages that train."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rlhf.config.deepspeed import deepspeed_settings
from rlhf.config.launch import TorchrunLaunchConfig
from rlhf.config.rank_limits import refused_in_one_process, refused_of_stage, refused_pools
from rlhf.config.recipe import RecipeConfig
from rlhf.data.tokenization import lost_fields_allowed
from rlhf.distributed.ranks import Ranks
from rlhf.errors import ConfigError
from rlhf.models.device import device_problem_of_ranks
from rlhf.pipeline.artifacts import Artifact
from rlhf.pipeline.stages import StageContext, runner
from rlhf.training.log import TrainingLogger


def check_recipe(recipe: RecipeConfig, run_dir: Path, ranks: Ranks, *, until: str | None) -> None:
    """Refuse, before anything is written, stages that several ranks can't do yet; finished ones count for nothing.

    Raises:
        ConfigError: Naming each stage and setting, or what of a DeepSpeed file contradicts a stage.
    """
    if ranks.size == 1:
        return
    of_device = device_problem_of_ranks(recipe.device, ranks)
    problems = [] if of_device is None else [of_device]
    problems += [f"{key}: ranks do this by themselves" for key in refused_pools(recipe.launch)]
    names = list(recipe.stages)
    wanted = names[: names.index(until) + 1] if until in names else names
    _refuse(recipe, [name for name in wanted if Artifact.read(run_dir / name) is None], ranks, problems)


def check_stages(recipe: RecipeConfig, undone: Collection[str], ranks: Ranks) -> None:
    """The same of stages that are to be made, finished ones that are made again included; and what one process can't do.

    Raises:
        ConfigError: As ``check_recipe``.
    """
    if ranks.size > 1:
        _refuse(recipe, undone, ranks, [])
        return
    for name in undone:
        if (refused := refused_in_one_process(recipe.stages[name])) is not None:
            raise ConfigError(f"stages.{name}.{refused}.")


def not_started(recipe: RecipeConfig, ranks: Ranks) -> str | None:
    """A sentence where the recipe asks for ranks and this process is alone; None where there is nothing to say."""
    launch = recipe.launch
    asked = launch.processes if isinstance(launch, TorchrunLaunchConfig) else getattr(launch, "num_ranks", 0)
    if ranks.size > 1 or asked <= 1:
        return None
    return f"`launch` asks for {asked} ranks, and this process is alone: `rlhf run` starts them where no other launcher started it."


def _refuse(recipe: RecipeConfig, names: Collection[str], ranks: Ranks, problems: list[str]) -> None:
    for name in names:
        stage = recipe.stages[name]
        problems += [f"stages.{name}: {refused}" for refused in refused_of_stage(stage, recipe.launch)]
        if getattr(stage, "deepspeed", None) is not None:
            deepspeed_settings(stage.deepspeed, stage)
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise ConfigError(
            f"{ranks.size} ranks can't do this yet:{lines}\nRun these stages in one process (the others with --until STAGE), or "
            "change that; docs/ranks.md lists what ranks can do."
        )


def follow(recipe: RecipeConfig, run_dir: Path, ranks: Ranks) -> None:
    """What the other ranks do: the stages that rank 0 names, writing and printing nothing."""
    for work in ranks.orders():
        name = work["stage"]
        stage = recipe.stages[name]
        with lost_fields_allowed(getattr(stage, "allow_lost_fields", ())):
            runner(stage.kind)(stage, StageContext(name, run_dir, TrainingLogger(stage=name)))
