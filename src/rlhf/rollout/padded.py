"""Decoding for any family that transformers can generate with: padded rows and the family's own cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache


class PaddedDecoder:
    """The general path: prompts padded on the left, a row for each completion, inputs prepared by the family."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model: Any = model  # what every generating model has is not a part of PreTrainedModel's type
        self.device = next(model.parameters()).device

    def prefill(self, prompts: Sequence[Sequence[int]], group: np.ndarray, max_new_tokens: int) -> Tensor:
        """Read the prompts, once for each row; arguments and result as ``PackedDecoder.prefill``."""
        longest = max(len(ids) for ids in prompts)
        ids = np.zeros((len(prompts), longest), dtype=np.int64)
        mask = np.zeros((len(prompts), longest), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = prompt
            mask[row, longest - len(prompt) :] = 1
        self.ids = torch.from_numpy(ids[group]).to(self.device)
        attention_mask = torch.from_numpy(mask[group]).to(self.device)
        self.state: dict[str, Any] = {
            "attention_mask": attention_mask,
            "position_ids": (attention_mask.cumsum(-1) - 1).clamp_(min=0),
            "use_cache": True,
        }
        return self._forward(is_first_iteration=True)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed each row's newest token, int64 [R]; gives [R, V] logits of the next."""
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        return self._forward(is_first_iteration=False)

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drop rows where the family's cache can, else keep computing all; see ``PackedDecoder.keep``."""
        caches = [value for value in self.state.values() if not isinstance(value, bool | Tensor)]
        if not all(isinstance(cache, Cache) and _can_drop_rows(cache) for cache in caches):
            return np.arange(len(alive))
        rows = np.flatnonzero(alive)
        index = torch.from_numpy(rows).to(self.device)
        for cache in caches:
            cache.batch_select_indices(index)
        self.ids = self.ids.index_select(0, index)
        for name in ("attention_mask", "position_ids"):
            self.state[name] = self.state[name].index_select(0, index)
        return rows

    def _forward(self, *, is_first_iteration: bool) -> Tensor:
        inputs = self.model.prepare_inputs_for_generation(
            self.ids,
            next_sequence_length=None if is_first_iteration else 1,
            is_first_iteration=is_first_iteration,
            **self.state,
        )
        accepted = _accepted(self.model, inputs)
        out = self.model(**accepted, return_dict=True)
        self.state = self.model._update_model_kwargs_for_generation(out, self.state)
        logits: Tensor = out.logits[:, -1]
        return logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)


def _can_drop_rows(cache: Cache) -> bool:
    """Recurrent layers have no way to."""
    return all(hasattr(layer, "batch_select_indices") for layer in cache.layers)


def _accepted(model: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
    """Without position ids where the forward does not know them (positions come from the mask there)."""
    names = inspect.signature(model.forward).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in names.values())
    return {name: value for name, value in inputs.items() if name in names or (takes_any and name != "position_ids")}
