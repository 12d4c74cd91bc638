"""The parts of a decoding step in C (``rlhf/native/decode.c``), and all layers of it in one call.

R is the number of live rows, H the hidden width, D the width of a head, I that between gate and up, V the vocabulary.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from rlhf.native.kernels.tiled_linear import LAST_ROWS, Linear, TiledLinear
from rlhf.native.kernels.tiled_linear import SIGNATURES as TILED
from rlhf.native.library import load
from rlhf.native.threads import in_parts, together

DECODE_DTYPES = (torch.float32, torch.bfloat16)
"""Types of activations that the C file is written for."""
NUMBERS_APIECE = 1 << 20
"""Of the weights, that a thread gets at least where a step is one call: waking it costs as much as to read a fraction of them."""
ELEMENTS_APIECE = 1 << 16
"""Numbers of activations that a thread gets at least in norms and gates."""
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
        ("several", c_int64),
        ("room", c_int64),
        ("places", c_void_p),
        ("own", c_void_p),
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
    "write_keys": (POINTER(_Step), POINTER(_Layer), c_void_p, c_int64, c_int64),
    "attend": (POINTER(_Step), POINTER(_Layer), c_void_p, c_void_p, c_void_p, c_int64, c_int64),
}
"""Types of the arguments of each function in C."""
WHOLE: dict[str, tuple[Any, ...]] = {
    "decode": (POINTER(_Pass), POINTER(_Step), POINTER(_Layer), POINTER(_Weights), c_void_p, c_int64),
    **TILED,
}
"""The same of those that are there where the processor has tiles."""


class DecodeKernels:
    """Functions for one width of heads and one type of activations, ``dtype``. Tensors are contiguous and on a CPU."""

    def __init__(self, head_width: int, dtype: torch.dtype, *, block: int) -> None:
        """Compile, where that was not done before.

        Args:
            head_width: D, even.
            dtype: One of ``DECODE_DTYPES``.
            block: Logits whose probabilities are summed up together where a token is drawn.

        Raises:
            ConfigError: There is no C compiler, or it failed.
        """
        self.head_width, self.dtype, self.block = head_width, dtype, block
        self._c, self.has_tiles = _functions(head_width, block, half=dtype == torch.bfloat16)
        """Whether this processor has tiles: only then may ``tiled_linear`` and ``DecodePass`` be used."""

    def tiled_linear(self, weight: Tensor, bias: Tensor | None) -> TiledLinear:
        """A linear map of weight [out, in], for which ``can_tile`` holds, and bias [out]."""
        return TiledLinear(weight, bias, self._c)

    def norm(self, x: Tensor, out: Tensor, eps: float) -> None:
        """Write ``x / sqrt(mean(x^2) + eps)`` of float32 x [R, H] to out [R, H]. Zhang and Sennrich 2019, eq. 4, arXiv:1910.07467."""
        (rows, width), numbers, output = x.shape, x.data_ptr(), out.data_ptr()

        def part(_: int, first: int, last: int) -> None:
            places = (numbers + first * width * x.element_size(), output + first * width * out.element_size())
            self._c.norm(*places, last - first, width, eps)

        in_parts(part, reached=range(rows + 1), least=max(1, ELEMENTS_APIECE // width), scratch=0)

    def add_norm(self, x: Tensor, change: Tensor, out: Tensor, eps: float) -> None:
        """Add change [R, H] to float32 x in place, then as ``norm``."""
        self._c.add_norm(x.data_ptr(), change.data_ptr(), out.data_ptr(), *x.shape, eps)

    def silu_product(self, gate_up: Tensor) -> Tensor:
        """[R, I] ``silu(gate) * up`` of [R, 2 * I], gate before up. Shazeer 2020, eq. 5, arXiv:2002.05202."""
        rows, width = gate_up.shape
        out = gate_up.new_empty(rows, width // 2)
        numbers, output, size = gate_up.data_ptr(), out.data_ptr(), out.element_size()

        def part(_: int, first: int, last: int) -> None:
            places = (numbers + first * width * size, output + first * width // 2 * size)
            self._c.silu_product(*places, last - first, width // 2)

        in_parts(part, reached=range(rows + 1), least=max(1, ELEMENTS_APIECE // width), scratch=0)
        return out

    def draw(self, logits: Tensor, uniform: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
        """A token for each row: the first whose cumulative probability under ``softmax(logits / temperature)`` exceeds its number.

        Args:
            logits: [R, V] in ``dtype``.
            uniform: float64 [R] in [0, 1).
            temperature: Above 0.

        Returns:
            int64 [R] tokens, and float64 [R] their log-probabilities in nats, NaN where a logit is NaN or positive infinity.
        """
        rows, vocabulary = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64, device="cpu")
        logprobs = torch.empty(rows, dtype=torch.float64, device="cpu")
        given = logits.contiguous()
        fixed = (
            given.data_ptr(),
            vocabulary,
            1 / temperature,
            uniform.data_ptr(),
            tokens.data_ptr(),
            logprobs.data_ptr(),
        )
        in_parts(
            lambda *part: self._c.draw(*fixed, *part),
            reached=range(rows + 1),
            least=ROWS_APIECE,
            scratch=2 * (vocabulary // self.block + 1),
        )
        return tokens, logprobs

    def attend(self, qkv: Tensor, step: DecodeStep, layer: DecodeLayer) -> Tensor:
        """Turn queries and keys by their positions, write keys and values to the tables, and attend ``softmax(q k^T) v``.

        Args:
            qkv: [R, (heads + 2 * kv_heads) * D] in ``dtype``; queries are scaled, except where ``layer`` norms them.
            step: Where the rows are.
            layer: Their tables.

        Returns:
            [R, heads * D].
        """
        described = layer.described
        out = qkv.new_empty(len(qkv), described.heads * self.head_width)
        attend, numbers, output = self._c.attend, qkv.data_ptr(), out.data_ptr()
        if step.several:
            units = described.kv_heads * step.num_rows
            self._c.write_keys(byref(step.described), byref(described), numbers, 0, units)
        in_parts(
            lambda scores, first, last: attend(
                byref(step.described), byref(described), numbers, output, scores, first, last
            ),
            reached=range(described.kv_heads * step.num_rows + 1),
            least=UNITS_APIECE,
            scratch=step.num_scores + LANES,
        )
        return out


class DecodeStep:
    """Where each token is that is fed; R counts those. Made for an arrangement of rows, and moved from token to token."""

    def __init__(self, row_lens: Tensor, group: Tensor, own: Tensor, *, longest: int, several: bool = False) -> None:
        """Keep what stays.

        Args:
            row_lens: int64 [R] tokens of the prompt of each token's row.
            group: int64 [R] that prompt.
            own: int64 [R] that row of the tables.
            longest: Of the prompts, in tokens.
            several: Whether a row may have several of the tokens.
        """
        self.num_rows, self.longest, self.several = len(row_lens), longest, several
        self.described = _Step(
            rows=self.num_rows,
            several=int(several),
            row_lens=row_lens.data_ptr(),
            group=group.data_ptr(),
            own=own.data_ptr(),
        )
        self._stays = (row_lens, group, own)  # a tensor lives as long as its address is used

    def move(self, positions: Tensor, before: Tensor, rotations: Tensor, *, places: Tensor, room: int) -> None:
        """To the tokens that are fed next.

        Args:
            positions: int64 [R] of the tokens, which choose their rotations.
            before: int64 [R] tokens that stand before each in its row, its prompt's included.
            rotations: complex64 [P, 1, D/2] cosine and sine of each position.
            places: int64 [R] where in the room of completions their keys and values go.
            room: Tokens that it holds; after the last comes the first again.
        """
        self._moves = (positions, before, rotations, places)
        self.num_scores = self.longest + room
        described = self.described
        described.places, described.room = places.data_ptr(), room
        described.positions, described.before = positions.data_ptr(), before.data_ptr()
        described.rotations = rotations.data_ptr()


class DecodeLayer:
    """A layer's tables of keys and values, and its attention options. The caller keeps the tables while it is used."""

    def __init__(
        self,
        own: tuple[Tensor, Tensor],
        prompt: tuple[Tensor, Tensor],
        *,
        heads: int,
        kv_heads: int,
        window: int | None,
        norms: tuple[tuple[Tensor, float], tuple[Tensor, float]] | None,
    ) -> None:
        """Describe it.

        Args:
            own: Keys and values of completions, [rows, kv_heads, room, D].
            prompt: Those of prompts, [prompts, kv_heads, longest, D].
            heads: Of queries; a multiple of kv_heads.
            kv_heads: Of keys and of values.
            window: A query sees keys less than this many positions back, itself included; None for all.
            norms: Weight float32 [D] and eps of the norms of each head's queries and keys.
        """
        (query_norm, query_eps), (key_norm, key_eps) = norms or ((None, 0.0), (None, 0.0))
        self.described = _Layer(
            heads=heads,
            kv_heads=kv_heads,
            keys=own[0].data_ptr(),
            values=own[1].data_ptr(),
            prompt_keys=prompt[0].data_ptr(),
            prompt_values=prompt[1].data_ptr(),
            prompt_stride=prompt[0].stride(0),
            prompt_head_stride=prompt[0].stride(1),
            row_stride=own[0].stride(0),
            row_head_stride=own[0].stride(1),
            window=window or 0,
            query_norm=query_norm.data_ptr() if query_norm is not None else None,
            key_norm=key_norm.data_ptr() if key_norm is not None else None,
            query_eps=query_eps,
            key_eps=key_eps,
        )


