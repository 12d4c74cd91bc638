"""Checks of model folders by the headers of their files: no weights are loaded, torch is not imported.

A safetensors file begins with its header's length (8 bytes, little endian) and the header, JSON with every tensor's
type, shape and position; so a truncated file is detected by its size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlhf.errors import ModelError, did_you_mean_file, with_article
from rlhf.models.adapter_base import base_folder
from rlhf.models.checks import check_float_weights, check_not_quantized
from rlhf.pipeline.models import where_models_are
from rlhf.pipeline.validate.inputs import embedded_model, is_hub_name

MAX_HEADER_BYTES = 100_000_000
"""What the safetensors library itself refuses to exceed."""
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight", "tok_embeddings.weight")
"""Endings of the input embedding's name in the common families."""
CONTEXT_KEYS = ("max_position_embeddings", "n_positions")
"""As ``rlhf.models.score.context_length`` reads it; the second is GPT-2's name for the first."""
REWARD_SETTINGS = "rlhf_reward.json"
PROCESS_SETTINGS = "rlhf_process.json"
ADAPTER_SETTINGS = "adapter_config.json"
INDEX = "model.safetensors.index.json"


class TensorEntry(NamedTuple):
    """One tensor of a header."""

    dtype: str
    shape: tuple[int, ...]
    end: int
    """Its last byte, counted from behind the header."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts about a folder's model."""

    folder: Path
    family: str
    """transformers' model_type."""
    num_parameters: int
    num_bytes: int
    """Of the weights on disk."""
    num_embeddings: int | None
    """Rows of the input embedding: every token's number must be below."""
    context: int | None
    """Tokens the model was made for."""
    is_reward: bool
    end_tokens: tuple[int, ...] = ()
    """Numbers that end a text, by the model's own settings."""
    names_end: bool = True
    """Whether these settings define the end-of-text token, even as null; otherwise transformers has a default for the family."""
    architectures: tuple[str, ...] = field(default_factory=tuple)
    layers: frozenset[str] = frozenset()
    """Names of what has a matrix of weights, as files have them."""


def read_model_folder(folder: Path) -> ModelFacts | None:
    """Read config and headers; None for an adapter whose base is on the hub.

    Raises:
        ModelError: A file is absent, damaged or cut short, or weights are there only as a pickle.
        OSError: A file can't be read.
    """
    folder = folder.expanduser()
    if folder.is_file():
        raise ModelError(f"{folder} is a file; give the folder that holds config.json and the weights.")
    if not folder.is_dir():
        names = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
        raise ModelError(f"There is no model folder {folder}.{did_you_mean_file(folder.name, names)}")
    if (folder / ADAPTER_SETTINGS).is_file():
        return _read_adapter(folder)
    members = sorted(folder.glob("member-*"))  # how an ensemble of reward models is saved
    config = _read_config(members[0] if members else folder)
    tensors = [tensor for part in members or [folder] for tensor in _tensors(part).items()]
    inner = config.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    return ModelFacts(
        folder=folder,
        family=str(config.get("model_type", "unknown")),
        num_parameters=sum(math.prod(entry.shape) for _, entry in tensors),
        num_bytes=sum(math.prod(entry.shape) * _width(entry.dtype) for _, entry in tensors),
        num_embeddings=_num_embeddings(dict(tensors), text),
        context=next((text[key] for key in CONTEXT_KEYS if isinstance(text.get(key), int)), None),
        is_reward=(folder / REWARD_SETTINGS).is_file() or any(name.startswith("score.") for name, _ in tensors),
        end_tokens=_end_tokens(folder, text),
        names_end="eos_token_id" in text,
        architectures=tuple(config.get("architectures") or ()),
        layers=frozenset(
            name.removesuffix(".weight") for name, e in tensors if name.endswith(".weight") and len(e.shape) == 2
        ),
    )


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a safetensors file, by name.

    Raises:
        ModelError: It is no such file, was cut short, or holds whole or 8-bit numbers.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise ModelError(
                f"{path} is not a safetensors file, or was cut short in its header ({size:,} bytes). {AGAIN}"
            )
        text = file.read(length)
    try:
        header: dict[str, Any] = json.loads(text)
        header.pop("__metadata__", None)
        entries = {
            name: TensorEntry(str(entry["dtype"]), tuple(map(int, entry["shape"])), int(entry["data_offsets"][1]))
            for name, entry in header.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        raise ModelError(f"{path} is damaged: its header is not what safetensors writes. {AGAIN}") from None
    wanted = 8 + length + max((entry.end for entry in entries.values()), default=0)
    if size < wanted:
        raise ModelError(f"{path} was cut short: it has {size:,} bytes and its header describes {wanted:,}. {AGAIN}")
    check_float_weights(path, {name: entry.dtype for name, entry in entries.items()})
    return entries


def tokenizer_problem(folder: Path) -> str | None:
    """What keeps a folder from having a tokenizer; None where nothing does, by the names of its files."""
    if not folder.is_dir():
        names = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
        return f"There is no tokenizer folder {folder}.{did_you_mean_file(folder.name, names)}"
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    return f"{folder} holds no tokenizer ({', '.join(TOKENIZER_FILES[:2])} ...); name one with `tokenizer`."


AGAIN = "Copy or download it again."
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
)  # fmt: skip


