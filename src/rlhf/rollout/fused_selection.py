"""Whether a model can use the fused sampling path: decided by comparing logits, not by a list of names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.models.attention import AttentionSettings
from rlhf.rollout.cache import KVCache
from rlhf.rollout.compiled import CompiledModel, can_compile
from rlhf.rollout.fused import FusedModel, has_shape
from rlhf.rollout.packed import PackedDecoder

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Largest difference of float32 logits, as a share of the largest logit (of 1, where that is less). Far above rounding, so that a
run and its continuation after a kill, which compares other weights, decide alike; another way of adding layers up shows at once."""
HALF_TOLERANCE = 0.1
"""The same of the products' own type, where that is half as wide and C does them: some ten times its rounding in a deep model, and
far below what a wrong number gives."""
CHECK_PROMPTS = 3
CHECK_TOKENS = 48
"""Of each prompt."""
CHECK_STEPS = 2
"""Decoding steps that are compared after the prompts."""


class FusedChoice:
    """Compares once for each model, and builds the fused one from the weights of the moment."""

    def __init__(self, *, compiled: bool = False) -> None:
        """Prepare.

        Args:
            compiled: Take ``CompiledModel`` where the C file is written for the model.
        """
        self.compiled = compiled
        self._has_told = False
        self._model: PreTrainedModel | None = None
        self._settings: Mapping[nn.Module, AttentionSettings] | None = None
        self._reach = 0
        """Positions below which the comparison holds."""

    def build(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        dtype: torch.dtype,
        *,
        max_new_tokens: int,
        int8: bool = False,
    ) -> FusedModel | None:
        """A fused model; None where the model has another shape or gives other logits.

        Args:
            model: In evaluation mode; one that takes the packed path.
            prompts: Token ids, for the comparison.
            dtype: Of the products.
            max_new_tokens: Most tokens after a prompt.
            int8: Round weights to 8 bits.
        """
        reach = max(map(len, prompts)) + max_new_tokens
        if not has_shape(model):
            self._note_compiled(False, model)
            return None
        if self._model is not model or reach > self._reach:
            self._reach = (
                1 << (reach - 1).bit_length()
            )  # the next power of two, so that growing prompts are seldom a new comparison
            self._model, self._settings = (
                model,
                compare(model, prompts, reach=self._reach, compiled=dtype if self.compiled else None),
            )
        if self._settings is None:
            self._note_compiled(False, model)
            return None
        self._note_compiled(can_compile(model, self._settings, dtype), model)
        return _build(model, self._settings, dtype, int8=int8, compiled=self.compiled)

    def _note_compiled(self, is_compiled: bool, model: PreTrainedModel) -> None:
        """Warn once if it was requested and is not possible."""
        if self.compiled and not is_compiled and not self._has_told:
            self._has_told = True
            logger.warning(
                "engine.compiled has no effect for this %s: it decodes models of Llama's shape without adapters, in float32 or "
                "bfloat16, on a CPU.",
                type(model).__name__,
            )


def compare(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, reach: int = 0, compiled: torch.dtype | None = None
) -> Mapping[nn.Module, AttentionSettings] | None:
    """Decode a few tokens both ways, in float32: at the first positions, and at the last ones, because some families scale their
    queries by position (Ministral 3).

    Args:
        model: Its shape fits.
        prompts: The longest are used, cut short.
        reach: No position will be so large.
        compiled: The type of products in which it is to be sampled from through C; None for torch's operations.

    Returns:
        What each attention layer asks for where the logits are equal, else None.
    """
    rows = [list(ids[:CHECK_TOKENS]) for ids in sorted(prompts, key=len, reverse=True)[:CHECK_PROMPTS]]
    last = reach - CHECK_TOKENS - CHECK_STEPS
    fused: list[FusedModel] = []
    settings: Mapping[nn.Module, AttentionSettings] = {}
    gaps: list[float] = []
    """Differences as shares of what is allowed."""
    with torch.autocast(next(model.parameters()).device.type, enabled=False):
        for first in (0, last) if last > 0 else (0,):
            cache = KVCache()
            own = _logits(_decoder(model, cache, None, first), rows)
            settings = {module: layer.settings for module, layer in cache.layers.items()}
            if not fused:
                types = {torch.float32, compiled or torch.float32}
                fused = [_build(model, settings, dtype, compiled=compiled is not None) for dtype in types]
            for one in fused:
                logits = _logits(_decoder(model, KVCache(), one, first), rows)
                share = float((logits - own).abs().amax() / own.abs().amax().clamp(min=1))
                allowed = TOLERANCE if one.dtype == torch.float32 else HALF_TOLERANCE
                gaps.append(share / allowed)
    if all(gap <= 1 for gap in gaps):  # false for NaN
        return settings
    logger.info(
        "%s has the parts of a Llama but puts them together differently (its logits differ by %.1e of the largest): it is "
        "sampled from through its own code.",
        type(model).__name__,
        max(gaps) * TOLERANCE,
    )
    return None


def _build(
    model: PreTrainedModel,
    settings: Mapping[nn.Module, AttentionSettings],
    dtype: torch.dtype,
    *,
    int8: bool = False,
    compiled: bool = False,
) -> FusedModel:
    kind = CompiledModel if compiled and can_compile(model, settings, dtype) else FusedModel
    return kind(model, settings, dtype, int8=int8)


def _decoder(model: PreTrainedModel, cache: KVCache, fused: FusedModel | None, first: int) -> PackedDecoder:
    decoder = PackedDecoder(model, cache, max_prefill_tokens=CHECK_PROMPTS * CHECK_TOKENS, fused=fused)
    decoder.first_position = first
    return decoder


def _logits(decoder: PackedDecoder, rows: list[list[int]]) -> Tensor:
    """[steps, rows, V]; what is fed are tokens of the prompts, so that both ways are fed the same."""
    logits = [decoder.prefill(rows, np.arange(len(rows)), CHECK_STEPS)]
    for step in range(CHECK_STEPS):
        tokens = torch.tensor([ids[step % len(ids)] for ids in rows], device=logits[0].device)
        logits.append(decoder.step(tokens))
    return torch.stack(logits)
