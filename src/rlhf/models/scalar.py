"""A transformer that gives numbers instead of words: what reward and value models share.

A linear head is exactly what transformers calls sequence classification, so such a folder loads anywhere. Families for which
transformers has no such class get one of the same make.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
)

from rlhf.errors import ModelError
from rlhf.models.score import active_module, backbone_of, base_model
from rlhf.models.weights import seeded

HeadKind = Literal["linear", "mlp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSettings:
    """The form of a scalar head; kept in the model's config under ``rlhf_head`` where it is not transformers' own."""

    kind: HeadKind = "linear"
    """One matrix, or a hidden GELU layer before it."""
    num_outputs: int = 1
    """Heads on one backbone."""
    bias: bool = False
    """A learned constant; transformers' own linear head has none."""
    dropout: float = 0.0
    """On the head's input and, in an mlp, before its last matrix."""
    hidden_size: int | None = None
    """Width of an mlp's hidden layer, of each output; None for the model's."""

    def to_dict(self) -> dict[str, Any]:
        """As it is written into folders; what has no value is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def is_plain(self) -> bool:
        """Whether transformers can load it."""
        return self.kind == "linear" and not self.bias


def check_head(kind: HeadKind, hidden_size: int | None) -> None:
    """Refuse a hidden layer's width where there is no hidden layer.

    Raises:
        ModelError: Naming ``head_hidden_size``.
    """
    if hidden_size is not None and (kind != "mlp" or hidden_size < 1):
        raise ModelError(
            f"head_hidden_size is {hidden_size}: it is the width, 1 or more, of the hidden layer of an `mlp` head."
        )


class ScalarHead(nn.Module):
    """``num_outputs`` numbers from each hidden state."""

    def __init__(self, hidden_size: int, settings: HeadSettings) -> None:
        """Weights are drawn by ``reset``, from torch's generator."""
        super().__init__()
        self.settings = settings
        outputs = settings.num_outputs
        if settings.kind == "mlp":
            # One matrix holds the hidden layers of all heads, which stay independent: each output reads its own block.
            width = settings.hidden_size or hidden_size
            self.hidden = nn.Linear(hidden_size, outputs * width)
        else:
            width = hidden_size
        self.out = nn.Linear(width, outputs, bias=settings.bias or settings.kind == "mlp")
        self.reset()

    @property
    def input_size(self) -> int:
        """H of the hidden states that it reads."""
        return (self.hidden if self.settings.kind == "mlp" else self.out).in_features

    @torch.no_grad()
    def reset(self) -> None:
        """Fresh weights.

        Linear: normal with variance 1 / (H + 1). Sources: Ziegler et al. 2019, section 2.1, arXiv:1909.08593.
        Mlp: uniform with variance 2 / (fan in + fan out). Sources: Glorot and Bengio 2010, eq. 16.
        """
        size = self.out.in_features
        if self.settings.kind == "mlp":
            for block in self.hidden.weight.split(size):
                nn.init.xavier_uniform_(block)
            for row in self.out.weight.split(1):
                nn.init.xavier_uniform_(row)
            nn.init.zeros_(self.hidden.bias)
        else:
            nn.init.normal_(self.out.weight, std=1 / math.sqrt(size + 1))
        if self.out.bias is not None:
            nn.init.zeros_(self.out.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., outputs], in the type of ``hidden``."""
        dropout, dtype = self.settings.dropout, hidden.dtype
        hidden = F.dropout(hidden, dropout, self.training)
        bias = None if self.out.bias is None else self.out.bias.to(dtype)
        weight = self.out.weight.to(dtype)
        if self.settings.kind == "linear":
            return F.linear(hidden, weight, bias)
        middle = F.gelu(F.linear(hidden, self.hidden.weight.to(dtype), self.hidden.bias.to(dtype)))
        middle = F.dropout(middle, dropout, self.training).unflatten(-1, weight.shape)
        return (middle * weight).sum(-1) + bias


def build_scalar_model(backbone: PreTrainedModel, settings: HeadSettings, *, seed: int) -> PreTrainedModel:
    """Put a fresh head on a backbone, which becomes part of the result.

    Args:
        backbone: A transformers model without head, such as ``backbone_of`` gives; its config is changed.
        settings: Form of the head.
        seed: Seeds the head.
    """
    config = backbone.config  # the same object: layers read their attention settings from it
    write_head(config, settings)
    with torch.device("meta"):
        model = scalar_class(config)(config)
    setattr(model, model.base_model_prefix, backbone)
    with seeded(seed, "head"):
        drawn = ScalarHead(_width(config), settings)
    model.score = _linear(drawn.out) if settings.is_plain else drawn
    like = next(p for p in backbone.parameters() if p.is_floating_point())
    model.score.to(device=like.device, dtype=like.dtype)
    left = [name for name, value in (*model.named_parameters(), *model.named_buffers()) if value.is_meta]
    if left:
        raise ModelError(
            f"{type(model).__name__} has parts besides its backbone and head ({left[0]}), which can't be made."
        )
    model.name_or_path = config.name_or_path
    return model.train(backbone.training)


def scalar_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The class for a config: transformers' own where the head is plain and the family has one."""
    family: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
    if family is None:
        kind: Any = type(config)
        family = _generic_class(kind)
    return family if read_head(config).is_plain else _class_with_head(family)


