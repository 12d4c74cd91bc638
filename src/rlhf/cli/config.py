"""`rlhf config`: look at settings before you run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rlhf.cli.options import Overrides

app = typer.Typer(no_args_is_help=True)


@app.command("show")
def config_show(
    recipe: Annotated[str, typer.Argument(help="A YAML recipe, or the name of a preset.")], overrides: Overrides = None
) -> None:
    """Print a recipe with every default written out."""
    from rlhf.config.presets import PRESETS, preset
    from rlhf.config.recipe import load_recipe
    from rlhf.config.yaml_text import yaml_of

    shown = preset(recipe, overrides or []) if recipe in PRESETS else load_recipe(recipe, overrides or [])
    print(yaml_of(shown.model_dump(mode="json")), end="")


@app.command("convert")
def config_convert(
    file: Annotated[
        str, typer.Argument(help="YAML or flags of TRL, flags of OpenRLHF, a shell script, or YAML in sections.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Recipe to write; standard output by default.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="Whose settings these are, such as dpo, where the file does not say.")
    ] = "",
    processes: Annotated[
        int | None,
        typer.Option(help="Devices that a batch per device is multiplied by; else those of the launcher, or 1.", min=1),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows of the training data, to turn epochs into rollouts.", min=1)
    ] = None,
) -> None:
    """Turn a config of another project into a recipe, and say what became of every key."""
    from rlhf.config.foreign.convert import convert_file
    from rlhf.config.yaml_text import yaml_of
    from rlhf.errors import ConfigError, printable
    from rlhf.files import write_text

    if output is not None and output.exists():
        raise ConfigError(f"{output} exists; give another name, or remove it first.")
    conversion = convert_file(file, method=method, processes=processes, rows=rows)
    text = f"# {conversion.title}, converted from {Path(file).name}\n"
    text += "".join(f"# to fill in: {line}\n" for line in conversion.to_fill_in)
    text += yaml_of(conversion.tree)
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)
    print(printable(conversion.to_text()), file=sys.stderr if output is None else sys.stdout)


@app.command("schema")
def config_schema(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="A stage kind, such as ppo, or a kind of reward, such as rules; the whole recipe by default."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON schema instead of a table.")] = False,
) -> None:
    """List settings with type, default and meaning."""
    from rlhf.config.json_schema import json_schema
    from rlhf.config.schema import class_to_describe, describe_settings

    owner = class_to_describe(kind)
    print(json.dumps(json_schema(owner), indent=2) if as_json else describe_settings(owner))


@app.command("presets")
def config_presets() -> None:
    """List presets by model size."""
    from rlhf.config.presets import PRESETS

    for name, size in PRESETS.items():
        print(f"{name:<12}{size.about}")
