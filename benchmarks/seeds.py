"""The table of results over fresh seeds: does the loop really learn, and does it do so again?

    python benchmarks/seeds.py --seeds 11 12 13 14 15 --write docs/results/seeds.md

Every seed is a whole run from its own demonstrations on: SFT, pairs, reward model, PPO, GRPO, DPO, and PPO at the reward-hacking
setting without and with the KL penalty, all judged by the world's own judge on held-out prompts. Odd seeds use the shipped base
model, even ones the second base (``--other-base``) where it is given; each seed holds out its own prompts and facts.

The settings in ``recipes/`` were chosen on seeds from 100 on; the table is made on others.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from scipy.stats import t as student

from rlhf.config.recipe import RecipeConfig
from rlhf.config.yaml_text import read_yaml
from rlhf.pipeline.run import Pipeline, machine, versions

ROOT = Path(__file__).parent.parent
ARMS = {
    "PPO": ("quickstart.yaml", "ppo", "evaluate"),
    "GRPO": ("quickstart_grpo.yaml", "grpo", "evaluate"),
    "DPO": ("quickstart_dpo.yaml", "dpo", "evaluate"),
    "PPO hot, no KL": ("reward_hacking.yaml", "hacked", "evaluate_hacked"),
    "PPO hot, KL": ("reward_hacking.yaml", "held", "evaluate_held"),
}
"""Name in the table: recipe, policy stage, evaluation stage. Stages before the policy are the same in all recipes."""
COLUMNS = {
    "win_rate": "win rate",
    "gold_after": "judge score",
    "proxy_after": "reward model's score",
    "kl": "KL, nats/seq",
    "gold_unparsable_after": "unparsable",
    "gold_perfect_after": "perfect",
    "gold_correct_after": "correct",
}


def combined_recipe(seed: int, base: str, folder: Path, arms: Sequence[str]) -> RecipeConfig:
    """One recipe with the shared stages once and every arm's policy and evaluation beside each other."""
    stages: dict[str, Any] = {}
    for arm in arms:
        file, policy, evaluation = ARMS[arm]
        tree = read_yaml(ROOT / "recipes" / file)["stages"]
        for name, stage in tree.items():
            if (
                name not in ("evaluate", policy, evaluation)
                and not name.startswith("evaluate")
                and name not in ("hacked", "held")
            ):
                assert stages.setdefault(name, stage) == stage, f"{file} differs from the other recipes in stage {name}"
        stages[policy] = tree[policy]
        stages[f"evaluate_{policy}"] = tree[evaluation]
    stages["world"] = {**stages["world"], "split_seed": seed}
    stages["sft"] = {**stages["sft"], "model": base}
    return RecipeConfig.of(
        {"name": f"seed-{seed}", "output_dir": str(folder), "seed": seed, "threads": 1, "stages": stages}
    )


def run_seed(seed: int, base: str, folder: Path, arms: Sequence[str], console: Console) -> dict[str, Any]:
    """Run or finish one seed; what is there is kept."""
    began = time.monotonic()
    pipeline = Pipeline(combined_recipe(seed, base, folder, arms), console=console)
    pipeline.run()
    artifacts = pipeline.artifacts
    return {
        "seed": seed,
        "base": base,
        "reward_accuracy": artifacts["reward"].metrics["eval/accuracy"] if "reward" in artifacts else None,
        "arms": {
            arm: {**artifacts[f"evaluate_{ARMS[arm][1]}"].metrics, "seconds": artifacts[ARMS[arm][1]].seconds}
            for arm in arms
        },
        "seconds": {name: a.seconds for name, a in artifacts.items()},
        "wall_seconds": time.monotonic() - began,
    }


def interval(values: Sequence[float]) -> str:
    """Mean ± half a 95 % t interval over seeds, and the range."""
    mean = statistics.fmean(values)
    if len(values) < 3:  # an interval from two numbers says nothing
        return f"{mean:.3f} [{min(values):.3f}, {max(values):.3f}]"
    half = student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.3f} ± {half:.3f} [{min(values):.3f}, {max(values):.3f}]"


def table(rows: Sequence[dict[str, Any]], arms: Sequence[str], command: str) -> str:
    """Markdown: a summary by arm, then every seed."""
    lines = [
        "# Results over fresh seeds",
        "",
        "<!-- written by benchmarks/seeds.py; do not edit by hand -->",
        "",
        f"Made by `{command}` on {machine()['cpu']}, one thread; "
        + ", ".join(
            f"{name} {version}" for name, version in versions().items() if name in ("rlhf", "torch", "transformers")
        )
        + ".",
        "",
        "A base in a folder is a second one, from `rlhf run recipes/base.yaml name=base-1 seed=1`; `embedded` is the shipped one.",
        "Every seed holds out its own prompts and facts.",
        "",
        "Mean ± half a 95 % t interval over seeds [lowest, highest]. Win rate: over the SFT model on 400 held-out prompts, one completion",
        "each at temperature 1, ties half, by the world's own judge, which no policy stage sees.",
        "",
        "| | seeds | " + " | ".join(COLUMNS.values()) + " | train, s |",
        "|---|---|" + "---|" * (len(COLUMNS) + 1),
    ]
    for arm in arms:
        cells = []
        for column in COLUMNS:
            values = [r["arms"][arm].get(column) for r in rows]
            cells.append(interval(values) if all(v is not None for v in values) else "not measured")
        seconds = statistics.fmean(r["arms"][arm]["seconds"] for r in rows)
        lines.append(f"| {arm} | {len(rows)} | " + " | ".join(cells) + f" | {seconds:.0f} |")
    if all(r["reward_accuracy"] is not None for r in rows):
        accuracy = [r["reward_accuracy"] for r in rows]
        lines += ["", f"Reward model's accuracy on held-out pairs labeled without noise: {interval(accuracy)}."]
    lines += ["", "| seed | base | reward model's accuracy | " + " | ".join(f"{arm}: win, KL" for arm in arms) + " |"]
    lines += ["|---|---|---|" + "---|" * len(arms)]
    for r in rows:
        cells = [f"{r['arms'][arm]['win_rate']:.3f}, {r['arms'][arm]['kl']:.1f}" for arm in arms]
        accuracy_text = f"{r['reward_accuracy']:.3f}" if r["reward_accuracy"] is not None else "-"
        lines.append(f"| {r['seed']} | {r['base']} | {accuracy_text} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the seeds and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13, 14, 15])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--other-base", help="Folder of a second base model, used for even seeds.")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "seeds")
    parser.add_argument("--write", type=Path, help="Markdown file to write; the rows go beside it as JSON.")
    arguments = parser.parse_args()
    console = Console()
    rows = []
    for seed in arguments.seeds:
        base = arguments.other_base if arguments.other_base and seed % 2 == 0 else "embedded"
        rows.append(run_seed(seed, base, arguments.folder, arguments.arms, console))
        shown = table(rows, arguments.arms, "python " + shlex.join(sys.argv))
        if arguments.write:
            arguments.write.parent.mkdir(parents=True, exist_ok=True)
            arguments.write.write_text(shown, encoding="utf-8")
            arguments.write.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    console.print(shown, soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
