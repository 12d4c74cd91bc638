"""Over-optimization on the embedded world: the truth against the learned reward, over the distance from the first policy.

    python tools/overoptimization.py --seed 21 --write docs/results/overoptimization.md

A reward model learns from few pairs, many of them labeled the wrong way round; then it is optimized by best-of-n, PPO (several KL
weights, every rollout a point) and DPO on the same pairs (several betas), and the world's own judge, which none of them saw, looks
at all that was sampled. Stages that are finished are kept, so the command can be given again after an interruption; so are the
samples. Method and forms: ``rlhf.evaluation.scaling``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from rlhf.config.policy import SamplingConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.errors import DataError
from rlhf.evaluation.judges import run_judge, world_judge
from rlhf.evaluation.measures import token_measures
from rlhf.evaluation.overoptimization import read_rollouts
from rlhf.evaluation.scaling import (
    Form,
    Moment,
    ScalingFit,
    fit_scaling,
    recalibrated_scale,
)
from rlhf.files import write_json, write_text
from rlhf.models.folders import module_fingerprint
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.pipeline.run import Pipeline, machine, versions
from rlhf.rewards.best_of_n_statistics import best_of_n_kl, best_of_n_means
from rlhf.rewards.learned import LearnedReward
from rlhf.rollout.local import LocalEngine
from rlhf.seeds import derive_seed

KL_COEFS = (0.0, 0.03, 0.1)
BETAS = (2.0, 0.5, 0.2, 0.1, 0.05, 0.02)
NS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SAMPLING = {"max_new_tokens": 40}
MIN_D = 0.05
"""Rollouts nearer to the start than this are noise around 0 in both directions; they are shown and not fitted."""
MAX_D = 6.0
"""Policies farther away than this (36 nats a completion) have fallen apart; one of them would decide a whole fit."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True, slots=True)
class Samples:
    """Completions of one policy: [R] each, rows of one prompt together."""

    prompt: np.ndarray
    kl: np.ndarray
    proxy: np.ndarray
    gold: np.ndarray


def recipe(args: argparse.Namespace) -> RecipeConfig:
    """The world, a weak reward model, and everything that is optimized against it."""
    ppo = {
        "kind": "ppo", "model": "stage:sft", "reward": "stage:reward", "prompts": "stage:world/prompts.jsonl",
        "learning_rate": 8e-4, "value_learning_rate": 1e-3, "value_init": "reward", "rollouts": args.rollouts,
        "prompts_per_rollout": 64, "minibatch_size": 32, "epochs_per_rollout": 2, "missing_eos_penalty": 1.0,
        "sampling": SAMPLING, "guards": "off",
    }  # fmt: skip
    dpo = {
        "kind": "dpo", "model": "stage:sft", "data": "stage:preferences/pairs.jsonl",
        "learning_rate": 6e-4, "epochs": args.dpo_epochs, "batch_size": 32,
    }  # fmt: skip
    stages: dict[str, Any] = {
        "world": {"kind": "world", "split_seed": args.seed},
        "sft": {"kind": "sft", "model": "embedded", "data": "stage:world/sft.jsonl", "learning_rate": 1e-3, "max_steps": 120},
        "preferences": {
            "kind": "preferences", "model": "stage:sft", "prompts": "stage:world/prompts.jsonl",
            "test_prompts": "stage:world/test_prompts.jsonl", "num_pairs": args.pairs, "noise": args.noise,
            "sampling": SAMPLING,
        },
        "reward": {
            "kind": "reward", "model": "stage:sft", "data": "stage:preferences/pairs.jsonl",
            "eval_data": "stage:preferences/test_pairs.jsonl", "learning_rate": 1e-3, "epochs": 2, "batch_size": 16,
        },
        **{f"ppo_{number}": {**ppo, "kl": {"coef": coef}} for number, coef in enumerate(KL_COEFS)},
        **{f"dpo_{number}": {**dpo, "beta": beta} for number, beta in enumerate(BETAS)},
    }  # fmt: skip
    name = f"overoptimization-{args.seed}"
    return RecipeConfig.of(
        {"name": name, "output_dir": str(args.out), "seed": args.seed, "threads": 1, "stages": stages}
    )


