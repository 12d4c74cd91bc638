"""`rlhf data`: look at data before you train. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rlhf.cli.data_show import TOKENIZATION_KEYS, data_show, settings_of_tokenization
from rlhf.cli.data_tasks import data_tasks
from rlhf.cli.options import JsonOption, Overrides, SettingsCommand
from rlhf.errors import printable

app = typer.Typer(no_args_is_help=True)

File = Annotated[str, typer.Argument(help="A data file, a folder saved by `datasets`, or a hub name.")]
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out and list them.")]
TokenizerOption = Annotated[
    str | None, typer.Option(help="Tokenizer folder or hub name, to measure lengths in tokens.")
]


app.command("show", cls=SettingsCommand)(data_show)


@app.command("check", cls=SettingsCommand)
def data_check(file: File, settings: Overrides = None, as_json: JsonOption = False) -> None:
    """What is this file, how many rows can be used, and which can't? Exits with 3 where a row is bad.

    \b
    rlhf data check rows.jsonl
    rlhf data check rows.jsonl model=Qwen/Qwen3-0.6B

    With a model or a tokenizer every row is tokenized as a run would, which finds fields that the chat template leaves out.
    Settings: model or tokenizer, chat_template, stage, train_on, max_length, truncation, columns, allow_lost_fields.
    """
    from rlhf.data.inspect import run_check

    tokenizer, made_for, options = settings_of_tokenization(settings, TOKENIZATION_KEYS, required=False)
    report = run_check(file, tokenizer=tokenizer, made_for=made_for, **options)
    _show(report, as_json)
    if report.bad_rows:
        raise typer.Exit(3)


@app.command("stats")
def data_stats(file: File, tokenizer: TokenizerOption = None, as_json: JsonOption = False) -> None:
    """Lengths, duplicates, balance."""
    from rlhf.data.inspect import run_stats

    loaded = None
    if tokenizer is not None:
        from rlhf.models.tokens import load_tokenizer

        loaded = load_tokenizer(tokenizer)
    _show(run_stats(file, tokenizer=loaded), as_json)


@app.command("convert")
def data_convert(
    file: File,
    output: Annotated[Path, typer.Argument(help="File to write; its ending names the format.")],
    to: Annotated[
        str | None, typer.Option(help="Another kind of row: explicit, unpaired, standard or conversational.")
    ] = None,
    skip_bad: SkipBadOption = False,
) -> None:
    """Write rows in another format or as another kind."""
    from rlhf.data.inspect import run_convert

    _show(run_convert(file, output, to=to, on_bad_row="skip" if skip_bad else "error"), as_json=False)


@app.command("dedup")
def data_dedup(
    file: File,
    output: Annotated[Path, typer.Argument(help="File to write.")],
    near: Annotated[
        float | None, typer.Option(help="Also drop rows at least this similar (Jaccard of word 3-grams).", min=0, max=1)
    ] = None,
    skip_bad: SkipBadOption = False,
) -> None:
    """Write a file without duplicates."""
    from rlhf.data.inspect import run_dedup

    _show(run_dedup(file, output, near=near, on_bad_row="skip" if skip_bad else "error"), as_json=False)


@app.command("traces")
def data_traces(
    source: Annotated[
        Path, typer.Argument(help="Folder of a policy stage (runs/demo/ppo), its rollouts.jsonl, or a file of traces.")
    ],
    output: Annotated[Path, typer.Argument(help="File to write, .jsonl.")],
    to: Annotated[
        str,
        typer.Option(
            help="traces (verifiers v1), sft (demonstrations) or preference (best against worst of a prompt)."
        ),
    ] = "traces",
    least_reward: Annotated[
        float | None,
        typer.Option(help="Of a demonstration, or of the better one of a pair; others are left out and counted."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Of the policy, for the texts of turns; by default the stage's own model.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write finished episodes as traces with token ids and log-probabilities, or as rows to train on.

    \b
    rlhf data traces runs/demo/grpo traces.jsonl
    rlhf data traces traces.jsonl sft.jsonl --to sft --least-reward 1
    rlhf data traces runs/demo/grpo pairs.jsonl --to preference
    """
    from rlhf.data.rollout_traces.convert_traces import run_traces

    model = tokenizer or next((str(f) for f in (source / "model", source.parent / "model") if f.is_dir()), None)

    def load() -> Any:
        from rlhf.models.tokens import load_tokenizer

        loaded = load_tokenizer(str(model))
        return lambda ids: loaded.decode(ids, skip_special_tokens=True)

    _show(run_traces(source, output, to=to, load_decoder=load if model else None, least_reward=least_reward), as_json)


app.command("tasks")(data_tasks)


def _show(report: Any, as_json: bool) -> None:
    print(json.dumps(report.to_dict(), indent=2, ensure_ascii=False) if as_json else printable(report.to_text()))