class DecodeWeights:
    """Of all layers whose products are in tiles."""

    def __init__(self, layers: Sequence[tuple[Sequence[TiledLinear], tuple[float, float]]]) -> None:
        """Describe them.

        Args:
            layers: Of each the maps to queries, keys and values, out of attention, to gate and up, and down; and the eps of the norms
                before attention and before the gate, whose weights the maps contain.
        """
        self.maps = [one for maps, _ in layers for one in maps]
        """Four of each layer."""
        self.described = (_Weights * len(layers))(
            *(_Weights(*(one.described for one in maps), *eps) for maps, eps in layers)
        )


class DecodePass:
    """A decoding step through all layers in one call. Made for an arrangement of rows."""

    def __init__(
        self,
        kernels: DecodeKernels,
        weights: DecodeWeights,
        layers: Sequence[DecodeLayer],
        step: DecodeStep,
        *,
        width: int,
    ) -> None:
        """Make what stays the same from step to step.

        Args:
            kernels: With tiles.
            weights: Of as many layers as there are.
            layers: Their tables.
            step: Of the rows, moved to the first token.
            width: H.
        """
        ins, outs = [one.wide for one in weights.maps], [one.out for one in weights.maps]
        sizes = {
            "normed": width,
            "change": width,
            "qkv": max(outs[0::4]),
            "seen": max(ins[1::4]),
            "gates": max(outs[2::4]),
            "act": max(ins[3::4]),
        }
        held = {
            name: torch.empty(step.num_rows, size, dtype=kernels.dtype, device="cpu") for name, size in sizes.items()
        }
        threads = min(torch.get_num_threads(), sum(map(operator.mul, ins, outs)) // NUMBERS_APIECE)
        self._pass = _Pass(layers=len(layers), width=width, threads=max(1, threads))
        for name, tensor in held.items():
            setattr(self._pass, name, tensor.data_ptr())
        self._layers = (_Layer * len(layers))(*(layer.described for layer in layers))
        self._scratch = max(step.num_scores + LANES, max(ins) * LAST_ROWS // 2)
        self._held = (weights, held)
        self._decode = kernels._c.decode

    def run(self, x: Tensor, step: DecodeStep, *, abandon: Callable[[], object]) -> None:
        """Make of embeddings what the last layer gives.

        Args:
            x: float32 [R, H], in place.
            step: Of the same arrangement, moved to the tokens that are fed.
            abandon: Called where a thread may not have come to the end: this pass can't be used again. What it refers to lives as long as
                C may write.
        """
        described = self._pass
        described.x = x.data_ptr()
        where = (byref(described), byref(step.described), self._layers, self._held[0].described)

        def call(memory: int, thread: int, *, held: object = (self, x, step, abandon)) -> None:  # what C writes to
            self._decode(*where, memory, thread)

        def leave() -> None:
            described.abandoned = 1
            abandon()

        together(call, threads=described.threads, scratch=self._scratch, abandon=leave)


@functools.cache
def _functions(width: int, block: int, *, half: bool) -> tuple[ctypes.CDLL, bool]:
    """The library, and whether ``WHOLE`` is in it."""
    library = load("decode", WIDTH=width, HALF=int(half), BLOCK=block)
    is_whole = bool(library.is_whole())
    for name, arguments in {**SIGNATURES, **(WHOLE if is_whole else {})}.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library, is_whole
