"""`rlhf config`: look at settings before you run."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rlhf.cli.options import Overrides

app = typer.Typer(help="Look at settings before you run.", no_args_is_help=True)


@app.command("show")
def config_show(
    recipe: Annotated[str, typer.Argument(help="A YAML recipe, or the name of a preset.")], overrides: Overrides = None
) -> None:
    """Print a recipe with every default written out."""
    import yaml

    from rlhf.config.presets import PRESETS, preset
    from rlhf.config.recipe import load_recipe

    found = preset(recipe, overrides or []) if recipe in PRESETS else load_recipe(recipe, overrides or [])
    print(yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120), end="")


@app.command("schema")
def config_schema(
    kind: Annotated[str | None, typer.Argument(help="A stage kind, such as ppo; the whole recipe by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON schema instead of a table.")] = False,
) -> None:
    """List settings with type, default and meaning."""
    from rlhf.config.schema import describe_settings, settings_class

    owner = settings_class(kind)
    print(json.dumps(owner.model_json_schema(), indent=2) if as_json else describe_settings(owner))


@app.command("presets")
def config_presets() -> None:
    """List presets by model size."""
    from rlhf.config.presets import PRESETS

    for name, size in PRESETS.items():
        print(f"{name:<12}{size.about}")
