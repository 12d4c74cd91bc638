"""Averages of reward models against single ones under optimization pressure, on the embedded world.

    python benchmarks/averaged_rewards.py --seeds 11 12 13 --write docs/results/averaged-rewards.md

A seed is a whole run: a base, few preference pairs of which many are labeled the wrong way round, and reward models that share start and
head and differ in the order of rows and the learning rate. Their weights are averaged (WARM, arXiv:2401.12187). Pressure is best-of-n on
held-out prompts, and PPO against the average and against single models. The truth is the world's own judge,
which none of them saw.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from merged_specialists import half_interval, interval, measured
from rich.console import Console

from rlhf.config.policy import SamplingConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.config.reward_model import RewardModelConfig
from rlhf.data.datasets import GRPODataset, PreferenceDataset
from rlhf.data.world import judge, split_prompts
from rlhf.evaluation.judges import world_judge
from rlhf.evaluation.overoptimization import judge_rollouts
from rlhf.evaluation.reward_model_quality import judge_reward_model
from rlhf.files import write_json
from rlhf.formatting import percentage
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.models.reward_averaging import average_reward_models
from rlhf.pipeline.run import Pipeline, machine, versions
from rlhf.rewards.best_of_n_statistics import best_of_n_means
from rlhf.rewards.learned import LearnedReward
from rlhf.rollout.local import LocalEngine
from rlhf.seeds import derive_seed
from rlhf.training.reward_model import RewardModelTrainer

ROOT = Path(__file__).parent.parent
RATES = (1e-3, 7e-4, 1e-3, 7e-4)
"""Learning rates of the single reward models."""
EPOCHS = 4
PRESSED = 2
"""Single models that PPO runs against."""
NS = (1, 4, 16, 32)
SAMPLING = {"max_new_tokens": 40}
SINGLE, AVERAGE, ENSEMBLE = "single models", "average of weights", "mean of scores"
QUALITY, BEST_OF_N, PPO = (
    "Reward models",
    "The best of n by each, judged by the truth",
    "PPO against each, judged by the truth",
)
Row = dict[str, list[float]]
"""Column -> value of each model of a kind: several of single ones, one of the others."""


@dataclass(frozen=True)
class Sizes:
    """What a seed costs."""

    pairs: int
    noise: float
    prompts: int
    rollouts: int
    kl_coefs: tuple[float, ...]


def pipeline_run(name: str, seed: int, folder: Path, stages: Mapping[str, Any]) -> Path:
    """The run's folder."""
    tree = {"name": name, "seed": seed, "threads": 1, "output_dir": str(folder), "stages": stages}
    Pipeline(RecipeConfig.of(tree, source=name), console=Console(quiet=True)).run()
    return folder / name


def train_base(seed: int, folder: Path, sizes: Sizes) -> Path:
    """A policy and preference pairs of its samples."""
    return pipeline_run("base", seed, folder, {
        "world": {"kind": "world", "num_documents": 0},
        "sft": {"kind": "sft", "model": "embedded", "data": "stage:world/sft.jsonl", "learning_rate": 1e-3, "max_steps": 120},
        "preferences": {
            "kind": "preferences", "model": "stage:sft", "prompts": "stage:world/prompts.jsonl",
            "test_prompts": "stage:world/test_prompts.jsonl", "num_pairs": sizes.pairs, "noise": sizes.noise, "sampling": SAMPLING,
        },
    })  # fmt: skip


def train_rewards(seed: int, base: Path, folder: Path) -> list[Path]:
    """Single reward models, and last their average."""
    policy = PolicyModel.from_pretrained(str(base / "sft" / "model"))
    rows = PreferenceDataset(str(base / "preferences" / "pairs.jsonl"), policy.tokenizer)
    folders = []
    for number, rate in enumerate(RATES):
        model = RewardModel.from_policy(policy, seed=seed)  # one head at the start for all
        order = derive_seed(seed, "averaged rewards", number)
        config = RewardModelConfig(learning_rate=rate, epochs=EPOCHS, batch_size=16, seed=order)
        RewardModelTrainer(model, config, rows).train()
        folders.append(folder / f"reward_{number}")
        shutil.rmtree(folders[-1], ignore_errors=True)
        model.save_pretrained(folders[-1])
    return [*folders, average_reward_models(folders, folder / "average")]


def quality(rewards: Sequence[RewardModel], base: Path, seed: int) -> dict[str, Row]:
    """Accuracy on held-out pairs labeled without noise, and the share of wrong labels that a model learned by heart."""
    rows = [json.loads(line) for line in (base / "preferences" / "pairs.jsonl").read_text().splitlines()]
    tokenizer = rewards[0].tokenizer
    held_out = list(PreferenceDataset(str(base / "preferences" / "test_pairs.jsonl"), tokenizer))
    wrong = list(PreferenceDataset([row for row in rows if row["flipped"]], tokenizer))
    columns = {"held-out accuracy": held_out, "wrong labels followed": wrong}
    values = {
        column: [judge_reward_model(model, pairs, seed=seed).accuracy.value for model in rewards]
        for column, pairs in columns.items()
    }
    return by_kind(values)


