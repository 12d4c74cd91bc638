"""Models that are merged: found, looked through without reading a weight, and compared."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.config.merging import ModelReference
from rlhf.errors import ModelError, did_you_mean
from rlhf.files import sha256_once
from rlhf.merging.json_file import read_json
from rlhf.merging.layers import BUFFERS, EMBEDDING, HEAD, count_key, stacks
from rlhf.merging.lora import CONFIG as ADAPTER_FILE
from rlhf.merging.lora import Adapter
from rlhf.merging.safetensors_file import COPY_AGAIN, Files, TensorPlace, read_header

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
EMBEDDED = "embedded"
OTHERS_OF_OURS = {
    "rlhf_reward.json": "a reward model, whose shift and scale are averaged too: use rlhf.models.reward_averaging.average_reward_models",
    "rlhf_value.json": "a value model; merge the policies and train a value model for the result",
}
"""Our own settings next to weights, and what to do in place of a merge."""
DOWNLOADED = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
DESCRIPTIVE = {
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id", "id2label", "initializer_range", "label2id",
    "max_position_embeddings", "pad_token_id", "problem_type", "quantization_config", "torch_dtype", "transformers_version", "use_cache",
    "vocab_size",
}  # fmt: skip
"""Keys of config.json that don't say how a weight is used, or that are looked at elsewhere."""
STRUCTURAL = {
    "model_type", "hidden_size", "n_embd", "num_attention_heads", "n_head", "num_key_value_heads", "head_dim", "hidden_act",
    "activation_function", "num_experts", "num_local_experts", "num_experts_per_tok",
}  # fmt: skip
"""Keys under which equal shapes mean something else: models that differ in one are not merged."""


