"""Models and tokenizers from a folder, the hub, this package, or nothing but a config; adapters; and what may go wrong.

Every way a model can be unfit (no weights, no end-of-text token, a vocabulary that is too small, weights that would have been
drawn at random without a word) is one ``ModelError`` here, at the door.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from peft import LoraConfig, PeftModel, TaskType, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlhf.config.model import LoRAConfig, ModelConfig
from rlhf.data.chat import chat_format
from rlhf.errors import ModelError, did_you_mean, require
from rlhf.models.folders import quiet
from rlhf.models.score import backbone_of, base_model
from rlhf.seeds import derive_seed

logger = logging.getLogger(__name__)

EMBEDDED = "embedded"
ADAPTER_FILE = "adapter_config.json"
ALIGNMENT = 64
"""Bytes; what torch gives to every tensor that it allocates on the CPU."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_causal_lm(
    config: ModelConfig | str, *, seed: int, allow_pickle: bool = False
) -> tuple[PreTrainedModel | PeftModel, PreTrainedTokenizerBase]:
    """A causal language model and its tokenizer, checked against each other, ready to train.

    A folder that holds an adapter gives its base with that adapter, trainable. With ``config.lora`` the old adapter is merged
    into the weights first, so that the new one starts at zero and "adapter off" is the model that was loaded.

    Args:
        config: Where from and how; a string is a path with defaults.
        seed: Seeds new weights and new adapters.
        allow_pickle: Also read ``pytorch_model.bin``, which can run code when it is opened.

    Returns:
        The model, in evaluation mode, and the tokenizer.

    Raises:
        ModelError: The model can't be had, or is not fit to be trained; says why and what to do.
    """
    config = ModelConfig.of({"path": config}) if isinstance(config, str) else config
    tokenizer = load_tokenizer(config)
    model = load_base(config, tokenizer, seed=seed, allow_pickle=allow_pickle)
    model = adapt(model, config, task=TaskType.CAUSAL_LM, seed=seed)
    return model.eval(), tokenizer


def load_base(
    config: ModelConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int, allow_pickle: bool = False
) -> PreTrainedModel | PeftModel:
    """The causal language model before a new adapter is put on it; a peft model only where its folder is one."""
    model: PreTrainedModel | PeftModel
    source = model_source(config.path) if config.path is not None else None
    if source is None:
        model = _new_model(config, tokenizer, seed=seed)
    elif is_adapter(source):
        model = _load_adapter(source, config, allow_pickle=allow_pickle)
    else:
        model = load_weights(AutoModelForCausalLM, source, config, allow_pickle=allow_pickle)
    settle_tokens(base_model(model), tokenizer)
    return model


def load_tokenizer(config: ModelConfig | str) -> PreTrainedTokenizerBase:
    """The tokenizer that a model config names, by default the model's own.

    Raises:
        ModelError: There is none there, or no chat template where one was asked for.
    """
    config = ModelConfig.of({"path": config}) if isinstance(config, str) else config
    name = config.tokenizer or config.path
    assert name is not None  # ModelConfig refuses neither
    source = model_source(name)
    revision = config.revision if config.tokenizer is None else None
    with plain_errors(f"the tokenizer of {name!r}"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, revision=revision, trust_remote_code=config.trust_remote_code
        )
    if config.chat_template is not None:
        # The text of the template, not its name: what is saved with the model must be readable anywhere.
        tokenizer.chat_template = chat_format(tokenizer, config.chat_template).template
    return tokenizer


