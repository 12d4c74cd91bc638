"""A model of Llama's shape with few kernel calls: dispatching small operations is half of a sampling step on a CPU.

Projections that read the same input are one product, weights are cast and laid out for the matrix kernels once for each rollout,
and the attention scale is folded into them. Models of this shape are recognized by their parts, and ``rlhf.rollout.fused_selection``
compares both logits before the first sample: a family that combines its layers differently keeps its own code.

N is the number of tokens in one pass, H the hidden width, D the width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.models.attention import AttentionSettings
from rlhf.models.score import OutputHead, split_head
from rlhf.rollout.int8 import Int8Projection, is_large

LAYER_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
BACKBONE_PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose angles depend only on the position, not on the length of the text."""


class RowAttention(Protocol):
    """Attention of rows; ``rlhf.rollout.sampling_attention`` has two."""

    def attend_rows(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """query [N, heads, D], key and value [N, kv_heads, D] -> [N, heads, D]."""
        ...


class Product(Protocol):
    """A linear map."""

    def __call__(self, x: Tensor) -> Tensor:
        """[N, in] -> [N, out]."""
        ...


Make = Callable[[Tensor, Tensor | None], Product]
"""From weight [out, in] and bias [out]."""


def filled_up(rows: int) -> int:
    """Rows that a product is given on a CPU in place of so many: up to 16 as they are, else an eighth more at most.

    oneDNN compiles kernels, of a third of a megabyte, for each number of rows that it does not remember. For prompts of 25 to 405 tokens
    products took 14 to 18 ms without this, and take 11.
    """
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


class Projection:
    """A linear map whose weight was cast and, on a CPU, laid out for the matrix kernels.

    oneDNN otherwise reorders a weight in every call, which at few rows is most of the product: [8, 256] by 256 -> 32,000 took
    2.6 ms in bfloat16, and takes 1.1.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        weight = weight.to(dtype)
        self.bias = bias.to(dtype) if bias is not None else None
        packed = _packed(weight)
        self._is_packed = packed is not None
        self._weight = weight if packed is None else packed  # not both: a server would hold its model twice

    def __call__(self, x: Tensor) -> Tensor:
        """[N, in] -> [N, out]."""
        if not self._is_packed:
            return F.linear(x, self._weight, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
        return out


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square norm without its weight, which is folded into the following projection."""

    eps: Tensor
    """float32 [1]."""
    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """float32 [N, W] -> the same in ``dtype``."""
        square = torch.baddbmm(self.eps, x.unsqueeze(1), x.unsqueeze(2), alpha=1 / x.shape[1])
        return torch.mul(x, square.squeeze(2).rsqrt_()).to(self.dtype)


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The same over the width of each head, with its weight."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """[N, heads, D] -> the same."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One layer's weights, made for sampling."""

    module: nn.Module
    """The model's own attention layer, whose name the cache knows."""
    settings: AttentionSettings
    before_attention: Norm
    before_mlp: Norm
    num_queries: int
    """Heads."""
    num_keys: int
    """Heads of keys and of values."""
    head_norms: tuple[HeadNorm, HeadNorm] | None
    """Of queries and of keys."""
    qkv: Product
    out: Product
    gate_up: Product
    down: Product
    activation: Callable[[Tensor], Tensor]


class FusedModel:
    """Hidden states and logits; float32 between the products, which are in ``dtype``."""

    attends_itself = False
    """Whether decoding steps read and write the cache by themselves, not through the layout."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: Mapping[nn.Module, AttentionSettings],
        dtype: torch.dtype,
        *,
        int8: bool = False,
    ):
        """Copy the weights as they are now.

        Args:
            model: One for which ``has_shape`` holds.
            settings: What each attention layer asked of attention when the model itself ran.
            dtype: Of products, keys and values.
            int8: Round the weights of large linear maps to 8 bits.
        """

        def make(weight: Tensor, bias: Tensor | None) -> Product:
            return Int8Projection(weight, bias) if int8 and is_large(weight) else self.product(weight, bias)

        body, head = split_head(model)
        backbone: Any = body
        self.head: OutputHead = head
        self.dtype = dtype
        self.embedding: Tensor = backbone.embed_tokens.weight
        self.rotary = backbone.rotary_emb
        self.norm, into_head = _norm(backbone.norm, dtype)
        self.width: int = backbone.layers[0].self_attn.head_dim
        self.layers = [_fuse(layer, settings[layer.self_attn], dtype, make) for layer in backbone.layers]
        projection: Any = head.module
        self.vocabulary = make(projection.weight * into_head, projection.bias)
        self.rotations: Tensor | None = None
        """complex64 [positions, 1, D/2]."""

    def product(self, weight: Tensor, bias: Tensor | None) -> Product:
        """The linear map of weight [out, in] and bias [out], in ``dtype``."""
        return Projection(weight, bias, self.dtype)

    def prepare(self, longest: int) -> None:
        """Work out the rotations of positions below ``longest``, where they are not known."""
        if self.rotations is not None and len(self.rotations) >= longest:
            return
        positions = torch.arange(longest, device=self.embedding.device)[None]
        cos, sin = self.rotary(self.embedding.new_empty(1, dtype=torch.float32), positions)
        half = self.width // 2
        self.rotations = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float()).unsqueeze(1)

    def hidden(self, tokens: Tensor, positions: Tensor, layout: RowAttention) -> Tensor:
        """float32 [N, H] what the last layer gives for tokens, int64 [N], at these positions, int64 [N]."""
        count = len(tokens)
        if tokens.device.type == "cpu":  # zeros behind them, which nothing reads
            tokens, positions = (F.pad(x, (0, filled_up(count) - count)) for x in (tokens, positions))
        x = F.embedding(tokens, self.embedding).float()
        assert self.rotations is not None, "prepare() comes before hidden()"
        rotation = self.rotations.index_select(0, positions)
        for layer in self.layers:
            query, key, value = (
                heads[:count] for heads in self._heads(layer, self._normed(layer.before_attention, x), rotation)
            )
            seen = layout.attend_rows(layer.module, query, key, value, layer.settings).reshape(count, -1)
            x.add_(layer.out(seen if len(x) == count else F.pad(seen, (0, 0, 0, len(x) - count))))
            x.add_(layer.down(self._activated(layer, layer.gate_up(self._normed(layer.before_mlp, x)))))
        return x[:count]

    def _normed(self, norm: Norm, x: Tensor) -> Tensor:
        """[N, H] in ``dtype`` of float32 [N, H]."""
        return norm(x)

    def _activated(self, layer: FusedLayer, gate_up: Tensor) -> Tensor:
        """[N, I] of [N, 2 * I]."""
        gate, up = gate_up.chunk(2, dim=1)
        return layer.activation(gate).mul_(up)

    def release(self, model: PreTrainedModel) -> None:
        """Free the weights of the model that this was made from, which can compute nothing by itself any more. The embedding stays, in
        bfloat16 where products are and it loses nothing by that.

        Args:
            model: The model.
        """
        body, head = split_head(model)
        backbone: Any = body
        half = self.embedding.to(self.dtype)
        if self.dtype != torch.float32 and torch.equal(half.float(), self.embedding):
            self.embedding = half
        for part in [head.module, *(part for part in backbone.layers.modules() if type(part) is nn.Linear)]:
            part.weight = nn.Parameter(self.embedding.new_empty(0), requires_grad=False)
        backbone.embed_tokens.weight = nn.Parameter(self.embedding, requires_grad=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, V] float32 at temperature 1."""
        return self.head.transform(self.vocabulary(self.norm(hidden)).float(), 1.0)

    def _heads(self, layer: FusedLayer, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [N, heads, D]; the first two turned by their positions, in float32."""
        heads = layer.qkv(x).view(len(x), -1, self.width)
        turned, value = heads.split([heads.shape[1] - layer.num_keys, layer.num_keys], dim=1)
        turned = turned.float()
        if layer.head_norms is not None:
            queries, keys = turned.split([turned.shape[1] - layer.num_keys, layer.num_keys], dim=1)
            turned = torch.cat([layer.head_norms[0](queries), layer.head_norms[1](keys)], dim=1)
        pairs = torch.view_as_complex(turned.unflatten(2, (-1, 2)))
        turned = torch.view_as_real(pairs * rotation).flatten(2).to(self.dtype)
        query, key = turned.split([turned.shape[1] - layer.num_keys, layer.num_keys], dim=1)
        return query, key, value


def has_shape(model: PreTrainedModel) -> bool:
    """Whether a model has the parts of a Llama and no others, none of them an adapter's or under a hook.

    Equal parts may still be put together in other ways; only a comparison tells.
    """
    body, head = split_head(model)
    backbone: Any = body
    parameters = list(model.parameters())
    if {p.dtype for p in parameters} != {torch.float32} or _parts(body) != BACKBONE_PARTS:
        return False
    if getattr(backbone.rotary_emb, "rope_type", None) not in FIXED_ROTATIONS or type(head.module) is not nn.Linear:
        return False
    if type(backbone.embed_tokens) is not nn.Embedding or not _is_norm(backbone.norm):
        return False
    hooked = (m._forward_hooks or m._forward_pre_hooks for m in (*backbone.modules(), head.module))
    return not any(hooked) and all(_is_layer(layer) for layer in backbone.layers)


def _is_layer(layer: Any) -> bool:
    if _parts(layer) != LAYER_PARTS or _parts(layer.mlp) != MLP_PARTS:
        return False
    attention = layer.self_attn
    norms = _parts(attention) - ATTENTION_PARTS
    if norms not in (set(), HEAD_NORMS) or not _parts(attention) >= ATTENTION_PARTS:
        return False
    linear = [getattr(attention, name) for name in ATTENTION_PARTS]
    linear += [getattr(layer.mlp, name) for name in MLP_PARTS - {"act_fn"}]
    width = getattr(attention, "head_dim", 0)
    return (
        all(type(module) is nn.Linear for module in linear)
        and all(_is_norm(norm) for norm in (layer.input_layernorm, layer.post_attention_layernorm))
        and all(
            _is_norm(getattr(attention, name)) and getattr(attention, name).weight.shape == (width,) for name in norms
        )
        and width > 0
        and attention.k_proj.out_features == attention.v_proj.out_features
        and attention.k_proj.out_features % width == 0
    )


def _parts(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _is_norm(module: nn.Module) -> bool:
    names = {name for name, _ in module.named_parameters()}
    return names == {"weight"} and not _parts(module) and _eps(module) is not None


def _eps(module: nn.Module) -> float | None:
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return float(epsilon) if isinstance(epsilon, float) else None


def _norm(module: nn.Module, dtype: torch.dtype) -> tuple[Norm, Tensor]:
    """A norm and its weight."""
    weight: Any = module.weight
    return Norm(weight.new_tensor([_eps(module)]), dtype), weight


def _fuse(layer: Any, settings: AttentionSettings, dtype: torch.dtype, make: Make) -> FusedLayer:
    attention, mlp, width = layer.self_attn, layer.mlp, layer.self_attn.head_dim
    # A rotation turns element i of a head with element i + D/2. Side by side they are one complex number; queries and keys are
    # put in the same new order, so their products stay what they were.
    order = torch.arange(width, device=attention.q_proj.weight.device).view(2, -1).T.flatten()
    head_norms = None
    scale = settings.scaling
    if hasattr(attention, "q_norm"):
        head_norms = (
            HeadNorm(attention.q_norm.weight[order] * scale, _eps(attention.q_norm) or 0.0),
            HeadNorm(attention.k_norm.weight[order], _eps(attention.k_norm) or 0.0),
        )
        scale = 1.0
    before_attention, into_attention = _norm(layer.input_layernorm, dtype)
    before_mlp, into_mlp = _norm(layer.post_attention_layernorm, dtype)
    heads = (
        _reordered(attention.q_proj, width, order, scale),
        _reordered(attention.k_proj, width, order, 1.0),
        (attention.v_proj.weight, attention.v_proj.bias),
    )
    return FusedLayer(
        module=attention,
        settings=replace(settings, scaling=1.0),
        before_attention=before_attention,
        before_mlp=before_mlp,
        num_queries=attention.q_proj.out_features // width,
        num_keys=attention.k_proj.out_features // width,
        head_norms=head_norms,
        qkv=_stacked(heads, into_attention, make),
        out=make(attention.o_proj.weight, attention.o_proj.bias),
        gate_up=_stacked([(p.weight, p.bias) for p in (mlp.gate_proj, mlp.up_proj)], into_mlp, make),
        down=make(mlp.down_proj.weight, mlp.down_proj.bias),
        activation=mlp.act_fn,
    )


def _reordered(module: nn.Linear, width: int, order: Tensor, scale: float) -> tuple[Tensor, Tensor | None]:
    """Weight and bias, scaled, with the rows of each head in another order."""

    def rows(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, width))[:, order].flatten(0, 1) * scale

    return rows(module.weight), rows(module.bias) if module.bias is not None else None


def _stacked(parts: Sequence[tuple[Tensor, Tensor | None]], norm: Tensor, make: Make) -> Product:
    """Projections of one input as one, with the weight of the norm before them."""
    bias = None
    if any(b is not None for _, b in parts):
        bias = torch.cat([b if b is not None else w.new_zeros(len(w)) for w, b in parts])
    return make(torch.cat([w for w, _ in parts]) * norm, bias)


def _packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's own layout; None if there is none."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed
