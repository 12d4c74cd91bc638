"""New transformer layers after a backbone's own, which have no effect until they are trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.errors import ModelError
from rlhf.models.score import evaluating
from rlhf.models.weights import seeded

STACKS = ("layers", "h")
"""Where families keep their layers."""
LAST_OF_A_BRANCH = frozenset({"o_proj", "down_proj", "c_proj", "dense", "dense_4h_to_h", "out_proj", "fc2"})
"""Names of the matrices that write into the residual stream."""
TOKENS_TO_COMPARE = 8


def add_layers(backbone: PreTrainedModel, count: int, *, seed: int) -> None:
    """Append layers of the backbone's own class; its config records them, so that saving and loading work unchanged.

    Their weights are drawn as the family draws them, and those of the matrices that write into the residual stream are
    0: each layer passes its input on unchanged until training moves them.

    Source: block expansion, Wu et al. 2024 (LLaMA Pro), section 3.2, arXiv:2401.02415.

    Args:
        backbone: A transformers model without head; changed in place.
        count: At least 1.
        seed: Seeds the weights.

    Raises:
        ModelError: The family keeps its layers in a form that is not known here.
    """
    stack: Any = next((s for name in STACKS if isinstance(s := getattr(backbone, name, None), nn.ModuleList)), None)
    if stack is None or not len(stack):
        raise _unknown_family(backbone)
    before = _hidden(backbone)
    config: Any = backbone.config.get_text_config()
    like = next(p for p in stack[-1].parameters() if p.is_floating_point())
    for _ in range(count):
        index = len(stack)
        config.num_hidden_layers = index + 1
        if getattr(config, "layer_types", None):
            config.layer_types = [*config.layer_types, config.layer_types[-1]]
        with seeded(seed, "layer", index):
            try:
                layer = type(stack[-1])(config, layer_idx=index)
            except TypeError:
                raise _unknown_family(backbone) from None
            layer.apply(backbone._init_weights)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if LAST_OF_A_BRANCH & set(name.split(".")):
                    parameter.zero_()
        stack.append(layer.to(device=like.device, dtype=like.dtype).train(backbone.training))
    if not torch.equal(before, _hidden(backbone)):
        raise _unknown_family(backbone)


@torch.no_grad()
def _hidden(backbone: PreTrainedModel) -> Tensor:
    """The backbone's output for a few tokens."""
    vocabulary = int(backbone.config.get_text_config().vocab_size)
    device = next(backbone.parameters()).device
    ids = torch.arange(min(TOKENS_TO_COMPARE, vocabulary), device=device)[None]
    with evaluating(backbone):
        hidden: Tensor = backbone(input_ids=ids, use_cache=False).last_hidden_state
    return hidden


def _unknown_family(backbone: PreTrainedModel) -> ModelError:
    return ModelError(
        f"extra_layers: how {type(backbone).__name__} is built is not known here, so layers can't be added to it. Llama, Qwen, "
        "Mistral and GPT-2 and their relatives work; leave extra_layers out for others."
    )
