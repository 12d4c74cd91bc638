"""The command line: parses, calls the rooms, prints. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rlhf import __version__
from rlhf.errors import RLHFError

app = typer.Typer(
    name="rlhf",
    help="Learn from human preferences: SFT, reward models, PPO, GRPO, DPO, evaluation, in one recipe.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
config_app = typer.Typer(help="Look at settings before you run.", no_args_is_help=True)
data_app = typer.Typer(help="Look at data before you train.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings to change, as key.sub=value.", show_default=False, metavar="[KEY=VALUE]..."),
]
StageSettings = Annotated[
    list[str],
    typer.Argument(help="Settings as key.sub=value; `rlhf config schema` lists them by stage.", metavar="KEY=VALUE..."),
]
File = Annotated[str, typer.Argument(help="A data file, a folder saved by `datasets`, or a hub name.")]


def console() -> Console:
    """For people; data goes to standard output by ``print``."""
    return Console(stderr=False)


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of no command in particular."""


@app.command(rich_help_panel="The loop")
def run(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe; recipes/quickstart.yaml is a start.")],
    overrides: Overrides = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Run a recipe: every stage that is not there yet, then the report."""
    from rlhf.config.recipe import load_recipe

    _run(load_recipe(recipe, overrides or []), quiet=quiet)


class OneStage(StrEnum):
    """Stages that a command can run alone."""

    SFT = "sft"
    REWARD = "reward"
    DPO = "dpo"
    PPO = "ppo"
    GRPO = "grpo"


def _one_stage(kind: OneStage, about: str) -> None:
    """Add ``rlhf KIND``: a recipe of one stage made from the command line."""

    def command(
        settings: StageSettings,
        output: Annotated[Path, typer.Option("--output", "-o", help="Run folder to write.")] = Path("runs")
        / kind.value,
        quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    ) -> None:
        from rlhf.config.base import apply_overrides
        from rlhf.config.recipe import RecipeConfig, expand_variables

        stage = expand_variables(apply_overrides({"kind": kind.value}, settings), "The command line")
        tree = {"name": output.name, "output_dir": str(output.parent), "stages": {kind.value: stage}}
        _run(RecipeConfig.of(tree, source="The command line"), quiet=quiet)

    command.__doc__ = about
    app.command(kind.value, rich_help_panel="One stage")(command)


_one_stage(OneStage.SFT, "Fine-tune a model on demonstrations: rlhf sft model=PATH data=FILE")
_one_stage(OneStage.REWARD, "Train a reward model on pairs: rlhf reward model=PATH data=FILE")
_one_stage(OneStage.DPO, "Learn from pairs directly: rlhf dpo model=PATH data=FILE")
_one_stage(OneStage.PPO, "Learn from rewards with a critic: rlhf ppo model=PATH prompts=FILE reward=PATH")
_one_stage(OneStage.GRPO, "Learn from rewards in groups: rlhf grpo model=PATH prompts=FILE reward=PKG.MOD:FN")


@app.command(rich_help_panel="Look")
def report(run_dir: Annotated[Path, typer.Argument(help="A run folder, such as runs/quickstart.")]) -> None:
    """Write report.html of a run again."""
    from rlhf.pipeline.report import write_report

    console().print(write_report(run_dir))


@app.command(rich_help_panel="Look")
def generate(
    model: Annotated[str, typer.Argument(help="Model folder or hub name; `embedded` for the built-in one.")],
    prompts: Annotated[
        str | None, typer.Argument(help="A data file with prompts; without it, one prompt a line from standard input.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Completions for each prompt.", min=1)] = 1,
    max_new_tokens: Annotated[int, typer.Option(help="Longest completion in tokens.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same samples.")] = 0,
    limit: Annotated[int | None, typer.Option(help="Use only this many prompts.", min=1)] = None,
) -> None:
    """Sample completions; one JSON object a line on standard output."""
    from rlhf.config.training import SamplingConfig
    from rlhf.data.datasets import GRPODataset
    from rlhf.models.policy import PolicyModel
    from rlhf.rollout.local import LocalEngine

    policy = PolicyModel.from_pretrained(model)
    source: Any = prompts if prompts is not None else [line.rstrip("\n") for line in sys.stdin if line.strip()]
    rows = list(GRPODataset(source, policy.tokenizer, limit=limit))
    sampling = SamplingConfig(max_new_tokens=max_new_tokens, temperature=temperature)
    groups = LocalEngine(policy).generate(rows, num_samples=samples, sampling=sampling, seed=seed, step=0)
    for prompt, group in zip(rows, groups, strict=True):
        for completion in group:
            row = {
                "id": prompt.id,
                "prompt": prompt.text,
                "completion": completion.text,
                "finish_reason": completion.finish_reason,
                "logprob": round(sum(completion.logprobs), 4),
            }
            print(json.dumps(row, ensure_ascii=False))


@config_app.command("show")
def config_show(
    recipe: Annotated[str, typer.Argument(help="A YAML recipe, or the name of a preset.")], overrides: Overrides = None
) -> None:
    """Print a recipe with every default written out."""
    import yaml

    from rlhf.config.presets import PRESETS, preset
    from rlhf.config.recipe import load_recipe

    found = preset(recipe, overrides or []) if recipe in PRESETS else load_recipe(recipe, overrides or [])
    print(yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120), end="")


@config_app.command("schema")
def config_schema(
    kind: Annotated[str | None, typer.Argument(help="A stage kind, such as ppo; the whole recipe by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON schema instead of a table.")] = False,
) -> None:
    """List settings with type, default and meaning."""
    from rlhf.config.schema import describe_settings, settings_class

    owner = settings_class(kind)
    print(json.dumps(owner.model_json_schema(), indent=2) if as_json else describe_settings(owner))


@config_app.command("presets")
def config_presets() -> None:
    """List presets by model size."""
    from rlhf.config.presets import PRESETS

    for name, size in PRESETS.items():
        print(f"{name:<12}{size.about}")


TokenizerOption = Annotated[
    str | None, typer.Option(help="Tokenizer folder or hub name, to measure lengths in tokens.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


@data_app.command("check")
def data_check(file: File, as_json: JsonOption = False) -> None:
    """What is this file, how many rows can be used, and which can't? Exits with 3 where a row is bad."""
    from rlhf.data.inspect import run_check

    found = run_check(file)
    _show(found, as_json)
    if found.bad_rows:
        raise typer.Exit(3)


@data_app.command("stats")
def data_stats(file: File, tokenizer: TokenizerOption = None, as_json: JsonOption = False) -> None:
    """Lengths, duplicates, balance."""
    from rlhf.data.inspect import run_stats

    loaded = None
    if tokenizer is not None:
        from rlhf.models.load import load_tokenizer

        loaded = load_tokenizer(tokenizer)
    _show(run_stats(file, tokenizer=loaded), as_json)


@data_app.command("convert")
def data_convert(
    file: File,
    output: Annotated[Path, typer.Argument(help="File to write; its ending names the format.")],
    to: Annotated[
        str | None, typer.Option(help="Another kind of row: explicit, unpaired, standard or conversational.")
    ] = None,
) -> None:
    """Write rows in another format or as another kind."""
    from rlhf.data.inspect import run_convert

    _show(run_convert(file, output, to=to), as_json=False)


@data_app.command("dedup")
def data_dedup(
    file: File,
    output: Annotated[Path, typer.Argument(help="File to write.")],
    near: Annotated[
        float | None, typer.Option(help="Also drop rows at least this similar (Jaccard of word 3-grams).", min=0, max=1)
    ] = None,
) -> None:
    """Write a file without duplicates."""
    from rlhf.data.inspect import run_dedup

    _show(run_dedup(file, output, near=near), as_json=False)


def _show(found: Any, as_json: bool) -> None:
    print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False) if as_json else found.to_text())


def _run(recipe: Any, *, quiet: bool) -> None:
    out = None if quiet else console()
    if out is not None:
        out.print(f"[bold]{recipe.name}[/]  {len(recipe.stages)} stages into {Path(recipe.output_dir) / recipe.name}")
    from rlhf.pipeline.run import Pipeline

    Pipeline(recipe, console=out).run()


def main() -> None:
    """Entry point: one clear line for a user's mistake, the whole trace for ours (or with RLHF_DEBUG=1)."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except RLHFError as err:
        if os.environ.get("RLHF_DEBUG"):
            raise
        errors = Console(stderr=True)
        errors.print("[bold red]error:[/] ", end="")
        errors.print(str(err), markup=False, highlight=False, soft_wrap=True)
        for note in getattr(err, "__notes__", ()):
            errors.print(note, markup=False, highlight=False, style="dim", soft_wrap=True)
        raise SystemExit(err.exit_code) from None


if __name__ == "__main__":
    main()
