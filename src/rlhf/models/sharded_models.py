"""Models whose weights lie in shards over ranks, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from rlhf.distributed.sharding import shard
from rlhf.errors import ModelError
from rlhf.models.score import backbone_of, base_model


def shard_model(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """Shard a model with a head, adapter and all; the part of it that ``rlhf.distributed.sharding.unshard`` takes.

    Embeddings, the last norm and the head are one group, tied or not, which stays whole from forward to backward.

    Raises:
        ModelError: Its layers are not where transformers has them.
    """
    base = base_model(model)
    shard(base, transformer_layers(base))
    return base


def transformer_layers(model: PreTrainedModel) -> Sequence[nn.Module]:
    """The layers of a model's backbone, in their order.

    Raises:
        ModelError: No list of modules has as many as the config says.
    """
    backbone = backbone_of(model)
    count = int(backbone.config.get_text_config().num_hidden_layers)
    for module in backbone.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise ModelError(
        f"{type(model).__name__} has no list of {count} layers, so its weights can't be sharded over ranks; train it in one "
        "process."
    )
