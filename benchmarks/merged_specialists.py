"""Two specialists of the embedded world merged by every method, and soups of runs, against their parents and a joint model.

    python benchmarks/merged_specialists.py --seeds 11 12 13 --write docs/results/merging.md

A seed is a whole run: demonstrations of uneven quality give the base; from it one specialist learns facts (the true answer and nothing
else), one manners (a courtesy after an answer whose value is drawn, so mostly wrong), and the joint model from both lessons together (the
true answer and a courtesy). Two more runs of the joint lesson, with other seeds and learning rates, are for soups; the greedy one is chosen
on held-out prompts about other facts than those it is measured on. All answer the same held-out prompts at temperature 1; the world's own
judge says how many are right, polite, and both with nothing else. Settings of methods are the plain ones (weights 1 or their mean,
density .5), chosen on no seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from scipy.stats import t as student

from rlhf.config.policy import SamplingConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.data.datasets import GRPODataset
from rlhf.data.world import judge, split_prompts
from rlhf.data.world.facts import VALUES
from rlhf.data.world.language import POLITE, Prompt, statement
from rlhf.files import write_json, write_jsonl
from rlhf.formatting import rounded
from rlhf.merging.merger import ModelMerger
from rlhf.merging.soup import GreedySoup, ModelSoup
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.run import Pipeline, machine, versions
from rlhf.rollout.local import LocalEngine
from rlhf.seeds import derive_seed

Measured = dict[int, dict[str, dict[str, float]]]
"""Seed -> row -> column -> mean over prompts."""
ROOT = Path(__file__).parent.parent
LESSONS = ("facts", "manners", "joint")
RUNS = {"facts": 5e-4, "manners": 5e-4, "joint": 5e-4, "joint 2": 3e-4, "joint 3": 1e-3}
"""Trained from the base: a lesson, and which run of it; the learning rate."""
COLUMNS = ("correct", "polite", "perfect", "score")
SOUPS = ("uniform soup", "greedy soup")
"""Of the runs of the joint lesson."""
PARENTS = ["facts", "manners"]
JOINT_RUNS = [name for name in RUNS if name.startswith("joint")]
BOTH: dict[str, Any] = {"weight": 1.0}
HALF: dict[str, Any] = {"density": 0.5}
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": (BOTH, {}),
    "task_arithmetic": (BOTH, {}),
    "ties": (BOTH | HALF, {}),
    "ties, as the paper": (BOTH | HALF, {"elect": "unweighted", "trim_over": "model"}),
    "dare_linear": (BOTH | HALF, {}),
    "dare_ties": (BOTH | HALF, {}),
    "model_stock": ({}, {}),
    "slerp": ({}, {"t": 0.5}),
}
"""Row of the table: settings of each model, settings of all."""


def lessons(seed: int, folder: Path) -> dict[str, str]:
    """Files of the three lessons, about the same prompts."""
    draw = random.Random(derive_seed(seed, "merging", "lessons"))
    rows: dict[str, list[dict[str, str]]] = {lesson: [] for lesson in LESSONS}
    for prompt in split_prompts(seed).demonstrated:
        true, drawn = statement(prompt.fact), statement(prompt.fact, draw.choice(VALUES[prompt.fact.relation]))
        courtesy = draw.choice(POLITE)
        for lesson, text in (("facts", true), ("manners", f"{drawn} {courtesy}"), ("joint", f"{true} {courtesy}")):
            rows[lesson].append({"prompt": prompt.text, "completion": f" {text}"})
    for lesson in LESSONS:
        draw.shuffle(rows[lesson])
        write_jsonl(folder / f"{lesson}.jsonl", rows[lesson])
    return {lesson: str(folder / f"{lesson}.jsonl") for lesson in LESSONS}


def train(seed: int, folder: Path, steps: int) -> dict[str, Path]:
    """The base and what was trained from it."""
    files = lessons(seed, folder)
    sft = {"kind": "sft", "learning_rate": 1e-3, "batch_size": 32, "epochs": None}
    stages: dict[str, Any] = {"world": {"kind": "world", "num_documents": 0}}
    stages["base"] = sft | {"model": "embedded", "data": "stage:world/sft.jsonl", "max_steps": 120}
    for name, rate in RUNS.items():
        lesson, _, run = name.partition(" ")
        own = {"model": "stage:base", "data": files[lesson], "max_steps": steps, "learning_rate": rate}
        stages[stage_of(name)] = sft | own | ({"seed": seed + 1000 * int(run)} if run else {})
    tree = {
        "name": f"specialists_{seed}",
        "seed": seed,
        "threads": 1,
        "output_dir": str(folder / "run"),
        "stages": stages,
    }
    Pipeline(RecipeConfig.of(tree, source="specialists"), console=Console(quiet=True)).run()
    run = next((folder / "run").rglob("base/model")).parents[1]
    return {name: run / stage_of(name) / "model" for name in ("base", *RUNS)}


def stage_of(name: str) -> str:
    """A row's stage."""
    return name.replace(" ", "_")


