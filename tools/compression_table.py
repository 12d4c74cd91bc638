"""The table of ways to shorten a context on the embedded world: recipes/context_compression.yaml over seeds.

    python tools/compression_table.py                  seeds 2, 3, 4; writes docs/results/context_compression.md and .json
    python tools/compression_table.py --seeds 5 --write /tmp/contexts.md

Five minutes of one core a seed. A stage that is finished is never done again: a run that was killed goes on with the same command.
Settings were chosen on seed 1.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.config.recipe import load_recipe
from rlhf.pipeline.run import Pipeline, machine, versions

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, what lies beside this file is a package too
from tools.seed_table import ROOT, write_table

RECIPE = ROOT / "recipes" / "context_compression.yaml"


def run_seed(seed: int, folder: Path, *, ignore_code: bool) -> dict[str, Any]:
    """Run the recipe, what is missing of it, and give the comparison."""
    recipe = load_recipe(RECIPE, [f"name=contexts-{seed}", f"seed={seed}", f"output_dir={folder}"])
    Pipeline(recipe).run(ignore_code=ignore_code)
    where = folder / f"contexts-{seed}"
    part = json.loads((where / "compare" / "evaluation.json").read_text(encoding="utf-8"))["contexts"]
    return {"seed": seed, **part}


def page(rows: Sequence[Mapping[str, Any]], command: str) -> str:
    """The page in Markdown."""
    known = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("rlhf", "torch"))
    numbers = ", ".join(str(row["seed"]) for row in rows)
    lines = [
        "# Contexts in fewer tokens, on the embedded world",
        "",
        "<!-- written by tools/compression_table.py; do not edit by hand -->",
        "",
        f"Made by `{command}` on {machine()['cpu']}, one thread; {known}. Seeds {numbers}, each with a reader and a",
        f"compressor of its own, and {rows[0]['num_questions']} contexts of four claims that are drawn at random, with a question about one.",
        "*Right* is the share of answers equal to the claim, *difference* that from whole contexts, both with 95 % intervals over questions.",
        "*Tokens* are those of the context that are read before each question; BOS and question are not counted. *Once* says whether one",
        "compression serves all questions about a context. The recipe was written on seed 1"
        + (": this is a first look, and fresh seeds are still to be run." if [r["seed"] for r in rows] == [1] else "."),
    ]
    for row in rows:
        lines += [
            "",
            f"## Seed {row['seed']}",
            "",
            "| way | right | difference | tokens | saved | once |",
            "|---|---|---|---|---|---|",
            *map(_line, row["ways"]),
        ]
    if len(rows) > 1:
        lines += ["", "## Mean over seeds", "", "| way | right | tokens |", "|---|---|---|"]
        for place, way in enumerate(rows[0]["ways"]):
            same = [row["ways"][place] for row in rows]
            right = statistics.fmean(each["accuracy"]["value"] for each in same)
            lines.append(
                f"| {way['title']} | {right:.3f} | {statistics.fmean(e['context_tokens'] for e in same):.1f} |"
            )
    return "\n".join(lines) + "\n"


def _line(way: Mapping[str, Any]) -> str:
    right, difference = (
        f"{each['value']:.3f} [{each['low']:.3f}, {each['high']:.3f}]" for each in (way["accuracy"], way["difference"])
    )
    difference = "" if way["title"] == "whole context" else difference
    once = "no" if way["for_question"] else "yes"
    return (
        f"| {way['title']} | {right} | {difference} | {way['context_tokens']:.1f} | {way['saved_frac']:.0%} | {once} |"
    )


if __name__ == "__main__":
    write_table(__doc__, run_seed, page, seeds=(2, 3, 4), folder="contexts", file="context_compression.md")
