"""Adapters: added to a model, loaded from a folder, merged; and other options of how a model is trained."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from peft import (
    LoraConfig,
    PeftModel,
    PeftType,
    TaskType,
    get_peft_model,
    get_peft_model_state_dict,
    prepare_model_for_kbit_training,
)
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import BitsAndBytesConfig, PreTrainedModel

from rlhf.config.model import LoRAConfig, ModelConfig
from rlhf.distributed.ranks import current_ranks
from rlhf.errors import ModelError, require
from rlhf.models.checks import ADAPTER_FILE, ADAPTER_WEIGHTS, check_pickle, read_json, safetensors_names
from rlhf.models.folders import quiet
from rlhf.models.score import backbone_of, base_model
from rlhf.models.sources import plain_errors
from rlhf.models.weights import check_finite, seeded

EXPENSIVE = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
)
"""Products of weights, and fused attention: what selective checkpointing does once. As in torchtitan, which keeps every second product."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def adapt(
    model: PreTrainedModel | PeftModel, config: ModelConfig, *, task: TaskType, seed: int
) -> PreTrainedModel | PeftModel:
    """Inject the adapter and enable gradient checkpointing and compilation, according to the config."""
    if config.lora is not None:
        assert not isinstance(model, PeftModel)
        if config.lora.quantize_4bit:
            _keep_one_product(model)
            model = prepare_model_for_kbit_training(
                model, bool(config.gradient_checkpointing), gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        model = add_lora(cast(PreTrainedModel, model), config.lora, task=task, seed=seed)
    base = base_model(model)
    if config.gradient_checkpointing:
        enable_checkpointing(base, selective=config.gradient_checkpointing == "selective")
    if config.compile:
        compile_backbone(base)
    return model


def compile_backbone(model: PreTrainedModel, **options: Any) -> None:
    """torch.compile in place: names of weights stay as they are, so checkpoints do not know about compilation."""
    backbone_of(model).compile(dynamic=True, **options)


def add_lora(model: PreTrainedModel, lora: LoRAConfig, *, task: TaskType, seed: int) -> PeftModel:
    """Low-rank adapters, starting at exactly zero effect.

    Sources: Hu et al. 2021, eq. 3, arXiv:2106.09685.

    Raises:
        ModelError: No layer has one of the requested names.
    """
    settings = LoraConfig(
        task_type=task,
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft declares int and computes with floats
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
    )
    with seeded(seed, "lora"), quiet():
        try:
            adapted = get_peft_model(model, settings)
        except ValueError as err:
            names = sorted({name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, nn.Linear)})
            raise ModelError(
                f"No adapter could be put on {lora.target_modules!r}: {err} Layers of this model: {', '.join(names)}."
            ) from err
    assert isinstance(adapted, PeftModel)
    return adapted


