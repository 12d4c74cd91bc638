"""`rlhf run` and the commands that run one stage. Heavy imports happen inside the commands."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.options import DeviceOption, Overrides, QuietOption, console

if TYPE_CHECKING:
    from rlhf.config.recipe import RecipeConfig

ForceOption = Annotated[bool, typer.Option("--force", help="Do everything anew, whatever is there.")]
IgnoreCodeOption = Annotated[
    bool, typer.Option("--ignore-code", help="Keep stages of which nothing but this library's code has changed.")
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
        str | None, typer.Option("--from", help="Do this stage and everything that depends on it anew.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Stop after this stage.")] = None,
    force: ForceOption = False,
    ignore_code: IgnoreCodeOption = False,
    dry_run: DryRunOption = False,
    profile: ProfileOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a recipe: every stage that is not there yet, then the report."""
    from rlhf.config.recipe import load_recipe

    options = {"from_stage": from_stage, "until": until, "force": force, "ignore_code": ignore_code}
    options["profile"] = profile
    run_recipe(load_recipe(recipe, overrides or []), quiet=quiet, dry_run=dry_run, **options)


class OneStage(StrEnum):
    """Stages that a command can run alone."""

    SFT = "sft"
    REWARD = "reward"
    PRM = "prm"
    DPO = "dpo"
    SIMPO = "simpo"
    CPO = "cpo"
    ORPO = "orpo"
    KTO = "kto"
    PPO = "ppo"
    VAPO = "vapo"
    TRPO = "trpo"
    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    DAPO = "dapo"
    GSPO = "gspo"
    CISPO = "cispo"
    SAPO = "sapo"
    RLOO = "rloo"
    REINFORCE_PP = "reinforce_pp"
    REMAX = "remax"
    ONLINE_DPO = "online_dpo"
    DISTILL = "distill"
    BEST_OF_N = "best_of_n"


ABOUT = {
    OneStage.SFT: "Fine-tune a model on demonstrations: rlhf sft model=PATH data=FILE",
    OneStage.REWARD: "Train a reward model on pairs: rlhf reward model=PATH data=FILE",
    OneStage.PRM: "Train a judge of each step: rlhf prm model=PATH data=FILE",
    OneStage.DPO: "Learn from pairs directly: rlhf dpo model=PATH data=FILE",
    OneStage.SIMPO: "Learn from pairs by mean log-probabilities, without a reference: rlhf simpo model=PATH data=FILE",
    OneStage.CPO: "Learn from pairs and from the better completions at once: rlhf cpo model=PATH data=FILE",
    OneStage.ORPO: "Fine-tune and learn from pairs in one stage: rlhf orpo model=PATH data=FILE",
    OneStage.KTO: "Learn from single completions, good or bad: rlhf kto model=PATH data=FILE",
    OneStage.PPO: "Learn from rewards with a critic: rlhf ppo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.VAPO: "PPO for long reasoning, the critic trained first: rlhf vapo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.TRPO: "One natural-gradient step a rollout, within an exact KL: rlhf trpo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.GRPO: "Learn from rewards in groups: rlhf grpo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.DR_GRPO: "GRPO without its biases by length and difficulty: rlhf dr_grpo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.DAPO: "GRPO that clips higher and skips what teaches nothing: rlhf dapo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.GSPO: "GRPO with one ratio for a whole completion: rlhf gspo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.CISPO: "GRPO that clips a token's weight and silences none: rlhf cispo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.SAPO: "GRPO with a soft gate in place of the clip: rlhf sapo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.RLOO: "REINFORCE against the mean of a completion's siblings: rlhf rloo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.REINFORCE_PP: "REINFORCE, advantages whitened over the rollout: rlhf reinforce_pp model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.REMAX: "REINFORCE against the greedy completion: rlhf remax model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.ONLINE_DPO: "DPO on the policy's own completions, judged: rlhf online_dpo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    OneStage.DISTILL: "Learn a teacher's distributions on texts of one's own: rlhf distill model=PATH teacher=PATH prompts=FILE",
    OneStage.BEST_OF_N: "Keep what a reward likes best of a policy's samples: rlhf best_of_n model=PATH prompts=FILE reward=FILE.py:FUNCTION",
}


def one_stage(kind: OneStage) -> Callable[..., None]:
    """The command ``rlhf KIND``: a recipe of one stage made from the command line."""

    def command(
        settings: list[str],
        output: Annotated[Path, typer.Option("--output", "-o", help="Run folder to write.")] = Path("runs")
        / kind.value,
        device: DeviceOption = "auto",
        force: ForceOption = False,
        ignore_code: IgnoreCodeOption = False,
        dry_run: DryRunOption = False,
        profile: ProfileOption = False,
        quiet: QuietOption = False,
    ) -> None:
        from rlhf.config.base import apply_overrides
        from rlhf.config.recipe import RecipeConfig, expand_variables
        from rlhf.pipeline.validate.settings import usual_learning_rate

        stage = expand_variables(apply_overrides({"kind": kind.value}, settings), "The command line")
        tree = {
            "name": output.name, "output_dir": str(output.parent), "device": device, "stages": {kind.value: stage},
        }  # fmt: skip
        recipe = RecipeConfig.of(tree, source="The command line")
        if "learning_rate" not in stage and (chosen_rate := usual_learning_rate(recipe, kind.value)) is not None:
            stage["learning_rate"], why = chosen_rate
            recipe = RecipeConfig.of(tree, source="The command line")
            if not quiet:
                line = f"learning_rate {chosen_rate[0]:g}: {why}"
                console().print(line, markup=False, highlight=False, soft_wrap=True)
        chosen = {"force": force, "ignore_code": ignore_code, "profile": profile}
        run_recipe(recipe, quiet=quiet, dry_run=dry_run, **chosen)

    command.__doc__ = ABOUT[kind]
    about = f"Settings as key.sub=value; `rlhf config schema {kind.value}` lists them."
    command.__annotations__["settings"] = Annotated[list[str], typer.Argument(help=about, metavar="KEY=VALUE...")]
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
        if options.get("profile") and not pipeline.has_trained and out is not None:
            out.print(
                "Nothing was trained, so nothing was measured; --force or --from STAGE does it anew.", soft_wrap=True
            )
        return
    for plan in pipeline.plan(**options):
        if out is not None:
            out.print(f"{plan.key}  {plan.line}", markup=False, highlight=False, soft_wrap=True)
