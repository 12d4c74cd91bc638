"""A fused model whose decoding steps are done in C (``rlhf.native.kernels``).

A step of torch's own operations is some ninety of them a layer, and attention with one token for each row is many small products,
which oneDNN does at a twentieth of its speed for large ones. Here attention reads each key once, where it lies. Where the processor
multiplies tiles of bfloat16, a step is one call, products and all; elsewhere the products are torch's, and between them are the norm, the
rotation, writing to the cache and attention, one call each.

R is the number of live rows; where a row is fed several tokens, that of the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation
from typing_extensions import override

from rlhf.config.policy import SamplingConfig
from rlhf.models.attention import AttentionSettings
from rlhf.models.score import split_head
from rlhf.models.vocabulary_tiles import LogitTransform
from rlhf.native.kernels import (
    DECODE_DTYPES,
    DecodeKernels,
    DecodeLayer,
    DecodePass,
    DecodeStep,
    DecodeWeights,
    TiledLinear,
    can_tile,
)
from rlhf.rollout.fused import FusedLayer, FusedModel, HeadNorm, Norm, Product, RowAttention, filled_up
from rlhf.rollout.sampling import BLOCK, Draw, draw, is_plain
from rlhf.rollout.sampling_attention import DecodeLayout

SILU = (nn.SiLU, SiLUActivation)
"""Of the activations the one that is done in C."""


class CompiledModel(FusedModel):
    """Decoding steps through C; of prompts attention, norms and gates."""

    attends_itself = True

    def __init__(
        self,
        model: PreTrainedModel,
        settings: Mapping[nn.Module, AttentionSettings],
        dtype: torch.dtype,
        *,
        int8: bool = False,
    ):
        """As ``FusedModel``; ``can_compile`` holds.

        Raises:
            ConfigError: There is no C compiler, or it failed.
        """
        self._kernels = DecodeKernels(_head_width(model), dtype, block=BLOCK)
        super().__init__(model, settings, dtype, int8=int8)
        self._floors = [(float(layer.before_attention.eps), float(layer.before_mlp.eps)) for layer in self.layers]
        """Of each layer's norms."""
        self._weights = self._tiled_weights()

    @override
    def product(self, weight: Tensor, bias: Tensor | None) -> Product:
        if self._kernels.has_tiles and can_tile(weight):
            return self._kernels.tiled_linear(weight, bias)
        return super().product(weight, bias)

    @override
    def hidden(self, tokens: Tensor, positions: Tensor, layout: RowAttention) -> Tensor:
        if not isinstance(layout, DecodeLayout):
            return super().hidden(tokens, positions, layout)
        x = F.embedding(tokens, self.embedding).float()
        step = self._step(positions, layout)
        if self._weights is not None:
            self._decode(x, step, self._weights, layout)
            return x
        kernels, rows = self._kernels, len(x)
        normed = torch.empty(
            filled_up(rows), x.shape[1], dtype=self.dtype, device="cpu"
        )  # what is behind the rows is not read
        kernels.norm(x, normed, self._floors[0][0])
        for number, (layer, (_, floor)) in enumerate(zip(self.layers, self._floors, strict=True)):
            seen = self._attended(layer, layer.qkv(normed)[:rows], step, layout)
            kernels.add_norm(x, layer.out(F.pad(seen, (0, 0, 0, len(normed) - rows))), normed, floor)
            y = layer.down(self._activated(layer, layer.gate_up(normed)))
            if number + 1 < len(self.layers):
                kernels.add_norm(x, y, normed, self._floors[number + 1][0])
        return x.add_(y[:rows])

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, V] at temperature 1, in ``dtype`` where the head gives them as they are; ``draw`` reads them so."""
        if self.head.transform == LogitTransform():
            x = self._normed(self.norm, hidden)
            return self.vocabulary(F.pad(x, (0, 0, 0, filled_up(len(x)) - len(x))))[: len(x)]
        return super().logits(hidden)

    def draw(self, logits: Tensor, uniform: Tensor, sampling: SamplingConfig, *, seen: Tensor | None = None) -> Draw:
        """One token for each row and its log-probability, as ``rlhf.rollout.sampling.draw`` gives them."""
        if not is_plain(sampling) or logits.dtype != self.dtype:
            return draw(logits, uniform, sampling, seen=seen)
        return Draw(*self._kernels.draw(logits, uniform, temperature=sampling.temperature), None)

    def _tiled_weights(self) -> DecodeWeights | None:
        """The layers' weights and norms, where every product is in tiles and every activation in C."""
        if not all(isinstance(layer.activation, SILU) for layer in self.layers):
            return None
        tiles = []
        for layer, floors in zip(self.layers, self._floors, strict=True):
            maps = (layer.qkv, layer.out, layer.gate_up, layer.down)
            tiled = [one for one in maps if isinstance(one, TiledLinear)]
            if len(tiled) < len(maps):
                return None
            tiles.append((tiled, floors))
        return DecodeWeights(tiles)

    def _decode(self, x: Tensor, step: DecodeStep, weights: DecodeWeights, layout: DecodeLayout) -> None:
        """All layers: x float32 [R, H], embeddings, becomes what the last layer gives."""
        name = ("pass", len(x))
        if name not in layout.derived:
            layers = [_layer(layer, layout) for layer in self.layers]
            layout.derived[name] = DecodePass(self._kernels, weights, layers, step, width=self.embedding.shape[1])
        layout.derived[name].run(x, step, abandon=lambda: layout.derived.pop(name, None))

    def _attended(self, layer: FusedLayer, qkv: Tensor, step: DecodeStep, layout: DecodeLayout) -> Tensor:
        """[R, heads * D] of queries, keys and values [R, (heads + 2 * kv_heads) * D], which are not turned yet."""
        if layer.module not in layout.derived:
            layout.derived[layer.module] = _layer(layer, layout)
        return self._kernels.attend(qkv, step, layout.derived[layer.module])

    @override
    def _normed(self, norm: Norm, x: Tensor) -> Tensor:
        out = torch.empty(x.shape, dtype=self.dtype, device="cpu")
        self._kernels.norm(x.contiguous(), out, float(norm.eps))
        return out

    @override
    def _activated(self, layer: FusedLayer, gate_up: Tensor) -> Tensor:
        return (
            self._kernels.silu_product(gate_up)
            if isinstance(layer.activation, SILU)
            else super()._activated(layer, gate_up)
        )

    def _step(self, positions: Tensor, layout: DecodeLayout) -> DecodeStep:
        assert self.rotations is not None, "prepare() comes before hidden()"
        if "step" not in layout.derived:
            rows = layout.fed_rows()
            group = torch.from_numpy(layout.group).index_select(0, rows)
            lengths = layout.row_lens.index_select(0, rows)
            layout.derived["step"] = DecodeStep(lengths, group, rows, longest=layout.longest, several=layout.several)
        step: DecodeStep = layout.derived["step"]
        step.move(positions, layout.positions(), self.rotations, places=layout.fed_places(), room=layout.room)
        return step


