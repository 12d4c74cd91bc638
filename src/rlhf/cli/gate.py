"""`rlhf gate`: may this model take the champion's place? For people and for continuous integration. Heavy imports happen inside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.options import DeviceOption, JsonOption, Overrides, QuietOption, console
from rlhf.cli.registry import needed_base
from rlhf.cli.run import run_recipe
from rlhf.errors import ConfigError, DataError, GateError, ModelError, did_you_mean, printable
from rlhf.formatting import mapping
from rlhf.pipeline.kinds import GATE

if TYPE_CHECKING:
    from rlhf.config.recipe import RecipeConfig

STAGE = GATE
EXIT_CODES = {"pass": 0, "fail": 20, "undecided": 21}
"""Apart from those of errors, which docs/reliability.md lists."""
RECIPES = (".yaml", ".yml")


def gate(
    model: Annotated[
        str, typer.Argument(help="A model folder, a stage of a run, or a recipe with a stage `gate` (.yaml).")
    ] = "",
    settings: Overrides = None,
    against: Annotated[
        str | None, typer.Option("--against", help="Alias of the registry to compare with; champion by default.")
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option("--stage", help="Of a recipe: the gate whose decision counts; its last one by default."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Of a model: YAML file with the settings of a stage `gate`.")
    ] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="Of a model: promote it where it passes, and write the history.")
    ] = False,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="Decide again from the measurements in a gate.json.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Of a model: run folder to write.")] = Path("runs")
    / STAGE,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """`rlhf gate`; the first line of its help is in ``COMMANDS``, and the others are:

    \b
    rlhf gate runs/new/dpo/model --against champion --config gate.yaml
    rlhf gate MODEL prompts=test.jsonl judge=FILE.py:FUNCTION require='[{kind: better, metric: win_rate}]'
    rlhf gate recipe.yaml
    rlhf gate --replay runs/gate/gate/gate.json

    A recipe is run as `rlhf run` would, and its gates promote. A model alone is only compared, unless --promote is given.
    """
    given = [bool(model), replay is not None]
    if given.count(True) != 1:
        raise ConfigError(
            "Give a model folder or a recipe to decide about, or --replay with the gate.json of a decision."
        )
    if replay is not None:
        path, document = replay, _replayed(replay)
    elif Path(model).suffix in RECIPES:
        path, document = _of_recipe(Path(model), settings or [], stage, against, quiet=quiet or as_json)
    else:
        if stage is not None:
            raise ConfigError(f"--stage names a gate of a recipe, and {model} is no .yaml file; leave it out.")
        tree = _stage_of_model(model, config, settings or [], against=against or "champion", promote=promote)
        path, document = _of_model(tree, output, device, quiet=quiet or as_json)
    if as_json:
        shown = {key: value for key, value in document.items() if key != "measurements"}
        print(json.dumps({**shown, "evidence_file": str(path)}, indent=2, ensure_ascii=False))
    elif not quiet:
        _show(document, path)
    raise typer.Exit(EXIT_CODES[document["decision"]])


def _replayed(path: Path) -> dict[str, Any]:
    from rlhf.evaluation.gates.gate_file import FILE, read_evidence, replay

    if not path.is_file():
        raise DataError(f"There is no file {path} for --replay; give the {FILE} that a gate wrote.")
    document = read_evidence(path)
    return {**document, **replay(document, source=str(path)).to_dict()}


def _of_recipe(
    path: Path, overrides: Sequence[str], stage: str | None, against: str | None, *, quiet: bool
) -> tuple[Path, dict[str, Any]]:
    from rlhf.config.recipe import load_recipe

    gates = _gates_of(load_recipe(path, overrides))
    if not gates:
        raise ConfigError(f"{path} has no stage of kind gate; add one, or name a model folder.")
    if stage is not None and stage not in gates:
        raise ConfigError(
            f"--stage {stage}: {path} has no gate of that name.{did_you_mean(stage, gates)} It has: {', '.join(gates)}."
        )
    aliases = [] if against is None else [f"stages.{name}.alias={against}" for name in gates]
    recipe = load_recipe(path, [*overrides, *aliases])
    if against is not None:
        _check_alias(recipe, gates, against)
    return _decided(recipe, stage or gates[-1], quiet=quiet, until=stage)


def _of_model(tree: Mapping[str, Any], output: Path, device: str, *, quiet: bool) -> tuple[Path, dict[str, Any]]:
    from rlhf.config.recipe import RecipeConfig, expand_variables

    recipe = RecipeConfig.of(
        {
            "name": output.name, "output_dir": str(output.parent), "device": device,
            "stages": {STAGE: expand_variables(dict(tree), "The command line")},
        },
        source="The command line",
    )  # fmt: skip
    return _decided(recipe, STAGE, quiet=quiet, force=True, force_because="the champion may be another one")


def _stage_of_model(
    model: str, config: Path | None, settings: Sequence[str], *, against: str, promote: bool
) -> dict[str, Any]:
    from rlhf.config.base import apply_overrides
    from rlhf.config.yaml_text import read_yaml
    from rlhf.pipeline.models import named_model
    from rlhf.registry.registry import CHAMPION, DEFAULT, Registry

    start: dict[str, Any] = {} if config is None else dict(read_yaml(config))
    for key, option in (("alias", "--against"), ("promote", "--promote"), ("candidate", "the argument MODEL")):
        if key in start or any(item.startswith(f"{key}=") for item in settings):
            raise ConfigError(f"{key} is what {option} says; leave it out of the settings.")
    tree = apply_overrides({"registry": DEFAULT, **start, "kind": STAGE}, settings)
    if "require" not in tree:
        raise ConfigError(
            "require is missing: say what the model must meet, as in require='[{kind: non_inferior, suite: general}]', or in a file "
            "for --config; docs/gates.md lists what there is."
        )
    registry = Registry(tree["registry"])
    if against == CHAMPION and not registry.aliases():
        raise ModelError(
            f"There is no champion to compare with yet: nothing was promoted into the folder {registry.folder}. Make a model the first one "
            f"with `rlhf registry promote MODEL{'' if registry.folder == Path(DEFAULT) else f' --registry {registry.folder}'}`."
        )
    registry.path(against)  # a misspelled alias must not turn a comparison into a pass
    return {**tree, "candidate": {"path": named_model(model)}, "alias": against, "promote": promote}


def _decided(recipe: RecipeConfig, name: str, *, quiet: bool, **options: Any) -> tuple[Path, dict[str, Any]]:
    """Run it; a gate that stops the run has decided, too."""
    from rlhf.evaluation.gates.gate_file import FILE, read_evidence

    path = Path(recipe.output_dir) / recipe.name / name / FILE
    try:
        run_recipe(recipe, quiet=quiet, **options)
    except GateError as err:
        stopped = [
            folder
            for folder in _gates_of(recipe)
            if any(f"stage {folder!r}" in note for note in getattr(err, "__notes__", []))
        ]
        if stopped != [name]:
            raise
    return path, read_evidence(path)


def _check_alias(recipe: RecipeConfig, gates: Sequence[str], against: str) -> None:
    """A misspelled alias names no champion, and a gate without one compares nothing: it must not turn that into a pass."""
    from rlhf.pipeline.stages.gate import registry_folder
    from rlhf.registry.registry import Registry

    for name in gates:
        stage: Any = recipe.stages[name]
        registry = Registry(registry_folder(stage, Path(recipe.output_dir) / recipe.name))
        try:
            registry.path(against)
        except ModelError as err:
            raise ModelError(f"{err} For a recipe that makes the first one, leave --against out.") from None


def _gates_of(recipe: RecipeConfig) -> list[str]:
    return [name for name, stage in recipe.stages.items() if stage.kind == STAGE]


def _show(document: Mapping[str, Any], path: Path) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("requirement", "decision", "reason"):
        table.add_column(title, no_wrap=title != "reason")
    for name, ruling in mapping(document.get("rulings")).items():
        table.add_row(escape(printable(name)), str(ruling["decision"]), escape(printable(str(ruling["reason"]))))
    out = console()
    out.print(table)
    champion = mapping(document.get("champion"))
    whom = f"{champion.get('alias')} (version {champion.get('version')})" if champion else "no champion"
    candidate = mapping(document.get("candidate")).get("name")
    out.print(
        printable(f"{document['decision']}: {candidate} against {whom}. Evidence: {path}"),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    promoted = document["decision"] == "pass" and mapping(document.get("settings")).get("promote")
    if promoted and (needs := needed_base(Path(mapping(document["candidate"])["folder"]))):
        out.print(printable(needs), markup=False, highlight=False, soft_wrap=True)
