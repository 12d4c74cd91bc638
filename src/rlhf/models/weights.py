"""Weights in memory: drawn from a seed, laid where they compute the same everywhere, all there, and all finite."""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Collection, Iterator

import torch
from torch import nn

from rlhf.errors import ModelError
from rlhf.seeds import derive_seed

ALIGNMENT = 64
"""Bytes; what torch gives to every tensor that it allocates on the CPU."""
HARMLESS = (
    r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$",  # computed from the config; older versions saved them
    r"\.(masked_bias|attn\.bias|attention\.bias|position_ids)$",  # masks that are buffers
    r"^(lm_head|embed_out|output|head)\.",  # a language model's head, where only its backbone is wanted
    r"^v_head\.",  # a value head that TRL saved with a policy
    r"(^|\.)(vision|visual|audio|multi_modal|mm_|image_|embed_vision|embed_audio)",  # senses that a text model lacks
    r"(^|\.)(mtp|nextn|eh_proj|enorm|hnorm|shared_head)",  # heads that guess several tokens ahead
)
"""Saved weights that a language model may leave unread and still be the model that was saved."""
CHECKED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHOWN = 3
_MAPPED: contextvars.ContextVar[bool] = contextvars.ContextVar("rlhf_mapped_weights", default=False)


def check_complete(
    source: str, model: nn.Module, *, missing: Collection[str], mismatched: Collection[str], unexpected: Collection[str]
) -> None:
    """Refuse a model of which not every weight came from its files, or whose files hold more than the model.

    Args:
        source: What it was loaded from.
        model: Whose weights they are.
        missing: Names of weights that the files lack: they would be random.
        mismatched: Weights of another shape: likewise.
        unexpected: Names in the files that the model has no place for.

    Raises:
        ModelError: With the first names.
    """
    kind = type(model).__name__
    if missing:
        raise ModelError(
            f"{source!r} lacks {len(missing)} of the weights that {kind} needs: {_names(missing)}; they would be random. Is it "
            f"another kind of model, or a damaged copy?"
        )
    if mismatched:
        raise ModelError(
            f"{source!r}: {len(mismatched)} weights have another shape than {kind} gives them by config.json: "
            f"{_names(mismatched)}. The config and the weights come from different models: copy both from one save."
        )
    left = [name for name in unexpected if not any(re.search(pattern, name) for pattern in HARMLESS)]
    if left:
        raise ModelError(
            f"{source!r} holds {len(left)} weights that {kind} has no place for: {_names(left)}; without them it would be another "
            f"model than was saved. Does config.json belong to these weights (layers, kind of model)?"
        )


def check_finite(source: str, model: nn.Module) -> None:
    """Refuse weights that are not numbers: every result would be NaN, and the run would blame its data.

    Raises:
        ModelError: With the first names.
    """
    bad = [
        name
        for name, value in model.named_parameters()
        if value.dtype in CHECKED and value.numel() and not all(map(torch.isfinite, torch.aminmax(value.detach())))
    ]
    if bad:
        raise ModelError(
            f"{source!r} holds NaN or infinity in {len(bad)} of its weights: {_names(bad)}. Its training diverged or the copy is "
            f"damaged; take an earlier checkpoint."
        )


def _names(names: Collection[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:SHOWN]) + (f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else "")


@contextlib.contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Draw random weights on the CPU from a named seed, and leave torch's own generators as they were."""
    with torch.random.fork_rng(devices=[]):
        # Only the CPU's generator: torch.manual_seed would also reseed those of all GPUs, which would not be restored.
        torch.default_generator.manual_seed(derive_seed(seed, "models", *names))
        yield


@contextlib.contextmanager
def mapped_weights(wanted: bool = True) -> Iterator[None]:
    """Inside, weights that a file has in the wanted type stay mapped, for models that are cut into shards before they compute.

    Ranks on one machine share the pages, which are no process's own, and each copies its shards out of them.
    """
    token = _MAPPED.set(wanted)
    try:
        yield
    finally:
        _MAPPED.reset(token)


def align_weights(model: nn.Module) -> None:
    """Copy weights at unaligned addresses into new memory.

    A mapped file puts its tensors wherever its header ends, and matrix kernels may sum in another order there: equal weights
    would differ in the last bit of what they compute, from one folder to the next.
    """
    if _MAPPED.get():
        return
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()
