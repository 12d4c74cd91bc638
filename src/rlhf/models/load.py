"""Loads models for training from a folder, the hub, this package, or a config alone.

Every fault of a model is a ``ModelError`` at load time: of its files (``checks``), its weights (``weights``), its tokenizer
(``tokens``), its adapter (``adapters``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub.errors import StrictDataclassError
from peft import PeftModel, TaskType
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlhf.allocator import forget_kernels
from rlhf.config.model import ModelConfig
from rlhf.errors import ConfigError, ModelError, check_type, did_you_mean
from rlhf.models.adapter_base import adapter_base
from rlhf.models.adapters import DTYPES, adapt, attach_adapter, four_bit
from rlhf.models.checks import (
    CONFIG_FILE,
    check_language_model,
    check_model_folder,
    check_not_quantized,
    read_json,
    safetensors_names,
)
from rlhf.models.device import model_device, placed
from rlhf.models.folders import quiet
from rlhf.models.score import base_model
from rlhf.models.sources import first_line, hub_options, is_adapter, model_source, plain_errors
from rlhf.models.tokens import load_tokenizer, settle_tokens
from rlhf.models.weights import align_weights, check_complete, check_finite, seeded

NOT_GIVEN: Any = None
"""In place of a tokenizer, so that ``PolicyModel("folder")`` is answered with how a folder is loaded."""


def check_tokenizer(tokenizer: object) -> None:
    """Refuse a model without its tokenizer.

    Raises:
        ConfigError: It is none.
    """
    if tokenizer is None:
        raise ConfigError("tokenizer is missing; give the model's, or load both with from_pretrained(folder).")


def as_model_config(config: ModelConfig | str | Path) -> ModelConfig:
    """How to load a model, of whatever means it.

    Raises:
        ConfigError: It means none.
    """
    expected = "a folder or hub name, or a ModelConfig(path=..., dtype=...)"
    check_type(config, (ModelConfig, str, Path), name="model", expected=expected)
    return config if isinstance(config, ModelConfig) else ModelConfig.of({"path": str(config)})


def load_causal_lm(
    config: ModelConfig | str | Path, *, seed: int
) -> tuple[PreTrainedModel | PeftModel, PreTrainedTokenizerBase]:
    """A causal language model and its tokenizer, checked against each other, ready to train.

    A folder that holds an adapter gives its base with that adapter, trainable. With ``config.lora`` the old adapter is merged
    into the weights first, so that the new one starts at zero and "adapter off" is the model that was loaded.

    Args:
        config: Where from and how; a string is a path with defaults.
        seed: Seeds new weights and new adapters.

    Returns:
        The model, in evaluation mode and on ``rlhf.models.device.model_device``, and the tokenizer.

    Raises:
        ModelError: The model is not available or can't be trained; the message says why and what to do.
    """
    config = as_model_config(config)
    check_start(config)
    tokenizer = load_tokenizer(config)
    model = load_base(config, tokenizer, seed=seed)
    model = adapt(model, config, task=TaskType.CAUSAL_LM, seed=seed)
    return model.eval(), tokenizer


def load_base(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> PreTrainedModel | PeftModel:
    """The causal language model before a new adapter is put on it; a peft model only where its folder is one."""
    model: PreTrainedModel | PeftModel
    source = model_source(config.path) if config.path is not None else None
    if source is None:
        model = _new_model(config, tokenizer, seed=seed)
    elif is_adapter(source):
        model = _load_adapter(source, config)
    else:
        model = load_weights(AutoModelForCausalLM, source, config)
    settle_tokens(base_model(model), tokenizer)
    return model


def load_weights(kind: Any, source: str, config: ModelConfig, /, **settings: Any) -> PreTrainedModel:
    """``kind.from_pretrained`` with our rules: declared dtype, safetensors, every weight from the files and finite.

    Args:
        kind: A transformers model class or auto class.
        source: A folder or hub name, as ``model_source`` gives it.
        config: dtype, revision, quantization, permission for remote code and pickles.
        settings: More for ``from_pretrained``.

    Raises:
        ModelError: The model can't be loaded whole.
    """
    forget_kernels()
    check_source(source, config, language_model=kind is AutoModelForCausalLM)
    hub = hub_options(source, config.revision)
    if config.lora is not None and config.lora.quantize_4bit:
        settings["quantization_config"] = four_bit(config)
        settings["device_map"] = {"": model_device()}
    with plain_errors(f"the model {source!r}"), quiet():
        model, report = kind.from_pretrained(
            source,
            dtype=DTYPES[config.dtype],
            trust_remote_code=config.trust_remote_code,
            use_safetensors=None if config.allow_pickle else True,
            ignore_mismatched_sizes=True,  # they come back in the report, by name, and are refused below
            output_loading_info=True,
            **hub,
            **settings,
        )
    if hub:
        _check_fetched(source, config.revision)
    unexpected = report["unexpected_keys"]
    if kind is AutoModelForCausalLM and any(key.startswith("score.") for key in unexpected):
        raise ModelError(f"{source!r} is a reward model: it returns scores, not text. Give the policy's folder here.")
    check_complete(
        source,
        model,
        missing=report["missing_keys"],
        mismatched=[f"{name} {tuple(saved)} instead of {tuple(own)}" for name, saved, own in report["mismatched_keys"]],
        unexpected=unexpected,
    )
    check_finite(source, model)
    align_weights(model)
    result: PreTrainedModel = placed(model)
    return result


def check_start(config: ModelConfig) -> None:
    """Refuse a language model by its files, before its tokenizer is: a model of another kind may not have one."""
    source = model_source(config.path) if config.path is not None else None
    if source is not None and not is_adapter(source):
        check_source(source, config, language_model=True)


def check_source(source: str, config: ModelConfig, *, language_model: bool) -> None:
    """Refuse a local model folder by its files, before any of them is loaded; what the hub has is checked as it loads."""
    folder = Path(source)
    if not folder.is_dir():
        return
    check_model_folder(folder, trust_remote_code=config.trust_remote_code, allow_pickle=config.allow_pickle)
    if language_model:
        check_language_model(folder)


def _check_fetched(source: str, revision: str | None) -> None:
    """Check files from the hub like ``check_source`` checks a folder's weights: floating-point numbers only."""
    cached = huggingface_hub.try_to_load_from_cache(source, CONFIG_FILE, revision=revision)
    if isinstance(cached, str):
        check_not_quantized(Path(cached), read_json(Path(cached)))
        for file in sorted(Path(cached).parent.glob("*.safetensors")):
            safetensors_names(file)


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability to 0, in modules and in the numbers that attention layers keep.

    In policy optimization the ratio to the old policy is 1 at the first step only where both runs drop the same units.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("dropout" in name or name == "layerdrop"):
                setattr(module, name, 0.0)


