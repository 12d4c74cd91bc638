"""Families of Llama's shape under llama.cpp's names: metadata, tensors, and the order of rows that its rotation wants.

llama.cpp's architecture `llama` rotates neighboring rows of queries and keys, transformers' rotates row i with row i + D/2; so rows are
reordered for it, as ``convert_hf_to_gguf.py`` of llama.cpp does (github.com/ggml-org/llama.cpp, ``LlamaModel.permute``). Its `qwen2`
rotates as transformers does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.errors import ModelError, look_up

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """How llama.cpp knows a family."""

    architecture: str
    """Its name for it."""
    permuted: bool
    """Whether rows of queries and keys are reordered."""


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", permuted=True),
    "mistral": Family("llama", permuted=True),
    "qwen2": Family("qwen2", permuted=False),
}
"""``model_type`` -> family."""

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""transformers' names of modules -> llama.cpp's."""
ROPE_FREQS = "rope_freqs.weight"


def family_of(model: PreTrainedModel) -> Family:
    """How llama.cpp knows the family of a model.

    Raises:
        ModelError: It is none that is written, or has a part that llama.cpp's version of it has not.
    """
    config = model.config
    kind = str(config.model_type)
    if kind not in FAMILIES:
        raise ModelError(
            f"GGUF files are written for {', '.join(FAMILIES)}, not for the family {kind!r}; llama.cpp's convert_hf_to_gguf.py may know it: "
            f"export to safetensors and give it that folder."
        )
    if config.hidden_act != "silu":
        raise ModelError(f"llama.cpp's {kind} has the activation silu; this model has {config.hidden_act!r}.")
    if kind == "llama" and getattr(config, "mlp_bias", False):
        raise ModelError(
            "llama.cpp's converter does not write biases of a Llama's MLP (mlp_bias), and neither does this one."
        )
    _rope(config)
    return look_up(FAMILIES, kind, kind="GGUF family")


def metadata(model: PreTrainedModel, family: Family) -> Values:
    """Keys of the model's shape, without the architecture's prefix, as int or float; and what the tokens' context is cut to."""
    config = model.config
    heads = int(config.num_attention_heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    rope, scaling = _rope(config)
    values: Values = {
        "vocab_size": int(config.vocab_size),
        "context_length": context_length(config),
        "embedding_length": int(config.hidden_size),
        "block_count": int(config.num_hidden_layers),
        "feed_forward_length": int(config.intermediate_size),
        "attention.head_count": heads,
        "attention.head_count_kv": int(config.num_key_value_heads),
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(rope),
    }
    if scaling.get("rope_type") == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}
    return values


def context_length(config: Any) -> int:
    """Tokens that the file says can be read: never more than a sliding window, within which all attention is the same."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return min(int(config.max_position_embeddings), int(window or config.max_position_embeddings))


def tensors(model: PreTrainedModel, family: Family) -> Iterator[tuple[str, str, Tensor]]:
    """(llama.cpp's name, transformers' name, weight in llama.cpp's order of rows) of every weight; a tied head once.

    Raises:
        ModelError: A weight has no place in the file.
    """
    config = model.config
    for name, value in model.named_parameters():
        yield gguf_name(name), name, _ordered(name, value.detach(), config, family, _permuted)
    _, scaling = _rope(config)
    if scaling.get("rope_type") == "llama3":
        yield ROPE_FREQS, ROPE_FREQS, _llama3_factors(config, scaling)


def gguf_name(name: str) -> str:
    """llama.cpp's name of a weight.

    Raises:
        ModelError: It has none.
    """
    module, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", module)
    if layer and layer[2] in LAYER_NAMES:
        return f"blk.{layer[1]}.{LAYER_NAMES[layer[2]]}.{kind}"
    if module in NAMES:
        return f"{NAMES[module]}.{kind}"
    raise ModelError(f"The weight {name} has no place in a GGUF file of this family; is it a model with extra parts?")


def restored(name: str, value: Tensor, config: Any, family: Family) -> Tensor:
    """A weight of the file in transformers' order of rows."""
    return _ordered(name, value, config, family, _restored)


def _ordered(name: str, value: Tensor, config: Any, family: Family, how: Callable[[Tensor, int], Tensor]) -> Tensor:
    if not family.permuted or not re.search(r"\.self_attn\.[qk]_proj\.", name):
        return value
    heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
    return how(value, int(heads))


def _permuted(value: Tensor, heads: int) -> Tensor:
    """Rows i and i + D/2 of each head next to each other."""
    return value.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()


def _restored(value: Tensor, heads: int) -> Tensor:
    """The other way round."""
    return value.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def _rope(config: Any) -> tuple[float, dict[str, Any]]:
    """Base and scaling of the rotation.

    Raises:
        ModelError: A scaling that is not written.
    """
    settings = dict(getattr(config, "rope_parameters", None) or {})
    kind = settings.get("rope_type", "default")
    if kind not in ("default", "linear", "llama3") or settings.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(
            f"The rotation {kind!r} (rope_parameters in config.json) is not written to GGUF files; default, linear and llama3 are."
        )
    return float(settings.get("rope_theta", 10_000.0)), settings


def _llama3_factors(config: Any, scaling: Mapping[str, Any]) -> Tensor:
    """[D/2] what each frequency is divided by: Llama 3.1's stretched context.

    Slow rotations are slowed by `factor`, fast ones stay, and those between are mixed; transformers' ``_compute_llama3_parameters`` is
    asked for the frequencies, so that both programs have the same ones.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    size = scaled.numel()
    base = float(scaling.get("rope_theta", 10_000.0))
    plain = torch.tensor([math.exp(-math.log(base) * index / size) for index in range(size)])
    return (plain / scaled).float()