def can_compile(model: PreTrainedModel, settings: Mapping[nn.Module, AttentionSettings], dtype: torch.dtype) -> bool:
    """Whether the C file is written for a model for which ``has_shape`` holds.

    Args:
        model: On any device.
        settings: What its attention layers ask for.
        dtype: Of the products.
    """
    plain = all(asked.softcap is None and asked.chunk is None and asked.sinks is None for asked in settings.values())
    even = all(getattr(module, "head_dim", 1) % 2 == 0 for module in settings)
    return plain and even and dtype in DECODE_DTYPES and next(model.parameters()).device.type == "cpu"


def _layer(layer: FusedLayer, layout: DecodeLayout) -> DecodeLayer:
    """A layer's tables, and its attention options."""
    tables = layout.cache.layers[layer.module]
    return DecodeLayer(
        (tables.keys, tables.values),
        (tables.prompt_keys, tables.prompt_values),
        heads=layer.num_queries,
        kv_heads=layer.num_keys,
        window=layer.settings.sliding_window,
        norms=(_described(layer.head_norms[0]), _described(layer.head_norms[1])) if layer.head_norms else None,
    )


def _described(norm: HeadNorm) -> tuple[Tensor, float]:
    return norm.weight, norm.eps


def _head_width(model: PreTrainedModel) -> int:
    backbone: Any = split_head(model)[0]
    width: int = backbone.layers[0].self_attn.head_dim
    return width