@dataclass
class Parent:
    """A model folder with at most a few adapters merged into what is read of it."""

    label: str
    """As the file names it."""
    folder: Path
    config: dict[str, Any]
    places: dict[str, TensorPlace]
    adapters: list[Adapter] = field(default_factory=list)

    @property
    def text_config(self) -> dict[str, Any]:
        """The language model's part of config.json."""
        inner = self.config.get("text_config")
        return inner if isinstance(inner, dict) else self.config

    @cached_property
    def stacks(self) -> dict[str, int]:
        """Stack of layers -> how many, the main one first."""
        counts = stacks(self.places)
        key = count_key(self.text_config)
        wanted = self.text_config[key] if key else None
        fitting = [stack for stack, count in counts.items() if count == wanted]
        return {stack: counts[stack] for stack in (*fitting, *(s for s in counts if s not in fitting))}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor."""
        return {name: place.shape for name, place in self.places.items()}

    @property
    def is_tied(self) -> bool:
        """Whether the output head is the embedding, by config.json or by the family's default."""
        for config in (self.text_config, self.config):
            if isinstance(config.get("tie_word_embeddings"), bool):
                return bool(config["tie_word_embeddings"])
        return _tied_by_default(str(self.text_config.get("model_type") or self.config.get("model_type")))

    def read(self, files: Files, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor for arithmetic, in memory of its own.

        Args:
            files: Open files.
            name: The tensor's.
            dtype: Of arithmetic; whole numbers stay what they are.

        Raises:
            ModelError: It holds NaN or infinity, or its file is damaged.
        """
        tensor = files.read(self.places[name])
        if not tensor.is_floating_point():
            return tensor
        tensor = tensor.to(dtype)
        for adapter in self.adapters:
            tensor = adapter.applied(name, tensor, files)
        return tensor

    def files(self) -> list[Path]:
        """All files of weights, and what says how they are used."""
        named = {place.file for place in self.places.values()}
        named |= {self.folder / name for name in ("config.json", "tokenizer.json") if (self.folder / name).is_file()}
        for adapter in self.adapters:
            named |= {adapter.folder / ADAPTER_FILE, *(part.a.file for part in adapter.low_rank.values())}
            named |= {place.file for place in adapter.replaced.values()}
        return sorted(named)


def open_parent(reference: ModelReference) -> Parent:
    """Find a model and read its headers.

    Raises:
        ModelError: There is none, it is damaged, quantized, or not all there; names folder and file.
    """
    folder = find_folder(reference.path, reference.revision)
    adapters = []
    if reference.lora:
        adapters.append(Adapter.read(find_folder(reference.lora, reference.lora_revision)))
    while (folder / ADAPTER_FILE).is_file() and not (folder / "config.json").is_file():
        adapters.insert(0, Adapter.read(folder))
        folder = base_of(folder)
    parent = Parent(reference.text, folder, _config_of(folder), _places_of(folder), adapters)
    for adapter in adapters:
        adapter.check_fits(parent.shapes, str(folder))
    return parent


def find_folder(path: str, revision: str | None = None) -> Path:
    """A model's folder here; a hub name is downloaded.

    Raises:
        ModelError: There is no such folder and no such name.
    """
    if path == EMBEDDED or Path(path).parts[-3:] == ("rlhf", "assets", "base"):
        return Path(str(package_files("rlhf"))) / "assets" / "base"
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.is_file():
        raise ModelError(f"{folder} is a file; give the folder that holds config.json and the weights.")
    if not path or path.startswith(("/", ".", "~")) or path.count("/") > 1:
        near = did_you_mean(folder.name, [p.name for p in folder.parent.glob("*")] if folder.parent.is_dir() else [])
        raise ModelError(f"There is no model folder {path or 'of an empty name'}.{near}")
    return _downloaded(path, revision)


def _downloaded(name: str, revision: str | None) -> Path:
    import huggingface_hub  # half a second, which a folder's name should not cost

    at = f" at revision {revision!r}" if revision else ""
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=DOWNLOADED))
    except Exception as err:  # httpx, urllib3 and the hub client each have their own for "no answer"
        raise ModelError(
            f"{name!r}{at} is no folder here, and the hub did not give it ({type(err).__name__}). Give a folder, or download it first: "
            f"hf download {name}"
        ) from err


def base_of(folder: Path) -> Path:
    """The folder of an adapter's base, whose weights are those that it was trained on.

    Raises:
        ModelError: The adapter names none, it is not there, or its weights are others now.
    """
    name = read_json(folder / ADAPTER_FILE).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{folder} is an adapter that does not name its base; write BASE+ADAPTER.")
    relative = Path(os.path.normpath(folder / name))
    base = relative if name.startswith(".") and relative.is_dir() else find_folder(name)
    record = folder / "rlhf_base.json"
    expected = read_json(record).get("weights_sha256") if record.is_file() else None
    if expected is not None and (weights := _weights_hash(base)) != expected:
        raise ModelError(
            f"{folder} is an adapter of other weights than {base} holds now: their hash is {weights[:16]}, and {record.name} expects "
            f"{str(expected)[:16]}. Name the base that it was trained on as base_model_name_or_path in {folder / ADAPTER_FILE}."
        )
    return base


def _weights_hash(folder: Path) -> str:
    """As ``rlhf_base.json`` has it: over names and contents of a folder's files of weights."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        if file.name != "adapter_model.safetensors":
            digest.update(f"{file.name}={sha256_once(file)};".encode())
    return digest.hexdigest()


def _config_of(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    if config.get("quantization_config"):
        raise ModelError(
            f"{folder / 'config.json'} has a quantization_config: give the model that it was made from, whose weights are numbers."
        )
    for name, what in OTHERS_OF_OURS.items():
        if (folder / name).is_file():
            raise ModelError(f"{folder} is {what}.")
    return config


def _places_of(folder: Path) -> dict[str, TensorPlace]:
    if (folder / WEIGHTS).is_file():
        return read_header(folder / WEIGHTS)
    if not (folder / INDEX).is_file():
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth"))
        what = (
            f"; {pickles[0]} is a pickle, which is not opened: save the model as safetensors"
            if pickles
            else f". {COPY_AGAIN}"
        )
        raise ModelError(f"{folder} has neither {WEIGHTS} nor {INDEX}{what}")
    index = read_json(folder / INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise ModelError(f"{folder / INDEX} has no `weight_map` from each tensor to its file. {COPY_AGAIN}")
    places = {}
    for name in sorted(set(map(str, index.values()))):
        if Path(name).name != name or not (folder / name).is_file():
            raise ModelError(f"{folder} lacks {name}, which {INDEX} names. {COPY_AGAIN}")
        held = read_header(folder / name)
        listed = {tensor for tensor, file in index.items() if file == name}
        if held.keys() != listed:
            odd = min(held.keys() ^ listed)
            raise ModelError(
                f"{folder / name} and {INDEX} disagree about {odd!r}: they come from different saves. {COPY_AGAIN}"
            )
        places.update(held)
    return places


def _tied_by_default(model_type: str) -> bool:
    from transformers import CONFIG_MAPPING  # seconds, where a config.json says it itself

    try:
        return bool(getattr(CONFIG_MAPPING[model_type](), "tie_word_embeddings", False))
    except Exception:  # a family that this version has not, or whose config needs arguments
        return False


def check_fit(parents: Sequence[Parent]) -> list[str]:
    """Refuse models of different architectures; what else their configs differ in comes back as lines for the report.

    Raises:
        ModelError: Names the two models, the key and both values.
    """
    lines = []
    first = parents[0]
    for other in parents[1:]:
        for key in ("model_type", "architectures"):
            if first.config.get(key) != other.config.get(key):
                raise _different(first, other, key, first.config.get(key), other.config.get(key))
        mine, theirs = first.text_config, other.text_config
        skipped = {count_key(mine), count_key(theirs), "layer_types", "tie_word_embeddings", *DESCRIPTIVE}
        for key in sorted(mine.keys() | theirs.keys()):
            if key in skipped or "dropout" in key or (isinstance(mine.get(key), dict) and key == "text_config"):
                continue
            a, b = mine.get(key), theirs.get(key)
            if json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True):
                continue
            if key in STRUCTURAL and a is not None and b is not None:
                raise _different(first, other, key, a, b)
            lines.append(
                f"config.json: {key} is {a!r} in {first.label} and {b!r} in {other.label}; the output has the base's"
            )
    return lines


def _different(first: Parent, other: Parent, key: str, a: Any, b: Any) -> ModelError:
    return ModelError(
        f"{first.label} and {other.label} are different architectures: {key} is {a!r} and {b!r} in their config.json. Only models of one "
        "architecture are merged."
    )


def missing_tensor(name: str, lacking: Parent, having: Parent) -> ModelError:
    """The error for a tensor that one model has and another lacks."""
    if HEAD.search(name):
        how = "its head is tied to the embedding" if lacking.is_tied else "it has no head"
        return ModelError(
            f"{having.label} has the head {name} and {lacking.label} has not: {how}. Save both with tied or both with untied heads "
            "(tie_word_embeddings in config.json)."
        )
    return ModelError(
        f"{lacking.label} lacks the tensor {name}, which {having.label} has. Was it saved by another class, or is it damaged?"
    )


def tied_copies(parent: Parent, files: Files) -> list[str]:
    """Heads that a model with a tied head saved as well; each must be the embedding.

    Raises:
        ModelError: It is not.
    """
    if not parent.is_tied:
        return []
    embedding = next((name for name in parent.places if EMBEDDING.search(name)), None)
    heads = [name for name in parent.places if HEAD.search(name) and embedding is not None]
    for head in heads:
        assert embedding is not None
        a, b = parent.places[head], parent.places[embedding]
        if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(files.read(a), files.read(b)):
            raise ModelError(
                f"{parent.label}: config.json ties the head to the embedding (tie_word_embeddings), and {head} differs from {embedding} in "
                "files. Set it to false where the head was trained, or save the model again."
            )
    return heads


def is_buffer(name: str) -> bool:
    """Whether a tensor is computed from the config wherever it is needed."""
    return BUFFERS.search(name) is not None


def by_label(parents: Sequence[Parent]) -> Mapping[str, Parent]:
    """Label -> model."""
    return {parent.label: parent for parent in parents}
