"""`rlhf run` and the commands that run one stage. Heavy imports happen inside the commands."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf.cli.options import Overrides, QuietOption, console

if TYPE_CHECKING:
    from rlhf.config.recipe import RecipeConfig

StageSettings = Annotated[
    list[str],
    typer.Argument(help="Settings as key.sub=value; `rlhf config schema` lists them by stage.", metavar="KEY=VALUE..."),
]


def run(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe; recipes/quickstart.yaml is a start.")],
    overrides: Overrides = None,
    quiet: QuietOption = False,
) -> None:
    """Run a recipe: every stage that is not there yet, then the report."""
    from rlhf.config.recipe import load_recipe

    run_recipe(load_recipe(recipe, overrides or []), quiet=quiet)


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
        quiet: QuietOption = False,
    ) -> None:
        from rlhf.config.base import apply_overrides
        from rlhf.config.recipe import RecipeConfig, expand_variables

        stage = expand_variables(apply_overrides({"kind": kind.value}, settings), "The command line")
        tree = {"name": output.name, "output_dir": str(output.parent), "stages": {kind.value: stage}}
        run_recipe(RecipeConfig.of(tree, source="The command line"), quiet=quiet)

    command.__doc__ = ABOUT[kind]
    return command


def run_recipe(recipe: RecipeConfig, *, quiet: bool) -> None:
    """Run it, and say where."""
    out = None if quiet else console()
    if out is not None:
        out.print(f"[bold]{recipe.name}[/]  {len(recipe.stages)} stages into {Path(recipe.output_dir) / recipe.name}")
    from rlhf.pipeline.run import Pipeline

    Pipeline(recipe, console=out).run()
