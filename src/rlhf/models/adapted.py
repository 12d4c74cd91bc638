"""What a recipe's ``model`` section does to a model, for one that is in memory: adapters and graph compilation."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, TypeVar

from peft import PeftModel, TaskType
from transformers import PreTrainedModel

from rlhf.config.model import LoRAConfig
from rlhf.errors import ModelError, check_type
from rlhf.models.adapters import add_lora, compile_backbone
from rlhf.models.policy import PolicyModel
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reward import RewardModel
from rlhf.models.score import base_model
from rlhf.models.value import ValueModel

AnyModel = TypeVar("AnyModel", PolicyModel, RewardModel, ProcessRewardModel, ValueModel, PreTrainedModel, PeftModel)


def apply_lora(
    model: PolicyModel | PreTrainedModel, lora: LoRAConfig | Mapping[str, Any] | None = None, *, seed: int = 0
) -> Any:
    """Put a fresh low-rank adapter on a causal language model; its own weights are frozen.

    The adapter starts at zero effect (A random, B zero), so log-probabilities are those of the model. ``quantize_4bit`` belongs to
    loading: give it in ``ModelConfig(lora=...)``.

    Sources: Hu et al. 2021, eq. 3, arXiv:2106.09685.

    Args:
        model: Changed in place: layers are replaced inside it.
        lora: Rank, alpha, dropout and layers, also as a mapping; by default those of ``LoRAConfig()``.
        seed: Seeds A.

    Returns:
        A ``PolicyModel`` for a ``PolicyModel``, else a ``peft.PeftModel``.

    Raises:
        ModelError: It is not a causal language model, has an adapter already, or no layer has the name that was asked for.
    """
    inner = model.model if isinstance(model, PolicyModel) else model
    if isinstance(inner, PeftModel):
        raise ModelError("This model has an adapter already; merge it first (`model.merge_and_unload()` of peft).")
    if not isinstance(inner, PreTrainedModel):
        raise ModelError(f"apply_lora takes a PolicyModel or a transformers model; got {type(model).__name__}.")
    check_type(lora, (LoRAConfig, Mapping, NoneType), name="lora", expected="a LoRAConfig, such as LoRAConfig(rank=8)")
    chosen = LoRAConfig.of(lora) if isinstance(lora, Mapping) else lora or LoRAConfig()
    if chosen.quantize_4bit:
        raise ModelError(
            "quantize_4bit belongs to loading: PolicyModel.from_pretrained(ModelConfig(path=..., lora=...))."
        )
    adapted = add_lora(inner, chosen, task=TaskType.CAUSAL_LM, seed=seed)
    return PolicyModel(adapted, model.tokenizer) if isinstance(model, PolicyModel) else adapted


def compile_model(model: AnyModel, **options: Any) -> AnyModel:
    """Compile a model's backbone with torch.compile, in place; as ``model.compile`` in a recipe does.

    Names of weights stay as they are, so what is saved can be loaded without compilation. The first batches are slow: a graph is
    made, for shapes that may change. An ensemble's members are compiled one by one.

    Args:
        model: One of ours, or a transformers or peft model.
        options: For ``torch.compile``, such as ``backend`` or ``mode``.

    Returns:
        The same object.

    Raises:
        ModelError: It is none of these.
    """
    parts: list[Any]
    if isinstance(model, PreTrainedModel | PeftModel):
        parts = [model]
    elif isinstance(model, RewardModel | ProcessRewardModel):
        parts = list(model.members)
    elif isinstance(model, PolicyModel | ValueModel) and model.model is not None:
        parts = [model.model]
    else:
        raise ModelError(
            f"compile_model takes a model of rlhf, transformers or peft with a backbone of its own; got {type(model).__name__}."
        )
    for part in parts:
        compile_backbone(base_model(part), **options)
    return model
