"""Measures which learning rates work on three small models of different sizes and tokenizers; writes docs/learning-rates.md.

    python tools/unseen_world.py --out runs/unseen --run policy         the third model, and the movie reviews
    python tools/learning_rates.py --unseen runs/unseen                 the grid; finished cells are kept
    python tools/learning_rates.py --unseen runs/unseen --models embedded --methods dpo

Every cell is a short run, judged on held-out rows or prompts; its rate is constant after the warm-up. `lr_find` looks at the same
stage. The judge of policies is not a learned one: the embedded world's truth, or VADER's lexicon on movie reviews.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.config.recipe import ASSETS, DEFAULT_ASSETS, RecipeConfig
from rlhf.evaluation.judges import world_judge
from rlhf.files import write_text
from rlhf.pipeline.run import Pipeline, machine, versions
from rlhf.training.log import TrainingLogger

ROOT = Path(__file__).parent.parent
MODELS = {
    "stories260K": "0.26M parameters, BPE of 512 entries, pre-trained on lower-case stories; here on movie reviews",
    "embedded": "0.77M parameters, byte-level BPE of 1,024 entries, pre-trained on the embedded world",
    "unseen": "1.1M parameters, 99 tokens (one for each character), pre-trained on movie reviews",
}
RATES = {
    "sft": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    "reward": (1e-4, 3e-4, 1e-3, 3e-3),
    "dpo": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3),
    "grpo": (3e-5, 1e-4, 3e-4, 1e-3),
}
OFFLINE = {"max_steps": 30, "batch_size": 16, "schedule": "constant", "max_nonfinite_steps": 1000}
POLICY: Mapping[str, Any] = {
    "rollouts": 8,
    "prompts_per_rollout": 8,
    "group_size": 6,
    "minibatch_size": 24,
    "schedule": "constant",
    "max_nonfinite_steps": 1000,
    "missing_eos_penalty": 1.0,
    "kl": {"coef": 0.05},
}
KNOWN_START = {"reward": 0.5, "dpo": 0.5}
"""Accuracy before anything was learned."""
WARM_UP = {"learning_rate": 1e-3, "max_steps": 40, "batch_size": 16}
"""Of a model that has not seen the data: what the other methods start from."""
BEGIN, END = "<!-- measured: written by tools/learning_rates.py -->", "<!-- end of what was measured -->"
HELD_PAIRS = 200
NEAR_BEST = 0.7
"""A rate works where it brings this share of what the best one of its row brings."""
FAR = 0.5
"""Nats per token from the start beyond which a policy is lost, whatever it scores."""
GARBAGE = 0.15
"""Rise of the share of repeated three-token runs, likewise."""


@dataclass(frozen=True)
class Cell:
    """What became of one rate."""

    rate: float
    value: float | None
    """Loss (SFT), accuracy on held-out pairs (reward, DPO) or mean score of held-out prompts (GRPO); None: it broke."""
    kl: float | None = None
    """Nats per token to the start, of a policy that was sampled."""
    repetition: float | None = None


def world_truth(prompts: Sequence[str], completions: Sequence[str], *, ended: Sequence[bool]) -> list[float]:
    """The embedded world's judge as a reward."""
    return [float(verdict["score"]) for verdict in world_judge(prompts, completions, ended=ended)]


def grid(model: str, methods: Sequence[str], unseen: Path, out: Path) -> RecipeConfig:
    """All cells of a model as the stages of one recipe: `sft_0.001` and so on, and what they start from."""
    data = unseen.resolve() / "data"
    assets = Path(os.environ.get(ASSETS, DEFAULT_ASSETS)).resolve()
    if model == "embedded":
        start = {"model": "embedded", "data": "stage:world/sft.jsonl"}
        stages: dict[str, Any] = {
            "world": {"kind": "world"},
            "start": {"kind": "sft", **start, **WARM_UP},
            "preferences": {
                "kind": "preferences", "model": "stage:start", "prompts": "stage:world/prompts.jsonl", "num_pairs": 400,
                "test_prompts": "stage:world/test_prompts.jsonl", "num_test_pairs": 100, "sampling": {"max_new_tokens": 40},
            },
        }  # fmt: skip
        pairs = {"data": "stage:preferences/pairs.jsonl", "eval_data": "stage:preferences/test_pairs.jsonl"}
        asked = {"prompts": "stage:world/prompts.jsonl", "eval_prompts": "stage:world/test_prompts.jsonl"}
        reward: dict[str, Any] = {"kind": "function", "function": f"{Path(__file__).resolve()}:world_truth"}
        length, sft = 40, {**start, "eval_frac": 0.02}
    else:
        path = (
            str(assets / "models" / "stories260K")
            if model == "stories260K"
            else str(unseen.resolve() / "policy" / "base" / "model")
        )
        start = {"model": path, "data": str(data / "policy_demonstrations.jsonl")}
        stages = {"start": {"kind": "sft", **start, **WARM_UP}}
        held = out / "test_pairs.jsonl"
        write_text(held, "".join((data / held.name).read_text(encoding="utf-8").splitlines(keepends=True)[:HELD_PAIRS]))
        pairs = {"data": str(data / "policy_pairs.jsonl"), "eval_data": str(held)}
        asked = {"prompts": str(data / "policy_prompts.jsonl"), "eval_prompts": str(data / "test_prompts.jsonl")}
        reward = {"kind": "lexicon", "path": str(assets / "vader" / "vader_lexicon.txt"), "scale": "compound"}
        length, sft = 48, {**start, "eval_data": str(data / "test_demonstrations.jsonl")}
    common: dict[str, Mapping[str, Any]] = {
        "sft": {"kind": "sft", **sft, **OFFLINE},
        "reward": {"kind": "reward", "model": "stage:start", **pairs, **OFFLINE},
        "dpo": {"kind": "dpo", "model": "stage:start", **pairs, **OFFLINE, "limit": 480},
    }
    policy = {"model": "stage:start", **asked, "reward": reward, "evaluation": {"limit": 64}, **POLICY}
    policy["sampling"] = {"max_new_tokens": length}
    common["grpo"] = {"kind": "grpo", **policy}
    for method in methods:
        short = {"rollouts": 1} if method == "grpo" else {"max_steps": 1}
        if method not in KNOWN_START:  # a step so small that it changes nothing
            stages[f"{method}_start"] = {**common[method], **short, "learning_rate": 1e-12}
        for rate in RATES[method]:
            search = {"lr_find": "suggest"} if rate == RATES[method][0] else {}
            stages[f"{method}_{rate_text(rate)}"] = {
                **common[method],
                "learning_rate": rate,
                "eval_every": 10_000,
                **search,
            }
    return RecipeConfig.of({"name": model, "output_dir": str(out), "seed": 5, "threads": 1, "stages": stages})


