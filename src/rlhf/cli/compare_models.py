"""`rlhf compare`: which of two models is better. Heavy imports happen inside the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rlhf.cli.options import DeviceOption, JsonOption, Overrides, QuietOption, RunsOption, console, file_name


def compare(
    a: Annotated[
        str,
        typer.Argument(
            help="Model folder, stage of a run, hub name, alias of the registry, or a file of completions.", metavar="A"
        ),
    ],
    b: Annotated[str, typer.Argument(help="What it is compared with; the same.", metavar="B")],
    settings: Overrides = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="judge.yaml, a reward model's folder, package.module:function, or a rule's name; or judge.type=... as settings."
        ),
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help="Held-out prompts; without them those of the files of completions.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder to write; by default one of the two names in runs/compare.",
            show_default=False,
        ),
    ] = None,
    runs: RunsOption = Path("runs"),
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """`rlhf compare`; the first line of its help is in ``COMMANDS``, and the others are:

    \b
    rlhf compare runs/demo/dpo runs/demo/sft --prompts test.jsonl --judge judge.yaml
    rlhf compare new.jsonl old.jsonl judge.type=endpoint judge.url=http://localhost:8000/v1 judge.model=NAME
    rlhf compare champion runs/demo/ppo --prompts test.jsonl --judge models/reward samples_per_prompt=4
    rlhf compare A B C D --prompts test.jsonl --judge judge.yaml       every pair, and a rating of each

    Every pair is judged in both orders, and the prompt is the unit. Other settings: limit, seed, samples_per_prompt, sampling.*, confidence,
    any_time, labels, earlier, allow_shared_judge; docs/judges.md explains each. After a kill the same command goes on, and no verdict is
    paid for twice.
    """
    from rlhf.config.base import apply_overrides
    from rlhf.config.comparison import CompareConfig
    from rlhf.config.judge_types.function_judge import REWARD_NAMES, RULES
    from rlhf.config.judge_types.reward_model_judge import RewardModelJudgeConfig
    from rlhf.config.judges import read_judge
    from rlhf.config.recipe import expand_variables

    inside = [item.removeprefix("judge.") for item in settings or [] if item.startswith("judge.")]
    more = [item for item in settings or [] if "=" not in item]
    others = [item for item in settings or [] if not item.startswith("judge.") and "=" in item]
    tree = expand_variables(apply_overrides({"a": a, "b": b}, others), "The command line")
    named = judge if judge is not None else tree.get("judge")
    if named is not None or inside:
        tree["judge"] = read_judge(named, inside)
    if prompts is not None:
        tree["prompts"] = prompts
    config = CompareConfig.of(tree, source="The command line")

    from rlhf.models.device import placed_on
    from rlhf.pipeline.compared_models import check_spelled
    from rlhf.pipeline.model_comparison import compare_models
    from rlhf.pipeline.rated_models import rate_models

    if isinstance(config.judge, RewardModelJudgeConfig):
        check_spelled(config.judge.path, (*RULES, *REWARD_NAMES))
    folder = output or runs / "compare" / "-".join(file_name(model) for model in (a, b, *more))
    if more:
        with placed_on(device):
            rated = rate_models([a, b, *more], config, folder, runs=runs)
        if as_json:
            print(json.dumps(_without_prompts(rated.to_dict()), indent=2, ensure_ascii=False))
        elif not quiet:
            console().print("\n".join(rated.page().splitlines()[2:]), markup=False, highlight=False, soft_wrap=True)
            console().print(
                f"{folder}/ratings.json, ratings.md, ratings.html", markup=False, highlight=False, soft_wrap=True
            )
        return
    with placed_on(device):
        comparison = compare_models(config, folder, runs=runs)
    if as_json:
        print(json.dumps(_without_prompts(comparison.to_dict()), indent=2, ensure_ascii=False))
    elif not quiet:
        _show(comparison, folder)


def _without_prompts(record: dict[str, Any]) -> dict[str, Any]:
    """What a screen can take."""
    short = {name: value for name, value in record.items() if name != "per_prompt"}
    return short | ({"pairs": [_without_prompts(pair) for pair in record["pairs"]]} if "pairs" in record else {})


def _show(compared: Any, folder: Path) -> None:
    out = console()

    def say(text: str) -> None:
        out.print(text, markup=False, highlight=False, soft_wrap=True)

    say(compared.sentence)
    comparison = compared.comparison
    say(
        f"Judge {comparison.judge['name']}: {comparison.wins:,} won, {comparison.ties:,} tied ({comparison.identical:,} of equal texts), "
        f"{comparison.losses:,} lost; {comparison.unparsed:,} of {comparison.asked:,} verdicts unparsed"
        f"{f', {comparison.cost:.4f} dollars' if comparison.cost else ''}."
    )
    if comparison.length is not None:
        say(f"At equal length: {_rate(comparison.length.rate)}.")
    say(f"The longer completion won: {_rate(comparison.longer_won)}.")
    for note in compared.notes():
        say(f"- {note}")
    say(f"{folder}/comparison.json, comparison.md")


def _rate(rate: Any) -> str:
    from rlhf.formatting import percentage

    if not rate.measured:
        return f"not measured, {rate.reason}"
    return f"{percentage(rate.value)} [{percentage(rate.low)}, {percentage(rate.high)}]"
