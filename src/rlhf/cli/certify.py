"""`rlhf judge`: how far a judge agrees with people, before anything rests on it. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rlhf.cli.options import DeviceOption, JsonOption, Overrides, SettingsCommand
from rlhf.errors import ConfigError, printable

app = typer.Typer(help="How far a judge agrees with people, before anything rests on it.", no_args_is_help=True)
EXIT_REFUSED = 20
"""As of a gate that fails."""

JudgeArgument = Annotated[
    str,
    typer.Argument(help="judge.yaml, or a text that stands for a judge (a model's folder, package.module:function)."),
]


@app.command("certify", cls=SettingsCommand)
def certify_judge(
    judge: JudgeArgument,
    settings: Overrides = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="Votes of people: rows with completion_a, completion_b and preference, or chosen and rejected."
        ),
    ] = None,
    store: Annotated[str | None, typer.Option(help="A preference store in place of a file.")] = None,
    guidelines: Annotated[
        Path | None, typer.Option(help="What people were asked to look at; by default the store's own guidelines.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write; by default judge.yaml.certificate.json.", show_default=False),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Pairs of so many prompts only, drawn at random.", min=2)] = None,
    seed: Annotated[int, typer.Option(help="Of that draw.")] = 0,
    own_model: Annotated[
        list[str] | None,
        typer.Option(
            help="What the labels call the judge's own model; by default as its settings do. May be repeated."
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            help="The agreement's interval must lie above it; by default half of what people agree beyond chance."
        ),
    ] = None,
    min_labels: Annotated[int, typer.Option(help="Prompts with a label that a certificate takes.")] = 50,
    max_unparsed: Annotated[float, typer.Option(help="Largest share of verdicts that can't be read.")] = 0.05,
    max_position_bias: Annotated[
        float, typer.Option(help="How far from 1/2 the first place may win, interval included.")
    ] = 0.15,
    confidence: Annotated[float, typer.Option(help="Of all intervals.")] = 0.95,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Ask a judge about pairs that people have judged, and certify it or refuse. Exits with 0, or 20 where it is refused.

    \b
    rlhf judge certify judge.yaml --labels votes.jsonl
    rlhf judge certify judge.yaml --store preferences.db --limit 200
    rlhf judge certify judge.yaml temperature=0.5 --labels votes.jsonl --out warm.json

    Verdicts are kept next to the certificate: after a kill, or with more labels, only what is new is asked.
    """
    from rlhf.config.judges import certificate_file, read_judge

    if (labels is None) == (store is None):
        raise ConfigError("Give the labels of people: --labels, a file, or --store, a preference store.")
    config = read_judge(judge, settings or [])
    is_file = Path(judge).suffix in (".yaml", ".yml")
    if out is None and not is_file:
        raise ConfigError(
            f"{judge} is no file of settings, so the certificate has no place next to it; give --out FILE."
        )
    if out is None and settings:
        raise ConfigError(
            f"With settings on the command line ({', '.join(settings)}) this is not the judge of {judge}; give --out FILE."
        )
    path = out or certificate_file(Path(judge))

    from rlhf.evaluation.judge_certificate import CertificateRule, certify, table
    from rlhf.evaluation.labeled_pairs import labeled_pairs_of_store, read_labeled_pairs
    from rlhf.files import make_folder, write_json
    from rlhf.models.device import placed_on
    from rlhf.rewards.pairwise.building import build_judge
    from rlhf.rewards.pairwise.certificate import CERTIFIED

    rule = CertificateRule(
        min_agreement=min_agreement,
        min_labels=min_labels,
        max_unparsed=max_unparsed,
        max_position_bias=max_position_bias,
    )
    notes: list[str] = []
    if store is not None:
        pairs = labeled_pairs_of_store(store)
        from rlhf.feedback.pair_votes import simulated_note

        notes += [note] if (note := simulated_note(store)) else []
    else:
        assert labels is not None
        pairs = read_labeled_pairs(labels)
    asked_by = (str(guidelines), "file") if guidelines is not None else None
    if asked_by is None and store is not None:
        asked_by = (store, "store guidelines")
    make_folder(path.parent)
    with placed_on(device):
        certificate = certify(
            build_judge(config, cache=path.with_name(f"{path.name.removesuffix('.json')}.verdicts.jsonl")), config, pairs,
            folder=path.parent, labels_source=(str(labels), "file") if store is None else (store, "store"),
            guidelines=asked_by, rule=rule, limit=limit, seed=seed,
            own_models=own_model or (), confidence=confidence, notes=notes,
        )  # fmt: skip
    write_json(path, certificate)
    _say(certificate, table, path, as_json)
    raise typer.Exit(0 if certificate["verdict"] == CERTIFIED else EXIT_REFUSED)


def _say(certificate: dict[str, Any], table: Any, path: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps(certificate, indent=2, ensure_ascii=False))
    else:
        print(printable(table(certificate)))
        print(printable(str(path)))


@app.command("check", cls=SettingsCommand)
def check_judge(judge: JudgeArgument, settings: Overrides = None, as_json: JsonOption = False) -> None:
    """Does a judge's certificate still hold? Exits with 0 where it does, or where there is none and none is needed, else with 20.

    \b
    rlhf judge check judge.yaml
    rlhf judge check judge.yaml certificate=warm.json temperature=0.5
    """
    from rlhf.config.judges import certificate_file, read_judge
    from rlhf.rewards.pairwise.certificate import (
        certificate_problem,
        check_certificate,
        judge_called,
        problem_in_certificate,
        read_certificate,
    )

    config = read_judge(judge, settings or [])
    named, beside = getattr(config, "certificate", None), certificate_file(Path(judge))
    path = Path(named).expanduser() if named is not None else beside if beside.is_file() else None
    unchecked: tuple[str, ...] = ()
    if path is None:
        problem = certificate_problem(config)
    else:
        problem = problem_in_certificate(config, path)
        unchecked = check_certificate(config, read_certificate(path), folder=path.parent).unchecked
    if as_json:
        print(json.dumps({"problem": problem, "unchecked": list(unchecked)}, indent=2, ensure_ascii=False))
    else:
        name = judge_called(config)
        fine = f"The certificate of the judge {name} holds ({path})." if path is not None else _needs_none(name, config)
        print(printable(problem or fine))
        for each in unchecked:
            print(printable(f"- Not compared: {each}."))
    raise typer.Exit(0 if problem is None else EXIT_REFUSED)


def _needs_none(name: str, config: Any) -> str:
    return f"The judge {name} has no certificate and needs none: {config.needs_none_because}. `rlhf judge certify` measures it all the same."
