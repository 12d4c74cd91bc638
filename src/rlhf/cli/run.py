"""`rlhf run` and the commands that run one stage. Heavy imports happen inside the commands."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.options import Overrides, QuietOption, console

if TYPE_CHECKING:
    from rlhf.config.recipe import RecipeConfig

StageSettings = Annotated[
    list[str],
    typer.Argument(help="Settings as key.sub=value; `rlhf config schema` lists them by stage.", metavar="KEY=VALUE..."),
]

ForceOption = Annotated[bool, typer.Option("--force", help="Do everything anew, whatever is there.")]
IgnoreCodeOption = Annotated[
    bool, typer.Option("--ignore-code", help="Keep stages of which nothing but this library's code has changed.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done with each stage, and why; change nothing.")
]


def run(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe; recipes/quickstart.yaml is a start.")],
    overrides: Overrides = None,
    from_stage: Annotated[
        str | None, typer.Option("--from", help="Do this stage and everything that depends on it anew.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Stop after this stage.")] = None,
    force: ForceOption = False,
    ignore_code: IgnoreCodeOption = False,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a recipe: every stage that is not there yet, then the report."""
    from rlhf.config.recipe import load_recipe

    options = {"from_stage": from_stage, "until": until, "force": force, "ignore_code": ignore_code}
    run_recipe(load_recipe(recipe, overrides or []), quiet=quiet, dry_run=dry_run, **options)


class OneStage(StrEnum):
    """Stages that a command can run alone."""

    SFT = "sft"
    REWARD = "reward"
    DPO = "dpo"
    PPO = "ppo"
    GRPO = "grpo"


ABOUT = {
    OneStage.SFT: "Fine-tune a model on demonstrations: rlhf sft model=PATH data=FILE",
    OneStage.REWARD: "Train a reward model on pairs: rlhf reward model=PATH data=FILE",
    OneStage.DPO: "Learn from pairs directly: rlhf dpo model=PATH data=FILE",
    OneStage.PPO: "Learn from rewards with a critic: rlhf ppo model=PATH prompts=FILE reward=PATH",
    OneStage.GRPO: "Learn from rewards in groups: rlhf grpo model=PATH prompts=FILE reward=PKG.MOD:FN",
}


def one_stage(kind: OneStage) -> Callable[..., None]:
    """The command ``rlhf KIND``: a recipe of one stage made from the command line."""

    def command(
        settings: StageSettings,
        output: Annotated[Path, typer.Option("--output", "-o", help="Run folder to write.")] = Path("runs")
        / kind.value,
        force: ForceOption = False,
        ignore_code: IgnoreCodeOption = False,
        dry_run: DryRunOption = False,
        quiet: QuietOption = False,
    ) -> None:
        from rlhf.config.base import apply_overrides
        from rlhf.config.recipe import RecipeConfig, expand_variables

        stage = expand_variables(apply_overrides({"kind": kind.value}, settings), "The command line")
        tree = {"name": output.name, "output_dir": str(output.parent), "stages": {kind.value: stage}}
        recipe = RecipeConfig.of(tree, source="The command line")
        run_recipe(recipe, quiet=quiet, dry_run=dry_run, force=force, ignore_code=ignore_code)

    command.__doc__ = ABOUT[kind]
    return command


def run_recipe(recipe: RecipeConfig, *, quiet: bool, dry_run: bool = False, **options: Any) -> None:
    """Run it, or say what that would do, and say where.

    Args:
        recipe: What to run.
        quiet: Print nothing.
        dry_run: Print the plan and change nothing.
        options: See ``rlhf.pipeline.plan.RunOptions``.
    """
    from rlhf.data.words import counted

    out = None if quiet else console()
    if out is not None:
        folder = Path(recipe.output_dir) / recipe.name
        out.print(f"[bold]{recipe.name}[/]  {counted(len(recipe.stages), 'stage')} into {folder}", soft_wrap=True)
    from rlhf.pipeline.validate import check_quickly

    for warning in check_quickly(recipe, until=options.get("until")):
        if out is not None:
            out.print(f"! {warning.line}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    from rlhf.pipeline.run import Pipeline

    pipeline = Pipeline(recipe, console=out)
    if not dry_run:
        pipeline.run(**options)
        return
    for plan in pipeline.plan(**options):
        if out is not None:
            out.print(f"{plan.key}  {plan.line}", markup=False, highlight=False, soft_wrap=True)
