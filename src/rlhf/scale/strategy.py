"""Recommendation for a stage that fits a machine well, barely, or not at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rlhf.config.model import ModelConfig
from rlhf.formatting import percentage
from rlhf.scale.machine import Machine
from rlhf.scale.memory import total
from rlhf.scale.shape import FOUR_BIT_BYTES, WIDTH, ModelShape

FITS = 0.7
"""Share of the memory up to which a stage runs as it is, with room for longer rows."""
TIGHT = 1.0
LORA_SHARE = 0.02
"""Of the weights, about what an adapter on all layers has; each with its gradient and two averages in float32."""
MOST_GPUS = 8
"""Of one machine; beyond them weights are sharded over machines."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A recommendation."""

    name: str
    """single, checkpointing, offload, lora, qlora, zero-1, zero-2, zero-3 (FSDP), or none."""
    why: str
    settings: tuple[str, ...] = ()
    """KEY=VALUE, inside the stage, where settings of this library do it."""


def recommend(stage: Any, shape: ModelShape, parts: dict[str, float], machine: Machine) -> Strategy:
    """The first of these that fits: as it is; recomputed activations; on a GPU optimizer, gradients and then weights spread over the
    GPUs of a machine; adapters; adapters on weights in 4 bits.

    Args:
        stage: Its settings.
        shape: Of the model that is trained.
        parts: Bytes by component, as planned.
        machine: Where it would run.
    """
    needed, room = total(parts), float(machine.memory_bytes)
    config: ModelConfig = stage.model
    if needed <= FITS * room:
        return Strategy("single", f"it takes {percentage(needed / room, 0)} of the memory of {machine.name}")
    smaller = _with_checkpointing(parts, shape)
    if not config.gradient_checkpointing and smaller <= FITS * room:
        why = f"activations fill {percentage(parts.get('activations', 0) / room, 0)} of the memory; recomputed they cost about 30 % more time"
        return Strategy("checkpointing", why, ("model.gradient_checkpointing=true",))
    if needed <= TIGHT * room:
        limit = max(256, int(stage.microbatch_tokens) // 4)
        why = f"it takes {percentage(needed / room, 0)} of the memory: lower the tokens of a micro-batch, which changes no result"
        return Strategy("single, tight", why, (f"microbatch_tokens={limit}",))
    if machine.is_gpu and config.lora is None and (sharded := _sharded(parts, room)) is not None:
        return sharded
    return _adapters(stage, shape, parts, room)


def _with_checkpointing(parts: dict[str, float], shape: ModelShape) -> float:
    """Bytes where only the inputs of layers are kept: about one part in as many as there are layers, and a layer at work."""
    activations = parts.get("activations", 0.0)
    return total(parts) - activations + activations * min(1.0, 2 / max(2, shape.num_layers))


def _sharded(parts: dict[str, float], room: float) -> Strategy | None:
    """ZeRO's stages (Rajbhandari et al. 2020, arXiv:1910.02054): what is divided by the number of GPUs grows from stage to stage."""
    stages = (
        ("zero-1", ("optimizer",), "the optimizer's averages"),
        ("zero-2", ("optimizer", "gradients"), "averages and gradients"),
        ("zero-3 (FSDP)", ("optimizer", "gradients", "weights", "reference"), "averages, gradients and weights"),
    )
    for name, divided, what in stages:
        spread = sum(parts.get(key, 0.0) for key in divided)
        rest = total(parts) - spread
        if rest < FITS * room:
            count = 1 << math.ceil(math.log2(max(2.0, spread / (FITS * room - rest))))
            if count <= MOST_GPUS:
                return Strategy(
                    name,
                    f"{what} spread over {count} GPUs leave {percentage((rest + spread / count) / room, 0)} of each filled",
                )
    return None


def _adapters(stage: Any, shape: ModelShape, parts: dict[str, float], room: float) -> Strategy:
    weights = shape.num_parameters
    adapter = shape.num_parameters * LORA_SHARE * 4 * WIDTH["float32"]
    others = total(
        {
            k: v
            for k, v in parts.items()
            if k not in ("weights", "gradients", "optimizer", "reference", "checkpoint copy")
        }
    )
    if stage.model.lora is None and weights * WIDTH["bfloat16"] + adapter + others <= room:
        why = "all weights with gradients and averages do not fit; frozen weights in bfloat16 with trained adapters do"
        return Strategy("lora", why, ("model.dtype=bfloat16", "model.lora={rank: 16}"))
    if weights * FOUR_BIT_BYTES + adapter + others <= room:
        why = "only with frozen weights in 4 bits does it fit; that needs the extra `quant`"
        return Strategy("qlora", why, ("model.lora={rank: 16, quantize_4bit: true}",))
    return Strategy(
        "none",
        f"it needs {total(parts) / room:.1f} times the memory of one such machine, even with adapters: take a larger one",
    )