def rate_text(rate: float) -> str:
    """3e-4, as people write it."""
    return f"{rate:.0e}".replace("e-0", "e-")


def cell_of(method: str, rate: float, metrics: Mapping[str, float]) -> Cell:
    """What a stage's last evaluation says."""
    name = {"sft": "eval/loss", "reward": "eval/accuracy", "dpo": "eval/accuracy"}.get(method, "eval/score_mean")
    length = metrics.get("eval/length_mean")
    kl = metrics["eval/ref_kl"] / length if length else None
    return Cell(rate, metrics.get(name), kl, metrics.get("eval/repetition"))


def working(method: str, cells: Sequence[Cell], start: Cell) -> list[float]:
    """The rates that bring most of what the best one brings, by a policy that is still near its start and does not repeat itself."""

    def gain(cell: Cell) -> float:
        if cell.value is None or start.value is None or (cell.kl or 0) > FAR:
            return -1.0
        if (cell.repetition or 0) - (start.repetition or 0) > GARBAGE:
            return -1.0
        return start.value - cell.value if method == "sft" else cell.value - start.value

    best = max(map(gain, cells))
    return [cell.rate for cell in cells if best > 0 and gain(cell) >= NEAR_BEST * best]


def table(method: str, rows: Mapping[str, tuple[Cell, Sequence[Cell], float | None]]) -> list[str]:
    """A method's rows: one a model."""
    lines = ["| model | start | " + " | ".join(map(rate_text, RATES[method])) + " | works | lr_find |"]
    lines.append("|---" * (len(RATES[method]) + 4) + "|")
    for model, (start, cells, suggested) in rows.items():
        works = working(method, cells, start)
        shown = " to ".join(dict.fromkeys(map(rate_text, (works[0], works[-1])))) if works else "none"
        suggested_text = "nothing" if suggested is None else f"{suggested:.1e}".replace("e-0", "e-")
        each = " | ".join(cell_text(cell) for cell in (start, *cells))
        lines.append(f"| {model} | {each} | {shown} | {suggested_text} |")
    return lines


def cell_text(cell: Cell) -> str:
    """The value, and of a policy its KL (an estimate: tiny ones can come out below 0)."""
    value = "broke" if cell.value is None else f"{cell.value:.2f}"
    return value if cell.kl is None else f"{value} ({abs(cell.kl):.2f})"


def measured(pipeline: Pipeline, method: str) -> tuple[Cell, list[Cell], float | None]:
    """Start, cells and what lr_find suggested."""
    metrics = {name: artifact.metrics for name, artifact in pipeline.artifacts.items()}
    start = Cell(0, KNOWN_START[method]) if method in KNOWN_START else cell_of(method, 0, metrics[f"{method}_start"])
    names = {rate: f"{method}_{rate_text(rate)}" for rate in RATES[method]}
    (event,) = TrainingLogger(pipeline.run_dir, stage=names[RATES[method][0]]).read("lr_find")[-1:]
    return start, [cell_of(method, rate, metrics[name]) for rate, name in names.items()], event["suggested"]


def main() -> None:
    """Run what is missing, and write the tables between the marks of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unseen", type=Path, default=ROOT / "runs" / "unseen", help="folder of tools/unseen_world.py")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "learning-rates")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--methods", nargs="+", choices=tuple(RATES), default=tuple(RATES))
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "learning-rates.md")
    arguments = parser.parse_args()
    by_method: dict[str, dict[str, tuple[Cell, Sequence[Cell], float | None]]] = {
        method: {} for method in arguments.methods
    }
    for model in arguments.models:
        pipeline = Pipeline(grid(model, arguments.methods, arguments.unseen, arguments.out))
        pipeline.run(brief=True, ignore_code=True)
        for method in arguments.methods:
            by_method[method][model] = measured(pipeline, method)
    library = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("rlhf", "torch"))
    command = "python " + shlex.join(sys.argv)
    lines = [f"Made by `{command}` on {machine()['cpu']}, one thread; {library}.", ""]
    lines += [f"* `{model}`: {words}" for model, words in MODELS.items() if model in arguments.models]
    for method in arguments.methods:
        lines += ["", f"### {method}", "", *table(method, by_method[method])]
    text = "\n".join(lines)
    print(text)
    page = arguments.write.read_text(encoding="utf-8") if arguments.write.is_file() else f"{BEGIN}\n{END}\n"
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    write_text(arguments.write, f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()
