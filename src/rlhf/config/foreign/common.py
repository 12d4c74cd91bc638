"""Conversions that the layouts share, and reasons for what has no counterpart."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from rlhf.config.foreign.key_table import TOP, Given, Reason, Settings

ONE_PROCESS = (
    "not taken over: one process trains, or ranks that `launch` or another launcher starts, with `fsdp` or `deepspeed` (docs/ranks.md, "
    "docs/cluster.md)"
)
MEMORY = "A step is split into micro-batches of microbatch_tokens tokens: memory only, the result is the same."
MICRO = f"nothing to set: {MEMORY[0].lower()}{MEMORY[1:-1]}"
PACKED = "nothing to set: rows are always packed, without padding and without seeing each other"
LOGGED = "nothing to set: every step is logged, into events.jsonl of the stage"
RESUMES = "nothing to set: the same command resumes from the last checkpoint"
HUB = "not here: nothing is uploaded; `huggingface-cli upload` takes the finished model folder"
CHOSEN = "nothing to set: attention and kernels are chosen by model and device (docs/families.md)"
LOADING = "nothing to set: rows are read and tokenized once, before training"
LOSSLESS = "nothing to set: log-probabilities come in tiles, so no tensor of all logits exists"
ENGINE = "nothing to set: the engine is started, woken and given weights by the run (docs/vllm.md)"
TEMPLATE = "nothing to set: rows of messages go through the chat template, rows of text do not"
DEBUG = "no counterpart: a switch of their trainer"
SPLIT = "a recipe reads the split `train` of a hub data set and all of a file; save another split or configuration to a file first"
FOLDER = "It is at the top of a recipe, next to `name`; a command of one stage has -o."

SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine_with_min_lr": "cosine",
    "cosine_warmup_with_min_lr": "cosine",
}
AUTOCASTS = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "no": "none",
    "fp32": "none",
    "float32": "none",
}
DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "auto": Reason(
        "our default is float32 for the weights; name the type that the model was saved in, such as bfloat16"
    ),
}
TRUNCATIONS = {"keep_start": "keep_start", "keep_end": "keep_end"}
LOGGERS = ("tensorboard", "wandb", "trackio")
METRICS = {
    "loss": "eval/loss",
    "accuracy": "eval/accuracy",
    "accuracies": "eval/accuracy",
    "rewards/accuracies": "eval/accuracy",
    "rewards/margins": "eval/reward_margin",
    "margin": "eval/margin",
    "reward": "eval/score_mean",
    "rewards": "eval/score_mean",
    "reward_mean": "eval/score_mean",
    "mean_reward": "eval/score_mean",
    "win_rate": "eval/win_rate",
    "perplexity": "eval/perplexity",
    "kl": "eval/ref_kl",
}
"""Their metric, without `eval_` in front, to ours."""
LOWER_IS_BETTER = ("eval/loss", "eval/perplexity", "eval/ref_kl")
SECRET = re.compile(r"hub_token$|secret|password|use_wandb$|wandb[._]key$|api_key$", re.IGNORECASE)
"""Keys of theirs whose values are not printed."""


def is_on(value: Any) -> bool:
    """Whether a switch is on, as YAML or a command line has it."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "yes", "on", "1")) or value == 1


def switch(ours: str, on: Any = True) -> Callable[[Any, Given], Settings | Reason]:
    """A switch of theirs: off is our default."""

    def convert(value: Any, given: Given) -> Settings | Reason:
        if not is_on(value):
            return Reason("off, as here by default")
        return Settings({ours: on}) if given.has(ours) else Reason(f"a stage of kind {given.kind} has no such setting")

    return convert


def autocast(ours: str) -> Callable[[Any, Given], Settings | Reason]:
    """`bf16: true` and `fp16: true`."""

    def convert(value: Any, given: Given) -> Settings | Reason:
        return Settings({"autocast": ours if is_on(value) else "none"})

    return convert


def counted(value: Any, given: Given) -> Settings | Reason:
    """A key that the conversion of another one has read."""
    return Settings({}, "read together with the key that it belongs to")


def betas(value: Any, given: Given) -> Settings | Reason:
    """Two keys of theirs, or one list."""
    if isinstance(value, list | tuple):
        return Settings({"betas": list(value)})
    return Settings(
        {"betas": [given.get(f"adam_beta{n}", given.get(f"beta{n}", usual)) for n, usual in ((1, 0.9), (2, 0.999))]}
    )


