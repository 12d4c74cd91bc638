"""LoRA adapters: W + s B A, added to a weight as it is read. No model is built.

Source: Hu et al. 2021, eq. 3, arXiv:2106.09685; s = alpha / r, or alpha / sqrt(r) with ``use_rslora`` (Kalajdzievski 2023, arXiv:2312.03732).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import ModelError
from rlhf.merging.json_file import read_json
from rlhf.merging.safetensors_file import Files, TensorPlace, read_header

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
PART = re.compile(r"^(?P<module>.*)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(\.weight)?$")
REFUSED = {
    "use_dora": "DoRA's magnitudes",
    "lora_bias": "biases of its own",
    "layer_replication": "layers that it repeats",
    "megatron_config": "Megatron's layers",
}
"""Settings of peft that change more than W + s B A, and what they bring."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one weight."""

    module: str
    """Name of the module, without ``.weight``."""
    a: TensorPlace
    b: TensorPlace
    scale: float
    transposed: bool
    """The weight is stored as [in, out], as GPT-2's are."""
    embedding: bool

    @property
    def rank(self) -> int:
        """r."""
        return self.a.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is added."""
        out_in = (self.b.shape[0], self.a.shape[1])
        return out_in[::-1] if self.transposed or self.embedding else out_in

    def delta(self, files: Files, dtype: torch.dtype) -> Tensor:
        """s B A."""
        product = files.read(self.b).to(dtype) @ files.read(self.a).to(dtype)
        product = product.T if self.transposed or self.embedding else product
        return product.mul_(self.scale)


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter's folder.

    Raises:
        ModelError: It holds more than W + s B A, or can't be read.
    """

    folder: Path
    config: Mapping[str, Any]
    low_rank: Mapping[str, LowRank]
    """Weight that it adds to -> what."""
    replaced: Mapping[str, TensorPlace]
    """Weight that it brings whole (``modules_to_save``) -> its place."""

    @classmethod
    def read(cls, folder: Path) -> Adapter:
        """An adapter's names and shapes; no weights are read."""
        config = read_json(folder / CONFIG)
        if config.get("peft_type") != "LORA":
            raise ModelError(
                f"{folder / CONFIG}: peft_type is {config.get('peft_type')!r}; only LORA adapters are merged."
            )
        for key, what in REFUSED.items():
            if config.get(key):
                raise ModelError(
                    f"{folder / CONFIG} sets {key}: an adapter with {what} is not merged. Merge it with peft first."
                )
        if not (folder / WEIGHTS).is_file():
            raise ModelError(f"{folder} has no {WEIGHTS}. Was the save or the copy interrupted, or is it a pickle?")
        pairs: dict[str, dict[str, TensorPlace]] = {}
        replaced = {}
        for name, place in read_header(folder / WEIGHTS).items():
            part = PART.match(name.removeprefix(PREFIX))
            if part is None:
                whole = name.removeprefix(PREFIX).replace(".modules_to_save", "").replace(".base_layer", "")
                if "lora_" in name or not _may_be_whole(whole, config):
                    raise ModelError(
                        f"{folder / WEIGHTS} holds {name}, which is no part of a LoRA adapter that can be merged."
                    )
                replaced[whole] = place
                continue
            pairs.setdefault(part["module"], {})[part["side"] + (part["embedding"] or "")] = place
        low_rank = {f"{module}.weight": _low_rank(folder, module, pair, config) for module, pair in pairs.items()}
        return cls(folder, config, low_rank, replaced)

    def applied(self, name: str, weight: Tensor, files: Files) -> Tensor:
        """A weight of the base with the adapter merged in, in the weight's type."""
        if name in self.replaced:
            weight = files.read(self.replaced[name]).to(weight.dtype)
        return weight.add_(self.low_rank[name].delta(files, weight.dtype)) if name in self.low_rank else weight

    def check_fits(self, shapes: Mapping[str, tuple[int, ...]], base: str) -> None:
        """Refuse an adapter with parts for which the base has no weight of that shape.

        Raises:
            ModelError: Names the first part.
        """
        parts = {name: part.shape for name, part in self.low_rank.items()}
        parts |= {name: place.shape for name, place in self.replaced.items()}
        for name, shape in parts.items():
            if name not in shapes:
                raise ModelError(
                    f"The adapter {self.folder} adds to {name}, which {base} has not: a head that is tied to the embedding, or another base."
                )
            if shapes[name] != shape:
                raise ModelError(
                    f"The adapter {self.folder} adds {list(shape)} to {name}, which is {list(shapes[name])} in {base}. Give the base it was "
                    "trained on."
                )


def _may_be_whole(name: str, config: Mapping[str, Any]) -> bool:
    module = name.rpartition(".")[0]
    kept = config.get("modules_to_save") or []
    return any(module == one or module.endswith(f".{one}") or f".{one}." in f".{module}." for one in kept) or bool(
        re.search(r"(^|\.)(embed_tokens|wte|lm_head|score|classifier)$", module)
    )


def _low_rank(folder: Path, module: str, pair: Mapping[str, TensorPlace], config: Mapping[str, Any]) -> LowRank:
    embedding = "Aembedding_" in pair
    sides = [pair.get(f"{side}{'embedding_' if embedding else ''}") for side in "AB"]
    a, b = sides
    if a is None or b is None or len(pair) != 2:
        raise ModelError(f"{folder / WEIGHTS} has only one of lora_A and lora_B for {module}.")
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        raise ModelError(
            f"{folder / WEIGHTS}: lora_A {list(a.shape)} and lora_B {list(b.shape)} of {module} are no pair of matrices."
        )
    alpha = _patterned(config.get("alpha_pattern"), module, config.get("lora_alpha"))
    if not isinstance(alpha, int | float):
        raise ModelError(f"{folder / CONFIG} has no lora_alpha.")
    scale = float(alpha) / (math.sqrt(a.shape[0]) if config.get("use_rslora") else a.shape[0])
    return LowRank(module, a, b, scale, bool(config.get("fan_in_fan_out")) and not embedding, embedding)


def _patterned(patterns: Any, module: str, otherwise: Any) -> Any:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return otherwise
