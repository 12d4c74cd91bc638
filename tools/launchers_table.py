"""One recipe in four ways: one process, ranks by torchrun, engines in Ray's actors, ranks by DeepSpeed; the same run each time.

    python tools/launchers_table.py                              writes docs/results/launchers.md (about a quarter of an hour on two cores)
    python tools/launchers_table.py --only local torchrun
    python tools/launchers_table.py stages.grpo.rollouts=5        with settings of one's own, for trying it out

Compared with one process: the metrics of each stage's first step, and the win rate at the end with its interval.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rlhf.files import write_text
from rlhf.formatting import duration
from rlhf.pipeline.run import machine

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes" / "quickstart_grpo.yaml"
FOLDER = ROOT / "runs" / "launchers"
TRAINED = ("sft", "reward", "grpo")
COMPARED = ("loss/train", "grad_norm")
SMALL = 0.1
"""Differences of smaller numbers are relative to this: the first loss of GRPO is a sum of advantages, 0 but for rounding."""
ZERO = {"zero_optimization": {"stage": 2}}
LAUNCHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("one process", {"launcher": "local"}),
    "torchrun": ("two ranks by torchrun, FSDP2", {"launcher": "torchrun", "processes": 2}),
    "ray": ("one process, two engines in Ray's actors", {"launcher": "ray", "pools": {"engines": {"replicas": 2}}}),
    "deepspeed": ("two ranks by torchrun, DeepSpeed ZeRO 2", {"launcher": "torchrun", "processes": 2}),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="changes of the recipe")
    parser.add_argument("--only", nargs="+", choices=list(LAUNCHERS), default=list(LAUNCHERS))
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "results" / "launchers.md")
    args = parser.parse_args(argv)
    FOLDER.mkdir(parents=True, exist_ok=True)
    runs = {name: run(name, args.settings) for name in args.only}
    text = page(runs, "python " + shlex.join(sys.argv if argv is None else [__file__, *argv]))
    write_text(args.write, text)
    print(text)


def run(name: str, settings: Sequence[str]) -> dict[str, Any]:
    """What a run left; it starts anew."""
    launch = FOLDER / f"{name}.yaml"
    launch.write_text(yaml.safe_dump(LAUNCHERS[name][1]))
    own = []
    if name == "deepspeed":
        file = FOLDER / "ds_config.json"
        file.write_text(json.dumps(ZERO))
        own = [f"deepspeed={file}"]
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    command = [sys.executable, "-m", "rlhf", "run", str(RECIPE), "--launch", str(launch)]
    command += [f"name={name}", f"output_dir={FOLDER}", "device=cpu", "threads=1", *own, *settings]
    began = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    events = [json.loads(line) for line in (FOLDER / name / "events.jsonl").read_text().splitlines()]
    first: dict[str, dict[str, float]] = {}
    for event in events:
        if event["event"] == "metrics" and event["stage"] in TRAINED:
            first.setdefault(event["stage"], event["metrics"])
    summary = json.loads((FOLDER / name / "summary.json").read_text())
    return {"first": first, "summary": summary, "seconds": time.monotonic() - began}


def page(runs: dict[str, dict[str, Any]], command: str) -> str:
    """Markdown; every run beside the first."""
    names = list(runs)
    base, about = runs[names[0]], machine()
    lines = [
        "# One recipe, four launchers",
        "",
        "<!-- written by tools/launchers_table.py; do not edit by hand -->",
        "",
        f"`{RECIPE.name}` as it is, by `{command}`, on {about['cpu']}, {about['cores']} cores.",
        "Each way is a run of its own from its first stage to the report; the settings that differ are `launch` ([cluster.md](../cluster.md))",
        "and `deepspeed` ([ranks.md](../ranks.md)). Differences are the largest, relative to one process (and to 0.1 at least), of",
        f"{' and '.join(f'`{key}`' for key in COMPARED)} in a stage's first step. Two cores are shared by all processes of a way, so its",
        "seconds say what the machinery costs, and nothing about machines that have a core or a GPU for each.",
        "",
        "| | win rate | " + " | ".join(f"first step of {stage}" for stage in TRAINED) + " | seconds by the clock |",
        "|---|---|" + "---|" * len(TRAINED) + "---|",
    ]
    for name in names:
        found, summary = runs[name], runs[name]["summary"]
        cells = [f"{difference(found['first'][stage], base['first'][stage]):.1e}" for stage in TRAINED]
        if name == names[0]:
            cells = ["-"] * len(TRAINED)
        rate = f"{summary['win_rate']:.3f} [{summary['win_rate_low']:.3f}, {summary['win_rate_high']:.3f}]"
        lines.append(f"| {LAUNCHERS[name][0]} | {rate} | {' | '.join(cells)} | {duration(found['seconds'])} |")
    lines += [
        "",
        "The stage `sft` begins from the same weights in every way, and its first step is the same to 1e-5. The stages behind it begin from",
        "what the 120 steps before left, where AdamW has made more of rounding; `grpo` samples from it, so that its first rollout over ranks",
        "is another one. With engines in actors the weights at the end differ from one process's by rounding, as rollouts are cut in two.",
    ]
    return "\n".join(lines) + "\n"


def difference(one: dict[str, float], other: dict[str, float]) -> float:
    """Largest relative difference of what is compared."""
    return max(abs(one[key] - other[key]) / max(abs(other[key]), SMALL) for key in COMPARED)


if __name__ == "__main__":
    main()
