"""Which tensor belongs to which layer, by names alone: ``model.layers.3.mlp.up_proj.weight`` is of layer 3 of ``model.layers``."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NUMBERED = re.compile(r"^(.*?)\.(\d+)\.(.*)$|^(\d+)\.(.*)$")
COUNT_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
"""What families call the number of layers in config.json."""
BEFORE = re.compile(r"(^|[._])(embed\w*|wte|wpe|word_embeddings\w*|tok_embeddings|embd)([._]|$)")
"""Names of what comes before the layers; all else without a number comes after."""
BUFFERS = re.compile(r"(rotary_emb\.inv_freq|\.masked_bias|(^|\.)attn\.bias|attention\.bias|position_ids)$")
"""Masks and tables that are computed from the config; older versions saved them."""
VOCABULARY = re.compile(
    r"(^|\.)(embed_tokens\w*|wte|embed_in|word_embeddings|tok_embeddings|lm_head|embed_out|output)\.(weight|bias)$"
)
"""Tensors with a row for each token, if they have as many rows."""
HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output)\.weight$")
EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings|tok_embeddings)\.weight$")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor stands in its model."""

    stack: str | None
    """Name of the stack of layers; None outside of all."""
    layer: int | None
    rest: str
    """Name inside the layer, or the whole name."""


def place_of(name: str) -> Place:
    """The place that a name tells; the first number counts."""
    numbered = NUMBERED.match(name)
    if numbered is None:
        return Place(None, None, name)
    stack, number, rest = (
        (numbered[1], numbered[2], numbered[3]) if numbered[2] is not None else ("", numbered[4], numbered[5])
    )
    return Place(stack, int(number), rest)


def name_in(stack: str, layer: int, rest: str) -> str:
    """The name of a tensor of a layer."""
    return f"{stack}.{layer}.{rest}" if stack else f"{layer}.{rest}"


def comes_before(name: str) -> bool:
    """Whether a tensor without a layer comes before all layers, as embeddings do."""
    return BEFORE.search(name) is not None


def stacks(names: Iterable[str]) -> dict[str, int]:
    """Stack -> its layers, the one with most tensors first."""
    tensors: Counter[str] = Counter()
    layers: dict[str, set[int]] = defaultdict(set)
    for name in names:
        place = place_of(name)
        if place.stack is not None and place.layer is not None:
            tensors[place.stack] += 1
            layers[place.stack].add(place.layer)
    return {stack: max(layers[stack]) + 1 for stack, _ in tensors.most_common()}


def count_key(config: Mapping[str, Any]) -> str | None:
    """The key of config.json that holds the number of layers."""
    return next((key for key in COUNT_KEYS if isinstance(config.get(key), int)), None)