def draw(run: Path, stage: str, args: argparse.Namespace, *, num_samples: int) -> Samples:
    """Completions of a stage's policy for the first prompts, judged by proxy and truth; kept beside the stage."""
    first = PolicyModel.from_pretrained(str(run / "sft" / "model"))
    reward_model = RewardModel.from_pretrained(str(run / "reward" / "model"))
    policy = PolicyModel.from_pretrained(str(run / stage / "model"))
    asked: dict[str, Any] = {
        "weights": [module_fingerprint(model) for model in (first.model, policy.model, reward_model)],
        "prompts": args.prompts, "samples": num_samples, "sampling": SAMPLING, "seed": args.seed,
    }  # fmt: skip
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    kept = run / "measured" / f"{stage}.json"
    if kept.exists() and (document := json.loads(kept.read_text())).get("key") == key:
        return Samples(**{name: np.array(document[name]) for name in ("prompt", "kl", "proxy", "gold")})
    prompts: list[Prompt] = list(
        GRPODataset(str(run / "world" / "prompts.jsonl"), policy.tokenizer, limit=args.prompts)
    )
    sampling, seed = SamplingConfig.of(SAMPLING), derive_seed(args.seed, "overoptimization", stage)
    samples = LocalEngine(policy).generate(
        prompts, num_samples=num_samples, sampling=sampling, seed=seed, rollout_index=0
    )
    each = [completion for group in samples for completion in group]
    of = [prompt for prompt, group in zip(prompts, samples, strict=True) for _ in group]
    proxy = LearnedReward(reward_model, tokenizer=policy.tokenizer).score(of, each).scores
    judged = run_judge(
        world_judge,
        [prompt.text for prompt in of],
        [completion.text for completion in each],
        ended=[not completion.truncated for completion in each],
        columns={},
        names=[f"number {number}" for number in range(len(each))],
    )
    kl = token_measures(policy, first, prompts, samples).kl_k1.tolist() if stage != "sft" else [0.0] * len(each)
    numbers = np.repeat(np.arange(len(prompts)), num_samples).tolist()
    columns = {
        "prompt": numbers,
        "kl": kl,
        "proxy": [float(s) for s in proxy],
        "gold": [float(s) for s in judged.scores],
    }
    kept.parent.mkdir(exist_ok=True)
    write_json(kept, {"key": key, **columns})
    return Samples(**{name: np.array(values) for name, values in columns.items()})


def rollouts(run: Path, stage: str, label: str, numbers: dict[str, int]) -> list[Moment]:
    """Every rollout of a PPO stage; a window of three makes a moment."""
    rows = read_rollouts(run / stage / "rollouts.jsonl")
    judged = run_judge(
        world_judge,
        [row["prompt"] for row in rows],
        [row["completion"] for row in rows],
        ended=[row["ended"] for row in rows],
        columns={},
        names=[f"number {number}" for number in range(len(rows))],
    )
    steps = sorted({row["step"] for row in rows})
    moments = []
    for start in range(0, len(steps) - 2, 3):
        window = set(steps[start : start + 3])
        here = [number for number, row in enumerate(rows) if row["step"] in window]
        moments.append(
            Moment(
                label=label,
                prompt=np.array([numbers.setdefault(rows[i]["prompt"], len(numbers)) for i in here], dtype=np.float64),
                kl=np.array([rows[i]["kl"] for i in here]),
                proxy=np.array([rows[i]["score"] for i in here]),
                gold=np.array([judged.scores[i] for i in here], dtype=np.float64),
            )
        )
    return moments


