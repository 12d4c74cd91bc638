"""`rlhf export`: a model in another program's format. Heavy imports happen inside the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlhf.cli.options import JsonOption, QuietOption, console
from rlhf.errors import printable
from rlhf.export.format_table import FORMATS, check_choice
from rlhf.models.sources import check_there
from rlhf.pipeline.models import named_model

QUANTIZATIONS = list(dict.fromkeys(name for known in FORMATS.values() for name in known.quantizations))


def export(
    model: Annotated[
        str, typer.Argument(help="Model folder, stage of a run or hub name; `embedded` for the built-in one.")
    ],
    format: Annotated[
        str, typer.Option(help=f"One of {', '.join(f'{name} ({known.about})' for name, known in FORMATS.items())}.")
    ] = "safetensors",
    quantization: Annotated[
        str, typer.Option(help=f"What weights are rounded to: {', '.join(QUANTIZATIONS)}; not every format has all.")
    ] = "none",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A new folder; by default NAME-FORMAT here.", show_default=False)
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of weights that are not quantized: float32, bfloat16 or float16; float32 by default.",
            show_default=False,
        ),
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(
            help="A data file to compare on; by default a language model's own samples, random tokens for a reward model.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check", help="Run the written model next to the original, and keep it only if it passes."
        ),
    ] = True,
    max_increase: Annotated[
        float, typer.Option(help="How much rounding may raise the perplexity, as a share; for scores, of their spread.")
    ] = 0.05,
    rows: Annotated[int, typer.Option(help="Rows to compare on.", min=1)] = 16,
    reward: Annotated[
        str | None,
        typer.Option(
            help="A reward model: with --texts, the win rate of the written model over the original on greedy completions of their prompts.",
            show_default=False,
        ),
    ] = None,
    shard_size: Annotated[float, typer.Option(help="Most GiB of one file of weights in safetensors.", min=0.001)] = 4.5,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """`rlhf export`, whose help is in ``COMMANDS``."""
    check_choice(format, quantization, dtype)
    name = named_model(model)
    check_there(name)
    from rlhf.export.export_model import export_model
    from rlhf.export.source_model import short_name

    report = export_model(
        name, format, quantization, out or Path(f"{short_name(name)}-{format}"), dtype=dtype, texts=texts, check=check,
        max_increase=max_increase, num_rows=rows, shard_size=shard_size, reward=named_model(reward) if reward is not None else None,
    )  # fmt: skip
    if as_json:
        print(json.dumps(report.to_dict(), indent=2, ensure_ascii=False))
    elif not quiet:
        for line in [*report.lines(), f"written    {report.folder}"]:
            console().print(printable(line), markup=False, highlight=False, soft_wrap=True)
