"""Checks of a model folder before it is loaded. Reads names and headers, no weights; runs no code.

Transformers handles some of these faults with a long traceback, some with random weights, some by running untrusted code. Here each
is an error that names the file, what was found in it, and what to do.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf.errors import ModelError, did_you_mean

CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
AVERAGE_FILE = "rlhf_average.json"
"""What a reward model is the average of."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""
LFS_POINTER = b"version https://git-lfs"
COPY_AGAIN = "Copy or download the folder again."
SAVE_AGAIN = "Save it again, or take an earlier copy."
CONVERSION = "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"

SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "head_dim", "n_embd", "n_head", "n_layer", "n_positions",
)  # fmt: skip
"""Keys of config.json that count something, in the names that families use."""
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
FLOATS = frozenset({"F64", "F32", "BF16", "F16"})
"""Types of weights in a safetensors header that can be trained. Among the others, whole numbers and F8_E4M3: quantized ones."""
WHOLE_BUFFERS = re.compile(
    r"(position_ids|token_type_ids|attn\.bias|attention\.bias|num_batches_tracked|tid2eid)$|(^|[._])(vision|visual|audio)"
)
"""Names of tensors that are not weights: positions, masks, counts, tables of experts, and what a text model leaves unread."""
UNQUANTIZED = "the model that it was made from; `lora: {quantize_4bit: true}` quantizes that as it is loaded"
OTHER_KINDS = {
    "ForMaskedLM": "fills in gaps and can't write a text from left to right",
    "ForSequenceClassification": "returns scores, not text (a reward model, or a classifier)",
    "ForTokenClassification": "labels tokens and does not generate text",
    "ForQuestionAnswering": "marks answers in a text and does not generate text",
}
"""Ends of class names in config.json's ``architectures`` that are not language models."""


def check_model_folder(folder: Path, *, trust_remote_code: bool, allow_pickle: bool) -> None:
    """Refuse a folder of weights that could not be loaded whole, or only by running a stranger's code.

    Args:
        folder: A model folder, not an adapter's.
        trust_remote_code: Whether Python files of the folder may run.
        allow_pickle: Whether weights may be pickles.

    Raises:
        ModelError: Naming the file and what is wrong with it.
    """
    check_config(folder, trust_remote_code=trust_remote_code)
    check_not_quantized(folder / CONFIG_FILE, read_json(folder / CONFIG_FILE))
    if (folder / WEIGHTS_FILE).is_file():
        safetensors_names(folder / WEIGHTS_FILE)
    elif (folder / INDEX_FILE).is_file():
        _check_shards(folder)
    else:
        check_pickle(folder, allow_pickle=allow_pickle)


def check_config(folder: Path, *, trust_remote_code: bool) -> None:
    """Refuse a config.json that describes no model that can be built."""
    from transformers import CONFIG_MAPPING  # seconds, where torch is not loaded yet

    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ModelError(f"{folder} has no {CONFIG_FILE}, which says what kind of model it is. {COPY_AGAIN}")
    config = read_json(path)
    if (folder / "generation_config.json").is_file():
        read_json(folder / "generation_config.json")  # transformers would take its own defaults for a damaged one
    check_code(path, config, trust_remote_code=trust_remote_code)
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(f"{path} names no `model_type` (found {kind!r}); it should be a family's name, such as llama.")
    if kind not in CONFIG_MAPPING and "auto_map" not in config:
        raise ModelError(
            f"{path}: this version of transformers has no model_type {kind!r}.{did_you_mean(kind, list(CONFIG_MAPPING))} A newer "
            f"family needs a newer transformers."
        )
    # A multi-modal family describes its language model in a separate section.
    for section in (config, config.get("text_config")):
        if isinstance(section, Mapping):
            _check_numbers(path, section)


def check_not_quantized(path: Path, config: Mapping[str, Any]) -> None:
    """Reject a config of quantized weights: they can't be trained as they are.

    Args:
        path: Of the config, for the error.
        config: What it holds.
    """
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        raise ModelError(
            f"{path} has a quantization_config (quant_method {method!r}): its weights are quantized numbers, which can't be trained "
            f"or sampled from here. Give {UNQUANTIZED}."
        )


def check_float_weights(path: Path, dtypes: Mapping[str, str]) -> None:
    """Refuse a file of whole or 8-bit numbers: read as if they were weights they give nonsense, and no error.

    Args:
        path: Of the file, for the error.
        dtypes: Tensor name to type, as safetensors calls it.
    """
    whole = {n: t for n, t in dtypes.items() if t not in FLOATS and not WHOLE_BUFFERS.search(n)}
    if whole:
        name = min(whole)
        raise ModelError(
            f"{path}: {len(whole)} of its {len(dtypes)} tensors can't be trained as they are, such as {name} ({whole[name]}); weights "
            f"should be F64, F32, BF16 or F16, and quantized ones mean nothing without their scales. Give {UNQUANTIZED}."
        )


