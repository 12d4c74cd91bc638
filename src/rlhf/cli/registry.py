"""`rlhf registry`: released models, their aliases, and why each was promoted or refused. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.options import JsonOption, console
from rlhf.errors import DataError, GateError, ModelError, UndecidedGateError, printable
from rlhf.formatting import mapping

if TYPE_CHECKING:
    from rlhf.registry.history import Event
    from rlhf.registry.registry import Registry, Version

app = typer.Typer(no_args_is_help=True)
FOLDER = Path("registry")
CHAMPION = "champion"
RegistryOption = Annotated[Path, typer.Option("--registry", help="Folder of the registry.")]
AliasOption = Annotated[str, typer.Option("--alias", help="Alias that is to name it.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the history.")]


@app.command("list")
def registry_list(registry: RegistryOption = FOLDER, as_json: JsonOption = False) -> None:
    """List versions, where each came from, and which alias names it."""
    from rich.table import Table

    opened = _opened(registry)
    aliases, versions, damaged = opened.aliases(), opened.versions(), opened.damaged()
    if as_json:
        told = {"damaged": {str(number): why for number, why in damaged.items()}} if damaged else {}
        _print_json({"aliases": aliases, "versions": [_version(each, aliases) for each in versions], **told})
        return
    table = Table(box=None, pad_edge=False)
    for title in ("version", "aliases", "added", "from"):
        table.add_column(title, no_wrap=title != "from")
    for each in versions:
        table.add_row(each.name, ", ".join(_names(each.number, aliases)), each.added, _plain(_origin(each)))
    for number, why in damaged.items():
        table.add_row(f"{number:04d}", ", ".join(_names(number, aliases)), "damaged", _plain(why))
    console().print(table)


@app.command("show")
def registry_show(
    name: Annotated[str, typer.Argument(help="An alias, or the number of a version.")] = CHAMPION,
    registry: RegistryOption = FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Show one version, and the history of the aliases that name it or named it."""
    opened = _opened(registry)
    path, aliases = opened.path(name), opened.aliases()
    version = opened.version(int(path.parent.name))
    events = [
        each
        for each in opened.history()
        if (name == each.alias if name in aliases else version.number in (each.version, each.previous))
    ]
    if as_json:
        _print_json({**_version(version, aliases), "path": str(path), "history": [each.to_dict() for each in events]})
        return
    out = console()
    for title, text in (
        ("version", version.name), ("aliases", ", ".join(_names(version.number, aliases)) or "none"), ("path", str(path)),
        ("from", _origin(version)), ("added", version.added),
        *((("note", needs),) if (needs := needed_base(path)) else ()),
    ):  # fmt: skip
        out.print(f"{title:<9}{printable(text)}", markup=False, highlight=False, soft_wrap=True)
    _print_history(events)


