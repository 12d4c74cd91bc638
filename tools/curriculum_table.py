"""GRPO on the reasoning world with and without a curriculum, from one start and on the same prompts.

    python tools/curriculum_table.py                    seeds 11, 12, 13; writes docs/results/curriculum.md

The seeds are those of GRPO: order of prompts and samples. Both arms ask the policy as often and train on as many completions. A finished
stage is never done again: give the same command after a kill and it goes on. No setting of the curriculum was tuned on these seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from rlhf.config.recipe import RecipeConfig
from rlhf.config.yaml_text import read_yaml
from rlhf.files import write_text
from rlhf.pipeline.run import Pipeline, machine, versions

ROOT = Path(__file__).parent.parent
ARMS = {"off": None, "on": {}}
"""Name -> the key `curriculum` of the arm; {} is its defaults."""
NUM_PROMPTS, ROLLOUTS, PROMPTS_PER_ROLLOUT = 60, 30, 8
START_SEED = 11


def recipe_of(seeds: Sequence[int], folder: Path) -> RecipeConfig:
    """Both arms of every seed, and what each solves of problems that nobody trains on."""
    base = read_yaml(ROOT / "recipes" / "reasoning_grpo.yaml")["stages"]
    stages: dict[str, Any] = {"world": base["world"], "sft": {**base["sft"], "max_steps": 600}}
    for seed, arm in itertools.product(seeds, ARMS):
        name = f"{arm}_{seed}"
        stages[name] = {
            **base["grpo"], "curriculum": ARMS[arm], "limit": NUM_PROMPTS, "rollouts": ROLLOUTS, "seed": seed, "learning_rate": 3e-4,
            "prompts_per_rollout": PROMPTS_PER_ROLLOUT, "minibatch_size": 8 * PROMPTS_PER_ROLLOUT,
        }  # fmt: skip
        stages[f"solved_{name}"] = {
            **base["solved"], "policy": f"stage:{name}", "limit": 100, "num_samples": 8, "greedy": False,
        }  # fmt: skip
    tree = {"name": f"seed_{START_SEED}", "seed": START_SEED, "threads": 1, "output_dir": str(folder), "stages": stages}
    return RecipeConfig.of(tree, source="tools/curriculum_table.py")


def measured(seeds: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """What each seed measured."""
    pipeline = Pipeline(recipe_of(seeds, folder))
    pipeline.run()
    events = [json.loads(line) for line in (pipeline.run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = []
    for seed in seeds:
        row: dict[str, Any] = {"seed": seed}
        for arm in ARMS:
            rollouts = [e["metrics"] for e in events if e["stage"] == f"{arm}_{seed}" and e["event"] == "metrics"]
            equal = [m["grpo/equal_groups_frac"] for m in rollouts if "grpo/equal_groups_frac" in m]
            solved = pipeline.artifacts[f"solved_{arm}_{seed}"].metrics
            row[arm] = {
                "equal": statistics.fmean(equal), "pass@1": solved["pass@1"], "pass@8": solved["pass@8"], "start": solved["pass@1_baseline"],
                "bands": {name: value for name, value in rollouts[-1].items() if name.startswith("curriculum/")},
            }  # fmt: skip
        rows.append(row)
    return rows


def page(rows: list[dict[str, Any]], command: str) -> str:
    """The table, and what it says."""
    seeds = [str(row["seed"]) for row in rows]
    lines = [
        "# Curriculum by measured pass rate: does it help?",
        "",
        "<!-- written by tools/curriculum_table.py; do not edit by hand -->",
        "",
        f"Made by `{command}` on {machine()['cpu']}; rlhf {versions()['rlhf']}, torch {versions()['torch']}.",
        "",
        f"The reasoning world ([reasoning.md](../reasoning.md)), {NUM_PROMPTS} training problems, GRPO with {ROLLOUTS} rollouts of "
        f"{PROMPTS_PER_ROLLOUT} prompts and 8 completions, so each prompt is asked {ROLLOUTS * PROMPTS_PER_ROLLOUT / NUM_PROMPTS:.1f} times on "
        "average. All start from one policy and take as many steps; the seed decides the order of prompts and the samples. "
        "`off` asks all prompts in turn, `on` has "
        "`curriculum: {}`, the defaults. pass@k of 100 problems that nobody trains on, 8 samples of each.",
        "",
        f"| | {' | '.join(f'seed {seed}' for seed in seeds)} | mean, 95 % t interval over seeds |",
        "|---|" + "---|" * (len(seeds) + 1),
    ]
    for label, arm, name in (
        ("pass@1 of the start", "off", "start"), ("pass@1, off", "off", "pass@1"), ("pass@1, on", "on", "pass@1"),
        ("pass@8, off", "off", "pass@8"), ("pass@8, on", "on", "pass@8"),
        ("groups of equal scores, off", "off", "equal"), ("groups of equal scores, on", "on", "equal"),
    ):  # fmt: skip
        lines.append(_line(label, [row[arm][name] for row in rows]))
    for name in ("pass@1", "pass@8", "equal"):
        label = "groups of equal scores" if name == "equal" else name
        lines.append(_line(f"{label}, on - off", [row["on"][name] - row["off"][name] for row in rows], sign="+"))
    lines += ["", _verdict([row["on"]["pass@1"] - row["off"]["pass@1"] for row in rows]), ""]
    lines += [
        "Prompts by band at the end, arm `on`:",
        "",
        "| seed | new | below | inside | above | mean pass rate |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        bands = [
            row["on"]["bands"][f"curriculum/{name}"]
            for name in ("new_frac", "below_frac", "inside_frac", "above_frac", "pass_rate")
        ]
        lines.append(f"| {row['seed']} | " + " | ".join(f"{value:.3f}" for value in bands) + " |")
    return "\n".join(lines) + "\n"


def _line(label: str, values: list[float], sign: str = "") -> str:
    mean, half = _interval(values)
    return (
        f"| {label} | " + " | ".join(f"{value:{sign}.3f}" for value in values) + f" | {mean:{sign}.3f} ± {half:.3f} |"
    )


def _interval(values: list[float]) -> tuple[float, float]:
    n = len(values)
    if n < 2:
        return statistics.fmean(values), float("nan")
    return statistics.fmean(values), float(student.ppf(0.975, n - 1)) * statistics.stdev(values) / n**0.5


def _verdict(gains: list[float]) -> str:
    mean, half = _interval(gains)
    if mean - half > 0:
        return "The curriculum solved more at the first try: the interval of the difference lies above 0."
    if mean + half < 0:
        return "The curriculum solved less at the first try: the interval of the difference lies below 0."
    return (
        "No difference in pass@1 is shown: the interval of the difference holds 0. That is no proof that there is none: the runs are "
        "short, both arms gain little, they share one start, and an interval over so few seeds says little. Here most prompts are "
        "inside the band all the time, so a curriculum has little to choose."
    )


def main() -> None:
    """Run the seeds and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "curriculum")
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "results" / "curriculum.md")
    arguments = parser.parse_args()
    command = "python " + shlex.join(sys.argv)
    text = page(measured(arguments.seeds, arguments.folder), command)
    write_text(arguments.write, text)
    print(text)


if __name__ == "__main__":
    main()
