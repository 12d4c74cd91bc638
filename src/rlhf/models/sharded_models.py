"""Models whose weights lie in shards over ranks, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from rlhf.distributed.gathering import whole_on_main
from rlhf.distributed.sharding import PLAIN, ShardOptions, shard, unshard
from rlhf.distributed.vocab_parallel import cut_vocabulary
from rlhf.errors import ModelError
from rlhf.models.policy import PolicyModel
from rlhf.models.scalar_model import ScalarModel
from rlhf.models.score import backbone_of, base_model


def networks_of(module: nn.Module) -> Sequence[nn.Module]:
    """The transformers or peft models in one of ours, each of which is sharded by itself; anything else is its own."""
    if isinstance(module, PolicyModel):
        return [module.model]
    return module.networks if isinstance(module, ScalarModel) else [module]


def shard_model(model: PreTrainedModel | PeftModel, options: ShardOptions = PLAIN) -> PreTrainedModel:
    """Shard a model with a head, adapter and all; the part of it that ``rlhf.distributed.sharding.unshard`` takes.

    Embeddings, the last norm and the head are one group, tied or not, which stays whole from forward to backward; with
    ``options.vocab_parallel`` only the norm does, and the others compute in parts.

    Raises:
        ModelError: Its layers are not where transformers has them, or its embeddings are not plain ones where they are to compute in parts.
    """
    base = base_model(model)
    layers = transformer_layers(base)
    vocabulary = vocabulary_modules(base) if options.vocab_parallel else []
    shard(base, layers, options, left_out=[p for module in vocabulary for p in module.parameters(recurse=False)])
    if vocabulary:
        cut_vocabulary(base, vocabulary, options)
    return base


def vocabulary_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The input embedding, and the output projection of a model that has one.

    Raises:
        ModelError: One of them is not plain: it carries an adapter, or is of another kind.
    """
    modules = {"input embedding": model.get_input_embeddings(), "output projection": model.get_output_embeddings()}
    for name, module in modules.items():
        if module is not None and not (isinstance(module, nn.Embedding) or type(module) is nn.Linear):
            raise ModelError(
                f"fsdp.vocab_parallel cuts plain embeddings and projections by tokens, and the {name} of this "
                f"{type(model).__name__} is a {type(module).__name__}. Put adapters on other layers (model.lora.target_modules), or leave "
                "vocab_parallel out."
            )
    return [module for module in modules.values() if module is not None]


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


@contextmanager
def saveable_on_main(model: nn.Module, scratch: Path) -> Iterator[None]:
    """Inside, rank 0 may call ``save_pretrained`` of a model that may lie in shards; all ranks come here.

    Of an adapter only the adapter is gathered. One whose base no folder holds is merged to be saved, and is whole on every rank from
    here on.

    Args:
        model: A policy, or a model with scalar heads.
        scratch: A folder on a disk with room for the whole weights.
    """
    with ExitStack() as stack:
        for network in networks_of(model):
            is_adapter = isinstance(network, PeftModel)
            if isinstance(network, PeftModel) and not base_model(network).name_or_path:
                unshard(base_model(network))
            wanted = _is_trained if is_adapter else _is_any
            stack.enter_context(whole_on_main(network, scratch, wanted=wanted))
        yield


def _is_trained(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def _is_any(parameter: nn.Parameter) -> bool:
    return True