def attach_adapter(base: PreTrainedModel, source: str, config: ModelConfig) -> PreTrainedModel | PeftModel:
    """Load the adapter of a folder onto its base; merge it if the config adds a new one.

    Raises:
        ModelError: The adapter can't be read, or was made for another model than this.
    """
    check_adapter(Path(source), allow_pickle=config.allow_pickle)
    with plain_errors(f"the adapter {source!r}"), quiet(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found missing adapter keys", category=UserWarning)
        model = PeftModel.from_pretrained(base, source, is_trainable=True, torch_device="cpu")
    # peft would look for a relative one from the working directory when the adapter is saved again.
    model.peft_config[str(model.active_adapter)].base_model_name_or_path = base.name_or_path
    _check_fits(model, source)
    check_finite(source, model)
    if config.lora is None:
        return model
    if config.lora.quantize_4bit:
        raise ModelError(
            f"{source!r} is an adapter: merge it into its base first (rlhf merge), then train a 4-bit model on that."
        )
    merged: PreTrainedModel = model.merge_and_unload()
    forget_source(merged)
    return merged


def check_adapter(folder: Path, *, allow_pickle: bool) -> None:
    """Refuse an adapter's folder by its files."""
    kind = read_json(folder / ADAPTER_FILE).get("peft_type")
    if kind not in PEFT_TYPE_TO_CONFIG_MAPPING:
        raise ModelError(
            f"{folder / ADAPTER_FILE}: peft knows no peft_type {kind!r}; it should be a name such as LORA."
        )
    if (folder / ADAPTER_WEIGHTS).is_file():
        safetensors_names(folder / ADAPTER_WEIGHTS)
    else:
        check_pickle(folder, allow_pickle=allow_pickle, wanted=ADAPTER_WEIGHTS)


def _check_fits(model: PeftModel, source: str) -> None:
    """Every weight of the file found its layer, and every layer its weight; peft itself only warns."""
    path = Path(source) / ADAPTER_WEIGHTS
    if not path.is_file():
        return  # a pickle that was allowed: its names are not known without opening it again
    saved = safetensors_names(path)
    with quiet():
        own = get_peft_model_state_dict(model, save_embedding_layers=False).keys()
    kind = model.peft_config[model.active_adapter].peft_type
    prefix = PEFT_TYPE_TO_PREFIX_MAPPING.get(PeftType(kind), "lora_")
    # Embeddings that were saved with an adapter are not part of it.
    missing, surplus = own - saved, {name for name in saved - own if prefix in name}
    if missing or surplus:
        lacking = (
            f"it has nothing for {sorted(missing)[0]!r}" if missing else f"there is no layer for {sorted(surplus)[0]!r}"
        )
        raise ModelError(
            f"The adapter {source!r} does not fit the model {model.get_base_model().name_or_path!r}: {lacking} "
            f"({len(missing)} weights lacking, {len(surplus)} too many). Give the base model it was trained on."
        )


def forget_source(model: PreTrainedModel) -> None:
    """Mark weights that no folder holds: saving must write all of them, and not only a new adapter."""
    model.config._name_or_path = ""
    model.name_or_path = ""


def enable_checkpointing(model: PreTrainedModel, *, selective: bool = False) -> None:
    """Recompute activations in the backward pass, by the variant that allows frozen inputs and keywords.

    Args:
        model: Whose layers.
        selective: Keep what ``EXPENSIVE`` operators gave, and recompute the rest (norms, activations, rotations).

    Raises:
        ModelError: The family can't.
    """
    if not model.supports_gradient_checkpointing:
        raise ModelError(
            f"{type(model).__name__} does not support gradient checkpointing; set gradient_checkpointing: false."
        )
    # transformers renamed it in 5.20-something and warns on the old name
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    kept = {"context_fn": functools.partial(create_selective_checkpoint_contexts, _policy)} if selective else {}
    enable({"use_reentrant": False, **kept})


def _policy(context: object, operator: Any, *args: Any, **named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in EXPENSIVE else CheckpointPolicy.PREFER_RECOMPUTE


def four_bit(config: ModelConfig) -> BitsAndBytesConfig:
    """NF4 with quantized constants; products are in the type of the weights, on a GPU or a CPU.

    Source: Dettmers et al. 2023, arXiv:2305.14314.

    Raises:
        MissingExtraError: bitsandbytes is not installed.
        ModelError: Several ranks would have to cut quantized weights.
    """
    if current_ranks().size > 1:
        raise ModelError(
            "quantize_4bit is for one process: weights in 4 bits are not cut over ranks. Set lora.quantize_4bit: false."
        )
    require("bitsandbytes", extra="quant", needed_for="quantize_4bit")
    compute = torch.float32 if config.dtype == "float32" else DTYPES[config.dtype]
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=compute
    )


def _keep_one_product(model: nn.Module) -> None:
    """The same product in training and in evaluation: on CPUs with bfloat16, bitsandbytes 0.50 packs weights at the first pass in evaluation,
    rounds their scales to bfloat16 (1e-3 of a log-probability on the embedded model), and has no gradient for what it then computes."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
