"""Attention on the packed row, given to transformers through its ``AttentionInterface``.

A model whose attention implementation is ``"rlhf"`` runs in one of two ways, chosen per call:

* with a *layout* (an object that knows which rows see which): the keyword ``rlhf_layout`` of the model's forward carries it
  to every attention layer; where a family does not pass keywords on, a context variable does;
* without one, as ordinary masked attention on padded rows, exact for soft-caps and sinks too.

``PackedLayout`` serves training; the rollout engine brings its own layout, which reads and writes a key/value cache.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from rlhf.data.pack import PackedBatch
from rlhf.models.buckets import Bucket, build_buckets
from rlhf.models.compiled_attention import compiled_tree_attention
from rlhf.models.flex import TreeRows, flex_tree_attention
from rlhf.models.flex_choice import may_use_flex
from rlhf.models.tree_attention import tree_attention
from rlhf.native.compiled_mode import is_in_c

IMPLEMENTATION = "rlhf"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSettings:
    """A layer's attention options, from the keywords that transformers passes and from the layer itself."""

    scaling: float
    dropout: float = 0.0
    softcap: float | None = None
    """Gemma 2: scores become softcap * tanh(scores / softcap) before the mask."""
    sliding_window: int | None = None
    """A query sees keys less than this many positions back, itself included."""
    chunk: int | None = None
    """Llama 4: a query sees only keys of its own chunk of this many positions."""
    sinks: Tensor | None = None
    """[heads] gpt-oss: a logit per head that joins the softmax and is dropped."""


class AttentionLayout(Protocol):
    """Which rows attend to which; the only input of the attention function."""

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """query [1, heads, N, D], key and value [1, kv_heads, N, D] -> [1, N, heads, D]."""
        ...


_TWICE: contextvars.ContextVar[bool] = contextvars.ContextVar("rlhf_differentiable_twice", default=False)
_LAYOUT: contextvars.ContextVar[AttentionLayout | None] = contextvars.ContextVar("rlhf_attention_layout", default=None)


