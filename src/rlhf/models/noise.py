"""Noise added to a model's input embeddings while a batch is scored, for every scoring path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.data.pack import PackedBatch
from rlhf.errors import ModelError
from rlhf.models.score import base_model, padded_places


@contextmanager
def added_to_embeddings(
    model: PreTrainedModel | PeftModel, batch: PackedBatch, noise: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Context in which ``score(model, batch)`` uses noisy embeddings; no other batch may be scored in it.

    The noise goes onto what the embedding layer gives: a family that scales embeddings afterwards scales it too.

    Args:
        model: Plain or with an adapter.
        batch: The one that is scored, on the model's device.
        noise: Given [N, H], of which it may use shape, dtype and device only; returns what is added to each row of
            ``batch.tokens``, [N, H].

    Raises:
        ModelError: The model never asked its input embedding, so that no noise was added.
    """
    base = base_model(model)
    embedding: Any = base.get_input_embeddings()
    calls = 0

    def add(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        rows = noise(output.new_empty(batch.num_tokens, output.shape[-1]))
        if output.shape[:-1] == (1, batch.num_tokens):
            return output + rows[None]
        places, mask = padded_places(batch)
        return output + rows[places] * mask[..., None]

    handle = embedding.register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()
    if calls != 1:
        raise ModelError(
            f"{type(base).__name__} asked its input embedding {calls} times in one pass, and noise is made for once; "
            "train it without neftune_alpha."
        )
