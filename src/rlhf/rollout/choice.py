"""Whether a model may be sampled from in few kernels: found by comparing logits, not by a list of names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.models.attention import AttentionSettings
from rlhf.rollout.cache import KVCache
from rlhf.rollout.fused import FusedModel, has_shape
from rlhf.rollout.packed import PackedDecoder

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Largest difference of float32 logits, as a share of the largest logit (of 1, where that is less). Far above rounding, so that a
run and its continuation after a kill, which compares other weights, decide alike; another way of adding layers up shows at once."""
CHECK_PROMPTS = 3
CHECK_TOKENS = 48
"""Of each prompt; families put their layers together in the same way for short rows and long ones."""
CHECK_STEPS = 2
"""Decoding steps that are compared after the prompts."""


class FusedChoice:
    """Compares once for each model, and builds the fused one from the weights of the moment."""

    def __init__(self) -> None:
        self._model: PreTrainedModel | None = None
        self._settings: Mapping[nn.Module, AttentionSettings] | None = None

    def build(
        self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], dtype: torch.dtype, *, int8: bool = False
    ) -> FusedModel | None:
        """A fused model; None where the model has another shape or gives other logits.

        Args:
            model: In evaluation mode; one that takes the packed path.
            prompts: Token ids, for the comparison.
            dtype: Of the products.
            int8: Round weights to 8 bits.
        """
        if not has_shape(model):
            return None
        if self._model is not model:
            self._model, self._settings = model, compare(model, prompts)
        return FusedModel(model, self._settings, dtype, int8=int8) if self._settings is not None else None


def compare(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> Mapping[nn.Module, AttentionSettings] | None:
    """Decode a few tokens both ways, in float32.

    Args:
        model: Its shape fits.
        prompts: The longest are used, cut short.

    Returns:
        What each attention layer asks for where the logits are equal, else None.
    """
    rows = [list(ids[:CHECK_TOKENS]) for ids in sorted(prompts, key=len, reverse=True)[:CHECK_PROMPTS]]
    with torch.autocast(next(model.parameters()).device.type, enabled=False):
        cache = KVCache()
        own = _logits(PackedDecoder(model, cache, max_prefill_tokens=CHECK_PROMPTS * CHECK_TOKENS), rows)
        settings = {module: layer.settings for module, layer in cache.layers.items()}
        fused = FusedModel(model, settings, torch.float32)
        decoder = PackedDecoder(model, KVCache(), max_prefill_tokens=CHECK_PROMPTS * CHECK_TOKENS, fused=fused)
        difference = float((_logits(decoder, rows) - own).abs().amax() / own.abs().amax().clamp(min=1))
    if difference <= TOLERANCE:
        return settings
    logger.info(
        "%s has the parts of a Llama but puts them together differently (its logits differ by %.1e of the largest): it is "
        "sampled from through its own code.",
        type(model).__name__,
        difference,
    )
    return None


def _logits(decoder: PackedDecoder, rows: list[list[int]]) -> Tensor:
    """[steps, rows, V]; what is fed are tokens of the prompts, so that both ways are fed the same."""
    found = [decoder.prefill(rows, np.arange(len(rows)), CHECK_STEPS)]
    for step in range(CHECK_STEPS):
        tokens = torch.tensor([ids[step % len(ids)] for ids in rows], device=found[0].device)
        found.append(decoder.step(tokens))
    return torch.stack(found)