def load_weights(
    kind: Any, source: str, config: ModelConfig, /, *, allow_pickle: bool = False, **settings: Any
) -> PreTrainedModel:
    """``kind.from_pretrained`` with our rules: declared dtype, safetensors only, no silent random weights.

    Args:
        kind: A transformers model class or auto class.
        source: A folder or hub name, as ``model_source`` gives it.
        config: dtype, revision, quantisation, permission for remote code.
        allow_pickle: Also read pickled weights.
        settings: More for ``from_pretrained``.
    """
    if not allow_pickle:
        _check_no_pickle(source)
    if config.lora is not None and config.lora.quantize_4bit:
        settings["quantization_config"] = _four_bit(config)
        settings["device_map"] = {"": torch.cuda.current_device()}
    with plain_errors(f"the model {source!r}"), quiet():
        model, report = kind.from_pretrained(
            source,
            revision=config.revision,
            dtype=DTYPES[config.dtype],
            trust_remote_code=config.trust_remote_code,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **settings,
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"{source!r} lacks {len(missing)} of the weights that {type(model).__name__} needs, such as {missing[0]!r}; they "
            f"would be random. Is it another kind of model, or a damaged copy?"
        )
    if kind is AutoModelForCausalLM and any(key.startswith("score.") for key in report["unexpected_keys"]):
        raise ModelError(f"{source!r} is a reward model: it gives scores, not words. Give the policy's folder here.")
    if report["unexpected_keys"]:
        logger.warning(
            "%s: ignored weights that the model has no place for: %s", source, sorted(report["unexpected_keys"])[:5]
        )
    align_weights(model)
    result: PreTrainedModel = model
    return result


def align_weights(model: nn.Module) -> None:
    """Move weights that lie at odd addresses into memory of their own.

    A mapped file puts its tensors wherever its header ends, and matrix kernels may sum in another order there: equal weights
    would differ in the last bit of what they compute, from one folder to the next.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()


def model_source(path: str) -> str:
    """A folder's absolute path or a hub name, from what a user wrote.

    Raises:
        ModelError: It looks like a folder and there is none.
    """
    if path == EMBEDDED:
        folder = embedded_folder()
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"This installation lacks the embedded model: {folder} has no config.json. Reinstall rlhf."
            )
        return str(folder)
    if path.startswith("stage:"):
        raise ModelError(f"{path!r} names a stage of a pipeline; outside `rlhf run` give the folder of its model.")
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not any((folder / name).is_file() for name in ("config.json", ADAPTER_FILE, "tokenizer_config.json")):
            inside = sorted(str(found.parent) for found in folder.glob("*/model/*config.json"))
            where = f" There is one in {inside[-1]}." if inside else " Give the folder that transformers saved."
            raise ModelError(f"{folder} is no model folder: it has no config.json.{where}")
        return str(folder.resolve())
    if folder.is_file():
        raise ModelError(f"{folder} is a file; give the folder that holds config.json and the weights.")
    if path.startswith(("/", ".", "~")) or path.count("/") > 1:
        if folder.parts[-3:] == ("rlhf", "assets", "base"):
            return model_source(EMBEDDED)  # an adapter made by another installation of this package
        near = did_you_mean(folder.name, [p.name for p in folder.parent.glob("*")] if folder.parent.is_dir() else [])
        raise ModelError(f"There is no model folder {folder}.{near}")
    return path


def embedded_folder() -> Path:
    """Where this package keeps its base model."""
    return Path(str(files("rlhf"))) / "assets" / "base"


def source_name(model: PreTrainedModel) -> str | None:
    """What a model was loaded from, for people; None for a model that only exists in memory."""
    name = model.name_or_path or None
    return EMBEDDED if name == str(embedded_folder()) else name


def is_adapter(source: str) -> bool:
    """Whether a local folder holds a peft adapter."""
    return (Path(source) / ADAPTER_FILE).is_file()


def adapter_base(source: str) -> str:
    """What the adapter in a folder was trained on, as a source to load."""
    settings = json.loads((Path(source) / ADAPTER_FILE).read_text(encoding="utf-8"))
    name = settings.get("base_model_name_or_path")
    if not name:
        raise ModelError(
            f"{source} is an adapter that does not name its base; set base_model_name_or_path in {ADAPTER_FILE}."
        )
    return model_source(name)


def adapt(
    model: PreTrainedModel | PeftModel, config: ModelConfig, *, task: TaskType, seed: int
) -> PreTrainedModel | PeftModel:
    """Inject the adapter, switch on gradient checkpointing and compilation, as the config asks."""
    if config.lora is not None:
        assert not isinstance(model, PeftModel)
        if config.lora.quantize_4bit:
            model = prepare_model_for_kbit_training(
                model, config.gradient_checkpointing, gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        model = add_lora(cast(PreTrainedModel, model), config.lora, task=task, seed=seed)
    base = base_model(model)
    if config.gradient_checkpointing:
        enable_checkpointing(base)
    if config.compile:
        # In place: names of weights stay as they are, so checkpoints do not know about compilation.
        backbone_of(base).compile(dynamic=True)
    return model


def add_lora(model: PreTrainedModel, lora: LoRAConfig, *, task: TaskType, seed: int) -> PeftModel:
    """Low-rank adapters, starting at exactly zero effect.

    Sources: Hu et al. 2021, eq. 3, arXiv:2106.09685.

    Raises:
        ModelError: No layer has a name that was asked for.
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