def best_of(base: Samples, ns: Sequence[int]) -> list[Moment]:
    """One moment for each n, a row a prompt."""
    prompts = np.unique(base.prompt)
    per_prompt = [(base.proxy[base.prompt == p], base.gold[base.prompt == p]) for p in prompts]
    return [
        Moment(
            label=f"n = {n}",
            prompt=prompts.astype(np.float64),
            kl=np.full(len(prompts), best_of_n_kl(n)),
            proxy=np.array([best_of_n_means(proxy, proxy, n) for proxy, _ in per_prompt]),
            gold=np.array([best_of_n_means(proxy, gold, n) for proxy, gold in per_prompt]),
        )
        for n in ns
    ]


@dataclass(frozen=True, slots=True)
class Scale:
    """See ``common_scale``."""

    gold_mean: float
    gold_std: float
    proxy_mean: float
    proxy_scale: float

    def __call__(self, moments: Sequence[Moment]) -> list[Moment]:
        """The same moments in these units."""
        return [
            Moment(
                label=m.label,
                prompt=m.prompt,
                kl=m.kl,
                proxy=(m.proxy - self.proxy_mean) * self.proxy_scale,
                gold=(m.gold - self.gold_mean) / self.gold_std,
            )
            for m in moments
        ]


def common_scale(base: Samples) -> Scale:
    """Both rewards are 0 on average for the first policy; the truth has deviation 1 there, the proxy the factor that fits it.

    As in section 2.2 of the paper: pairs of the first policy's samples of one prompt, soft labels from the truth's gap.
    """
    mean, std = float(base.gold.mean()), float(base.gold.std())
    gaps = [values[0::2] - values[1::2] for values in (base.proxy, base.gold / std)]
    return Scale(mean, std, float(base.proxy.mean()), recalibrated_scale(*gaps))


@dataclass(frozen=True, slots=True)
class Curve:
    """A method: its moments on the common scale and a fit of each reward, where there are points enough."""

    method: str
    form: Form
    moments: list[Moment]
    fits: dict[str, ScalingFit]


def fitted(method: str, form: Form, moments: list[Moment], *, seed: int) -> Curve:
    """Fits of both rewards to the moments that stand away from the start, and not beyond everything."""
    away = [moment for moment in moments if MIN_D <= moment.means()[0] <= MAX_D]
    count = 1 + max(int(moment.prompt.max()) for moment in moments)
    sides: tuple[Literal["gold", "proxy"], ...] = ("gold", "proxy")
    try:
        fits = {of: fit_scaling(away, of, form=form, num_prompts=count, seed=seed) for of in sides}
    except DataError:  # too few policies in between: the points are told all the same
        return Curve(method, form, moments, {})
    return Curve(method, form, moments, dict(fits))


def plot(curves: Sequence[Curve], path: Path) -> None:
    """Points and fitted curves: the truth full, the proxy hollow and dashed."""
    figure = Figure(figsize=(11.5, 3.8), layout="constrained")
    for axes, curve in zip(figure.subplots(1, len(curves)), curves, strict=True):
        labels = list(dict.fromkeys(m.label for m in curve.moments)) if curve.method != "best-of-n" else [""]
        for moment in curve.moments:
            color = COLORS[labels.index(moment.label) % len(COLORS)] if len(labels) > 1 else COLORS[0]
            d, proxy, gold = moment.means()
            axes.plot(d, gold, "o", color=color, markersize=3.5)
            axes.plot(d, proxy, "o", color=color, markersize=3.5, fillstyle="none")
        grid = np.linspace(0, min(MAX_D, max(m.means()[0] for m in curve.moments)), 200)
        for of, fit in curve.fits.items():
            style = "-" if of == "gold" else "--"
            axes.plot(grid, fit(grid), style, color="#444444", linewidth=1.2, label=f"{of}, fitted")
        for number, label in enumerate(labels if len(labels) > 1 else []):
            axes.plot([], [], "o", color=COLORS[number % len(COLORS)], markersize=3.5, label=label)
        axes.set_title(curve.method, fontsize=10)
        axes.set_xlabel("sqrt(KL), nats of a completion")
        axes.grid(alpha=0.25)
        axes.legend(fontsize=7, frameon=False)
    figure.axes[0].set_ylabel("reward, deviations of the first policy")
    figure.savefig(path, metadata={"Date": None})