def measured(model: Path, prompts: Sequence[Prompt], seed: int) -> dict[str, float]:
    """Shares of prompts, and the judge's mean score."""
    policy = PolicyModel.from_pretrained(str(model))
    asked = list(GRPODataset([prompt.text for prompt in prompts], policy.tokenizer))
    sampling = SamplingConfig(max_new_tokens=40, temperature=1.0)
    groups = LocalEngine(policy).generate(asked, num_samples=1, sampling=sampling, seed=seed, rollout_index=0)
    verdicts = [
        judge(p.text, group[0].text, ended=not group[0].truncated) for p, group in zip(prompts, groups, strict=True)
    ]
    return {column: statistics.fmean(float(getattr(verdict, column)) for verdict in verdicts) for column in COLUMNS}


def of_seed(seed: int, folder: Path, steps: int, limit: int) -> tuple[dict[str, dict[str, float]], GreedySoup]:
    """Row -> measurements, and what the greedy soup is made of."""
    models = train(seed, folder, steps)
    split = split_prompts(seed)
    prompts, validation = split.test[:limit], split.heldout_fact_test[:limit]
    rows = {name: measured(model, prompts, seed) for name, model in models.items()}
    for row, (each, every) in METHODS.items():
        name = row.partition(",")[0]
        parents = ["manners", "facts"] if name == "slerp" else ["facts", "manners"]
        base = {} if name == "linear" else {"base_model": str(models["manners" if name == "slerp" else "base"])}
        tree = {
            "merge_method": name,
            "models": [{"model": str(models[one]), "parameters": each} for one in parents],
            "parameters": every,
        }
        rows[row] = measured(merged(tree | base, folder / "merged"), prompts, seed)
    soup = ModelSoup([models[name] for name in JOINT_RUNS])
    for name in SOUPS:
        shutil.rmtree(folder / name, ignore_errors=True)
    soup.uniform(folder / SOUPS[0])
    greedy = soup.greedy(lambda model: measured(model, validation, seed)["score"], folder / SOUPS[1])
    return rows | {name: measured(folder / name, prompts, seed) for name in SOUPS}, greedy


def measurements(seed: int, folder: Path, steps: int, limit: int) -> tuple[dict[str, dict[str, float]], int]:
    """``of_seed`` with the number of runs in the greedy soup, kept in the folder for a command that is given again."""
    file = folder / f"measured-{steps}-{limit}.json"
    if not file.is_file():
        rows, greedy = of_seed(seed, folder, steps, limit)
        write_json(file, {"rows": rows, "kept": len(greedy.ingredients)})
    document = json.loads(file.read_text(encoding="utf-8"))
    return document["rows"], document["kept"]


def merged(tree: dict[str, Any], folder: Path) -> Path:
    """A folder that the next merge replaces."""
    shutil.rmtree(folder, ignore_errors=True)
    ModelMerger(tree).merge(folder)
    return folder


def half_interval(values: Sequence[float]) -> float:
    """Half a 95 % t interval over seeds; 0 for one seed."""
    if len(values) < 2:
        return 0.0
    return float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5


def interval(values: Sequence[float], *, sign: bool = False) -> str:
    """Mean ± half an interval."""
    mean = rounded(statistics.fmean(values), 3, sign=sign)
    return mean if len(values) < 2 else f"{mean} ± {rounded(half_interval(values), 3)}"


def tables(by_seed: Measured) -> list[str]:
    """Merges of the specialists, and soups of the joint runs."""
    compared: dict[str, Sequence[str]] = {"better parent": PARENTS, "joint": ["joint"]}
    lines = ["## Two specialists merged", ""]
    lines += table(by_seed, ["base", *PARENTS, "joint", *METHODS], list(METHODS), compared)
    lines += ["", "## Soups of three joint runs", ""]
    return lines + table(by_seed, [*JOINT_RUNS, *SOUPS], list(SOUPS), {"mean run": JOINT_RUNS, "best run": JOINT_RUNS})