def enable_checkpointing(model: PreTrainedModel) -> None:
    """Recompute activations in the backward pass, by the variant that allows frozen inputs and keywords."""
    if not model.supports_gradient_checkpointing:
        raise ModelError(
            f"{type(model).__name__} does not support gradient checkpointing; set gradient_checkpointing: false."
        )
    # transformers renamed it in 5.20-something and warns on the old name
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability to 0, in modules and in the numbers that attention layers keep.

    In policy optimisation the ratio to the old policy is 1 at the first step only where both runs drop the same units.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("dropout" in name or name == "layerdrop"):
                setattr(module, name, 0.0)


def settle_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make model and tokenizer agree on where a text ends and on the vocabulary.

    The padding token is never made equal to EOS: nothing here is padded, so a tokenizer without one stays without one.

    Raises:
        ModelError: The tokenizer has more tokens than the model has embeddings, or nobody knows an end-of-text token.
    """
    embeddings: Any = model.get_input_embeddings()
    num_embeddings = int(embeddings.weight.shape[0])
    highest = max(tokenizer.get_vocab().values())
    if highest >= num_embeddings:
        raise ModelError(
            f"The tokenizer {tokenizer.name_or_path!r} has tokens up to number {highest}, and the model {model.name_or_path!r} has "
            f"only {num_embeddings} embeddings. Use the model's own tokenizer, or resize the embeddings and train them."
        )
    known = _end_tokens(model)
    if tokenizer.eos_token_id is None:
        if not known:
            raise ModelError(
                f"Neither the tokenizer {tokenizer.name_or_path!r} nor the model's config says which token ends a text, so the "
                f"model could never learn to stop. Set `eos_token` in tokenizer_config.json to a token of its vocabulary."
            )
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(known[0])
        logger.warning(
            "The tokenizer names no end-of-text token; took %r from the model's config.", tokenizer.eos_token
        )
    elif tokenizer.eos_token_id not in known and getattr(model, "generation_config", None) is not None:
        # Else a saved model would run on past the token it was taught to end with.
        ends = [tokenizer.eos_token_id, *known]
        model.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
    if model.config.get_text_config().pad_token_id is None and tokenizer.pad_token_id is not None:
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id


@contextlib.contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Draw random weights from a named seed, and leave torch's own generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "models", *names))
        yield


def _end_tokens(model: PreTrainedModel) -> list[int]:
    """Ids that end a text according to the model, generation config first."""
    for config in (getattr(model, "generation_config", None), model.config.get_text_config()):
        found = getattr(config, "eos_token_id", None)
        if found is not None:
            return list(found) if isinstance(found, list | tuple) else [int(found)]
    return []


def _new_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> PreTrainedModel:
    shape = dict(config.init or {})
    settings = _new_config(shape, tokenizer)
    with seeded(seed, "init"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    return model.to(DTYPES[config.dtype])  # type: ignore[arg-type]


def _new_config(shape: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """A transformers config for a new model; transformers itself would swallow a misspelt key."""
    kind = shape.pop("model_type", None)
    if kind is None:
        raise ModelError("A new model (`init`) needs `model_type`, such as llama.")
    if kind not in CONFIG_MAPPING:
        raise ModelError(f"transformers has no model_type {kind!r}.{did_you_mean(str(kind), list(CONFIG_MAPPING))}")
    family = CONFIG_MAPPING[kind]
    known = {*family().to_dict(), *family.attribute_map}
    for key in shape:
        if key not in known:
            raise ModelError(f"A {kind} config has no key {key!r}.{did_you_mean(key, known)}")
    shape.setdefault("vocab_size", max(tokenizer.get_vocab().values()) + 1)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        shape.setdefault(name, getattr(tokenizer, name))
    try:
        return AutoConfig.for_model(kind, **shape)
    except (ValueError, TypeError, StrictDataclassError) as err:
        raise ModelError(f"The config of the new {kind} model is not valid: {_first_line(err)}") from err


def _load_adapter(source: str, config: ModelConfig, *, allow_pickle: bool) -> PreTrainedModel | PeftModel:
    base_config = config.updated(path=adapter_base(source), lora=None, revision=None)
    base = load_weights(AutoModelForCausalLM, str(base_config.path), base_config, allow_pickle=allow_pickle)
    return attach_adapter(base, source, config)


def attach_adapter(base: PreTrainedModel, source: str, config: ModelConfig) -> PreTrainedModel | PeftModel:
    """Put the adapter of a folder on its base; merge it where the config asks for a new one."""
    with plain_errors(f"the adapter {source!r}"), quiet():
        model = PeftModel.from_pretrained(base, source, is_trainable=True)
    if config.lora is None:
        return model
    if config.lora.quantize_4bit:
        raise ModelError(
            f"{source!r} is an adapter: merge it into its base first (rlhf merge), then train a 4-bit model on that."
        )
    merged: PreTrainedModel = model.merge_and_unload()
    forget_source(merged)
    return merged


def forget_source(model: PreTrainedModel) -> None:
    """Mark weights that no folder holds: saving must write all of them, and not only a new adapter."""
    model.config._name_or_path = ""
    model.name_or_path = ""


def _four_bit(config: ModelConfig) -> BitsAndBytesConfig:
    if not torch.cuda.is_available():
        raise ModelError("quantize_4bit needs a CUDA GPU and this machine has none; set lora.quantize_4bit: false.")
    require("bitsandbytes", extra="quant", needed_for="quantize_4bit")
    compute = torch.float32 if config.dtype == "float32" else DTYPES[config.dtype]
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=compute
    )


def _check_no_pickle(source: str) -> None:
    folder = Path(source)
    if not folder.is_dir():
        return
    names = {p.name for p in folder.iterdir()}
    has_safe = any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names)
    pickled = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth")) and "model" in name)
    if pickled and not has_safe:
        raise ModelError(
            f"{folder} holds its weights only as {pickled[0]}, a pickle, which can run code when it is opened. Convert it to "
            f"safetensors, or pass allow_pickle=True for a file you trust."
        )
    if not has_safe:
        raise ModelError(f"{folder} holds no weights: there is no .safetensors file in it. Was the save interrupted?")


@contextlib.contextmanager
def plain_errors(what: str) -> Iterator[None]:
    """One sentence instead of a page: transformers, peft, the hub client and safetensors each raise in their own way."""
    try:
        yield
    except ModelError:
        raise
    except Exception as err:  # the hub client alone has a dozen classes, and safetensors' is no subclass of any
        text = _first_line(err)
        if "trust_remote_code" in str(err):
            hint = "It needs Python code from its repository: read that code, then set trust_remote_code: true."
        elif _is_unreachable(err):
            hint = "The hub can't be reached or has no such name: give a local folder, or download the model first."
        else:
            hint = "Check the folder, or download it again."
        raise ModelError(f"Can't load {what}: {text} {hint}") from err


def _is_unreachable(err: BaseException) -> bool:
    text = f"{type(err).__name__} {err}".lower()
    return any(
        word in text for word in ("offline", "connect", "couldn't reach", "not a valid model identifier", "hub", "404")
    )


def _first_line(err: BaseException) -> str:
    lines = [line.strip() for line in str(err).splitlines() if line.strip()] or [type(err).__name__]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return text if text.endswith((".", ":", "!")) else f"{text}."
