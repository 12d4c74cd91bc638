"""`rlhf evaluate`: metrics of a model on held-out prompts. Heavy imports happen inside the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rlhf.cli.options import RUNS, DeviceOption, JsonOption, Overrides, QuietOption, console, file_name
from rlhf.cli.run import ForceOption, run_recipe
from rlhf.errors import ConfigError
from rlhf.formatting import formatted, interval, mapping, number
from rlhf.pipeline.kinds import EVALUATION

STAGE = EVALUATION
TABLE_WIDTH = 120
"""Numbers are not cut where a terminal is narrow, or there is none."""


def evaluate(
    model: Annotated[
        str, typer.Argument(help="Model folder, stage of a run or hub name; `embedded` for the built-in one.")
    ],
    settings: Overrides = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Run folder to write; by default evaluate-MODEL in runs.",
            show_default=False,
        ),
    ] = None,
    inspect_log: Annotated[
        Path | None,
        typer.Option(
            help="Also copy the log for Inspect's viewer: a folder for `inspect view --log-dir`, or a .json file.",
            show_default=False,
        ),
    ] = None,
    device: DeviceOption = "auto",
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """`rlhf evaluate`; the first line of its help is in ``COMMANDS``, and the others are:

    \b
    rlhf evaluate runs/demo/dpo/model prompts=test.jsonl baseline=runs/demo/sft/model
    rlhf evaluate MODEL prompts=test.jsonl metrics=\\[length,toxicity] toxicity_classifier=FOLDER
    rlhf evaluate MODEL prompts=test.jsonl baseline=BEFORE judge=FILE.py:FUNCTION by=topic
    rlhf evaluate MODEL prompts=test.jsonl baseline=BEFORE judge=judge.yaml
    rlhf evaluate MODEL texts=texts.jsonl

    Settings are those of a recipe's stage `evaluate` (rlhf config schema evaluate): prompts, baseline, judge, reward_model, pairs, texts,
    limit, samples_per_prompt, sampling.max_new_tokens ... Without `metrics`, all whose needs are given; docs/evaluation.md explains each.
    """
    from rlhf.config.base import apply_overrides
    from rlhf.config.judges import with_any_judge
    from rlhf.config.recipe import RecipeConfig, expand_variables
    from rlhf.pipeline.models import named_model

    path = named_model(model)
    if output is None:
        output = RUNS / f"{STAGE}-{file_name(path)}"
    tree = apply_overrides({"kind": STAGE, "policy": {"path": path}}, settings or [])
    if isinstance(tree.get("baseline"), str):
        tree["baseline"] = named_model(tree["baseline"])
    if not {"prompts", "texts", "pairs"} & tree.keys():
        raise ConfigError(
            "prompts is missing: say what the model is asked, as in prompts=test.jsonl (one JSON object with `prompt` per line); or give "
            "texts=FILE for its perplexity alone."
        )
    stage = with_any_judge(expand_variables(tree, "The command line"))
    if "metrics" not in tree:
        stage["metrics"] = _default_metrics(stage)
    whole = {"name": output.name, "output_dir": str(output.parent), "device": device, "stages": {STAGE: stage}}
    try:
        recipe = RecipeConfig.of(whole, source="The command line")
    except ConfigError as err:  # nobody wrote `stages` here
        raise ConfigError(str(err).replace(f"stages.{STAGE}.", "")) from None
    if inspect_log is not None and stage.get("inspect_log") is False:
        raise ConfigError("--inspect-log copies the log, and inspect_log=false writes none; leave one of the two out.")
    run_recipe(recipe, quiet=quiet or as_json, force=force)
    document = json.loads((output / STAGE / "evaluation.json").read_text(encoding="utf-8"))
    if inspect_log is not None:
        copied = _copy_log(output / STAGE, inspect_log)
        if not quiet and not as_json:
            console().print(f"Inspect log: {copied}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print(
            json.dumps(
                {name: value for name, value in document.items() if name != "per_prompt"}, indent=2, ensure_ascii=False
            )
        )
    elif not quiet:
        _show(document)


def _copy_log(folder: Path, wanted: Path) -> Path:
    """The stage's log, where other tools look for it."""
    from rlhf.evaluation.exports.inspect_log import FILE, place_for
    from rlhf.files import make_folder, write_text

    text = (folder / FILE).read_text(encoding="utf-8")
    place = place_for(json.loads(text), wanted)
    make_folder(place.parent)
    write_text(place, text)
    return place


