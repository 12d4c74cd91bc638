"""A fused model whose decoding steps are done in C (``rlhf/native/decode.c``).

A step of torch's own operations is some ninety of them a layer, and attention with one token for each row is many small products,
which oneDNN does at a twentieth of its speed for large ones. Here attention reads each key once, where it lies. Where the processor
multiplies tiles of bfloat16, a step is one call, products and all; elsewhere the products are torch's, and between them are the norm, the
rotation, writing to the cache and attention, one call each.

R is the number of live rows.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Mapping
from ctypes import POINTER, Array, Structure, byref, c_double, c_float, c_int, c_int64, c_void_p
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from rlhf.config.policy import SamplingConfig
from rlhf.models.attention import AttentionSettings
from rlhf.models.logprobs import LogitTransform
from rlhf.models.score import split_head
from rlhf.native.library import load
from rlhf.native.threads import in_parts, together
from rlhf.rollout.fused import FusedLayer, FusedModel, Product, RowAttention
from rlhf.rollout.sampling import BLOCK, Draw, draw, is_plain
from rlhf.rollout.sampling_attention import DecodeLayout
from rlhf.rollout.tiled import LAST_ROWS, Linear, TiledProjection, fits
from rlhf.rollout.tiled import SIGNATURES as TILED

DTYPES = (torch.float32, torch.bfloat16)
"""Types of activations that the C file is written for."""
SILU = (nn.SiLU, SiLUActivation)
"""Of the activations the one that is done in C."""
NUMBERS_APIECE = 1 << 20
"""Of the weights, that a thread gets at least where a step is one call: waking it costs as much as to read a fraction of them."""
UNITS_APIECE = 64
"""Rows times key heads that a thread gets at least: waking one costs as much as attention of so many."""
LANES = 16
"""Of decode.c: numbers that it takes at once, and so many more than it needs."""
ROWS_APIECE = 4
"""Rows that a thread draws tokens for at least, likewise."""


class _Step(Structure):
    """``step_t``."""

    _fields_ = (
        ("rows", c_int64),
        ("place", c_int64),
        ("room", c_int64),
        ("positions", c_void_p),
        ("before", c_void_p),
        ("row_lens", c_void_p),
        ("group", c_void_p),
        ("rotations", c_void_p),
    )


class _Weights(Structure):
    """``weights_t``."""

    _fields_ = (
        ("qkv", Linear),
        ("out", Linear),
        ("gate_up", Linear),
        ("down", Linear),
        ("attention_eps", c_float),
        ("mlp_eps", c_float),
    )


class _Pass(Structure):
    """``pass_t``."""

    _fields_ = (
        ("layers", c_int64),
        ("width", c_int64),
        ("threads", c_int64),
        ("x", c_void_p),
        ("normed", c_void_p),
        ("change", c_void_p),
        ("qkv", c_void_p),
        ("seen", c_void_p),
        ("gates", c_void_p),
        ("act", c_void_p),
        ("arrived", c_int),
        ("phase", c_int),
        ("abandoned", c_int),
    )


class _Layer(Structure):
    """``layer_t``."""

    _fields_ = (
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("prompt_keys", c_void_p),
        ("prompt_values", c_void_p),
        ("prompt_stride", c_int64),
        ("prompt_head_stride", c_int64),
        ("row_stride", c_int64),
        ("row_head_stride", c_int64),
        ("window", c_int64),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("query_eps", c_float),
        ("key_eps", c_float),
    )


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "norm": (c_void_p, c_void_p, c_int64, c_int64, c_float),
    "add_norm": (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float),
    "silu_product": (c_void_p, c_void_p, c_int64, c_int64),
    "draw": (c_void_p, c_int64, c_double, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64),
    "attend": (POINTER(_Step), POINTER(_Layer), c_void_p, c_void_p, c_void_p, c_int64, c_int64),
}
"""Types of the arguments of each function in C."""
WHOLE: dict[str, tuple[Any, ...]] = {
    "decode": (POINTER(_Pass), POINTER(_Step), POINTER(_Layer), POINTER(_Weights), c_void_p, c_int64),
    **TILED,
}
"""The same of those that are there where the processor has tiles."""


class CompiledModel(FusedModel):
    """Decoding steps through C; prompts, and several tokens of a row at once, as in ``FusedModel``."""

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
        self._c, self._has_tiles = _functions(_head_width(model), half=dtype == torch.bfloat16)
        super().__init__(model, settings, dtype, int8=int8)
        self._floors = [(float(layer.before_attention.eps), float(layer.before_mlp.eps)) for layer in self.layers]
        """Of each layer's norms."""
        self._weights = self._described()

    def product(self, weight: Tensor, bias: Tensor | None) -> Product:
        """See ``FusedModel.product``."""
        if self._has_tiles and fits(weight):
            return TiledProjection(weight, bias, self._c)
        return super().product(weight, bias)

    def hidden(self, tokens: Tensor, positions: Tensor, layout: RowAttention) -> Tensor:
        """See ``FusedModel.hidden``."""
        if type(layout) is not DecodeLayout:
            return super().hidden(tokens, positions, layout)
        x = F.embedding(tokens, self.embedding).float()
        before = layout.positions()
        step = self._step(positions, before, layout)
        if self._weights is not None:
            self._decode(x, step, self._weights, layout)
            return x
        size = x.shape
        normed = torch.empty(size, dtype=self.dtype, device="cpu")
        self._c.norm(x.data_ptr(), normed.data_ptr(), *size, self._floors[0][0])
        for number, (layer, (_, floor)) in enumerate(zip(self.layers, self._floors, strict=True)):
            y = layer.out(self._attended(layer, layer.qkv(normed), step, layout))
            self._c.add_norm(x.data_ptr(), y.data_ptr(), normed.data_ptr(), *size, floor)
            y = layer.down(self._activated(layer, layer.gate_up(normed)))
            if number + 1 < len(self.layers):
                self._c.add_norm(x.data_ptr(), y.data_ptr(), normed.data_ptr(), *size, self._floors[number + 1][0])
        return x.add_(y)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, V] at temperature 1, in ``dtype`` where the head gives them as they are; ``draw`` reads them so."""
        if self.head.transform == LogitTransform():
            return self.vocabulary(self.norm(hidden))
        return super().logits(hidden)

    def draw(self, logits: Tensor, uniform: Tensor, sampling: SamplingConfig, *, seen: Tensor | None = None) -> Draw:
        """See ``rlhf.rollout.sampling.draw``."""
        if not is_plain(sampling) or logits.dtype != self.dtype:
            return draw(logits, uniform, sampling, seen=seen)
        rows, vocabulary = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64, device="cpu")
        logprobs = torch.empty(rows, dtype=torch.float64, device="cpu")
        given = logits.contiguous()
        fixed = (
            given.data_ptr(),
            vocabulary,
            1 / sampling.temperature,
            uniform.data_ptr(),
            tokens.data_ptr(),
            logprobs.data_ptr(),
        )
        in_parts(
            lambda *part: self._c.draw(*fixed, *part),
            reached=range(rows + 1),
            least=ROWS_APIECE,
            scratch=2 * (vocabulary // BLOCK + 1),
        )
        return Draw(tokens, logprobs, None)

    def _described(self) -> Array[_Weights] | None:
        """The layers' weights and norms, where every product is in tiles and every activation in C."""
        if not all(isinstance(layer.activation, SILU) for layer in self.layers):
            return None
        found = []
        for layer, floors in zip(self.layers, self._floors, strict=True):
            maps = (layer.qkv, layer.out, layer.gate_up, layer.down)
            tiled = [one.described for one in maps if isinstance(one, TiledProjection)]
            if len(tiled) < len(maps):
                return None
            found.append(_Weights(*tiled, *floors))
        return (_Weights * len(found))(*found)

    def _decode(self, x: Tensor, step: _Step, weights: Array[_Weights], layout: DecodeLayout) -> None:
        """All layers: x float32 [R, H], embeddings, becomes what the last layer gives."""
        if "pass" not in layout.derived:
            layout.derived["pass"] = self._pass(weights, layout)
        described, layers, scratch, _ = held = layout.derived["pass"]
        described.x = x.data_ptr()
        where = (byref(described), byref(step), layers, weights)

        def call(memory: int, thread: int, *, held: object = (self, x, layout, held)) -> None:  # what C writes to
            self._c.decode(*where, memory, thread)

        def abandon() -> None:
            described.abandoned = 1
            layout.derived.pop("pass", None)

        together(call, threads=described.threads, scratch=scratch, abandon=abandon)

    def _pass(self, weights: Array[_Weights], layout: DecodeLayout) -> tuple[_Pass, Array[_Layer], int, list[Tensor]]:
        """What stays the same from step to step: the pass, the layers' tables, floats for each thread to work in, and what the pass
        points to."""
        rows, width = layout.num_rows, self.embedding.shape[1]
        maps = [getattr(one, name) for one in weights for name in ("qkv", "out", "gate_up", "down")]
        ins, outs = [getattr(one, "in") for one in maps], [one.out for one in maps]
        sizes = {
            "normed": width,
            "change": width,
            "qkv": max(outs[0::4]),
            "seen": max(ins[1::4]),
            "gates": max(outs[2::4]),
            "act": max(ins[3::4]),
        }
        held = {name: torch.empty(rows, size, dtype=self.dtype, device="cpu") for name, size in sizes.items()}
        threads = min(torch.get_num_threads(), sum(map(operator.mul, ins, outs)) // NUMBERS_APIECE)
        described = _Pass(layers=len(weights), width=width, threads=max(1, threads))
        for name, tensor in held.items():
            setattr(described, name, tensor.data_ptr())
        layers = (_Layer * len(weights))(*(_layer(layer, layout) for layer in self.layers))
        scratch = max(layout.longest + layout.room + LANES, max(ins) * LAST_ROWS // 2)
        return described, layers, scratch, list(held.values())

    def _attended(self, layer: FusedLayer, qkv: Tensor, step: _Step, layout: DecodeLayout) -> Tensor:
        """[R, heads * D] of queries, keys and values [R, (heads + 2 * kv_heads) * D], which are not turned yet."""
        if layer.module not in layout.derived:
            layout.derived[layer.module] = _layer(layer, layout)
        described = layout.derived[layer.module]
        out = qkv.new_empty(len(qkv), layer.num_queries * self.width)
        attend, numbers, found = self._c.attend, qkv.data_ptr(), out.data_ptr()
        in_parts(
            lambda scores, first, last: attend(byref(step), byref(described), numbers, found, scores, first, last),
            reached=range(layer.num_keys * layout.num_rows + 1),
            least=UNITS_APIECE,
            scratch=layout.longest + layout.room + LANES,
        )
        return out

    def _activated(self, layer: FusedLayer, gate_up: Tensor) -> Tensor:
        """[R, I] of [R, 2 * I]."""
        if not isinstance(layer.activation, SILU):
            gate, up = gate_up.chunk(2, dim=1)
            return layer.activation(gate).mul_(up)
        rows, width = gate_up.shape
        out = gate_up.new_empty(rows, width // 2)
        self._c.silu_product(gate_up.data_ptr(), out.data_ptr(), rows, width // 2)
        return out

    def _step(self, positions: Tensor, before: Tensor, layout: DecodeLayout) -> _Step:
        assert self.rotations is not None, "prepare() comes before hidden()"
        if "step" not in layout.derived:
            group = torch.from_numpy(layout.group)
            step = _Step(rows=layout.num_rows, row_lens=layout.row_lens.data_ptr(), group=group.data_ptr())
            layout.derived["step"] = (step, group)  # the tensor lives as long as its address is used
        found: _Step = layout.derived["step"][0]
        found.place, found.room = layout.place, layout.room
        found.positions, found.before = positions.data_ptr(), before.data_ptr()
        found.rotations = self.rotations.data_ptr()
        return found


def can_compile(model: PreTrainedModel, settings: Mapping[nn.Module, AttentionSettings], dtype: torch.dtype) -> bool:
    """Whether the C file is written for a model for which ``has_shape`` holds.

    Args:
        model: On any device.
        settings: What its attention layers ask for.
        dtype: Of the products.
    """
    plain = all(asked.softcap is None and asked.chunk is None and asked.sinks is None for asked in settings.values())
    even = all(getattr(module, "head_dim", 1) % 2 == 0 for module in settings)
    return plain and even and dtype in DTYPES and next(model.parameters()).device.type == "cpu"


def _layer(layer: FusedLayer, layout: DecodeLayout) -> _Layer:
    """Addresses of a layer's tables, and its attention options."""
    tables = layout.cache.layers[layer.module]
    query_norm, key_norm = layer.head_norms or (None, None)
    return _Layer(
        heads=layer.num_queries,
        kv_heads=layer.num_keys,
        keys=tables.keys.data_ptr(),
        values=tables.values.data_ptr(),
        prompt_keys=tables.prompt_keys.data_ptr(),
        prompt_values=tables.prompt_values.data_ptr(),
        prompt_stride=tables.prompt_keys.stride(0),
        prompt_head_stride=tables.prompt_keys.stride(1),
        row_stride=tables.keys.stride(0),
        row_head_stride=tables.keys.stride(1),
        window=layer.settings.sliding_window or 0,
        query_norm=query_norm.weight.data_ptr() if query_norm else None,
        key_norm=key_norm.weight.data_ptr() if key_norm else None,
        query_eps=query_norm.eps if query_norm else 0.0,
        key_eps=key_norm.eps if key_norm else 0.0,
    )


def _head_width(model: PreTrainedModel) -> int:
    backbone: Any = split_head(model)[0]
    found: int = backbone.layers[0].self_attn.head_dim
    return found


@functools.cache
def _functions(width: int, *, half: bool) -> tuple[ctypes.CDLL, bool]:
    """The library, and whether ``WHOLE`` is in it."""
    library = load("decode", WIDTH=width, HALF=int(half), BLOCK=BLOCK)
    is_whole = bool(library.is_whole())
    for name, arguments in {**SIGNATURES, **(WHOLE if is_whole else {})}.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library, is_whole