def by_kind(values: Mapping[str, Sequence[float]]) -> dict[str, Row]:
    """The last of each column's values is the average's."""
    return {
        SINGLE: {column: list(each[:-1]) for column, each in values.items()},
        AVERAGE: {column: [each[-1]] for column, each in values.items()},
    }


def best_of(rewards: Sequence[RewardModel], base: Path, seed: int, sizes: Sizes) -> dict[str, Row]:
    """The truth of the best of n by each scorer, on one pool of samples of the base."""
    policy = PolicyModel.from_pretrained(str(base / "sft" / "model"))
    prompts = split_prompts(seed).test[: sizes.prompts]
    asked = list(GRPODataset([prompt.text for prompt in prompts], policy.tokenizer))
    sampling = SamplingConfig.of(SAMPLING)
    groups = LocalEngine(policy).generate(asked, num_samples=max(NS), sampling=sampling, seed=seed, rollout_index=0)
    truth = np.array(
        [
            [judge(p.text, one.text, ended=not one.truncated).score for one in group]
            for p, group in zip(prompts, groups, strict=True)
        ]
    )
    each = [completion for group in groups for completion in group]
    of = [prompt for prompt, group in zip(asked, groups, strict=True) for _ in group]
    scores = [
        np.array([float(s) for s in LearnedReward(model, tokenizer=policy.tokenizer).score(of, each).scores])
        for model in rewards
    ]
    scores = [column.reshape(truth.shape) for column in scores]

    def chosen(proxy: np.ndarray) -> list[float]:
        return [float(np.mean([best_of_n_means(p, t, n) for p, t in zip(proxy, truth, strict=True)])) for n in NS]

    curves = {SINGLE: [chosen(s) for s in scores[:-1]], ENSEMBLE: [chosen(np.mean(scores[:-1], axis=0))]}
    curves[AVERAGE] = [chosen(scores[-1])]
    return {
        kind: {f"n = {n}": [curve[place] for curve in of_kind] for place, n in enumerate(NS)}
        for kind, of_kind in curves.items()
    }


def ppo(folders: Sequence[Path], base: Path, seed: int, folder: Path, sizes: Sizes) -> dict[str, Row]:
    """What is left of a policy that was trained against each reward model."""
    pressed = [*folders[:PRESSED], folders[-1]]
    values: dict[str, list[float]] = {}
    for coef in sizes.kl_coefs:
        of_coef = f"KL weight {coef:g}"
        for reward in pressed:
            run = pipeline_run(f"ppo_{reward.name}_{coef:g}", seed, folder, {"ppo": {
                "kind": "ppo", "model": str(base / "sft" / "model"), "reward": str(reward),
                "prompts": str(base / "world" / "prompts.jsonl"), "learning_rate": 8e-4, "value_learning_rate": 1e-3,
                "value_init": "reward", "rollouts": sizes.rollouts, "prompts_per_rollout": 64, "minibatch_size": 32,
                "epochs_per_rollout": 2, "missing_eos_penalty": 1.0, "sampling": SAMPLING, "guards": "off", "kl": {"coef": coef},
            }})  # fmt: skip
            curve = judge_rollouts(run / "ppo" / "rollouts.jsonl", world_judge)
            windows = [curve[start : start + 5] for start in range(0, len(curve) - 4, 5)]
            end = measured(run / "ppo" / "model", split_prompts(seed).test[: sizes.prompts], seed)
            for column, value in (
                ("best", max(mean_of(window, "gold") for window in windows)),
                ("end", end["score"]),
                ("KL", mean_of(windows[-1], "kl")),
            ):
                values.setdefault(f"{of_coef}: {column}", []).append(value)
    return by_kind(values)


def mean_of(points: Sequence[Mapping[str, Any]], key: str) -> float:
    """Over rollouts."""
    return statistics.fmean(point[key] for point in points)


def of_seed(seed: int, folder: Path, sizes: Sizes) -> dict[str, dict[str, Row]]:
    """Table -> kind of reward -> column -> values."""
    base = train_base(seed, folder, sizes)
    folders = train_rewards(seed, base, folder)
    rewards = [RewardModel.from_pretrained(str(one)) for one in folders]
    return {
        QUALITY: quality(rewards, base, seed),
        BEST_OF_N: best_of(rewards, base, seed, sizes),
        PPO: ppo(folders, base, seed, folder, sizes),
    }


def measurements(seed: int, folder: Path, sizes: Sizes) -> dict[str, dict[str, Row]]:
    """``of_seed``, kept in the folder for a command that is given again."""
    file = folder / "measured.json"
    asked = json.loads(json.dumps(asdict(sizes)))
    document = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if document.get("sizes") != asked:
        document = {"sizes": asked, "tables": of_seed(seed, folder, sizes)}
        write_json(file, document)
    measured_tables: dict[str, dict[str, Row]] = document["tables"]
    return measured_tables


