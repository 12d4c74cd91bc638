"""The table of the reasoning world: three recipes over fresh seeds, each seed with problems, demonstrations and models of its own.

    python tools/reasoning_table.py                     seeds 7, 8, 9; writes docs/results/reasoning.md and .json
    python tools/reasoning_table.py --seeds 10 --write /tmp/reasoning.md

The stages of recipes/reasoning_{prm,grpo,hack}.yaml, those that they share once. A stage that is finished is never done again:
give the same command after a kill and it goes on. Settings were chosen on seed 0, and the width of the policy's start on seed 2;
seeds 1 to 6 were those of earlier tables. The default seeds are others.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from rlhf.config.recipe import RecipeConfig
from rlhf.config.yaml_text import read_yaml
from rlhf.files import write_json, write_text
from rlhf.pipeline.plan import Action
from rlhf.pipeline.run import Pipeline, machine, versions

ROOT = Path(__file__).parent.parent
RECIPES = ("prm", "grpo", "hack")
MEASURES = ("solved", "evaluate")
"""Stages that every recipe has its own of, and that nothing reads from."""
PROCESSOR = "processor_seconds"
"""Name, beside a stage's metrics, of what it took of the processor."""
Seed = Mapping[str, Mapping[str, Any]]
"""Stage -> its metrics."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    label: str
    value: Callable[[Seed], float | None]
    target: str = ""
    """What research/reasoning.md asks of every seed, in words."""
    reached: Callable[[float], bool] | None = None


def metric(stage: str, name: str) -> Callable[[Seed], float | None]:
    """One number of one stage."""
    return lambda seed: seed[stage].get(name)


def minus(one: Callable[[Seed], float | None], other: Callable[[Seed], float | None]) -> Callable[[Seed], float | None]:
    """The difference of two numbers; None where one of them is missing."""

    def difference(seed: Seed) -> float | None:
        values = one(seed), other(seed)
        return None if values[0] is None or values[1] is None else values[0] - values[1]

    return difference


PARTS: Mapping[str, Sequence[Row]] = {
    "The policy from demonstrations (`sft`)": (
        Row("pass@1", metric("solved_prm", "pass@1"), "0.35 to 0.50", lambda x: 0.35 <= x <= 0.50),
        Row("greedy", metric("solved_prm", "greedy")),
        Row(
            "greedy - pass@1",
            minus(metric("solved_prm", "greedy"), metric("solved_prm", "pass@1")),
            "above 0.05",
            lambda x: x > 0.05,
        ),
        Row("pass@8", metric("solved_prm", "pass@8")),
        Row("pass@32", metric("solved_prm", "pass@32"), "above 0.94", lambda x: x > 0.94),
        Row("sound (every step right)", metric("solved_prm", "sound")),
        Row(
            "processor seconds of its training",
            metric("sft", PROCESSOR),
            "below 60 on an idle machine",
            lambda x: x < 60,
        ),
    ),
    "GRPO with the exact verifier (`recipes/reasoning_grpo.yaml`)": (
        Row("pass@1", metric("solved_grpo", "pass@1")),
        Row("gain in pass@1", metric("solved_grpo", "pass@1_gain"), "0.2 or more", lambda x: x >= 0.2),
        Row("greedy", metric("solved_grpo", "greedy")),
        Row("sound", metric("solved_grpo", "sound")),
        Row("right answers that are unsound, before", metric("solved_grpo", "unsound_if_right_baseline")),
        Row("right answers that are unsound, after", metric("solved_grpo", "unsound_if_right")),
        Row("change of pass@32", metric("solved_grpo", "pass@32_gain"), "above -0.04", lambda x: x > -0.04),
        Row(
            "upper end of its 95 % interval", metric("solved_grpo", "pass@32_gain_high"), "0 or more", lambda x: x >= 0
        ),
        Row("different solutions among 32 samples, share", metric("solved_grpo", "distinct_frac")),
        Row("KL, nats a solution", metric("evaluate_grpo", "kl"), "below 3", lambda x: x < 3),
    ),
    "The process reward model (`recipes/reasoning_prm.yaml`)": (
        Row("finds the first wrong step", metric("prm", "eval/first_wrong")),
        Row("leaves sound solutions alone", metric("prm", "eval/sound")),
        Row("F1 of the two", metric("prm", "eval/f1"), "above 0.95", lambda x: x > 0.95),
    ),
    "GRPO with a learned outcome reward (`recipes/reasoning_hack.yaml`)": (
        Row("reward model's score, before", metric("evaluate_hack", "proxy_before")),
        Row("reward model's score, after", metric("evaluate_hack", "proxy_after")),
        Row(
            "rise of the score",
            minus(metric("evaluate_hack", "proxy_after"), metric("evaluate_hack", "proxy_before")),
            "above 0",
            lambda x: x > 0,
        ),
        Row("pass@1", metric("solved_hack", "pass@1")),
        Row("change of pass@1", metric("solved_hack", "pass@1_gain"), "below -0.1", lambda x: x < -0.1),
        Row("sound", metric("solved_hack", "sound")),
        Row("change of pass@32", metric("solved_hack", "pass@32_gain")),
        Row("KL, nats a solution", metric("evaluate_hack", "kl")),
    ),
}


def combined_recipe(seed: int, folder: Path, recipes: Sequence[str] = RECIPES) -> RecipeConfig:
    """The stages of all recipes, those with one name once; their measurements are told apart by the recipe's name."""
    stages: dict[str, Any] = {}
    for recipe in recipes:
        file = f"reasoning_{recipe}.yaml"
        for name, stage in read_yaml(ROOT / "recipes" / file)["stages"].items():
            own = f"{name}_{recipe}" if name in MEASURES else name
            if stages.setdefault(own, stage) != stage:
                raise SystemExit(f"recipes/{file} differs from the recipes before it in stage {name}.")
    return RecipeConfig.of(
        {"name": f"reasoning-{seed}", "output_dir": str(folder), "seed": seed, "threads": 1, "stages": stages}
    )