def table(
    by_seed: Measured, rows: Sequence[str], made: Sequence[str], compared: Mapping[str, Sequence[str]]
) -> list[str]:
    """Rows, and for those that were made by merging the difference of ``score`` from others."""
    lines = [f"| | {' | '.join([*COLUMNS, *(f'score less {name}' for name in compared)])} |"]
    lines.append("|---|" + "---|" * (len(COLUMNS) + len(compared)))
    for row in rows:
        cells = [interval([seed[row][column] for seed in by_seed.values()]) for column in COLUMNS]
        cells += [
            interval(gains(by_seed, row, name, others), sign=True) if row in made else ""
            for name, others in compared.items()
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def gains(by_seed: Measured, row: str, name: str, others: Sequence[str], column: str = "score") -> list[float]:
    """Of each seed: a row's score less the best of others, or their mean."""
    of_others = statistics.fmean if name.startswith("mean") else max
    return [seed[row][column] - of_others([seed[other][column] for other in others]) for seed in by_seed.values()]


def head(options: argparse.Namespace, num_seeds: int) -> list[str]:
    """What the page is and how it was made."""
    seeds = " ".join(map(str, options.seeds))
    of_packages = ", ".join(f"{name} {versions()[name]}" for name in ("rlhf", "torch", "transformers"))
    return [
        "# Merging on the embedded world",
        "",
        "<!-- written by benchmarks/merged_specialists.py; do not edit by hand -->",
        "",
        f"Made by `python benchmarks/merged_specialists.py --seeds {seeds} --steps {options.steps} --limit {options.limit} --write "
        f"{options.write}` on {machine()['cpu']}, one thread; {of_packages}.",
        "",
        f"{num_seeds} seeds, each a world, a base and runs of its own; mean ± half a 95 % t interval over seeds. `correct`, `polite` and "
        "`perfect` (both, and nothing else) are shares of held-out prompts, one completion each at temperature 1; `score` is the mean of the "
        "world's own judge, at most 1.5, which no training sees. Differences are taken within a seed.",
        "",
    ]  # fmt: skip


def conclusions(by_seed: Measured, kept: Mapping[int, int]) -> list[str]:
    """Which rows are above what they are compared with, as far as the seeds tell."""
    lines = ["## What the tables say", ""]
    comparisons: list[tuple[str, Sequence[str], str, Sequence[str]]] = [
        ("the better parent", list(METHODS), "better parent", PARENTS),
        ("the joint model", list(METHODS), "joint", ["joint"]),
        ("the mean run", list(SOUPS), "mean run", JOINT_RUNS),
        ("the best run", list(SOUPS), "best run", JOINT_RUNS),
    ]
    for column, (what, rows, name, others) in itertools.product(("score", "perfect"), comparisons):
        sides: dict[str, list[str]] = {"above": [], "below": [], "not told apart from": []}
        for row in rows:
            values = gains(by_seed, row, name, others, column)
            mean, half = statistics.fmean(values), half_interval(values)
            sides["above" if mean > half else "below" if mean < -half else "not told apart from"].append(row)
        told = "; ".join(f"{side} {what}: {', '.join(names)}" for side, names in sides.items() if names)
        lines.append(f"- In `{column}`, {told}.")
    lines.append(
        f"- The greedy soup kept {', '.join(f'{count} of {len(JOINT_RUNS)} runs (seed {seed})' for seed, count in kept.items())}."
    )
    return lines


def main() -> None:
    """Run the seeds and print, or write, the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--steps", type=int, default=60, help="Of each specialist.")
    parser.add_argument("--limit", type=int, default=400, help="Held-out prompts.")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "specialists")
    parser.add_argument("--write", type=Path, help="Markdown file; the numbers go beside it as JSON.")
    options = parser.parse_args()
    by_seed: Measured = {}
    kept: dict[int, int] = {}
    for seed in options.seeds:
        by_seed[seed], kept[seed] = measurements(seed, options.folder / str(seed), options.steps, options.limit)
        print(f"seed {seed}:", json.dumps(by_seed[seed]), kept[seed], flush=True)
    lines = tables(by_seed)
    print("\n".join(lines))
    if options.write:
        page = [*head(options, len(by_seed)), *lines, "", *conclusions(by_seed, kept)]
        options.write.write_text("\n".join(page) + "\n", encoding="utf-8")
        document = {"seeds": by_seed, "kept by the greedy soup": kept}
        options.write.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