@contextlib.contextmanager
def attention_layout(layout: AttentionLayout) -> Iterator[None]:
    """Make ``layout`` known to every attention layer called inside; also tells the mask builder to build nothing."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


@contextlib.contextmanager
def differentiable_twice() -> Iterator[None]:
    """Inside, attention is made of operations whose gradients have gradients; slower, and it keeps all scores."""
    token = _TWICE.set(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        _TWICE.reset(token)


def is_differentiable_twice() -> bool:
    """Whether ``differentiable_twice`` lasts."""
    return _TWICE.get()


def attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """The function that transformers calls in every attention layer of a model set to ``"rlhf"``."""
    settings = _settings(module, query, kwargs)
    # The keyword first: a layer recomputed under gradient checkpointing runs outside the context.
    layout = kwargs.get("rlhf_layout") or _LAYOUT.get()
    if layout is not None:
        return layout.attend(module, query, key, value, settings), None
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        attention_mask = attention_mask.to(query.dtype)
    if attention_mask is not None:
        attention_mask = attention_mask[..., : key.shape[-2]]
    out = attend(query, key, value, attention_mask, settings, training=module.training)
    return out.transpose(1, 2).contiguous(), None


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, settings: AttentionSettings, *, training: bool
) -> Tensor:
    """Scaled dot-product attention with optional soft-cap and sinks.

    Args:
        query: [B, heads, Q, D].
        key: [B, kv_heads, K, D]; heads is a multiple of kv_heads.
        value: [B, kv_heads, K, D'].
        mask: bool, broadcastable to [B, 1, Q, K], True where seen; or a float mask to add; None for causal where Q > 1.
        settings: Scale, soft-cap, sinks, dropout. Windows must be in the mask already.
        training: Whether dropout acts.

    Returns:
        [B, heads, Q, D'].
    """
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = _repeat_heads(key, repeats), _repeat_heads(value, repeats)
    dropout = settings.dropout if training else 0.0
    if settings.softcap is None and settings.sinks is None:
        causal = mask is None and query.shape[2] > 1
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=settings.scaling
        )
    scores = torch.matmul(query, key.transpose(2, 3)) * settings.scaling
    if settings.softcap is not None:
        scores = settings.softcap * torch.tanh(scores / settings.softcap)
    if mask is None and query.shape[2] > 1:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        lowest = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    if settings.sinks is not None:
        sinks = settings.sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    # float32 at least; float64 stays float64 so that exact tests are exact
    probs = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    if settings.sinks is not None:
        probs = probs[..., :-1]
    return torch.matmul(F.dropout(probs, dropout, training=training), value)


class PackedLayout:
    """The tree of a packed batch: a prefix sees itself, a branch sees its prefix and itself.

    One call of FlexAttention for long sequences on a GPU where that works, ``tree_attention`` or its like in C on a CPU, and else, for
    dropout and second derivatives too, a call of torch's attention for each bucket.
    """

    def __init__(self, buckets: list[Bucket], inverse: Tensor) -> None:
        """Use ``PackedLayout.of``."""
        self.buckets = buckets
        self.inverse = inverse
        """int64 [N] position of each packed row in the concatenated outputs of the buckets."""
        self._tree_rows: TreeRows | None = None

    @functools.cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max((unit.prefix_length + unit.length for bucket in self.buckets for unit in bucket.units), default=0)

    @property
    def tree_rows(self) -> TreeRows:
        """The same tree as FlexAttention takes it; made on first use."""
        if self._tree_rows is None:
            self._tree_rows = TreeRows.of(self.buckets)
        return self._tree_rows

    @classmethod
    def of(cls, batch: PackedBatch) -> PackedLayout:
        """The layout of a batch, built once and kept with it."""
        layout = batch.derived.get("attention")
        if layout is None:
            layout = batch.derived["attention"] = cls(*build_buckets(batch))
        return layout

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """query [1, heads, N, D], key and value [1, kv_heads, N, D] -> [1, N, heads, D']."""
        rows_q, rows_k, rows_v = (x[0].transpose(0, 1) for x in (query, key, value))  # [N, heads, D]
        drops = module.training and settings.dropout > 0
        if not drops and not _TWICE.get() and may_use_flex(module, rows_q, rows_k, rows_v, longest=self.longest):
            return flex_tree_attention(
                rows_q, rows_k, rows_v, self.tree_rows,
                scaling=settings.scaling, window=settings.sliding_window, chunk=settings.chunk,
                softcap=settings.softcap, sinks=settings.sinks,
            ).unsqueeze(0)  # fmt: skip
        if self._can_tile(query, settings, training=module.training):
            window, chunk = settings.sliding_window, settings.chunk
            attend_tree = compiled_tree_attention if is_in_c() else tree_attention
            own = attend_tree(
                rows_q, rows_k, rows_v, self.buckets, scaling=settings.scaling, window=window, chunk=chunk
            )
            return own.unsqueeze(0)
        outputs = []
        for bucket in self.buckets:
            size, num_queries, num_keys = bucket.shape
            q = rows_q.index_select(0, bucket.query_rows).unflatten(0, (size, num_queries)).transpose(1, 2)
            k = rows_k.index_select(0, bucket.key_rows).unflatten(0, (size, num_keys)).transpose(1, 2)
            v = rows_v.index_select(0, bucket.key_rows).unflatten(0, (size, num_keys)).transpose(1, 2)
            mask = bucket.mask(settings.sliding_window, settings.chunk)
            out = attend(q, k, v, mask, settings, training=module.training)
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self.inverse).unsqueeze(0)

    @staticmethod
    def _can_tile(query: Tensor, settings: AttentionSettings, *, training: bool) -> bool:
        """A GPU has better kernels; soft-caps, sinks and dropout are rare; a second derivative needs plain operations."""
        plain = settings.softcap is None and settings.sinks is None and not (training and settings.dropout)
        return plain and query.device.type == "cpu" and not _TWICE.get()


def install_attention(model: PreTrainedModel) -> bool:
    """Set the model to the ``"rlhf"`` implementation; False where the family has its own fixed attention code."""
    try:
        model.set_attn_implementation(IMPLEMENTATION)
    except (ValueError, KeyError, NotImplementedError):
        return False
    return model.config._attn_implementation == IMPLEMENTATION


@contextlib.contextmanager
def native_attention(model: PreTrainedModel, implementation: str = "eager") -> Iterator[None]:
    """Run the family's own attention inside; the independent side of the self-check."""
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _settings(module: nn.Module, query: Tensor, kwargs: dict[str, Any]) -> AttentionSettings:
    scaling = kwargs.get("scaling")
    if scaling is None:
        scaling = 1.0 / math.sqrt(query.shape[-1])
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    layer = getattr(module, "layer_idx", None)
    chunked = kinds is not None and layer is not None and kinds[layer] == "chunked_attention"
    return AttentionSettings(
        scaling=scaling,
        dropout=kwargs.get("dropout") or 0.0,
        softcap=kwargs.get("softcap"),
        sliding_window=kwargs.get("sliding_window"),
        chunk=getattr(config, "attention_chunk_size", None) if chunked else None,
        sinks=kwargs.get("s_aux"),
    )


def _repeat_heads(x: Tensor, repeats: int) -> Tensor:
    """[B, kv_heads, K, D] -> [B, kv_heads * repeats, K, D], each head ``repeats`` times in a row."""
    size, heads, length, width = x.shape
    return x[:, :, None].expand(size, heads, repeats, length, width).reshape(size, heads * repeats, length, width)


def _build_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The mask of a padded batch; nothing where a layout decides."""
    if _LAYOUT.get() is not None:
        return None
    kwargs["allow_is_causal_skip"] = False
    mask: Tensor | None = sdpa_mask(*args, **kwargs)
    return mask


AttentionInterface.register(IMPLEMENTATION, attention_forward)
AttentionMaskInterface.register(IMPLEMENTATION, _build_mask)
