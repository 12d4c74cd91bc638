"""A DeepSpeed JSON file next to a recipe: ``auto`` is filled in from the recipe, and what contradicts it is refused.

The keys are DeepSpeed's own (https://www.deepspeed.ai/docs/config-json/). Sections that say nothing of the training itself
(``zero_optimization``, ``communication_data_type``, ``flops_profiler`` ...) are handed on as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf.config.training import TrainConfig
from rlhf.errors import ConfigError

AUTO = "auto"
STAGES = (1, 2, 3)
OPTIMIZERS = ("adam", "adamw")
OURS = ("optimizer", "scheduler", "fp16", "bf16", "amp", "torch_autocast")
"""Sections whose work the trainer does: they are checked and not handed on."""


def deepspeed_settings(path: str, config: TrainConfig) -> dict[str, Any]:
    """What ``deepspeed.initialize`` gets: the file's settings with the recipe's in place of ``auto``.

    Micro-batches are made by tokens, and the trainer says when a step is complete, so DeepSpeed counts neither.

    Args:
        path: The JSON file.
        config: Of the trainer.

    Raises:
        ConfigError: The file can't be read, or contradicts the recipe; names each key.
    """
    tree = _read(path)
    complaints = list(_complaints(tree, config))
    if complaints:
        lines = "".join(f"\n  {complaint}" for complaint in complaints)
        raise ConfigError(f'{path} contradicts the recipe:{lines}\nWrite "auto" in their place, or leave them out.')
    kept = {key: _without_auto(value) for key, value in tree.items() if key not in OURS and value != AUTO}
    return {
        "zero_force_ds_cpu_optimizer": False,  # it is torch's AdamW in any case
        **{key: value for key, value in kept.items() if key != "train_batch_size"},
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.max_grad_norm or 0.0,
    }


def _read(path: str) -> Mapping[str, Any]:
    try:
        tree = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as err:
        raise ConfigError(f"deepspeed: {path} can't be read: {err.strerror}.") from None
    except ValueError as err:
        raise ConfigError(f"deepspeed: {path} is not JSON: {err}.") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"deepspeed: {path} holds a {type(tree).__name__}; it should hold DeepSpeed's settings.")
    return tree


def _complaints(tree: Mapping[str, Any], config: TrainConfig) -> Iterator[str]:
    stage = _section(tree, "zero_optimization").get("stage", 0)
    if stage not in STAGES:
        yield f"zero_optimization.stage is {stage!r}; 1, 2 and 3 are trained with"
    for key, ours, name in (
        ("train_batch_size", _rows_of_step(config), "rows of a step"),
        ("gradient_clipping", config.max_grad_norm or 0.0, "max_grad_norm"),
    ):
        if tree.get(key, AUTO) not in (AUTO, ours):
            yield f"{key} is {tree[key]!r}, and the recipe's {name} {ours!r}"
    for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if tree.get(key, AUTO) != AUTO:
            yield f"{key} is {tree[key]!r}, and micro-batches are made by the recipe's microbatch_tokens"
    yield from _optimizer_complaints(tree, config)
    if _section(tree, "scheduler").get("type", AUTO) != AUTO:
        yield "scheduler: the recipe's `schedule` and `warmup_frac` say how the learning rate goes"
    for key in ("fp16", "bf16", "amp", "torch_autocast"):
        if _section(tree, key).get("enabled", AUTO) not in (AUTO, False):
            yield f"{key}.enabled: the recipe's `autocast` says in which type products are, on weights in float32"


def _optimizer_complaints(tree: Mapping[str, Any], config: TrainConfig) -> Iterator[str]:
    optimizer = _section(tree, "optimizer")
    if str(optimizer.get("type", "AdamW")).lower() not in OPTIMIZERS:
        yield f"optimizer.type is {optimizer['type']!r}; the trainers' is AdamW"
    ours = {
        "lr": config.learning_rate,
        "betas": list(config.betas),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }
    for key, value in _section(optimizer, "params").items():
        if value != AUTO and value != ours.get(key):
            said = f"the recipe has {ours[key]!r}" if key in ours else "the recipe has no such setting"
            yield f"optimizer.params.{key} is {value!r}; {said}"


def _section(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = tree.get(key)
    return section if isinstance(section, Mapping) else {}


def _rows_of_step(config: TrainConfig) -> int | None:
    return getattr(config, "batch_size", None) or getattr(config, "minibatch_size", None)


def _without_auto(value: Any) -> Any:
    """DeepSpeed's own defaults in place of ``auto``, as nothing here says better."""
    if isinstance(value, Mapping):
        return {key: _without_auto(item) for key, item in value.items() if item != AUTO}
    return value
