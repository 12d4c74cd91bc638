"""The table of search strategies on the reasoning world: recipes/reasoning_search.yaml over fresh seeds.

    python tools/search_table.py                     seeds 41, 42, 43; writes docs/results/search.md and .json
    python tools/search_table.py --seeds 44 --write /tmp/search.md

Each seed has problems, demonstrations, a policy and a process reward model of its own. A stage that is finished is never done again, and
a comparison that was killed goes on: give the same command once more. Strategies were chosen, and everything was developed, on seed 0.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.config.recipe import load_recipe
from rlhf.pipeline.run import Pipeline, machine, versions

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, what lies beside this file is a package too
from tools.reasoning_table import over_seeds
from tools.seed_table import ROOT, write_table

RECIPE = ROOT / "recipes" / "reasoning_search.yaml"
Outcomes = Mapping[str, Mapping[str, Any]]
"""Title of a strategy -> its part of the comparison, of one seed."""


def run_seed(seed: int, folder: Path, *, ignore_code: bool) -> dict[str, Any]:
    """Run the recipe, what is missing of it, and give the comparison."""
    recipe = load_recipe(RECIPE, [f"name=search-{seed}", f"seed={seed}", f"output_dir={folder}"])
    Pipeline(recipe).run(ignore_code=ignore_code)
    where = folder / f"search-{seed}"
    part, critics = (
        json.loads((where / stage / "evaluation.json").read_text(encoding="utf-8"))["search"]
        for stage in ("compare", "critics")
    )
    prm = json.loads((where / "prm" / "artifact.json").read_text(encoding="utf-8"))["metrics"]
    for each in (*part["strategies"], *critics["strategies"]):
        each.pop("solved")
    return {"seed": seed, "f1": prm.get("eval/f1"), **part, "critics": critics["strategies"]}


def accuracy(title: str) -> Callable[[Outcomes], float]:
    """Share of problems that a strategy solves."""
    return lambda of_seed: float(of_seed[title]["accuracy"]["value"])


def tokens(title: str, name: str = "policy_tokens") -> Callable[[Outcomes], float]:
    """Tokens a problem."""
    return lambda of_seed: float(of_seed[title]["cost"][name])


@dataclass(frozen=True)
class Expected:
    """What the research page's minima let expect of every seed."""

    words: str
    value: Callable[[Outcomes], float]
    reached: Callable[[float], bool]


EXPECTED = (
    Expected("weighted vote of 32: above .80", accuracy("weighted vote of 32"), lambda x: x > 0.80),
    Expected(
        "weighted vote less majority vote, of 32: above .25",
        lambda of_seed: accuracy("weighted vote of 32")(of_seed) - accuracy("majority vote of 32")(of_seed),
        lambda x: x > 0.25,
    ),
    Expected("MCTS, cap 16: above .84", accuracy("MCTS, cap 16"), lambda x: x > 0.84),
    Expected(
        "its policy tokens, in samples: below 8",
        lambda of_seed: tokens("MCTS, cap 16")(of_seed) / tokens("sample")(of_seed),
        lambda x: x < 8,
    ),
    Expected(
        "beam 1x4 less best of 4: above .05",
        lambda of_seed: accuracy("beam 1x4")(of_seed) - accuracy("best of 4")(of_seed),
        lambda x: x > 0.05,
    ),
    Expected(
        "stop by score, cap 32: policy tokens saved against best of 32, above .5",
        lambda of_seed: 1 - tokens("stop by score > 0.5, cap 32")(of_seed) / tokens("best of 32")(of_seed),
        lambda x: x > 0.5,
    ),
    Expected(
        "its accuracy less that of best of 32: not below 0",
        lambda of_seed: accuracy("stop by score > 0.5, cap 32")(of_seed) - accuracy("best of 32")(of_seed),
        lambda x: x >= 0,
    ),
    Expected(
        "stop by score, cap 32: total tokens saved against best of 32",
        lambda of_seed: (
            1
            - tokens("stop by score > 0.5, cap 32", "total_tokens")(of_seed)
            / tokens("best of 32", "total_tokens")(of_seed)
        ),
        lambda x: x > 0.5,
    ),
)