def _default_metrics(stage: Mapping[str, Any]) -> list[str]:
    """All whose needs are among the settings; those that need a column or more samples are asked for by name."""
    from rlhf.config.metric_table import METRICS, asks_model, missing_need

    given = {name for name, value in stage.items() if value is not None}
    given |= {"ref_model"} if "baseline" in given else set()
    given |= {"quality"} if {"judge", "reward_model"} & given else set()
    given |= {"preference"} if {"judge", "pairwise_judge"} & given else set()
    many = int(number(stage.get("samples_per_prompt")) or 1) > 1
    return [
        name
        for name, metric in METRICS.items()
        if missing_need(metric.needs, frozenset(given)) is None
        and (not asks_model(name) or "prompts" in given or not {"texts", "pairs"} & given)
        and (many or name not in ("self_bleu", "pass_at_k"))
    ]


def _show(document: Mapping[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    part = mapping(document.get("metrics"))
    compared = mapping(part.get("settings")).get("baseline") is not None
    table = Table(box=None, pad_edge=False)
    for title in ("metric", *(("before", "after", "change") if compared else ("value",)), "95 % interval", "n"):
        table.add_column(title, justify="left" if title == "metric" else "right", no_wrap=True)
    for name, change in mapping(part.get("changes")).items():
        before, after, gain = (mapping(change.get(side)) for side in ("before", "after", "gain"))
        share = change.get("unit") == "share"
        unit = f" ({change['unit']})" if change.get("unit") and not share else ""
        numbers = [_text(after, share)]
        ends = interval(after, share)
        if compared:
            numbers = [_text(before, share), _text(after, share), _text(gain, share, signed=True)]
            if (
                number(gain.get("value")) is not None
            ):  # the value's own interval beside a change would be read as the change's
                ends = interval(gain, share, signed=True)
        table.add_row(escape(f"{name}{unit}"), *numbers, ends, str(after.get("n", "")))
    out = console()
    out.width = max(out.width, TABLE_WIDTH)  # a table is cut at the console's width, even where `print` gets a width
    out.print(table, crop=False)
    if compared:
        out.print(
            "The interval is that of the change, paired by prompt, or of the value where there is no change.",
            soft_wrap=True,
        )
    groups = Table(box=None, pad_edge=False)
    for title in ("metric", "group", "value", "95 % interval", "from the rest", "p (Holm)"):
        groups.add_column(title, no_wrap=True)
    for name, values_of in mapping(part.get("groups")).items():
        for group, value in values_of.items():
            p = value.get("p_corrected")
            groups.add_row(
                escape(name), escape(group), _text(value["value"], False), interval(value["value"], False) or "",
                _text(value["difference"], False, signed=True),
                "" if p is None else f"{p:.3g}",
            )  # fmt: skip
    if groups.row_count:
        out.print(groups, crop=False)
    for name, why in mapping(part.get("ungrouped")).items():
        if name not in mapping(part.get("missing")):
            out.print(f"{name}, no groups: {why}", markup=False, highlight=False, soft_wrap=True)
    for name, why in mapping(part.get("missing")).items():
        out.print(f"{name}: {why}", markup=False, highlight=False, soft_wrap=True)


def _text(estimate: Mapping[str, Any], share: bool, signed: bool = False) -> str:
    return "" if number(estimate.get("value")) is None else formatted(estimate["value"], share, signed)
