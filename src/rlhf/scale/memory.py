"""Peak memory of a training stage in bytes, by component.

On a CPU the parts add up even if they are not needed at the same time: the C library keeps freed memory in pieces that later
allocations seldom fit into. Measured on the quickstart's ``ppo``: sampling left 92 MB behind, judging 30, training 90 more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.allocator import num_kernels_kept
from rlhf.config.engines import RolloutWeights
from rlhf.config.training import Autocast
from rlhf.scale.costs import Learned
from rlhf.scale.shape import WIDTH, ModelShape

AVERAGES = 2
"""Numbers that AdamW keeps of each trained weight."""
GROW = 64
"""Tokens by which the cache of a row grows at first; no more than a completion may have."""
BYTES_OF_TOKEN = 36
"""Of a token id in a list: a pointer, and an object where the id is above 256."""
PRODUCTS_OF_MAP = 3
"""Of a linear map: forward, and backward by its input and by its weight."""
GPU_CONTEXT = 600 << 20
"""Bytes of libraries and kernels on a GPU; a usual size, not measured."""


def model_bytes(shape: ModelShape, *, copies: int = 1) -> dict[str, float]:
    """Weights, gradients and averages of a model that is trained."""
    trained = shape.num_trainable * shape.trained_width * copies
    return {
        "weights": float(shape.weight_bytes * copies),
        "gradients": float(trained),
        "optimizer": float(trained * AVERAGES),
    }


def extra_copies(stage: Any, shape: ModelShape) -> float:
    """Copies of the trained weights that settings ask for: averages, the best so far, and where they began."""
    stopping = stage.early_stopping
    copies = (
        int(stage.ema_decay is not None)
        + int(stopping is not None and stopping.keep_best)
        + int(stage.l2_coef > 0)
        + 2 * int(getattr(stage, "ewc", None) is not None)
        + int(getattr(stage, "moving_reference", None) is not None)  # where it was, should a rollout be broken off
        + int(getattr(stage, "moving_reference", None) is not None and stage.has_held_out)  # where it began
    )
    return float(copies * shape.num_trainable * shape.trained_width)


def sampler_bytes(shape: ModelShape, *, rollouts_ahead: int) -> float:
    """Weights in a process that samples beside training: its copy, and those that wait with the rollouts that it has not begun yet."""
    return float(shape.weight_bytes + (rollouts_ahead - 1) * shape.num_trainable * shape.trained_width)


def checkpoint_bytes(trained: Sequence[ModelShape], stage: Any, *, copies: int, steps: int | None) -> float:
    """The copy that is written while training continues: weights and averages; none in a run too short for checkpoints."""
    if not stage.save_in_background or (steps is not None and steps < 2):
        return 0.0
    return float(sum(shape.num_trainable * shape.trained_width for shape in trained) * (1 + AVERAGES) * copies)


def cache_bytes(shape: ModelShape, *, prompts: Sequence[int], rows: int, longest: int, autocast: Autocast) -> float:
    """Keys and values while sampling: each prompt's once, as long as the longest; each row's own.

    Args:
        shape: Of the policy.
        prompts: Tokens of each prompt that is asked at once.
        rows: Completions side by side.
        longest: Tokens of the longest completion.
        autocast: Type of the matrix products, which is the cache's.
    """
    width = WIDTH[shape.settings.dtype if autocast == "none" else autocast]
    tokens = len(prompts) * max(prompts) + rows * (min(GROW, longest) if longest <= GROW else longest)
    return float(tokens * shape.cached_numbers_per_token * width)


def sampling_copy_bytes(shape: ModelShape, weights: RolloutWeights) -> float:
    """The copy of the weights that samples in a lower precision; none where the policy's own do."""
    if weights == "same":
        return 0.0
    return float((shape.num_body + shape.num_head) * (1 if weights == "int8" else WIDTH[weights]))


OFFLOADED = {"reference": "reference", "reward": "reward models"}
"""What ``offload`` names -> its component."""


def frozen_bytes(models: Mapping[str, Sequence[int]], offload: Sequence[str]) -> dict[str, float]:
    """Weights of models that do not learn; those that wait on the CPU are on the GPU one at a time.

    Args:
        models: Component -> bytes of each model.
        offload: As of a stage; nothing on a machine without a GPU.

    Returns:
        By component. The largest that is copied to the GPU counts as if it were there while the policy learns, which it is not.
    """
    waiting = {OFFLOADED[name] for name in offload}
    parts = {name: float(sum(sizes)) for name, sizes in models.items() if name not in waiting}
    copied = [size for name in waiting for size in models.get(name, ())]
    return parts | ({"offloaded model in use": float(max(copied))} if copied else {})


def kernel_bytes(learned: Learned, shape: ModelShape, *, passes: float) -> float:
    """What libraries keep of so many passes: each has another number of tokens, and kernels of its own, until the oldest must leave.

    Args:
        learned: Of a micro-batch.
        shape: Of the model.
        passes: Micro-batches of the whole run.
    """
    return learned.kept_bytes * min(passes, passes_kept(PRODUCTS_OF_MAP * shape.num_products))


def passes_kept(products: int) -> int:
    """Of how many passes, or numbers of rows, oneDNN keeps the kernels; each has so many products of shapes of its own."""
    return max(1, num_kernels_kept() // max(1, products))


def learning_bytes(learned: Learned, shape: ModelShape, *, microbatches: int, tiles: float) -> dict[str, float]:
    """What learning takes above weights and averages, in parts that add up to its peak."""
    peak = learned.peak_bytes if microbatches == 1 else learned.peak_bytes_again
    gradients = min(float(shape.num_trainable * shape.trained_width), peak)
    shown = min(tiles, peak - gradients)
    return {"gradients": gradients, "logits tiles": shown, "activations": peak - gradients - shown}


def total(parts: Mapping[str, float]) -> float:
    """All of it."""
    return sum(parts.values())