def read_head(config: PretrainedConfig) -> HeadSettings:
    """The form of the head that a config describes."""
    own = getattr(config, "rlhf_head", None)
    return HeadSettings(**own) if own else HeadSettings(num_outputs=int(config.num_labels or 1))


def write_head(config: PretrainedConfig, settings: HeadSettings) -> None:
    """The other side of ``read_head``; a plain head leaves the config as transformers would write it."""
    config.num_labels = settings.num_outputs
    if settings.is_plain:
        if hasattr(config, "rlhf_head"):
            del config.rlhf_head
    else:
        config.rlhf_head = settings.to_dict()


def head_outputs(model: PreTrainedModel | PeftModel, hidden: Tensor, *, dropout: float = 0.0) -> Tensor:
    """The head's numbers for hidden states [R, H] -> [R, outputs], float32 at least whatever the model's type.

    A difference of two rewards in bfloat16 would keep two or three digits.

    Args:
        model: As ``build_scalar_model`` makes it, with or without an adapter.
        hidden: Hidden states.
        dropout: For a plain linear head, which knows of none itself.
    """
    head = active_module(base_model(model).score)  # type: ignore[arg-type]
    with torch.autocast(hidden.device.type, enabled=False):
        hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        if isinstance(head, ScalarHead):
            outputs: Tensor = head(hidden)
            return outputs
        assert isinstance(head, nn.Linear)
        hidden = F.dropout(hidden, dropout, head.training)
        return F.linear(hidden, head.weight.to(hidden.dtype))


def num_outputs(model: PreTrainedModel | PeftModel) -> int:
    """How many numbers the head gives."""
    return read_head(base_model(model).config).num_outputs


def scalar_backbone(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The part that gives hidden states, adapters inside."""
    return backbone_of(base_model(model))


def _width(config: PretrainedConfig) -> int:
    return int(config.get_text_config().hidden_size)


def _linear(out: nn.Linear) -> nn.Linear:
    plain = nn.Linear(out.in_features, out.out_features, bias=False, device="meta")
    plain.weight = out.weight
    return plain


@functools.cache
def _class_with_head(family: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The family's class with our head in place of its matrix, so that loading and saving stay transformers' own."""

    def __init__(self: Any, config: PretrainedConfig) -> None:
        family.__init__(self, config)
        self.score = ScalarHead(_width(config), read_head(config))

    return type(family.__name__, (family,), {"__init__": __init__, "__module__": __name__})


@functools.cache
def _generic_class(kind: type[PretrainedConfig]) -> type[PreTrainedModel]:
    causal: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(kind, None)
    if causal is None:
        raise ModelError(f"transformers has no language model for {kind.__name__}, so it can't carry a scalar head.")
    parent = next(
        c for c in causal.__mro__[1:] if issubclass(c, PreTrainedModel) and c.__name__.endswith("PreTrainedModel")
    )
    name = causal.__name__.replace("ForCausalLM", "").replace("LMHeadModel", "") + "ForSequenceClassification"
    return type(name, (GenericForSequenceClassification, parent), {"__module__": __name__})