def check_language_model(folder: Path) -> None:
    """Reject a model that does not generate text, according to its config."""
    if (folder / "rlhf_value.json").is_file():
        raise ModelError(f"{folder} is a value model: it returns values, not text. Give the policy's folder here.")
    names = read_json(folder / CONFIG_FILE).get("architectures")
    for name in names if isinstance(names, list) else []:
        for end, what in OTHER_KINDS.items():
            if str(name).endswith(end):
                raise ModelError(
                    f"{folder} is not a language model: its config.json names the class {name}, which {what}. Give the folder of "
                    f"a policy, or of a causal language model, here."
                )


def check_tokenizer_folder(folder: Path, *, trust_remote_code: bool) -> None:
    """Refuse a folder whose tokenizer files are missing or damaged."""
    for name in ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "added_tokens.json"):
        if not (folder / name).is_file():
            continue
        settings = read_json(folder / name)
        if name == "tokenizer_config.json":
            check_code(folder / name, settings, trust_remote_code=trust_remote_code)
        if name == "tokenizer.json" and not isinstance(settings.get("model"), Mapping):
            raise ModelError(f"{folder / name} holds no `model`, so it is not a tokenizer. {SAVE_AGAIN}")
    known = ("tokenizer*", "*.model", "vocab.*", "*.tiktoken", "spiece.*", "tekken.json")
    files = {path.name for pattern in known for path in folder.glob(pattern)} - {"tokenizer_config.json"}
    if not files:
        raise ModelError(
            f"{folder} holds no tokenizer: there is no tokenizer.json (or vocabulary of another kind) in it. Save the "
            f"tokenizer with the model, or set `tokenizer: FOLDER` next to `path:`."
        )


def check_code(path: Path, settings: Mapping[str, Any], *, trust_remote_code: bool) -> None:
    """Reject a folder that requires its own Python code, unless that is allowed or transformers has its own version."""
    import transformers

    auto_map = settings.get("auto_map")
    known = settings.get("model_type") in transformers.CONFIG_MAPPING or hasattr(
        transformers, str(settings.get("tokenizer_class"))
    )
    if trust_remote_code or not auto_map or known:
        return
    code = sorted({_file_of(name) for name in _texts(auto_map)})
    raise ModelError(
        f"{path} asks to run Python code that comes with the model: {', '.join(code)}. Nothing was run. Read that code, and if "
        f"you trust it set trust_remote_code: true."
    )


def check_pickle(folder: Path, *, allow_pickle: bool, wanted: str = WEIGHTS_FILE) -> None:
    """Reject a folder without safetensors if it has no weights, shards without an index, or pickles that are not allowed.

    Args:
        folder: A model's or an adapter's.
        allow_pickle: Whether weights may be pickles.
        wanted: The file that should have been there.
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    shards = [name for name in names if name.startswith("model-") and name.endswith(".safetensors")]
    if shards:
        raise ModelError(
            f"{folder} holds {len(shards)} parts of a model, such as {shards[0]}, but not {INDEX_FILE}, which says what is in "
            f"them. {COPY_AGAIN}"
        )
    pickled = [name for name in names if name.endswith(PICKLES) and "model" in name]
    if not pickled:
        raise ModelError(
            f"{folder} holds no weights: there is no {wanted} in it. Was the save or the copy interrupted?"
        )
    if not allow_pickle:
        raise ModelError(
            f"{folder} holds its weights only as {pickled[0]}, a pickle, which can run code when it is opened. Convert it where "
            f"you trust it, with {CONVERSION}, or set allow_pickle: true."
        )
    for name in pickled:
        check_float_weights(folder / name, _dtypes_in_pickle(folder / name))


def safetensors_names(path: Path) -> frozenset[str]:
    """Names of the tensors in a safetensors file, which must have the size given in its header.

    Raises:
        ModelError: The file is cut, is something else, can't be read, or holds whole or 8-bit numbers.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(len(LFS_POINTER))
            if start == LFS_POINTER:
                raise ModelError(f"{path} is a pointer of Git LFS and not the weights: fetch them with `git lfs pull`.")
            length = struct.unpack("<Q", start[:8])[0] if size >= 8 else 0
            if not 0 < length <= min(size - 8, MOST_HEADER_BYTES):
                raise ModelError(
                    f"{path} is damaged: {size} bytes that do not begin as safetensors do (or end within the header). "
                    f"{COPY_AGAIN}"
                )
            file.seek(8)
            header = json.loads(file.read(length))
    except OSError as err:
        raise ModelError(f"{path} can't be read: {err.strerror or err}. Check its permissions.") from None
    except ModelError:
        raise
    except (ValueError, RecursionError):
        raise ModelError(f"{path} is damaged: its header is not JSON. {COPY_AGAIN}") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path} is damaged: its header is a {type(header).__name__}. {COPY_AGAIN}")
    tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
    try:
        end = 8 + length + max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
    except (TypeError, KeyError, IndexError, ValueError):
        raise ModelError(
            f"{path} is damaged: its header does not give the positions of its tensors. {COPY_AGAIN}"
        ) from None
    if end != size:
        raise ModelError(f"{path} is damaged: it has {size} bytes, but its header describes {end}. {COPY_AGAIN}")
    check_float_weights(path, {name: str(tensor.get("dtype")) for name, tensor in tensors.items()})
    return frozenset(tensors)


