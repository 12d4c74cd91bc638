"""Two specialists of the embedded world merged by every method, against both parents and a model trained on both lessons.

    python benchmarks/merged_specialists.py --seeds 11 12 13 --write docs/results/merging.md

A seed is a whole run: demonstrations of uneven quality give the base; from it one specialist learns facts (the true answer and nothing
else), one manners (a courtesy after an answer whose value is drawn, so mostly wrong), and the joint model from both lessons together (the
true answer and a courtesy). A second run of the facts, with another seed, is for soups. All answer held-out prompts at temperature 1; the
world's own judge says how many are right, polite, and both with nothing else. Settings of methods are the plain ones (weights 1 or their
mean, density .5), chosen on no seed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from scipy.stats import t as student

from rlhf.config.policy import SamplingConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.data.datasets import GRPODataset
from rlhf.data.world import judge, split_prompts
from rlhf.data.world.facts import VALUES
from rlhf.data.world.language import POLITE, statement
from rlhf.files import write_jsonl
from rlhf.merging.merger import ModelMerger
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.run import Pipeline
from rlhf.rollout.local import LocalEngine
from rlhf.seeds import derive_seed

ROOT = Path(__file__).parent.parent
LESSONS = ("facts", "manners", "joint")
COLUMNS = ("correct", "polite", "perfect", "score")
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
            rows[lesson].append({"prompt": prompt.text, "completion": text})
    for lesson in LESSONS:
        draw.shuffle(rows[lesson])
        write_jsonl(folder / f"{lesson}.jsonl", rows[lesson])
    return {lesson: str(folder / f"{lesson}.jsonl") for lesson in LESSONS}


def train(seed: int, folder: Path, steps: int) -> dict[str, Path]:
    """The base and what was trained from it."""
    files = lessons(seed, folder)
    sft = {"kind": "sft", "learning_rate": 1e-3, "batch_size": 32, "epochs": None}
    stages: dict[str, Any] = {"world": {"kind": "world"}}
    stages["base"] = sft | {"model": "embedded", "data": "stage:world/sft.jsonl", "max_steps": 120}
    for name in (*LESSONS, "facts2"):
        lesson = name.removesuffix("2")
        own = {"model": "stage:base", "data": files[lesson], "max_steps": steps, "learning_rate": 5e-4}
        stages[name] = sft | own | ({"seed": seed + 1000} if name == "facts2" else {})
    tree = {
        "name": f"specialists_{seed}",
        "seed": seed,
        "threads": 1,
        "output_dir": str(folder / "run"),
        "stages": stages,
    }
    Pipeline(RecipeConfig.of(tree, source="specialists"), console=Console(quiet=True)).run()
    run = next((folder / "run").rglob("base/model")).parents[1]
    return {name: run / name / "model" for name in stages if name != "world"}


def measured(model: Path, seed: int, limit: int) -> dict[str, float]:
    """Shares of held-out prompts."""
    prompts = split_prompts(seed).test[:limit]
    policy = PolicyModel.from_pretrained(str(model))
    asked = list(GRPODataset([prompt.text for prompt in prompts], policy.tokenizer))
    sampling = SamplingConfig(max_new_tokens=40, temperature=1.0)
    groups = LocalEngine(policy).generate(asked, num_samples=1, sampling=sampling, seed=seed, rollout_index=0)
    verdicts = [
        judge(p.text, group[0].text, ended=not group[0].truncated) for p, group in zip(prompts, groups, strict=True)
    ]
    return {column: statistics.fmean(float(getattr(verdict, column)) for verdict in verdicts) for column in COLUMNS}


def of_seed(seed: int, folder: Path, steps: int, limit: int) -> dict[str, dict[str, float]]:
    """Row -> measurements."""
    models = train(seed, folder, steps)
    rows = {name: measured(model, seed, limit) for name, model in models.items() if name != "facts2"}
    for row, (each, every) in METHODS.items():
        name = row.partition(",")[0]
        parents = ["base", "facts"] if name == "slerp" else ["facts", "manners"]
        base = {} if name == "linear" else {"base_model": str(models["manners" if name == "slerp" else "base"])}
        if name == "slerp":  # between the two specialists
            parents = ["manners", "facts"]
        tree = {
            "merge_method": name,
            "models": [{"model": str(models[one]), "parameters": each} for one in parents],
            "parameters": every,
        }
        rows[row] = measured(merged(tree | base, folder / "merged"), seed, limit)
    soup = {
        "merge_method": "linear",
        "models": [{"model": str(models[n]), "parameters": BOTH} for n in ("facts", "facts2")],
    }
    rows["facts2"] = measured(models["facts2"], seed, limit)
    rows["soup of facts and facts2"] = measured(merged(soup, folder / "merged"), seed, limit)
    return rows


def merged(tree: dict[str, Any], folder: Path) -> Path:
    """A folder that the next merge replaces."""
    shutil.rmtree(folder, ignore_errors=True)
    ModelMerger(tree).merge(folder)
    return folder


def interval(values: list[float]) -> str:
    """Mean ± half a 95 % t interval over seeds."""
    mean = statistics.fmean(values)
    if len(values) < 3:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5:.3f}"


def main() -> None:
    """Run the seeds and print, or write, the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--steps", type=int, default=60, help="Of each specialist.")
    parser.add_argument("--limit", type=int, default=400, help="Held-out prompts.")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "specialists")
    parser.add_argument("--write", type=Path, help="Markdown file; the numbers go beside it as JSON.")
    options = parser.parse_args()
    by_seed = {}
    for seed in options.seeds:
        by_seed[seed] = of_seed(seed, options.folder / str(seed), options.steps, options.limit)
        print(f"seed {seed}:", json.dumps(by_seed[seed]), flush=True)
    rows = list(by_seed[options.seeds[0]])
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
    lines += [
        f"| {row} | {' | '.join(interval([by_seed[s][row][c] for s in by_seed]) for c in COLUMNS)} |" for row in rows
    ]
    head = (
        f"# Two specialists merged\n\nMade by `python benchmarks/merged_specialists.py --seeds {' '.join(map(str, options.seeds))} --steps "
        f"{options.steps} --limit {options.limit}`: {len(by_seed)} seeds, mean ± half a 95 % t interval over seeds.\n\n"
    )
    print("\n".join(lines))
    if options.write:
        options.write.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
        options.write.with_suffix(".json").write_text(json.dumps(by_seed, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