@app.command("promote")
def registry_promote(
    model: Annotated[Path, typer.Argument(help="A model folder, or a stage of a run.")],
    alias: AliasOption = CHAMPION,
    reason: ReasonOption = "",
    evidence: Annotated[
        Path | None, typer.Option("--evidence", help="File that it is based on, such as a gate.json; its hash is kept.")
    ] = None,
    registry: RegistryOption = FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Copy a model into the registry and let an alias name it, in one step."""
    from rlhf.pipeline.models import named_model
    from rlhf.pipeline.validate.weights import read_model_folder
    from rlhf.registry.registry import Registry

    model = Path(named_model(str(model)))
    read_model_folder(model)  # a file that was cut short is found before an alias names it
    if evidence is not None and not evidence.is_file():
        raise ModelError(f"There is no file {evidence} for --evidence; give the file that the decision is based on.")
    content = None if evidence is None else _content_that_passed(evidence)
    opened = Registry(registry)
    version = opened.promote(model, alias=alias, reason=reason, evidence=evidence, content=content)
    _tell(opened, version, alias, as_json=as_json)


@app.command("rollback")
def registry_rollback(
    alias: Annotated[str, typer.Argument(help="Alias to set back.")] = CHAMPION,
    to: Annotated[int | None, typer.Option("--to", help="Version; by default what it named before.")] = None,
    reason: ReasonOption = "",
    registry: RegistryOption = FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Let an alias name an earlier version again, after its files were checked."""
    opened = _opened(registry)
    _tell(opened, opened.rollback(alias, to=to, reason=reason), alias, as_json=as_json)


def _opened(folder: Path) -> Registry:
    from rlhf.registry.registry import Registry

    if not folder.is_dir():
        raise ModelError(
            f"Nothing was promoted yet: there is no folder {folder}. The first promotion makes it (a gate, or `rlhf registry promote MODEL`); "
            "or name another folder with --registry."
        )
    return Registry(folder)


def _content_that_passed(evidence: Path) -> str | None:
    """What a gate's file says may be promoted; None of any other file.

    Raises:
        GateError, UndecidedGateError: The gate did not pass its candidate.
        DataError: The file was changed, or does not say which files were measured.
    """
    from rlhf.evaluation.gates.gate_file import is_evidence, read_evidence

    if not is_evidence(evidence):
        return None
    document = read_evidence(evidence)
    if (decision := document["decision"]) != "pass":
        kind = GateError if decision == "fail" else UndecidedGateError
        raise kind(
            f"The gate of {evidence} decided {decision}, so it is no evidence for a promotion. {document['reason']} To promote in spite "
            "of it, leave --evidence out and give the --reason."
        )
    content = mapping(document.get("candidate")).get("content")
    if not isinstance(content, str):
        raise DataError(f"{evidence} does not say which files were measured; let the gate decide again.")
    return content


def _tell(registry: Registry, version: Version, alias: str, *, as_json: bool) -> None:
    event = registry.history(alias)[-1]
    if as_json:
        _print_json({**_version(version, registry.aliases()), "event": event.to_dict()})
        return
    before = "nothing" if event.previous is None else f"version {event.previous}"
    console().print(
        f"{alias} names version {version.number} now, before that {before}: {registry.folder / alias}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    if needs := needed_base(registry.path(version.number)):
        console().print(printable(needs), markup=False, highlight=False, soft_wrap=True)


def needed_base(model: Path) -> str:
    """What a version can't do without: an adapter is copied, and its base stays where it is. Empty for a whole model."""
    from rlhf.models.adapter_base import base_folder, base_name
    from rlhf.registry.registry import ADAPTER

    if not (model / ADAPTER).is_file() or (name := base_name(model)) is None:
        return ""
    return (
        f"It is an adapter, and its base was not copied: it needs {base_folder(model, name) or name} as long as it is used. A model with "
        "the adapter merged into it needs no other: docs/gates.md, Adapters."
    )


def _print_history(events: Sequence[Event]) -> None:
    out = console()
    for each in events:
        change = f"{each.previous if each.previous is not None else '-'} -> {each.version if each.version is not None else '-'}"
        line = f"{each.time}  {each.action:<8} {each.alias}  {change}  {each.candidate}  {each.reason}"
        if digest := each.evidence.get("sha256"):
            line += f"  evidence {each.evidence.get('file', '')} sha256:{digest}"
        out.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def _version(version: Version, aliases: dict[str, int]) -> dict[str, Any]:
    return {
        "version": version.number, "aliases": _names(version.number, aliases), "added": version.added, "source": version.source,
        "content": version.content, "lineage": dict(version.lineage), "files": dict(version.files),
    }  # fmt: skip


def _names(version: int, aliases: dict[str, int]) -> list[str]:
    return [alias for alias, number in aliases.items() if number == version]


def _origin(version: Version) -> str:
    lineage = version.lineage
    return f"{lineage['stage']} of {lineage['run']}" if lineage else version.source


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