def _dtypes_in_pickle(path: Path) -> dict[str, str]:
    """As named in a safetensors header; empty if the pickle can't be read, which loading it will report."""
    import torch

    try:
        loaded = torch.load(path, map_location="meta", weights_only=True)
    except Exception:
        return {}
    if not isinstance(loaded, Mapping):
        return {}
    tensors = {str(name): value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    return {
        name: f"F{8 * value.element_size()}" if value.is_floating_point() else str(value.dtype).removeprefix("torch.")
        for name, value in tensors.items()
    }


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a model folder.

    Raises:
        ModelError: It can't be read, or is something else; with line and column.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise ModelError(f"{path} can't be read: {err.strerror or err}. Check its permissions.") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path} is damaged: it is not text in UTF-8. {COPY_AGAIN}") from None
    except json.JSONDecodeError as err:
        what = "it is empty" if not err.doc.strip() else f"line {err.lineno}, column {err.colno}: {err.msg}"
        raise ModelError(f"{path} is not valid JSON: {what}. {SAVE_AGAIN}") from None
    except RecursionError:
        raise ModelError(f"{path} is nested too deeply to be read. {SAVE_AGAIN}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}; it should hold keys and values. {SAVE_AGAIN}")
    return value


def _check_shards(folder: Path) -> None:
    """Every part that the index names is in the folder, complete, and contains the listed tensors."""
    path = folder / INDEX_FILE
    places = read_json(path).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise ModelError(f"{path} has no `weight_map` from each tensor to its file. {COPY_AGAIN}")
    for name in sorted(set(places.values())):
        if Path(name).name != name or name.endswith(PICKLES):
            raise ModelError(
                f"{path} names the file {name!r}; the parts of a model are .safetensors files in the same folder. {COPY_AGAIN}"
            )
        if not (folder / name).is_file():
            there = sum((folder / other).is_file() for other in set(places.values()))
            raise ModelError(
                f"{folder} lacks {name}: {there} of the {len(set(places.values()))} parts that {INDEX_FILE} names are there. "
                f"{COPY_AGAIN}"
            )
        inside = safetensors_names(folder / name)
        absent = sorted(tensor for tensor, where in places.items() if where == name and tensor not in inside)
        if absent:
            raise ModelError(
                f"{folder / name} lacks {len(absent)} tensors that {INDEX_FILE} says it holds, such as {absent[0]!r}. The two "
                f"come from different saves; copy or download the folder again."
            )


def _check_numbers(path: Path, config: Mapping[str, Any]) -> None:
    for key in SIZES:
        number = config.get(key)
        if number is None or isinstance(number, list):  # a list has one for each layer, and 0 where a layer has none
            continue
        if not _is_count(number) or number < 1:
            raise ModelError(f"{path}: {key} is {number!r}; it counts something, so it should be 1 or more.")
    vocabulary = config.get("vocab_size")
    if vocabulary is None or isinstance(vocabulary, list):
        return
    for key in SPECIAL_IDS:
        value = config.get(key)
        for number in value if isinstance(value, list) else [value]:
            if number is None or (number == -1 and key != "eos_token_id"):
                continue  # -1 means none in older models
            if not _is_count(number) or not 0 <= number < vocabulary:
                raise ModelError(
                    f"{path}: {key} is {number!r}; it should be the number of a token, from 0 to {vocabulary - 1}, or null."
                )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _texts(value: Any) -> Iterator[str]:
    """All texts in nested lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        inner: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
        for item in inner:
            yield from _texts(item)


def _file_of(name: str) -> str:
    """``modeling_x.Model`` is in modeling_x.py, ``owner/name--modeling_x.Model`` in that file of another repository."""
    repository, dashes, rest = name.rpartition("--")
    return f"{rest.partition('.')[0]}.py" + (f" of {repository}" if dashes else "")