def tables(seeds: Mapping[int, Mapping[str, Mapping[str, Row]]]) -> list[str]:
    """Each kind's mean over its models and seeds, and its difference from the mean of the single ones, taken within a seed."""
    lines = []
    for title in (QUALITY, BEST_OF_N, PPO):
        kinds = next(iter(seeds.values()))[title]
        columns = list(next(iter(kinds.values())))
        lines += ["", f"## {title}", "", f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
        for kind in kinds:
            cells = [
                interval([statistics.fmean(one[title][kind][column]) for one in seeds.values()]) for column in columns
            ]
            lines.append(f"| {kind} | {' | '.join(cells)} |")
        for kind in (kind for kind in kinds if kind != SINGLE):
            cells = [interval(gains(seeds, title, kind, column), sign=True) for column in columns]
            lines.append(f"| {kind} less {SINGLE} | {' | '.join(cells)} |")
    return lines


def gains(seeds: Mapping[int, Mapping[str, Mapping[str, Row]]], title: str, kind: str, column: str) -> list[float]:
    """Of each seed: a kind less the mean of the single models."""
    return [
        statistics.fmean(one[title][kind][column]) - statistics.fmean(one[title][SINGLE][column])
        for one in seeds.values()
    ]


def conclusions(seeds: Mapping[int, Mapping[str, Mapping[str, Row]]]) -> list[str]:
    """Where the average of weights is told apart from the single models."""
    sides: dict[str, list[str]] = {"above": [], "below": [], "not told apart from": []}
    for title in (BEST_OF_N, PPO):
        for column in next(iter(seeds.values()))[title][AVERAGE]:
            if column.endswith("KL"):
                continue
            values = gains(seeds, title, AVERAGE, column)
            mean, half = statistics.fmean(values), half_interval(values)
            sides["above" if mean > half else "below" if mean < -half else "not told apart from"].append(column)
    lines = [f"- {side} the single models' mean: {', '.join(columns)}." for side, columns in sides.items() if columns]
    return ["", "## What the tables say", "", "The truth under the average of weights is", "", *lines]


def main() -> None:
    """Run the seeds and print, or write, the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--pairs", type=int, default=250)
    parser.add_argument("--noise", type=float, default=0.25, help="Share of pairs labeled the wrong way round.")
    parser.add_argument("--prompts", type=int, default=150, help="Held-out prompts.")
    parser.add_argument("--rollouts", type=int, default=40, help="Of each PPO run, 64 prompts each.")
    parser.add_argument("--kl-coefs", type=float, nargs="+", default=[0.0], help="Weights of PPO's KL penalty.")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "averaged_rewards")
    parser.add_argument("--write", type=Path, help="Markdown file; the numbers go beside it as JSON.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = Sizes(options.pairs, options.noise, options.prompts, options.rollouts, tuple(options.kl_coefs))
    seeds = {}
    for seed in options.seeds:
        seeds[seed] = measurements(seed, options.folder / str(seed), sizes)
        print(f"seed {seed}:", json.dumps(seeds[seed]), flush=True)
    lines = [*tables(seeds), *conclusions(seeds)]
    print("\n".join(lines))
    if options.write:
        options.write.write_text("\n".join([*head(options, sizes), *lines]) + "\n", encoding="utf-8")
        options.write.with_suffix(".json").write_text(json.dumps(seeds, indent=2) + "\n", encoding="utf-8")


def head(options: argparse.Namespace, sizes: Sizes) -> list[str]:
    """What the page is and how it was made."""
    seeds = " ".join(map(str, options.seeds))
    of_packages = ", ".join(f"{name} {versions()[name]}" for name in ("rlhf", "torch", "transformers"))
    return [
        "# Averages of reward models under optimization pressure",
        "",
        "<!-- written by benchmarks/averaged_rewards.py; do not edit by hand -->",
        "",
        f"Made by `python benchmarks/averaged_rewards.py --seeds {seeds} --pairs {sizes.pairs} --noise {sizes.noise:g} --prompts "
        f"{sizes.prompts} --rollouts {sizes.rollouts} --kl-coefs {' '.join(f'{coef:g}' for coef in sizes.kl_coefs)} --write "
        f"{options.write}` on {machine()['cpu']}, one thread; {of_packages}.",
        "",
        f"{len(options.seeds)} seeds, each a world, a base and reward models of its own; mean ± half a 95 % t interval over seeds, "
        f"differences taken within a seed. {len(RATES)} reward models learn from {sizes.pairs} pairs, of which "
        f"{percentage(sizes.noise, 0)} are labeled the wrong way round, over {EPOCHS} epochs; they share the start and the head and differ in "
        "the order of rows and the learning rate. Their weights are averaged by `average_reward_models`. `mean of scores` asks all of them, "
        "at as many times the cost.",
        "",
        f"Best of n: {sizes.prompts} held-out prompts, {max(NS)} samples of each from the base, the mean over all sets of n. PPO: "
        f"{sizes.rollouts} rollouts of 64 prompts at a high learning rate, against {PRESSED} of the single models and against the average, all "
        "guards off. `best` is the best mean of five rollouts, `end` the last policy on the held-out prompts, `KL` nats of a completion to the "
        "base over the last five rollouts. The truth is the score of the world's own judge, at most 1.5, which nothing was trained on.",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
