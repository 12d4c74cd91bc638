"""`rlhf plan`: what a recipe's training stages will need, before they are run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf.cli.options import JsonOption, LaunchOption, Overrides
from rlhf.errors import ConfigError
from rlhf.formatting import bytes_text, seconds_text

if TYPE_CHECKING:
    from rlhf.config.recipe import RecipeConfig
    from rlhf.scale.plan import RecipePlan, StagePlan


def plan(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe.")],
    overrides: Overrides = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Plan for this GPU, such as H100, by its published figures.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="Plan for a cluster: a YAML file (docs/planning-clusters.md), or NODESxGPUSxNAME such as 2x8xH100.",
        ),
    ] = None,
    rollouts: Annotated[
        Path | None,
        typer.Option("--rollouts", help="With --cluster: completions are as long as those of this rollouts.jsonl."),
    ] = None,
    stage: Annotated[str | None, typer.Option("--stage", help="Plan only this stage.")] = None,
    launch: LaunchOption = None,
    as_json: JsonOption = False,
) -> None:
    """`rlhf plan`, whose help is in ``COMMANDS``."""
    from rlhf.config.assets import check_assets
    from rlhf.config.recipe import load_recipe

    if gpu is not None and cluster is not None:
        raise ConfigError("--gpu plans for one GPU, and --cluster for many; give one of them")
    if rollouts is not None and cluster is None:
        raise ConfigError("--rollouts gives lengths to the simulation of --cluster; give both, or leave it out")
    loaded = load_recipe(recipe, overrides or [], launch=launch)
    check_assets(loaded, only=stage)  # before seconds go into torch and into measuring the machine
    if cluster is not None:
        print(_on_cluster(loaded, cluster, stage, rollouts, as_json=as_json))
        return
    from rlhf.scale.plan import plan_recipe

    planned = plan_recipe(loaded, gpu_name=gpu, only=stage)
    if as_json:
        print(json.dumps(planned.as_dict(), indent=1, ensure_ascii=False))
    else:
        print("\n".join([*_launch_lines(loaded), *_lines(planned)]))


def _launch_lines(recipe: RecipeConfig) -> list[str]:
    """How the processes are started, where that is not this one alone."""
    from rlhf.config.launch import RayLaunchConfig, TorchrunLaunchConfig, asked_of_ray
    from rlhf.data.message_text import counted

    launch = recipe.launch
    if isinstance(launch, TorchrunLaunchConfig):
        return [f"launch: torchrun, {launch.processes} ranks on this machine; the figures below are of one process"]
    if isinstance(launch, RayLaunchConfig):
        where = f"the cluster at {launch.address}" if launch.address else "a cluster started here"
        nodes = f"{launch.num_ranks} ranks, {launch.ranks_per_node} on each of {counted(launch.nodes, 'node')}"
        asked = [*([nodes] if launch.num_ranks else []), *asked_of_ray(launch)]
        return [f"launch: ray, {where}; {'; '.join(asked)}; the figures below are of one process"]
    return []


def _on_cluster(recipe: RecipeConfig, text: str, stage: str | None, rollouts: Path | None, *, as_json: bool) -> str:
    from rlhf.cli.cluster_plan_text import cluster_plan_lines
    from rlhf.scale.cluster_plan import plan_on_cluster
    from rlhf.scale.clusters import read_cluster
    from rlhf.scale.sampled_lengths import read_sampled_lengths

    cluster = read_cluster(text)
    sampled = None if rollouts is None else read_sampled_lengths(rollouts)
    planned = plan_on_cluster(recipe, cluster, only=stage, sampled=sampled)
    if as_json:
        return json.dumps(planned.as_dict(), indent=1, ensure_ascii=False)
    return "\n".join(cluster_plan_lines(planned))


def _lines(recipe_plan: RecipePlan) -> list[str]:
    machine = recipe_plan.machine
    flops = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s {dtype}" for dtype, rate in machine.matmul_flops.items())
    lines = [
        f"{machine.name}: {bytes_text(machine.memory_bytes)}, {flops}, {machine.copy_bytes_per_second / 1e9:,.0f} GB/s copied "
        f"({machine.source})"
    ]
    for stage in recipe_plan.stages:
        lines += ["", *_stage_lines(stage)]
    if not machine.is_gpu:
        clock = "processor seconds; divide by the threads for wall seconds on a machine that is otherwise idle"
    else:
        clock = "seconds by published figures, with shares of them that are assumed; nothing was measured"
    return [*lines, "", f"Seconds are {clock}."]


def _stage_lines(stage: StagePlan) -> list[str]:
    trained = "" if stage.num_trainable == stage.num_parameters else f", {stage.num_trainable:,} of them trained"
    lines = [f"{stage.name} ({stage.kind}): {stage.num_parameters:,} weights{trained}"]
    lines.append(f"  lengths      {stage.lengths}; {stage.batch_tokens:,.0f} tokens a step")
    parts = sorted(stage.memory.items(), key=lambda item: -item[1])
    lines.append(
        f"  memory       {bytes_text(stage.memory_bytes)}: "
        + ", ".join(f"{name} {bytes_text(size)}" for name, size in parts)
    )
    spent = sorted(stage.seconds.items(), key=lambda item: -item[1])
    lines.append(
        f"  one step     {seconds_text(stage.seconds_per_step)}: "
        + ", ".join(f"{name} {seconds_text(s)}" for name, s in spent)
    )
    if stage.steps is not None:
        once = sum(stage.seconds_once.values())
        before = f" and {seconds_text(once)} before the first ({', '.join(stage.seconds_once)})" if once else ""
        whole = stage.steps * stage.seconds_per_step + once
        lines.append(f"  whole run    {seconds_text(whole)}: {stage.steps:,} steps{before}; evaluations come on top")
    settings = f"; {' '.join(stage.strategy.settings)}" if stage.strategy.settings else ""
    lines.append(f"  recommended  {stage.strategy.name}: {stage.strategy.why}{settings}")
    lines.append(f"  estimated    by {stage.estimated_by}")
    for judge in stage.judges:
        lines += [f"  judge        {sentence}" for sentence in (judge.sentence(), judge.limit_sentence()) if sentence]
    return lines + [f"  assumed      {sentence}" for sentence in stage.assumed]