def run_seed(seed: int, folder: Path, recipes: Sequence[str]) -> dict[str, Any]:
    """Run or finish one seed; what is there is kept.

    What a stage takes of the processor is kept beside the run folder. Of a stage that goes on after a kill it is not known.
    """
    pipeline = Pipeline(combined_recipe(seed, folder, recipes))
    file = folder / f"reasoning-{seed}.{PROCESSOR}.json"
    taken: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for name in pipeline.recipe.stages:
        (action,) = [plan.action for plan in pipeline.plan(until=name) if plan.name == name]
        if action is Action.KEPT:
            continue
        began = time.process_time()
        pipeline.run(until=name, brief=True)
        taken.pop(name, None)
        if action is not Action.ON:
            taken[name] = round(time.process_time() - began, 1)
        write_json(file, taken)
    pipeline.run()
    return {
        "seed": seed,
        "stages": {
            name: dict(artifact.metrics) | ({PROCESSOR: taken[name]} if name in taken else {})
            for name, artifact in pipeline.artifacts.items()
        },
        "seconds": {name: artifact.seconds for name, artifact in pipeline.artifacts.items()},
    }


def over_seeds(values: Sequence[float]) -> str:
    """Mean ± half a 95 % t interval over seeds, and the range."""
    mean, shown = statistics.fmean(values), f"[{min(values):.3f}, {max(values):.3f}]"
    if len(values) < 3:  # an interval from two numbers says nothing
        return f"{mean:.3f} {shown}"
    half = student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.3f} ± {half:.3f} {shown}"


def lines_of(row: Row, rows: Sequence[dict[str, Any]]) -> str:
    """One line of the table."""
    values = [row.value(row_of_seed["stages"]) for row_of_seed in rows]
    known = [value for value in values if value is not None]
    each = " | ".join("not measured" if value is None else f"{value:.3f}" for value in values)
    summary = over_seeds(known) if len(known) == len(values) else "not measured"
    verdict = ""
    if row.reached is not None:
        met = sum(value is not None and row.reached(value) for value in values)
        verdict = f"{row.target}: {'every seed' if met == len(values) else f'{met} of {len(values)} seeds'}"
    return f"| {row.label} | {each} | {summary} | {verdict} |"


