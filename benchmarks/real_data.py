"""The recipes on real models and real human data, and a page of what came out.

python benchmarks/real_data.py --write docs/results/real_data.md          needs RLHF_ASSETS
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from rlhf.config.recipe import load_recipe
from rlhf.pipeline.run import Pipeline, machine, versions

ROOT = Path(__file__).parent.parent
RECIPES = ("hh_rlhf.yaml", "stories_ppo.yaml", "stories_grpo.yaml")
ABOUT = {
    "hh_rlhf.yaml": "Human preferences: Anthropic's HH-RLHF (helpful) on the pretrained 260K-parameter story model",
    "stories_ppo.yaml": "Positive stories by PPO: VADER's human-rated lexicon as the reward",
    "stories_grpo.yaml": "Positive stories by GRPO: the same reward, no critic",
}
NUM_SAMPLES = 3


def run_recipe(name: str, console: Console) -> Pipeline:
    """Run or finish one recipe; what is there is kept."""
    pipeline = Pipeline(load_recipe(ROOT / "recipes" / name), console=console)
    pipeline.run()
    return pipeline


def section(name: str, pipeline: Pipeline) -> str:
    """Stages with their seconds, then what changed in each evaluation, then samples."""
    lines = [
        f"## {ABOUT[name]}",
        "",
        f"`rlhf run recipes/{name}`",
        "",
        "| stage | what came out | seconds |",
        "|---|---|---|",
    ]
    lines += [f"| {a.stage} | {a.headline} | {a.seconds:.0f} |" for a in pipeline.artifacts.values()]
    for artifact in pipeline.artifacts.values():
        if artifact.kind == "evaluate":
            path = pipeline.run_dir / artifact.stage / "evaluation.json"
            lines += evaluation_lines(artifact.stage, json.loads(path.read_text(encoding="utf-8")))
    return "\n".join(lines) + "\n"


def evaluation_lines(stage: str, record: Mapping[str, Any]) -> list[str]:
    """Before, after and gain of what matters, with 95 % intervals, and the first samples of the file."""
    lines = ["", f"### {stage}: {record['settings']['judge']}", "", "| | before | after | gain |", "|---|---|---|---|"]
    for quantity in ("gold", "proxy", "length", "distinct_2", "unended_frac"):
        if quantity in record["changes"]:
            change = record["changes"][quantity]
            lines.append(
                f"| {quantity} | " + " | ".join(estimate(change[side]) for side in ("before", "after", "gain")) + " |"
            )
    lines += ["", f"KL from the start: {estimate(record['kl']['k1'])} nats per sequence."]
    if record["hacking"]:
        lines += ["", f"The report on over-optimization: {record['hacking']['sentence']}"]
    for sample in [s for s in record["samples"] if s["chosen_as"] == "first"][:NUM_SAMPLES]:
        lines += [
            "",
            f"> **{one_line(sample['prompt'])}**",
            ">",
            f"> before: {one_line(sample['before']['text'])}",
            ">",
        ]
        lines += [f"> after: {one_line(sample['after']['text'])}"]
    return lines


def estimate(value: Mapping[str, Any]) -> str:
    """Value and interval; a number without interval stands alone."""
    if value["value"] is None:
        return "not measured"
    if value["low"] is None:
        return f"{value['value']:.3f}"
    return f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def one_line(text: str) -> str:
    """The end of a text without line breaks or marks that Markdown would read."""
    flat = " ".join(text.split()).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
    return flat if len(flat) <= 300 else "... " + flat[-300:]


def main() -> None:
    """Run the recipes and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    console = Console()
    parts = [
        "# Real models and real data\n",
        "<!-- written by benchmarks/real_data.py; do not edit by hand -->\n",
        "Made by `python benchmarks/real_data.py --write docs/results/real_data.md` on "
        f"{machine()['cpu']}, one thread, other work on the machine; "
        + ", ".join(f"{n} {v}" for n, v in versions().items() if n in ("rlhf", "torch", "transformers"))
        + ". The model and the data are described in the README of the folder that RLHF_ASSETS names. Numbers in brackets are 95 % intervals\n"
        "over prompts. `gold` is the judge's score, `proxy` the reward model's that the policy was trained against.\n",
    ]
    for name in arguments.recipes:
        parts.append(section(name, run_recipe(name, console)))
        if arguments.write:
            arguments.write.parent.mkdir(parents=True, exist_ok=True)
            arguments.write.write_text("\n".join(parts), encoding="utf-8")
    console.print("\n".join(parts), soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
