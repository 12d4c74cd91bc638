"""A language model with its key-value cache, and a reward model, as modules that torch's exporter to ONNX takes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rlhf.errors import ModelError
from rlhf.models.reward import RewardModel
from rlhf.models.scalar import head_outputs, scalar_backbone
from rlhf.models.sources import first_line

OPSET = 20
Dynamic = Any


class CachedLanguageModel(nn.Module):
    """Logits and the grown cache; names and shapes as Hugging Face's Optimum has them, so that its programs read the file."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """[B, S] tokens after a cache of P -> logits [B, S, V], and keys and values [B, K, P + S, D] of each layer."""
        cache = DynamicCache(past)
        output = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache, use_cache=True
        )  # fmt: skip
        return output.logits, [(layer.keys, layer.values) for layer in output.past_key_values.layers]


class ScoringModel(nn.Module):
    """[B] scores of whole sequences, normalized, the mean over members and heads."""

    def __init__(self, reward: RewardModel) -> None:
        super().__init__()
        self.reward = reward

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Scores at the last token of each row; padding stands on the right."""
        last = attention_mask.sum(-1) - 1
        rows = torch.arange(input_ids.shape[0])
        raw = []
        for member in self.reward.networks:
            hidden = scalar_backbone(member)(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            raw.append(head_outputs(member, hidden[rows, last]))
        scores = (torch.cat(raw, -1) - self.reward.mean) / self.reward.std
        return scores.mean(-1)


def cache_shapes(model: PreTrainedModel) -> list[tuple[int, int, int]]:
    """(key-value heads, width of a key, width of a value) of each layer, from a forward pass.

    Raises:
        ModelError: The family's cache is not made of keys and values alone.
    """
    with torch.no_grad():
        output = model(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=True)
    layers: Sequence[Any] = getattr(getattr(output, "past_key_values", None), "layers", None) or []
    if not layers or any(not isinstance(layer, DynamicLayer) for layer in layers):
        raise ModelError(
            f"ONNX files are written for models whose cache is keys and values in all layers; {model.config.model_type!r} has another one."
        )
    return [(layer.keys.shape[1], layer.keys.shape[-1], layer.values.shape[-1]) for layer in layers]


def language_graph(model: PreTrainedModel, shapes: Sequence[tuple[int, int, int]]) -> Any:
    """The graph of a language model; batch, tokens and cache can have any length.

    Raises:
        ModelError: torch can't export this family.
    """
    batch, past, new = 2, 5, 3
    caches = [(torch.zeros(batch, heads, past, k), torch.zeros(batch, heads, past, v)) for heads, k, v in shapes]
    inputs = (
        torch.zeros(batch, new, dtype=torch.long),
        torch.ones(batch, past + new, dtype=torch.long),
        torch.arange(past, past + new)[None].repeat(batch, 1),
        caches,
    )
    any_length = torch.export.Dim.DYNAMIC
    rows: Dynamic = {0: any_length, 1: any_length}
    cached: Dynamic = {0: any_length, 2: any_length}
    return _exported(
        CachedLanguageModel(model),
        inputs,
        dynamic=(rows, rows, rows, [(cached, cached)] * len(shapes)),
        inputs_named=["input_ids", "attention_mask", "position_ids", *cache_names("past_key_values", len(shapes))],
        outputs_named=["logits", *cache_names("present", len(shapes))],
        family=str(model.config.model_type),
    )


def score_graph(reward: RewardModel, family: str) -> Any:
    """The graph of a reward model; batch and tokens can have any length.

    Raises:
        ModelError: torch can't export this family.
    """
    any_length = torch.export.Dim.DYNAMIC
    rows: Dynamic = {0: any_length, 1: any_length}
    inputs = (torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long))
    return _exported(
        ScoringModel(reward), inputs, dynamic=(rows, rows), inputs_named=["input_ids", "attention_mask"],
        outputs_named=["scores"], family=family,
    )  # fmt: skip


def cache_names(prefix: str, layers: int) -> list[str]:
    """Optimum's names of keys and values."""
    return [f"{prefix}.{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]


def _exported(
    module: nn.Module, inputs: tuple[Any, ...], *, dynamic: Any, inputs_named: list[str], outputs_named: list[str], family: str
) -> Any:  # fmt: skip
    """torch's own exporter.

    torch.export gives up in a hundred ways, each with an exception of its own.
    """
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside torch's exporter
            return torch.onnx.export(
                module.eval(), inputs, dynamo=True, dynamic_shapes=dynamic, input_names=inputs_named, output_names=outputs_named,
                opset_version=OPSET, verbose=False,
            )  # fmt: skip
    except Exception as err:
        raise ModelError(f"torch can't export the family {family!r} to ONNX: {first_line(err)}") from err
