"""The sizes of a model from its config: it is built on torch's meta device, where tensors have no data."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.pytorch_utils import Conv1D

from rlhf.config.model import DType, LoRAConfig, ModelConfig
from rlhf.errors import ModelError, did_you_mean
from rlhf.models.adapter_base import adapter_base
from rlhf.models.sources import hub_options, is_adapter, model_source, plain_errors
from rlhf.scale.model_families import FAMILIES, family_of

WIDTH: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""
FOUR_BIT_BYTES = 0.56
"""Of a weight in 4 bits with its share of the scales (Dettmers et al. 2023, arXiv:2305.14314, section 3: 4.127 bits with double
quantization, 4.5 without)."""


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What configs call the number of experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a plan needs to know of a model."""

    config: PretrainedConfig
    settings: ModelConfig
    """How it is loaded and adapted."""
    num_parameters: int
    """All weights, tied ones once, without adapters."""
    num_embeddings: int
    """Of these, the input embedding's."""
    num_head: int
    """V * H, the output projection's, also where it is tied to the input's."""
    num_adapter: int
    """Weights of the new adapter; 0 without one."""
    num_products: int
    """Linear maps of different shapes."""
    num_routed: int = 0
    """Weights of experts of which a router chooses a few for each token; 0 in a dense model."""

    @property
    def text(self) -> Any:
        """The config of its language model."""
        return self.config.get_text_config()

    @property
    def num_layers(self) -> int:
        """L."""
        return int(self.text.num_hidden_layers)

    @property
    def hidden(self) -> int:
        """H."""
        return int(self.text.hidden_size)

    @property
    def inner(self) -> int:
        """I, the inner width of an MLP; of a mixture, of all experts that a token passes."""
        text = self.text
        if self.num_routed:
            each = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
            return int(each) * int(text.num_experts_per_tok)
        return int(getattr(text, "intermediate_size", None) or 4 * self.hidden)

    @property
    def routed_frac(self) -> float:
        """Share of the routed experts that a token passes; 1 in a dense model."""
        if not self.num_routed:
            return 1.0
        text = self.text
        experts = next((value for key in EXPERTS if (value := getattr(text, key, None))), None)
        return 1.0 if experts is None else int(text.num_experts_per_tok) / int(experts)

    @property
    def num_active(self) -> float:
        """Of ``num_body``, the weights that one token passes: all of a dense model."""
        return self.num_body - self.num_routed * (1 - self.routed_frac)

    @property
    def vocabulary(self) -> int:
        """V."""
        return int(self.text.vocab_size)

    @property
    def context(self) -> int | None:
        """Tokens it was made for."""
        positions = getattr(self.text, "max_position_embeddings", None)
        return int(positions) if positions else None

    @property
    def num_body(self) -> int:
        """Weights of the layers: all but embeddings and head."""
        tied = bool(getattr(self.text, "tie_word_embeddings", False))
        return max(0, self.num_parameters - self.num_embeddings - (0 if tied else self.num_head))

    @property
    def num_trainable(self) -> int:
        """Weights that are trained: the adapter's, or all."""
        return self.num_adapter if self.settings.lora is not None else self.num_parameters

    @property
    def weight_bytes(self) -> int:
        """Of all weights as they are loaded, the adapter's in float32."""
        lora = self.settings.lora
        four_bit = lora is not None and lora.quantize_4bit
        own = self.num_parameters * (FOUR_BIT_BYTES if four_bit else WIDTH[self.settings.dtype])
        return int(own) + self.num_adapter * WIDTH["float32"]

    @property
    def trained_width(self) -> int:
        """Bytes of a trained weight, of its gradient, and of each of AdamW's two averages of it."""
        return WIDTH["float32"] if self.settings.lora is not None else WIDTH[self.settings.dtype]

    @property
    def attention_width(self) -> int:
        """Numbers of the queries of all heads of one token: H in most families."""
        return int(self.text.num_attention_heads) * self._head_width

    @property
    def _head_width(self) -> int:
        text = self.text
        return int(getattr(text, "head_dim", None) or self.hidden // int(text.num_attention_heads))

    @property
    def cached_numbers_per_token(self) -> int:
        """Numbers of keys and values that all layers keep of one token while sampling."""
        text = self.text
        if latent := getattr(
            text, "kv_lora_rank", None
        ):  # DeepSeek-V2, arXiv:2405.04434, section 2.1: one vector for all heads
            return self.num_layers * (int(latent) + int(text.qk_rope_head_dim))
        heads = int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)
        return 2 * self.num_layers * heads * self._head_width

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for models that cost the same."""
        settings = self.settings
        how = (settings.dtype, settings.gradient_checkpointing, settings.lora.rank if settings.lora else None)
        return (self.num_body, self.num_layers, self.hidden, self.vocabulary, self.num_adapter, *how)

    def cut(self, num_layers: int) -> PretrainedConfig:
        """The same model with only so many layers."""
        config = copy.deepcopy(self.config)
        text = config.get_text_config()
        kinds = getattr(text, "layer_types", None)
        text.num_hidden_layers = num_layers
        if kinds:
            text.layer_types = list(kinds)[:num_layers]
        return config


def shape_of(settings: ModelConfig, *, default_vocabulary: int | None = None) -> ModelShape:
    """Sizes of the model that a config names, without its weights.

    Args:
        settings: Its ``path`` a real folder or hub name, no ``stage:``.
        default_vocabulary: Of a new model (`init`) that leaves it to a tokenizer that is not there.

    Raises:
        ModelError: There is no such folder, its config can't be read, or transformers can't build such a model.
    """
    family = known_family(settings)
    if family is not None:
        config = _new_config(settings.updated(path=None, init=FAMILIES[family].config, tokenizer=settings.path), None)
    else:
        config = _read_config(settings) if settings.path is not None else _new_config(settings, default_vocabulary)
    name = settings.path or f"the new {config.model_type}"
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
    except (ValueError, TypeError, KeyError) as err:
        raise ModelError(f"A language model of the kind of {name} can't be built: {err}") from err
    head = model.get_output_embeddings()
    linear = {tuple(module.weight.shape) for module in model.modules() if isinstance(module, nn.Linear | Conv1D)}
    return ModelShape(
        config=config,
        settings=settings,
        num_parameters=sum(p.numel() for p in model.parameters()),
        num_embeddings=model.get_input_embeddings().weight.numel(),
        num_head=head.weight.numel() if head is not None else 0,
        num_adapter=_adapter_numbers(model, head, settings.lora) if settings.lora is not None else 0,
        num_products=len(linear),
        num_routed=sum(p.numel() for name, p in model.named_parameters() if ".experts." in name),
    )


def known_family(settings: ModelConfig) -> str | None:
    """The family in the table of published shapes that a hub name is of, and that is no folder here: its config need not be fetched."""
    path = settings.path
    return None if path is None or "/" not in path or Path(path).expanduser().exists() else family_of(path)


def _read_config(settings: ModelConfig) -> PretrainedConfig:
    assert settings.path is not None
    source = model_source(settings.path)
    if is_adapter(source):
        source = adapter_base(source)
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        members = sorted(Path(source).glob("member-*"))  # how an ensemble of reward models is saved
        source = str(members[0]) if members else source
    with plain_errors(f"the config of {settings.path!r}"):
        pretrained_config: PretrainedConfig = AutoConfig.from_pretrained(
            source, trust_remote_code=settings.trust_remote_code, **hub_options(source, settings.revision)
        )
    return pretrained_config


def _new_config(settings: ModelConfig, default_vocabulary: int | None) -> PretrainedConfig:
    shape = dict(settings.init or {})
    kind = shape.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        near = did_you_mean(str(kind), list(CONFIG_MAPPING))
        raise ModelError(f"A new model (`init`) needs a model_type that transformers has; got {kind!r}.{near}")
    if default_vocabulary is not None:
        shape.setdefault("vocab_size", default_vocabulary)
    try:
        return AutoConfig.for_model(kind, **shape)
    except (ValueError, TypeError) as err:
        raise ModelError(f"The config of the new {kind} model is not valid: {err}") from err


def _adapter_numbers(model: nn.Module, head: nn.Module | None, lora: LoRAConfig) -> int:
    """Weights of the low-rank matrices: rank * (in + out) for each layer that gets them."""
    total = 0
    for name, module in model.named_modules():
        if module is head or not isinstance(module, nn.Linear | Conv1D):
            continue
        if lora.target_modules != "all-linear" and name.rpartition(".")[2] not in lora.target_modules:
            continue
        total += lora.rank * sum(module.weight.shape)
    return total