def page(rows: Sequence[Mapping[str, Any]], command: str) -> str:
    """The page in Markdown."""
    known = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("rlhf", "torch"))
    seeds = [{each["title"]: each for each in row["strategies"]} for row in rows]
    problems, numbers = rows[0]["settings"]["num_problems"], ", ".join(str(row["seed"]) for row in rows)
    lines = [
        "# Strategies of search on the reasoning world",
        "",
        "<!-- written by tools/search_table.py; do not edit by hand -->",
        "",
        f"Made by `{command}` on {machine()['cpu']}, one thread; {known}. Seeds {numbers}, each with {problems} held-out problems,",
        "a policy and a process reward model of its own; everything was developed on seed 0. Mean ± half a 95 % t interval over seeds",
        "[lowest, highest].",
        "First wrong steps are found with an F1 of "
        + ", ".join("not measured" if row["f1"] is None else f"{row['f1']:.3f}" for row in rows)
        + ".",
        "",
        "*Policy* counts sampled tokens in single samples (the row `sample` is 1). *Total* counts every token that the policy sampled or",
        "read and that the reward model read. *Sound* is the share of problems whose answer and steps are all right. Seconds are those of",
        "a machine that did other things too, and say little.",
        "",
        *table(seeds, seeds),
        "",
        "## With a critic that knows the rules",
        "",
        "A program names the first wrong step, and the policy goes on from what stands before it; the process reward model decides what is",
        "kept. No critic that learned can bring more, so these rows compare with each other and not with those above.",
        "",
        *table([{each["title"]: each for each in row["critics"]} for row in rows], seeds),
    ]
    lines += page_end(rows, seeds)
    return "\n".join(lines).rstrip() + "\n"


def table(parts: Sequence[Outcomes], seeds: Sequence[Outcomes]) -> list[str]:
    """A line for each strategy of a comparison; ``seeds`` has the row ``sample`` that policy tokens are counted in."""
    lines = [
        "| strategy | solved | sound | policy | total tokens | scored | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for title in parts[0]:
        solved = over_seeds([accuracy(title)(of_seed) for of_seed in parts])
        sound = statistics.fmean(float(of_seed[title]["metrics"].get("sound", float("nan"))) for of_seed in parts)
        policy = statistics.fmean(
            tokens(title)(part) / tokens("sample")(of_seed) for part, of_seed in zip(parts, seeds, strict=True)
        )
        total, scored, seconds = (
            statistics.fmean(tokens(title, name)(of_seed) for of_seed in parts)
            for name in ("total_tokens", "scorer_forwards", "seconds")
        )
        lines.append(
            f"| {title} | {solved} | {sound:.3f} | {policy:.1f} | {total:,.0f} | {scored:.1f} | {seconds:.2f} |"
        )
    return lines


def page_end(rows: Sequence[Mapping[str, Any]], seeds: Sequence[Outcomes]) -> list[str]:
    """Curves of pools, what was expected, and the advice of each seed."""
    lines = [
        "",
        "## Fewer samples of the same pools",
        "",
        "| | " + " | ".join(k for k in rows[0]["within_k_tries"]) + " |",
    ]
    lines += ["|---|" + "---|" * len(rows[0]["within_k_tries"])]
    pools = [title for title, each in seeds[0].items() if len(each["curve"]) == len(rows[0]["within_k_tries"])]
    for title in pools:
        points = [[point["accuracy"] for point in of_seed[title]["curve"]] for of_seed in seeds]
        lines.append(
            f"| {title.removesuffix(' of 32')} of | "
            + " | ".join(f"{statistics.fmean(p):.3f}" for p in zip(*points, strict=True))
            + " |"
        )
    within = [list(row["within_k_tries"].values()) for row in rows]
    lines.append("| pass@ | " + " | ".join(f"{statistics.fmean(p):.3f}" for p in zip(*within, strict=True)) + " |")
    lines += [
        "",
        "## What was expected",
        "",
        "| | " + " | ".join(f"seed {row['seed']}" for row in rows) + " | |",
        "|---|" + "---|" * (len(rows) + 1),
    ]
    for each in EXPECTED:
        values = [each.value(of_seed) for of_seed in seeds]
        met = sum(map(each.reached, values))
        verdict = "every seed" if met == len(values) else f"{met} of {len(values)} seeds"
        lines.append(f"| {each.words} | " + " | ".join(f"{value:.3f}" for value in values) + f" | {verdict} |")
    lines += ["", "## What each comparison says", ""]
    outdone = [title for title in seeds[0] if all(title in row["advice"]["outdone"] for row in rows)]
    if outdone:
        lines += [f"Not worth their tokens, on {'every' if len(rows) > 1 else 'this'} seed: {'; '.join(outdone)}.", ""]
    for row in rows:
        lines += [f"**Seed {row['seed']}.** " + " ".join(row["advice"]["sentences"]), ""]
    return lines


if __name__ == "__main__":
    write_table(__doc__, run_seed, page, seeds=(41, 42, 43), folder="search", file="search.md")
