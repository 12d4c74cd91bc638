"""GRPO against a judge with planted faults: does the policy become better by the world's own judge, which it never sees?

    python benchmarks/judge_reward.py --seeds 11 12 13 --write docs/results/judge_reward.md

The judge is a chat endpoint on loopback (``tests/fixtures/judging_server.py``) that grades, compares and orders by the embedded world's rules
and has the faults of language models: it prefers the first place and the longer answer, answers some requests with status 500, writes
verdicts that can't be read, and turns some round. Every seed is a whole run from its own demonstrations on, with its own prompts and facts
held out; the modes share its SFT model. Finished stages are kept, and what was killed goes on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the server is a fixture of the tests

from rlhf.config.recipe import RecipeConfig  # noqa: E402
from rlhf.config.yaml_text import read_yaml  # noqa: E402
from rlhf.files import write_text  # noqa: E402
from rlhf.formatting import percentage  # noqa: E402
from rlhf.pipeline.run import Pipeline, machine, versions  # noqa: E402
from tests.fixtures.judging_server import RUBRIC, Faults, judging_server  # noqa: E402

MODES: dict[str, dict[str, Any]] = {
    "points": {"mode": "points", "rubric": RUBRIC},
    "pairwise": {"mode": "pairwise"},
    "group_ranks": {"mode": "group_ranks"},
}
UNREAD = 0.5
"""Of ``max_unscored_frac``: in points one unreadable grade of eight leaves the prompt out."""


def recipe_of(seed: int, url: str, modes: Sequence[str], rollouts: int, folder: Path) -> RecipeConfig:
    """The quickstart's world, SFT and GRPO, with a judge in place of the reward model, once for each mode."""
    tree = read_yaml(ROOT / "recipes" / "quickstart_grpo.yaml")["stages"]
    stages: dict[str, Any] = {"world": {**tree["world"], "split_seed": seed}, "sft": tree["sft"]}
    evaluation = {key: value for key, value in tree["evaluate"].items() if key not in ("reward_model", "pairs")}
    judge = {"type": "endpoint", "url": url, "model": "world", "concurrency": 8, "backoff_seconds": 0.01}
    for mode in modes:
        reward = {"kind": "judge", "judge": judge, **MODES[mode]}
        stages[mode] = {**tree["grpo"], "reward": reward, "rollouts": rollouts, "max_unscored_frac": UNREAD}
        stages[f"evaluate_{mode}"] = {
            **evaluation,
            "policy": f"stage:{mode}",
            "rollouts": f"stage:{mode}/rollouts.jsonl",
        }
    return RecipeConfig.of(
        {"name": f"judge-{seed}", "output_dir": str(folder), "seed": seed, "threads": 1, "stages": stages}
    )


def run_seed(
    seed: int, modes: Sequence[str], rollouts: int, folder: Path, console: Console
) -> dict[str, dict[str, Any]]:
    """Mode -> its numbers; the server has one port for a seed, because its address is part of a stage's key."""
    with judging_server(Faults(), seed=seed, port=20_000 + seed) as server:
        pipeline = Pipeline(recipe_of(seed, server.url, modes, rollouts, folder), console=console)
        pipeline.run()
    by_mode = {}
    for mode in modes:
        evaluated = pipeline.artifacts[f"evaluate_{mode}"].metrics
        (record,) = read_json(folder / f"judge-{seed}" / mode / "judge_rewards.json").values()
        by_mode[mode] = {**record, **{key: evaluated[key] for key in ("win_rate", "win_rate_low", "win_rate_high")}}
    return by_mode


def read_json(path: Path) -> dict[str, Any]:
    """A file of ours."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def table(rows: dict[int, dict[str, dict[str, Any]]], modes: Sequence[str], rollouts: int, command: str) -> str:
    """Markdown."""
    faults = Faults()
    used = ", ".join(
        f"{name} {version}" for name, version in versions().items() if name in ("rlhf", "torch", "transformers")
    )
    lines = [
        "# GRPO against a judge with faults",
        "",
        "<!-- written by benchmarks/judge_reward.py; do not edit by hand -->",
        "",
        f"Made by `{command}` on {machine()['cpu']}, one thread; {used}.",
        "",
        f"The judge answers over HTTP by the embedded world's rules, and of its questions {percentage(faults.first, 0)} are answered by "
        f"the first place, {percentage(faults.longest, 0)} by length, {percentage(faults.refused, 0)} with status 500 at first, "
        f"{percentage(faults.unreadable, 0)} in a form that can't be read, and {percentage(faults.wrong, 0)} the wrong way round.",
        f"GRPO takes the settings of `recipes/quickstart_grpo.yaml` with {rollouts} rollouts of 16 prompts and 8 completions, and "
        f"`max_unscored_frac: {UNREAD}`. Every seed has its own world, held-out prompts and SFT model, which the modes share.",
        "",
        "Win rate: over the SFT model on 400 held-out prompts, one completion each at temperature 1, ties half, by the world's own judge,",
        "which no training sees; 95 % interval over prompts.",
        "",
        "| mode | seed | questions | unparsed | win rate over SFT |",
        "|---|---|---|---|---|",
    ]
    for mode in modes:
        for seed, of_seed in rows.items():
            each = of_seed[mode]
            unparsed = percentage(each["unparsed"] / each["questions"])
            rate = f"{each['win_rate']:.3f} [{each['win_rate_low']:.3f}, {each['win_rate_high']:.3f}]"
            lines.append(f"| `{mode}` | {seed} | {each['questions']:,} | {unparsed} | {rate} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the seeds and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--rollouts", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "judge_reward")
    parser.add_argument("--write", type=Path, help="Markdown file to write.")
    arguments = parser.parse_args()
    rows = {
        seed: run_seed(seed, arguments.modes, arguments.rollouts, arguments.folder, Console())
        for seed in arguments.seeds
    }
    text = table(rows, arguments.modes, arguments.rollouts, shlex.join(["python", *sys.argv]))
    print(text)
    if arguments.write is not None:
        write_text(arguments.write, text)


if __name__ == "__main__":
    main()
