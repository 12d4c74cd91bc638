"""Frozen models that may wait in the CPU's memory, and what speaks against it."""

from __future__ import annotations

from typing import Any, Literal

Offloadable = Literal["reference", "reward"]


def check_offload(config: Any) -> None:
    """Refuse what would move weights at every step, or lose their changes.

    Args:
        config: Of a method that learns from rewards.

    Raises:
        ValueError: Naming the setting.
    """
    if "reference" not in config.offload:
        return
    if config.moving_reference is not None:
        raise ValueError(
            "offload keeps a reference that never changes, and moving_reference changes it; leave one of the two out"
        )
    if config.kl.estimator == "exact" and config.kl.where == "loss":
        raise ValueError(
            "offload would copy the reference to the GPU in every step, which kl.estimator exact in the loss asks for; leave `reference` "
            "out of offload, or take `kl: {where: reward}`"
        )


def check_offloaded_models(stage: Any, asks_models: bool) -> None:
    """Refuse to offload what has no weights.

    Args:
        stage: In which a policy learns from rewards.
        asks_models: Whether a reward or the judge is a model.

    Raises:
        ValueError: Naming the setting.
    """
    if "reference" in stage.offload and stage.reference is None and stage.model.lora is not None:
        raise ValueError(
            "offload names `reference`, which with lora is the policy with its adapter off and has no weights of its own; leave it out"
        )
    if "reward" in stage.offload and not asks_models:
        raise ValueError("offload names `reward`, and no reward of this stage is a model; leave it out")