def page(rows: Sequence[dict[str, Any]], recipes: Sequence[str], command: str, jobs: int) -> str:
    """The page in Markdown."""
    known = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("rlhf", "torch"))
    asked = combined_recipe(0, Path(), recipes).stages
    problems = getattr(asked["world"], "num_test_prompts", 0)
    lines = [
        "# The reasoning world over fresh seeds",
        "",
        "<!-- written by tools/reasoning_table.py; do not edit by hand -->",
        "",
        f"Made by `{command}` on {machine()['cpu']}, one thread a run, {jobs} run{'s' if jobs > 1 else ''} at a time; {known}.",
        "",
        f"Chained last-digit arithmetic (`rlhf.data.reasoning`). Every seed has demonstrations, models and {problems} held-out problems of",
        "its own; pass@k by the unbiased estimator over 32 samples of each. Mean ± half a 95 % t interval over seeds [lowest, highest].",
        "Settings were chosen on seed 0, and the width of the policy's start on seed 2; seeds 1 to 6 were those of earlier tables (4 to 6 with",
        "80 rollouts of GRPO in place of 140: .284, .199 and .202 more at the first try, which is why there are 140).",
    ]
    for title, part in PARTS.items():
        measured = [row for row in part if row.value is not None and _is_measured(row, rows)]
        if not measured:
            continue
        seeds = " | ".join(f"seed {each['seed']}" for each in rows)
        lines += ["", f"## {title}", "", f"| | {seeds} | over seeds | wanted |", "|---|" + "---|" * (len(rows) + 2)]
        lines += [lines_of(row, rows) for row in measured]
    verdicts = [each["stages"]["evaluate_hack"].get("hacking") for each in rows if "evaluate_hack" in each["stages"]]
    if verdicts:
        words = ", ".join(f"seed {each['seed']}: {verdict}" for each, verdict in zip(rows, verdicts, strict=True))
        lines += ["", f"What the report says of the rollouts of `hacked`: {words}."]
    return "\n".join(lines + times(rows)) + "\n"


def times(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What every stage took, of the processor and by the clock."""
    stages = list(rows[0]["seconds"])
    lines = [
        "",
        "## Time",
        "",
        "Seconds of the processor (-: not known), and by the clock, whatever else the machine did, which slows both down.",
        "",
    ]
    lines += ["| seed | | " + " | ".join(stages) + " | all |", "|---|---|" + "---|" * (len(stages) + 1)]
    for each in rows:
        processor = [each["stages"].get(stage, {}).get(PROCESSOR) for stage in stages]
        clock = [each["seconds"][stage] for stage in stages]
        for words, values in (("processor", processor), ("clock", clock)):
            known = [value for value in values if value is not None]
            cells = ["-" if value is None else f"{value:.0f}" for value in values]
            cells.append(f"{sum(known):.0f}" if len(known) == len(values) else "-")
            lines.append(f"| {each['seed']} | {words} | " + " | ".join(cells) + " |")
    return lines


def _is_measured(row: Row, rows: Sequence[dict[str, Any]]) -> bool:
    try:
        return any(row.value(each["stages"]) is not None for each in rows)
    except KeyError:  # its recipe was not asked for
        return False


def main() -> None:
    """Run the seeds and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "reasoning")
    parser.add_argument("--jobs", type=int, default=max(1, min(3, (os.cpu_count() or 1))))
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "results" / "reasoning.md")
    arguments = parser.parse_args()
    command = "python " + shlex.join(sys.argv)
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(run_seed, seed, arguments.folder, arguments.recipes) for seed in arguments.seeds]
        for task in tasks:
            rows.append(task.result())
            print(f"seed {rows[-1]['seed']}: {sum(rows[-1]['seconds'].values()):.0f} s", flush=True)
            text = page(rows, arguments.recipes, command, arguments.jobs)
            write_text(arguments.write, text)
            write_json(arguments.write.with_suffix(".json"), {"command": command, "machine": machine(), "seeds": rows})
    print(text)


if __name__ == "__main__":
    main()