def _new_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> PreTrainedModel:
    shape = dict(config.init or {})
    settings = _new_config(shape, tokenizer)
    forget_kernels()
    with seeded(seed, "init"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    model.to(DTYPES[config.dtype])  # type: ignore[arg-type]
    return placed(model)


def _new_config(shape: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """A transformers config for a new model; transformers itself would swallow a misspelled key."""
    kind = shape.pop("model_type", None)
    if kind is None:
        raise ModelError("A new model (`init`) needs `model_type`, such as llama.")
    if kind not in CONFIG_MAPPING:
        raise ModelError(f"transformers has no model_type {kind!r}.{did_you_mean(str(kind), list(CONFIG_MAPPING))}")
    family = CONFIG_MAPPING[kind]
    usual = family()
    known = {*usual.to_dict(), *family.attribute_map}
    for key, value in shape.items():
        if key not in known:
            raise ModelError(f"A {kind} config has no key {key!r}.{did_you_mean(key, known)}")
        if (
            isinstance(value, bool)
            and isinstance(was := getattr(usual, key), int | float)
            and not isinstance(was, bool)
        ):
            raise ModelError(
                f"The {kind} config's {key!r} should be a number, such as {was}, and is {str(value).lower()}."
            )
    shape.setdefault("vocab_size", max(tokenizer.get_vocab().values()) + 1)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        shape.setdefault(name, getattr(tokenizer, name))
    try:
        return AutoConfig.for_model(kind, **shape)
    except (ValueError, TypeError, StrictDataclassError) as err:
        raise ModelError(f"The config of the new {kind} model is not valid: {first_line(err)}") from err


def _load_adapter(source: str, config: ModelConfig) -> PreTrainedModel | PeftModel:
    base_config = config.updated(path=adapter_base(source), lora=None, revision=None)
    base = load_weights(AutoModelForCausalLM, str(base_config.path), base_config)
    return attach_adapter(base, source, config)