def warmup_steps(value: Any, given: Given) -> Settings | Reason:
    """A number of steps, or a share of them where it is below 1."""
    if 0 <= value < 1:
        return Settings({"warmup_frac": float(value)})
    total = given.total_steps
    if total is None:
        return Reason(
            "warmup_frac is a share of the steps, whose number is not known here; give --rows, or set it yourself"
        )
    return Settings({"warmup_frac": round(min(value / total, 0.999), 6)}, f"{value} of {total:,} steps")


def epochs(value: Any, given: Given) -> Settings | Reason:
    """Passes over the data: of a policy that learns from rewards they are rollouts."""
    if given.has("epochs"):
        return Settings({"epochs": value})
    if given.get("max_steps", -1) > 0:
        return Reason("max_steps says how long the run is")
    limit = given.stage.get("limit")
    rows = given.rows if limit is None or given.rows is None else min(limit, given.rows)
    rows = rows if rows is not None else limit
    if rows is None:
        return Reason(
            "the length of a run is `rollouts`: epochs x prompts / prompts_per_rollout; give --rows, or set it yourself"
        )
    rollouts = max(1, math.ceil(value * rows / given.ours("prompts_per_rollout")))
    return Settings({"rollouts": rollouts}, f"{value} x {rows:,} prompts / {given.ours('prompts_per_rollout')}")


def max_steps(value: Any, given: Given) -> Settings | Reason:
    """Optimizer steps: of a policy that learns from rewards they are rollouts."""
    if value <= 0:
        return Reason("no limit, as here by default")
    if not given.learns_from_rewards:
        return Settings({"max_steps": value})
    per_rollout = given.steps_per_rollout
    return Settings({"rollouts": math.ceil(value / per_rollout)}, f"{value} steps, {per_rollout} on each rollout")


def every(ours: str, *, if_strategy: str = "", in_rollouts: bool = False) -> Callable[[Any, Given], Settings | Reason]:
    """Steps between two evaluations or checkpoints.

    Args:
        ours: `eval_every` or `save_every`.
        if_strategy: Their key that must say `steps`; empty where there is none.
        in_rollouts: A step of theirs is a rollout, where the stage samples.
    """

    def convert(value: Any, given: Given) -> Settings | Reason:
        strategy = str(given.get(if_strategy, "steps")) if if_strategy else "steps"
        if strategy != "steps":
            return Reason(f"{if_strategy} is {strategy}")
        if value <= 0 or not math.isfinite(value):
            return Reason("not asked for; here about 5 evaluations and 4 checkpoints in a run by default")
        if ours == "eval_every" and not given.has_held_out:
            rows = "eval_prompts" if given.learns_from_rewards else "eval_data or eval_frac"
            return Reason(f"needs held-out rows: give {rows}, and eval_every in optimizer steps")
        if value < 1:
            total = given.total_steps
            if total is None:
                return Reason(f"a share of the steps, whose number is not known here; give --rows, or {ours} in steps")
            value = max(1, round(value * total))
        if in_rollouts and given.learns_from_rewards:
            return Settings({ours: int(value) * given.steps_per_rollout}, f"{value} rollouts, in optimizer steps")
        return Settings({ours: int(value)})

    return convert


def strategy(value: Any, given: Given) -> Settings | Reason:
    """`eval_strategy`; done when `eval_steps` was."""
    return _when(value, "eval_every", given)


def save_strategy(value: Any, given: Given) -> Settings | Reason:
    """`save_strategy`; done when `save_steps` was."""
    return _when(value, "save_every", given)


def _when(value: Any, ours: str, given: Given) -> Settings | Reason:
    if value == "steps" and ours in given.stage:
        return Settings({}, f"counted in {ours}")
    if value in ("no", False, "false"):
        return Reason("here nothing is evaluated without held-out rows, and a stage always keeps checkpoints")
    return Reason(
        "eval_every and save_every count steps, by default about 5 and 4 in a run; held-out rows are eval_data, eval_frac or eval_prompts"
    )