def _read_adapter(folder: Path) -> ModelFacts | None:
    """The base, with the adapter's own file looked at too."""
    settings = _read_json(folder / ADAPTER_SETTINGS)
    name = settings.get("base_model_name_or_path")
    if not name:
        raise ModelError(
            f"{folder} is an adapter that does not name its base; set base_model_name_or_path in {ADAPTER_SETTINGS}."
        )
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        raise ModelError(f"{folder} is an adapter without weights: there is no {weights.name} in it. {AGAIN}")
    read_header(weights)
    if is_hub_name(name) and name != "embedded":
        return None
    base = base_folder(folder, str(name)) or Path(name).expanduser()
    if name == "embedded" or (not base.exists() and base.parts[-3:] == ("rlhf", "assets", "base")):
        base = embedded_model()  # named by its folder in another installation of this package
    if not base.exists():
        raise ModelError(f"{folder} is an adapter of {name}, which is not on this machine; put its base there first.")
    if (facts := read_model_folder(base)) is None:
        return None
    is_reward = settings.get("task_type") == "SEQ_CLS" or (folder / REWARD_SETTINGS).is_file()
    return ModelFacts(
        folder, facts.family, facts.num_parameters, facts.num_bytes, facts.num_embeddings, facts.context,
        is_reward, facts.end_tokens, facts.names_end, facts.architectures, facts.layers,
    )  # fmt: skip


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        where = where_models_are(folder) or "Give the folder that transformers saved."
        raise ModelError(f"{folder} is not a model folder: it has no config.json. {where}")
    config = _read_json(path)
    check_not_quantized(path, config)
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as err:
        raise ModelError(f"{path} is damaged: {err}. {AGAIN}") from None
    if not isinstance(document, dict):
        raise ModelError(
            f"{path} holds {with_article(type(document).__name__)}; it should hold keys and values. {AGAIN}"
        )
    return document


def _tensors(folder: Path) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    for file in _weight_files(folder):
        tensors |= read_header(file)
    return tensors


def _weight_files(folder: Path) -> Iterator[Path]:
    index = folder / INDEX
    if index.is_file():
        shards = _read_json(index).get("weight_map")
        if not isinstance(shards, Mapping):
            raise ModelError(f"{index} is damaged: it has no weight_map. {AGAIN}")
        for name in sorted(set(map(str, shards.values()))):
            if not (folder / name).is_file():
                raise ModelError(f"{folder} lacks the shard {name}, which its index names. {AGAIN}")
            yield folder / name
        return
    files = sorted(file for file in folder.glob("*.safetensors") if not file.name.startswith("adapter_"))
    if not files:
        pickles = sorted(file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth"))
        if pickles:
            raise ModelError(
                f"{folder} holds its weights only as {pickles[0]}, a pickle, which can run code when it is opened; "
                "convert it to safetensors."
            )
        raise ModelError(f"{folder} holds no weights: there is no .safetensors file in it. Was the save interrupted?")
    yield from files


def _num_embeddings(tensors: Mapping[str, TensorEntry], config: Mapping[str, Any]) -> int | None:
    rows = [entry.shape[0] for name, entry in tensors.items() if name.endswith(EMBEDDINGS) and entry.shape]
    declared = config.get("vocab_size")
    return rows[0] if rows else declared if isinstance(declared, int) else None


def _end_tokens(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    for settings in ([_read_json(generation)] if generation.is_file() else []) + [dict(config)]:
        setting = settings.get("eos_token_id")
        if setting is not None:
            return tuple(setting) if isinstance(setting, list) else (int(setting),)
    return ()


def _width(dtype: str) -> int:
    """Bytes of one number: F32, BF16, I8, F8_E4M3 ..."""
    digits = "".join(char for char in dtype.partition("_")[0] if char.isdigit())
    return max(1, int(digits) // 8) if digits else 1
