"""GGUF for llama.cpp and Ollama, through llama.cpp's own Python writer and read back with its reader."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from rlhf.errors import ModelError, require
from rlhf.export.format_writer import FormatWriter, OpenedModel, TensorDifference, WrittenModel
from rlhf.export.gguf_architecture import (
    ROPE_FREQS,
    Family,
    context_length,
    family_of,
    metadata,
    restored,
    tensors,
)
from rlhf.export.gguf_tokenizer import GGUFTokenizer, gguf_tokenizer
from rlhf.export.gguf_types import BLOCK, TYPES, StoredType, allowed_difference, stored
from rlhf.export.modelfile import MODELFILE, modelfile
from rlhf.export.source_model import SourceModel
from rlhf.files import write_text
from rlhf.rollout.stopping import eos_ids
from rlhf.version import __version__


class GGUFWriter(FormatWriter):
    """One file, and a Modelfile for Ollama."""

    @override
    def check(self) -> None:
        self.family = family_of(self.source.network)
        self.tokenizer = gguf_tokenizer(
            self.source.tokenizer,
            vocabulary=int(self.source.network.config.vocab_size),
            eos=eos_ids(self.source.network, self.source.tokenizer),
        )
        for _ in tensors(self.source.network, self.family):
            pass  # each weight has a place

    @property
    def kind(self) -> StoredType:
        """Of matrices."""
        settings = self.settings
        return TYPES[settings.dtype if settings.quantization == "none" else settings.quantization]

    @property
    def file(self) -> str:
        """As llama.cpp's converter names it."""
        return f"{self.source.name}-{self.kind.gguf_name}.gguf"

    @override
    def write(self, folder: Path) -> WrittenModel:
        gguf = require("gguf", extra="export", needed_for="Export to gguf")
        path, config = folder / self.file, self.source.network.config
        writer = gguf.GGUFWriter(path, self.family.architecture)
        _write_general(writer, self.source, self.kind)
        for key, value in metadata(self.source.network, self.family).items():
            _write_value(writer, f"{self.family.architecture}.{key}", value)
        _write_tokenizer(writer, self.tokenizer)
        kept: dict[str, tuple[np.ndarray[Any, Any], str]] = {}
        notes = list(self.tokenizer.notes)
        uneven = 0
        for name, _, value in tensors(self.source.network, self.family):
            numbers = value.float().numpy()
            data, type_ = stored(numbers, self.kind)
            uneven += numbers.ndim > 1 and self.kind.levels > 1 and numbers.shape[-1] % BLOCK != 0
            writer.add_tensor(name, data, raw_dtype=type_)
            kept[name] = numbers, type_.name
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        if uneven:
            notes.append(f"{uneven} matrices are in float16: their rows are not a multiple of {BLOCK} numbers.")
        if context_length(config) < config.max_position_embeddings:
            notes.append(
                f"The context is the sliding window, {context_length(config):,} tokens: llama.cpp attends to all of a text."
            )
        text, missing = modelfile(self.file, self.source, self.tokenizer, context_length(config))
        write_text(folder / MODELFILE, text)
        return WrittenModel([self.file], [*notes, *missing], _read_back(path, kept))

    @override
    def open(self, folder: Path) -> OpenedModel:
        return _Opened(folder / self.file, self.source.network, self.family)


class _Opened(OpenedModel):
    """The weights of a file, rounded as they are, in a copy of the model."""

    def __init__(self, path: Path, original: PreTrainedModel, family: Family) -> None:
        by_name = {tensor.name: tensor for tensor in _reader(path).tensors}
        self.model = copy.deepcopy(original)
        own = dict(self.model.named_parameters())
        for name, theirs, _ in tensors(original, family):
            if name != ROPE_FREQS:
                value = torch.from_numpy(_numbers(by_name[name]))
                own[theirs].data = restored(theirs, value, original.config, family)

    @override
    def outputs(self, row: Sequence[int]) -> Tensor:
        logits: Tensor = self.model(input_ids=torch.tensor([list(row)]), use_cache=False).logits[0]
        return logits.float()


def _write_general(writer: Any, source: SourceModel, kind: StoredType) -> None:
    writer.add_type("model")
    writer.add_name(source.name)
    writer.add_description(f"Exported by rlhf {__version__} from weights {source.fingerprint}")
    if isinstance(license_ := source.card.get("license"), str):
        writer.add_license(license_)
    bases = source.card.get("base_model") or []
    bases = [bases] if isinstance(bases, str) else [str(base) for base in bases]
    if bases:
        writer.add_base_model_count(len(bases))
        for number, base in enumerate(bases):
            writer.add_base_model_name(number, base)
    writer.add_tags(["rlhf", "text-generation"])
    writer.add_file_type(kind.file_type)
    writer.add_quantization_version(2)


def _write_value(writer: Any, key: str, value: float | str) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)


def _write_tokenizer(writer: Any, tokenizer: GGUFTokenizer) -> None:
    writer.add_tokenizer_model(tokenizer.model)
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.types)
    if tokenizer.model == "gpt2":
        writer.add_token_merges(tokenizer.merges)
    else:
        writer.add_token_scores(tokenizer.scores)
        writer.add_add_space_prefix(bool(tokenizer.add_space_prefix))
    for name, number in tokenizer.special.items():
        getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(tokenizer.add_bos)
    writer.add_add_eos_token(tokenizer.add_eos)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _reader(path: Path) -> Any:
    gguf = require("gguf", extra="export", needed_for="Export to gguf")
    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError) as err:
        raise ModelError(f"{path} can't be read back: {err}.") from err


def _numbers(tensor: Any) -> np.ndarray[Any, Any]:
    """Float32 in memory of its own, in the shape of the matrix."""
    gguf = require("gguf", extra="export", needed_for="Export to gguf")
    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    return np.array(values, dtype=np.float32).reshape(tuple(reversed(tensor.shape.tolist())))


def _read_back(path: Path, kept: dict[str, tuple[np.ndarray[Any, Any], str]]) -> list[TensorDifference]:
    """Each tensor of the file against what it was made of."""
    written = {tensor.name: tensor for tensor in _reader(path).tensors}
    differences = []
    for name, (original, type_name) in kept.items():
        tensor = written.pop(name, None)
        if tensor is None or tensor.tensor_type.name != type_name:
            differences.append(TensorDifference(name, type_name, float("inf"), 0.0))
            continue
        read = _numbers(tensor)
        if read.shape != original.shape or not np.isfinite(read).all():
            differences.append(TensorDifference(name, type_name, float("inf"), 0.0))
            continue
        error, allowed = np.abs(read - original), allowed_difference(original, type_name)
        worst = int(np.argmax(error - allowed)) if error.size else 0
        if error.size and error.flat[worst] <= allowed.flat[worst]:
            worst = int(np.argmax(error))
        differences.append(
            TensorDifference(name, type_name, float(error.flat[worst]), float(np.asarray(allowed).flat[worst]))
        )
    differences += [TensorDifference(name, "unexpected", float("inf"), 0.0) for name in written]
    return differences