def best_metric(value: Any, given: Given) -> Settings | Reason:
    """The metric whose best weights are kept."""
    if given.theirs.get("load_best_model_at_end", True) in (False, "false"):
        return Reason("load_best_model_at_end is off")
    name = str(value).removeprefix("eval_").removeprefix("eval/")
    if name not in METRICS:
        return Reason(
            f"no metric of that name; early_stopping.metric takes such as {', '.join(sorted(set(METRICS.values())))}"
        )
    metric = METRICS[name]
    greater = given.theirs.get("greater_is_better")
    mode = (
        ("max" if is_on(greater) else "min") if greater is not None else ("min" if metric in LOWER_IS_BETTER else "max")
    )
    if given.measures and metric not in given.measures:
        return Reason(f"a stage of kind {given.kind} measures {', '.join(given.measures)}")
    if not given.has_held_out:
        return Reason(
            f"needs held-out rows: give {'eval_prompts' if given.learns_from_rewards else 'eval_data or eval_frac'}, and "
            f"`early_stopping: {{metric: {metric}, mode: {mode}, patience: null}}`"
        )
    patience = given.get("early_stopping_patience")
    values = {"early_stopping.metric": metric, "early_stopping.mode": mode, "early_stopping.patience": patience}
    return Settings(values, "the best weights are kept")


def patience(ours: str) -> Callable[[Any, Given], Settings | Reason]:
    """`early_stopping_patience` and `early_stopping_threshold`, which watch held-out rows."""

    def convert(value: Any, given: Given) -> Settings | Reason:
        if given.has_held_out:
            return Settings({f"early_stopping.{ours}": value})
        rows = "eval_prompts" if given.learns_from_rewards else "eval_data or eval_frac"
        return Reason(f"needs held-out rows: give {rows}, and `early_stopping: {{{ours}: {value}}}`")

    return convert


def loggers(value: Any, given: Given) -> Settings | Reason:
    """Names of services."""
    named = [value] if isinstance(value, str) else list(value or [])
    known = [name for name in named if name in LOGGERS]
    if not known:
        return Reason(f"events.jsonl is always written; log_to takes {', '.join(LOGGERS)}")
    left = [name for name in named if name not in LOGGERS]
    return Settings({"log_to": known}, f"not {', '.join(map(str, left))}" if left else "")


def folder(value: Any, given: Given) -> Settings | Reason:
    """Their folder of one model is our folder of one run."""
    path = PurePosixPath(str(value))
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.name).strip("-._") or "run"
    parent = str(path.parent)
    return Settings(
        {TOP + "name": name, **({} if parent == "." else {TOP + "output_dir": parent})},
        "the run's folder; the model lies in STAGE/model below it",
    )


def column(ours: str) -> Callable[[Any, Given], Settings | Reason]:
    """A key that names a column of the rows."""

    def convert(value: Any, given: Given) -> Settings | Reason:
        return Reason("as here") if value == ours else Settings({"columns": {str(value): ours}})

    return convert


def lora(ours: str, switch_key: str) -> Callable[[Any, Given], Settings | Reason]:
    """A setting of adapters, which counts where they are on.

    Args:
        ours: Below `model.lora`.
        switch_key: Theirs that turns them on: a switch, or the rank.
    """

    def convert(value: Any, given: Given) -> Settings | Reason:
        if not given.theirs.get(switch_key):
            return Reason(f"{switch_key} is off")
        if ours == "target_modules" and isinstance(value, str) and value != "all-linear":
            value = [value]
        return Settings({f"model.lora.{ours}": value})

    return convert


def importable(text: str) -> str:
    """`package.module.function` as `package.module:function`."""
    module, _, name = text.rpartition(".")
    return f"{module}:{name}" if module and ":" not in text and not text.endswith(".py") else text


def sampled(ours: str) -> Callable[[Any, Given], Settings | Reason]:
    """top_k and min_p, whose 0 (or -1) is not a filter."""

    def convert(value: Any, given: Given) -> Settings | Reason:
        return Settings({ours: value}) if value > 0 else Reason("no filter, as here by default")

    return convert


def clips(value: Any, given: Given) -> Settings | Reason:
    """One bound for both sides, or a pair."""
    low, high = value if isinstance(value, list | tuple) else (value, value)
    return Settings({"clip_low": low, "clip_high": high})


def widest(value: Any, given: Given) -> Settings | Reason:
    """A range of scores, which is symmetric here."""
    low, high = value if isinstance(value, list | tuple) else (-value, value)
    bound = max(abs(low), abs(high))
    return Settings({"clip_score": bound}, "" if low == -high else f"on both sides; theirs is {low} to {high}")