def page(curves: Sequence[Curve], facts: dict[str, Any], image: str) -> str:
    """The page for people."""
    of_packages = ", ".join(f"{name} {facts['versions'][name]}" for name in ("rlhf", "torch", "transformers"))
    beyond = sum(moment.means()[0] > MAX_D for curve in curves for moment in curve.moments)
    lines = [
        "# Over-optimization: the truth against the learned reward",
        "",
        "<!-- written by tools/overoptimization.py; do not edit by hand -->",
        "",
        f"Made by `{facts['command']}` on {facts['machine']['cpu']}, one thread; {of_packages}.",
        "",
        f"![Truth and learned reward over the distance from the first policy]({image})",
        "",
        "Full points: the truth (the world's own judge, which nothing was trained on). Hollow points: the reward model that was optimized. "
        "Lines: the forms of Gao et al. 2022, [arXiv:2210.10760](https://arxiv.org/abs/2210.10760), fitted to them.",
        "",
        f"The proxy is weak on purpose: {facts['pairs']:,} pairs of the SFT policy's samples, {facts['noise']:.0%} of them labeled "
        f"the wrong way round; it orders {facts['accuracy']:.1%} of held-out pairs rightly. Everything is measured on prompts that the "
        f"policies were trained on: PPO on those of its rollouts, best-of-n and DPO on {facts['prompts']:,} of them.",
        "",
        "Scale, as in the paper's section 2.2: both rewards are shifted so that the first policy has 0; the truth is divided by its deviation "
        f"under the first policy ({facts['scale']['gold_std']:.2f}), and the proxy multiplied by the factor "
        f"({facts['scale']['proxy_scale']:.2f}) for which its Bradley-Terry odds agree best with the "
        "truth's on pairs of the first policy's samples.",
        "",
        "Distance d = sqrt(KL(policy || first policy)) of whole completions. Best-of-n: KL = log n - (n - 1)/n, an upper bound where samples "
        "repeat, with the unbiased mean over all sets of n among "
        f"{facts['samples']} samples. PPO: every three rollouts of each run are a point, KL by the sampled log-ratios. "
        f"DPO: the end of each run, KL by sampling from it. Fitted are points with d from {MIN_D} to {MAX_D}"
        + (f", which leaves {beyond} out beyond." if beyond else "; none lies beyond."),
        "",
        "| method | reward | form | alpha | beta | R² | peak at d |",
        "|---|---|---|---|---|---|---|",
    ]
    forms = {"best_of_n": "d (alpha - beta d)", "rl": "d (alpha - beta log d)"}
    for curve in curves:
        if not curve.fits:
            lines.append(f"| {curve.method} | both | {forms[curve.form]} | too few points in this range | | | |")
        for of, fit in curve.fits.items():
            alpha, beta = (f"{value:.2f} [{low:.2f}, {high:.2f}]" for value, low, high in (fit.alpha, fit.beta))
            farthest = max(moment.means()[0] for moment in curve.moments)
            peak = (
                "rises throughout"
                if fit.peak is None
                else f"{fit.peak:.2f}"
                if fit.peak <= farthest
                else f"beyond {farthest:.1f}"
            )
            lines.append(f"| {curve.method} | {of} | {forms[curve.form]} | {alpha} | {beta} | {fit.r2:.2f} | {peak} |")
    lines += [
        "",
        "Intervals: 95 %, from resampled prompts; they say nothing about other training seeds.",
        "",
        "| policy | d | proxy | truth |",
        "|---|---|---|---|",
    ]
    for curve in curves:
        for label, (d, proxy, gold) in ends(curve):
            lines.append(
                f"| {curve.method}, {label} | {d:.2f} | {round(proxy, 2) + 0.0:+.2f} | {round(gold, 2) + 0.0:+.2f} |"
            )
    return "\n".join(lines) + "\n"


