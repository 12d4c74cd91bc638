"""`rlhf search`: strategies of search at inference. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rlhf.cli.options import JsonOption, Overrides, QuietOption, SettingsCommand, console
from rlhf.errors import ConfigError, printable
from rlhf.formatting import interval, mapping, plain_number

app = typer.Typer(no_args_is_help=True)
KIND = "search_compare"


@app.command("compare", cls=SettingsCommand)
def compare(
    recipe: Annotated[
        Path, typer.Argument(help="A recipe with a stage `search_compare`; recipes/reasoning_search.yaml is one.")
    ],
    overrides: Overrides = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare strategies on your own problems: accuracy against tokens, and in words which to take.

    Runs the recipe's stages up to its last `search_compare`, those that are finished already excepted. `rlhf config schema search_compare`
    lists the settings.
    """
    from rlhf.cli.run import run_recipe
    from rlhf.config.recipe import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    names = [name for name, stage in loaded.stages.items() if stage.kind == KIND]
    if not names:
        raise ConfigError(f"{recipe} has no stage of the kind {KIND}; recipes/reasoning_search.yaml is an example.")
    run_recipe(loaded, quiet=quiet or as_json, until=names[-1])
    folder = Path(loaded.output_dir) / loaded.name
    parts = {
        name: mapping(json.loads((folder / name / "evaluation.json").read_text(encoding="utf-8")).get("search"))
        for name in names
    }
    if as_json:
        print(json.dumps(parts, indent=2, ensure_ascii=False))
        return
    if quiet:
        return
    for name, part in parts.items():
        _show(part)
        _say(f"picture    {folder / name / 'search.png'}")
    _say(f"report     {folder / 'report.html'}")


@app.command("strategies")
def strategies() -> None:
    """List the strategies, with what each needs."""
    from rlhf.config.descriptions import described_fields
    from rlhf.config.search_strategies import STRATEGY_KINDS

    for kind in STRATEGY_KINDS:
        needs = "a reward that judges steps" if kind.by_step else "a reward" if kind.scores else ""
        about = (kind.__doc__ or "").strip().splitlines()[0]
        _say(f"{kind.kind_name():20} {about}" + (f" Needs {needs}." if needs else ""))
        names = [name for name in described_fields(kind) if name not in ("kind", "name")]
        if names:
            _say(f"{'':20} settings: {', '.join(names)}")


def _show(part: Mapping[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("strategy", "solved", "95 % interval", "total tokens", "sampled", "scorer's", "scored", "seconds"):
        table.add_column(title, justify="left" if title == "strategy" else "right", no_wrap=True)
    for each in part.get("strategies") or []:
        accuracy, cost = mapping(each.get("accuracy")), mapping(each.get("cost"))
        table.add_row(
            escape(str(each["title"])), f"{accuracy['value']:.3f}", interval(accuracy, True),
            *(f"{cost[name]:,.0f}" for name in ("total_tokens", "policy_tokens", "scorer_tokens")),
            plain_number(cost["scorer_forwards"]), plain_number(cost["seconds"], 3),
        )  # fmt: skip
    out = console()
    out.width = max(out.width, 120)
    out.print(table, crop=False)
    for sentence in mapping(part.get("advice")).get("sentences") or []:
        _say(str(sentence))


def _say(text: str) -> None:
    console().print(printable(text), markup=False, highlight=False, soft_wrap=True)
