"""`rlhf run` and the commands that run one stage. Heavy imports happen inside the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.error_exit import DEBUG
from rlhf.cli.options import DeviceOption, LaunchOption, Overrides, QuietOption, console

if TYPE_CHECKING:
    from rlhf.config.recipe import RecipeConfig

ForceOption = Annotated[bool, typer.Option("--force", help="Rerun everything, even what is finished.")]
IgnoreCodeOption = Annotated[
    bool, typer.Option("--ignore-code", help="Keep stages of which only this library's code has changed.")
]
ProfileOption = Annotated[
    bool, typer.Option("--profile", help="Measure where training spends its time: a table, and a trace of a few steps.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done with each stage, and why; change nothing.")
]


def run(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe; recipes/quickstart.yaml is a start.")],
    overrides: Overrides = None,
    from_stage: Annotated[
        str | None, typer.Option("--from", help="Rerun this stage and everything that depends on it.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Stop after this stage.")] = None,
    force: ForceOption = False,
    ignore_code: IgnoreCodeOption = False,
    dry_run: DryRunOption = False,
    profile: ProfileOption = False,
    launch: LaunchOption = None,
    quiet: QuietOption = False,
) -> None:
    """`rlhf run`, whose help is in ``COMMANDS``."""
    from rlhf.config.recipe import load_recipe
    from rlhf.distributed.launch_environment import is_launched
    from rlhf.distributed.ranks import launched_ranks

    options = {"from_stage": from_stage, "until": until, "force": force, "ignore_code": ignore_code}
    options["profile"] = profile
    with launched_ranks() as ranks:
        chosen = load_recipe(recipe, overrides or [], launch=launch)
        if not dry_run and not is_launched(os.environ):
            files = [recipe] if launch is None else [recipe, launch]
            if (code := _run_as_ranks(chosen, files)) is not None:
                raise typer.Exit(code)
        run_recipe(chosen, quiet=quiet or not ranks.is_main, dry_run=dry_run, **options)


def _run_as_ranks(recipe: RecipeConfig, files: list[Path]) -> int | None:
    """The exit code of the ranks that the recipe's launch starts; None where this process runs the recipe."""
    from rlhf.config.launch import RayLaunchConfig, TorchrunLaunchConfig

    launch, arguments = recipe.launch, sys.argv[1:]
    if isinstance(launch, TorchrunLaunchConfig):
        from rlhf.distributed.torchrun import run_as_ranks

        return run_as_ranks(launch.processes, arguments)
    if isinstance(launch, RayLaunchConfig) and launch.num_ranks:
        from rlhf.distributed.ray_ranks import run_over_nodes
        from rlhf.training.interrupt import signals_as_requests

        with signals_as_requests() as asked:
            return run_over_nodes(
                launch,
                [*arguments, "--debug"] if os.environ.get(DEBUG) else arguments,
                folder=Path(recipe.output_dir),
                files=files,
                is_stopped=lambda: asked.name is not None,
            )
    return None


def one_stage(kind: str) -> Callable[..., None]:
    """The command ``rlhf KIND``: a recipe of one stage made from the command line."""

    def command(
        settings: list[str],
        output: Annotated[Path, typer.Option("--output", "-o", help="Run folder to write.")] = Path("runs") / kind,
        device: DeviceOption = "auto",
        force: ForceOption = False,
        ignore_code: IgnoreCodeOption = False,
        dry_run: DryRunOption = False,
        profile: ProfileOption = False,
        quiet: QuietOption = False,
    ) -> None:
        from rlhf.distributed.ranks import launched_ranks

        chosen = {"force": force, "ignore_code": ignore_code, "profile": profile}
        with launched_ranks() as ranks:
            silent = quiet or not ranks.is_main
            recipe = _recipe_of_one_stage(kind, settings, output, device, quiet=silent)
            run_recipe(recipe, quiet=silent, dry_run=dry_run, **chosen)

    listed = f"Settings as key.sub=value; `rlhf config schema {kind}` lists them."
    command.__annotations__["settings"] = Annotated[list[str], typer.Argument(help=listed, metavar="KEY=VALUE...")]
    return command


def _recipe_of_one_stage(kind: str, settings: list[str], output: Path, device: str, *, quiet: bool) -> RecipeConfig:
    """The recipe of a command line; the learning rate that it leaves out is chosen and printed."""
    from rlhf.config.base import apply_overrides
    from rlhf.config.recipe import RecipeConfig, expand_variables
    from rlhf.config.stages import BY_KIND
    from rlhf.pipeline.validate.settings import usual_learning_rate

    if "model" in BY_KIND[kind].model_fields:  # the one model that a stage alone trains
        settings = [f"model.{item}" if item.startswith(("lora=", "lora.")) else item for item in settings]
    stage = expand_variables(apply_overrides({"kind": kind}, settings), "The command line")
    tree = {
        "name": output.name, "output_dir": str(output.parent), "device": device, "stages": {kind: stage},
    }  # fmt: skip
    recipe = RecipeConfig.of(tree, source="The command line")
    if "learning_rate" not in stage and (chosen_rate := usual_learning_rate(recipe, kind)) is not None:
        stage["learning_rate"], why = chosen_rate
        recipe = RecipeConfig.of(tree, source="The command line")
        if not quiet:
            line = f"learning_rate {chosen_rate[0]:g}: {why}"
            console().print(line, markup=False, highlight=False, soft_wrap=True)
    return recipe


def run_recipe(recipe: RecipeConfig, *, quiet: bool, dry_run: bool = False, **options: Any) -> None:
    """Run it, or say what that would do, and say where.

    Args:
        recipe: What to run.
        quiet: Print nothing.
        dry_run: Print the plan and change nothing.
        options: See ``rlhf.pipeline.plan.RunOptions``.
    """
    from rlhf.data.message_text import counted

    out = None if quiet else console()
    folder = Path(recipe.output_dir) / recipe.name
    if out is not None:
        out.print(f"[bold]{recipe.name}[/]  {counted(len(recipe.stages), 'stage')} into {folder}", soft_wrap=True)
    from rlhf.pipeline.validate import check_quickly

    for warning in check_quickly(recipe, until=options.get("until")):
        if out is not None:
            out.print(f"! {warning.line}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if not dry_run and not folder.exists():
        from rlhf.pipeline.validate.hub_models import check_hub_models

        check_hub_models(recipe, until=options.get("until"))
    from rlhf.pipeline.run import Pipeline

    pipeline = Pipeline(recipe, console=out)
    if not dry_run:
        pipeline.run(**options)
        if options.get("profile") and not pipeline.has_trained and out is not None:
            out.print(
                "Nothing was trained, so nothing was measured; --force or --from STAGE reruns it.", soft_wrap=True
            )
        return
    for plan in pipeline.plan(**options):
        if out is not None:
            out.print(f"{plan.key}  {plan.line}", markup=False, highlight=False, soft_wrap=True)