def ends(curve: Curve) -> list[tuple[str, tuple[float, float, float]]]:
    """For a table: each run's peak of the truth and its end, or every few n."""
    if curve.method != "PPO":
        return [(m.label, m.means()) for m in curve.moments]
    points = []
    for label in dict.fromkeys(m.label for m in curve.moments):
        of_run = [m.means() for m in curve.moments if m.label == label]
        points += [(f"{label}, best truth", max(of_run, key=lambda each: each[2])), (f"{label}, end", of_run[-1])]
    return points


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is not there yet, measure, fit, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the run's folder")
    parser.add_argument("--write", type=Path, default=Path("docs/results/overoptimization.md"))
    parser.add_argument("--pairs", type=int, default=250, help="pairs that the reward model and DPO learn from")
    parser.add_argument("--noise", type=float, default=0.25, help="share of them labeled the wrong way round")
    parser.add_argument("--prompts", type=int, default=200, help="prompts for best-of-n and for DPO's policies")
    parser.add_argument("--samples", type=int, default=64, help="completions of each for best-of-n")
    parser.add_argument("--rollouts", type=int, default=60, help="of each PPO run")
    parser.add_argument("--dpo-epochs", type=float, default=12)
    args = parser.parse_args(argv)
    began = time.process_time()
    settings = recipe(args)
    pipeline = Pipeline(settings)
    pipeline.run()
    run = Path(settings.output_dir) / settings.name

    base = draw(run, "sft", args, num_samples=args.samples)
    scale = common_scale(base)
    asked: dict[str, int] = {}
    ppo = [
        moment
        for number, coef in enumerate(KL_COEFS)
        for moment in rollouts(run, f"ppo_{number}", f"KL weight {coef:g}", asked)
    ]
    dpo = []
    for number, beta in enumerate(BETAS):
        drawn = draw(run, f"dpo_{number}", args, num_samples=4)
        dpo.append(Moment(label=f"beta {beta:g}", **{k: v.astype(np.float64) for k, v in asdict(drawn).items()}))
    curves = [
        fitted("best-of-n", "best_of_n", scale(best_of(base, [n for n in NS if n <= args.samples])), seed=args.seed),
        fitted("PPO", "rl", scale(ppo), seed=args.seed),
        fitted("DPO", "rl", scale(dpo), seed=args.seed),
    ]
    quality = json.loads((run / "reward" / "evaluation.json").read_text())["reward_model"]
    facts = {
        "command": f"python tools/overoptimization.py --seed {args.seed} --write {args.write}",
        "machine": machine(),
        "versions": versions(),
        "seconds": time.process_time() - began,
        "settings": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
        "pairs": args.pairs, "noise": args.noise, "prompts": args.prompts, "samples": args.samples,
        "accuracy": quality["accuracy"]["value"],
        "scale": asdict(scale),
    }  # fmt: skip
    image = args.write.with_suffix(".svg")
    args.write.parent.mkdir(parents=True, exist_ok=True)
    plot(curves, image)
    points = {
        curve.method: {
            "form": curve.form,
            "fits": {of: asdict(fit) for of, fit in curve.fits.items()},
            "points": [
                {"label": m.label, **dict(zip(("d", "proxy", "gold"), m.means(), strict=True))} for m in curve.moments
            ],
        }
        for curve in curves
    }
    write_json(args.write.with_suffix(".json"), {"facts": facts, "curves": points})
    write_text(args.write, page(curves, facts, image.name))
    print(args.write)


if __name__ == "__main__":
    main()
