"""Starting points by model size: whole recipes in which only the model and the files are missing.

PPO settings follow the guidance by size that is common in the field:

    parameters   learning rate   completions    completions   epochs   KL weight   clip      lambda   value   entropy
                                 in a rollout   in a step
    below 7B     5e-6 .. 1e-5    128 .. 256     16 .. 32      4 .. 8   0.05..0.2   0.2       0.95     0.5     0.01
    7B to 30B    1e-6 .. 5e-6    64 .. 128      8 .. 16       2 .. 4   0.1 ..0.3   0.2       0.95     0.5     0.01
    above 30B    5e-7 .. 1e-6    32 .. 64       4 .. 8        1 .. 2   0.2 ..0.5   0.1..0.2  0.95     0.5     0

The embedded model, a thousand times smaller than any of these, has settings of its own, measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlhf.config.base import apply_overrides
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import look_up


class Preset(NamedTuple):
    """What a size needs."""

    about: str
    model: Mapping[str, Any]
    """Settings of every model in the recipe, besides its path."""
    sft: Mapping[str, Any]
    reward: Mapping[str, Any]
    ppo: Mapping[str, Any]
    path: str = "MODEL"
    """Where the recipe starts."""


EMBEDDED = Preset(
    "The tiny world of the quickstart, on two CPU cores.",
    path="embedded",
    model={},
    sft={"learning_rate": 1e-3, "max_steps": 120, "batch_size": 32},
    reward={"learning_rate": 1e-3, "epochs": 2.0, "batch_size": 16},
    ppo={
        "learning_rate": 6e-4,
        "value_learning_rate": 1e-3,
        "value_init": "reward",
        "rollouts": 60,
        "prompts_per_rollout": 96,
        "minibatch_size": 32,
        "epochs_per_rollout": 2,
        "missing_eos_penalty": 1.0,
        "sampling": {"max_new_tokens": 40},
    },
)
ONE_BILLION = Preset(
    "Around 1B parameters, all weights, one GPU with 80 GB (or 24 GB with `lora`).",
    model={"dtype": "float32", "gradient_checkpointing": True},
    sft={"autocast": "bfloat16", "learning_rate": 2e-5, "epochs": 3.0, "batch_size": 128, "max_length": 2048},
    reward={"autocast": "bfloat16", "learning_rate": 1e-5, "epochs": 1.0, "batch_size": 128, "max_length": 1024},
    ppo={
        "autocast": "bfloat16",
        "learning_rate": 5e-6,
        "value_init": "reward",
        "prompts_per_rollout": 256,
        "minibatch_size": 32,
        "epochs_per_rollout": 4,
        "kl": {"coef": 0.1},
        "entropy_coef": 0.01,
        "sampling": {"max_new_tokens": 512},
    },
)
SEVEN_BILLION = Preset(
    "7B parameters with LoRA on one 80 GB GPU: small micro-batches, accumulation by token budget.",
    model={"dtype": "bfloat16", "gradient_checkpointing": True, "lora": {"rank": 16, "alpha": 32}},
    sft={
        "learning_rate": 1e-4,
        "epochs": 3.0,
        "batch_size": 64,
        "microbatch_tokens": 4096,
        "max_length": 2048,
    },
    reward={
        "learning_rate": 5e-5,
        "epochs": 1.0,
        "batch_size": 64,
        "microbatch_tokens": 4096,
        "max_length": 1024,
    },
    ppo={
        "learning_rate": 5e-6,
        "value_model": "shared",
        "prompts_per_rollout": 128,
        "minibatch_size": 16,
        "epochs_per_rollout": 4,
        "kl": {"coef": 0.1},
        "entropy_coef": 0.01,
        "microbatch_tokens": 4096,
        "sampling": {"max_new_tokens": 512},
    },
)
SEVENTY_BILLION = Preset(
    "70B parameters with LoRA: heavy accumulation, gentle steps. Takes several GPUs: docs/planning-clusters.md says which fit.",
    model={"dtype": "bfloat16", "gradient_checkpointing": True, "lora": {"rank": 16, "alpha": 32}},
    sft={
        "learning_rate": 5e-5,
        "epochs": 2.0,
        "batch_size": 64,
        "microbatch_tokens": 2048,
        "max_length": 2048,
    },
    reward={
        "learning_rate": 2e-5,
        "epochs": 1.0,
        "batch_size": 64,
        "microbatch_tokens": 2048,
        "max_length": 1024,
    },
    ppo={
        "learning_rate": 1e-6,
        "value_model": "shared",
        "prompts_per_rollout": 64,
        "minibatch_size": 8,
        "epochs_per_rollout": 2,
        "clip_low": 0.1,
        "clip_high": 0.1,
        "kl": {"coef": 0.2},
        "entropy_coef": 0.0,
        "microbatch_tokens": 2048,
        "sampling": {"max_new_tokens": 512},
    },
)
PRESETS = {"embedded": EMBEDDED, "1b": ONE_BILLION, "7b": SEVEN_BILLION, "70b": SEVENTY_BILLION}
"""By name."""


def preset(name: str, overrides: Sequence[str] = ()) -> RecipeConfig:
    """A recipe for a size of model: SFT, reward model, PPO.

    Args:
        name: A key of ``PRESETS``.
        overrides: ``key.sub=value`` changes, such as ``stages.sft.model.path=meta-llama/Llama-3.1-8B``.

    Raises:
        ConfigError: There is no such preset, or an override is wrong.
    """
    tree = _recipe(name, look_up(PRESETS, name, kind="preset"))
    return RecipeConfig.of(apply_overrides(tree, overrides), source=f"The preset {name}")


def get_7b_model_config(**changes: Any) -> RecipeConfig:
    """The 7B preset; ``changes`` replace top-level keys such as ``name`` or ``seed``."""
    return RecipeConfig.of({**_recipe("7b", SEVEN_BILLION), **changes})


def get_70b_model_config(**changes: Any) -> RecipeConfig:
    """The 70B preset; ``changes`` replace top-level keys such as ``name`` or ``seed``."""
    return RecipeConfig.of({**_recipe("70b", SEVENTY_BILLION), **changes})


def _recipe(name: str, size: Preset) -> dict[str, Any]:
    start, tuned = {"path": size.path, **size.model}, {"path": "stage:sft", **size.model}
    return {
        "name": f"preset-{name}",
        "stages": {
            "sft": {"kind": "sft", "model": start, "data": "sft.jsonl", **size.sft},
            "reward": {"kind": "reward", "model": tuned, "data": "pairs.jsonl", "eval_frac": 0.05, **size.reward},
            "ppo": {"kind": "ppo", "model": tuned, "reward": "stage:reward", "prompts": "prompts.jsonl", **size.ppo},
        },
    }
