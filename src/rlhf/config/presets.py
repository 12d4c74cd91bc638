"""Starting points by model size: whole recipes in which only the model and the files are missing.

PPO settings follow the guidance by size that is common in the field:

    parameters     learning rate   completions a step   epochs   KL weight   clip   lambda   value   entropy
    up to 7B       1e-5 .. 5e-6    128 .. 256           4 .. 8   0.05..0.2   0.2    0.95     0.5     0.01
    7B to 30B      5e-6 .. 1e-6    64 .. 128            2 .. 4   0.1 ..0.3   0.2    0.95     0.5     0.01
    over 30B       1e-6 .. 5e-7    32 .. 64             1 .. 2   0.2 ..0.5   0.1    0.95     0.5     0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.config.base import apply_overrides
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import look_up


def _embedded() -> dict[str, Any]:
    """The tiny world of the quickstart, on two CPU cores."""
    return {
        "model": "embedded",
        "lora": None,
        "dtype": "float32",
        "sft": {"learning_rate": 1e-3, "epochs": 2.0, "rows_per_step": 32, "max_length": 128},
        "reward": {"learning_rate": 1e-3, "epochs": 2.0, "rows_per_step": 16, "max_length": 128},
        "ppo": {
            "learning_rate": 3e-4, "value_learning_rate": 1e-3, "prompts_per_rollout": 64, "sequences_per_step": 32,
            "epochs_per_rollout": 2, "rollouts": 40, "entropy_coef": 0.0, "value_init": "reward",
            "sampling": {"max_new_tokens": 40}, "missing_eos_penalty": 1.0,
        },
    }  # fmt: skip


def _one_billion() -> dict[str, Any]:
    """Around 1B parameters, all weights, one GPU with 80 GB (or 24 GB with `lora`)."""
    return {
        "model": "MODEL",
        "lora": None,
        "dtype": "bfloat16",
        "sft": {"learning_rate": 2e-5, "epochs": 3.0, "rows_per_step": 128, "max_length": 2048},
        "reward": {"learning_rate": 1e-5, "epochs": 1.0, "rows_per_step": 128, "max_length": 1024},
        "ppo": {
            "learning_rate": 5e-6, "prompts_per_rollout": 256, "sequences_per_step": 128, "epochs_per_rollout": 4,
            "kl": {"coef": 0.1}, "entropy_coef": 0.01, "value_init": "reward", "sampling": {"max_new_tokens": 512},
        },
    }  # fmt: skip


def _seven_billion() -> dict[str, Any]:
    """7B parameters with LoRA on one 80 GB GPU: small micro-batches, accumulation by token budget."""
    return {
        "model": "MODEL",
        "lora": {"rank": 16, "alpha": 32},
        "dtype": "bfloat16",
        "sft": {"learning_rate": 1e-4, "epochs": 3.0, "rows_per_step": 64, "tokens_per_microbatch": 4096, "max_length": 2048},
        "reward": {"learning_rate": 5e-5, "epochs": 1.0, "rows_per_step": 64, "tokens_per_microbatch": 4096, "max_length": 1024},
        "ppo": {
            "learning_rate": 5e-6, "prompts_per_rollout": 128, "sequences_per_step": 64, "epochs_per_rollout": 4,
            "kl": {"coef": 0.1}, "entropy_coef": 0.01, "value_model": "shared", "tokens_per_microbatch": 4096,
            "sampling": {"max_new_tokens": 512},
        },
    }  # fmt: skip


def _seventy_billion() -> dict[str, Any]:
    """70B parameters with LoRA over many GPUs: heavy accumulation, gentle steps."""
    return {
        "model": "MODEL",
        "lora": {"rank": 16, "alpha": 32},
        "dtype": "bfloat16",
        "sft": {"learning_rate": 5e-5, "epochs": 2.0, "rows_per_step": 64, "tokens_per_microbatch": 2048, "max_length": 2048},
        "reward": {"learning_rate": 2e-5, "epochs": 1.0, "rows_per_step": 64, "tokens_per_microbatch": 2048, "max_length": 1024},
        "ppo": {
            "learning_rate": 1e-6, "prompts_per_rollout": 64, "sequences_per_step": 32, "epochs_per_rollout": 2,
            "clip_low": 0.1, "clip_high": 0.1, "kl": {"coef": 0.2}, "entropy_coef": 0.0, "value_model": "shared",
            "tokens_per_microbatch": 2048, "sampling": {"max_new_tokens": 512},
        },
    }  # fmt: skip


PRESETS = {
    "embedded": (_embedded.__doc__ or "", _embedded),
    "1b": (_one_billion.__doc__ or "", _one_billion),
    "7b": (_seven_billion.__doc__ or "", _seven_billion),
    "70b": (_seventy_billion.__doc__ or "", _seventy_billion),
}
"""Name to what it is for and what makes it."""


def preset(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """A validated recipe with every default written out: SFT, reward model, PPO.

    Args:
        name: A key of ``PRESETS``.
        overrides: ``key.sub=value`` changes, such as ``stages.sft.model.path=meta-llama/Llama-3.1-8B``.

    Raises:
        ConfigError: No preset is called so, or an override is wrong.
    """
    _, make = look_up(PRESETS, name, kind="preset")
    tree = apply_overrides(_recipe(name, make()), overrides)
    return RecipeConfig.of(tree, source=f"Preset {name}").model_dump(mode="json")


def get_7b_model_config(**changes: Any) -> RecipeConfig:
    """The 7B preset; ``changes`` replace top-level keys such as ``name`` or ``seed``."""
    return RecipeConfig.of({**_recipe("7b", _seven_billion()), **changes})


def get_70b_model_config(**changes: Any) -> RecipeConfig:
    """The 70B preset; ``changes`` replace top-level keys such as ``name`` or ``seed``."""
    return RecipeConfig.of({**_recipe("70b", _seventy_billion()), **changes})


def _recipe(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    adapted = {"lora": settings["lora"], "dtype": settings["dtype"], "gradient_checkpointing": settings["dtype"] != "float32"}
    start = {"path": settings["model"], **adapted}
    tuned = {"path": "stage:sft", **adapted}
    return {
        "name": f"preset-{name}",
        "stages": {
            "sft": {"kind": "sft", "model": start, "data": "sft.jsonl", **settings["sft"]},
            "reward": {"kind": "reward", "model": tuned, "data": "pairs.jsonl", "eval_frac": 0.05, **settings["reward"]},
            "ppo": {"kind": "ppo", "model": tuned, "reward": "stage:reward", "prompts": "prompts.jsonl", **settings["ppo"]},
        },
    }
