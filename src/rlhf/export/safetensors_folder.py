"""Plain folders for transformers: adapters merged, one type of weights, shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from typing_extensions import override

from rlhf.errors import ModelError
from rlhf.export.format_writer import FormatWriter, OpenedModel, TensorDifference, WrittenModel
from rlhf.export.source_model import SourceModel, source_model
from rlhf.models.adapters import DTYPES
from rlhf.models.folders import save_weights
from rlhf.models.reward import RewardModel


class SafetensorsWriter(FormatWriter):
    """Weights under transformers' names."""

    @override
    def check(self) -> None:
        pass  # what was loaded can be saved

    @override
    def write(self, folder: Path) -> WrittenModel:
        dtype = DTYPES[self.settings.dtype]
        assert isinstance(dtype, torch.dtype)
        model = self._module()
        before = {name: value.to(dtype) for name, value in _weights(model)}
        _check_range(before, self.settings.dtype)
        kept = [(value, value.data) for _, value in _weights(model)]
        try:
            for value, data in kept:
                value.data = data.to(dtype)
            self._save(folder)
        finally:
            for value, data in kept:
                value.data = data
        read = source_model(folder)
        back = dict(_weights(read.policy.model if read.policy is not None else _only(read)))
        tensors = [
            TensorDifference(name, self.settings.dtype, _difference(back.get(name), value), 0.0)
            for name, value in before.items()
        ]
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.safetensors"))
        return WrittenModel(files, [], tensors)

    @override
    def open(self, folder: Path) -> OpenedModel:
        return _Opened(source_model(folder))

    def _module(self) -> nn.Module:
        return self.source.policy.model if self.source.policy is not None else _only(self.source)

    def _save(self, folder: Path) -> None:
        if self.source.reward is not None:
            self.source.reward.save_files(folder, shard_bytes=self.settings.shard_bytes)
            return
        model = self.source.network
        was, model.config.dtype = model.config.dtype, DTYPES[self.settings.dtype]
        try:
            save_weights(model, folder, shard_bytes=self.settings.shard_bytes)
        finally:
            model.config.dtype = was
        self.source.tokenizer.save_pretrained(folder)


class _Opened(OpenedModel):
    def __init__(self, read: SourceModel) -> None:
        self.read = read

    @override
    def outputs(self, row: Sequence[int]) -> Tensor:
        return self.read.outputs(row)


def _only(source: SourceModel) -> RewardModel:
    assert source.reward is not None
    return source.reward


def _weights(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, value) for name, value in model.named_parameters() if value.is_floating_point()]


def _difference(back: Tensor | None, value: Tensor) -> float:
    if back is None or back.shape != value.shape:
        return float("inf")
    return float((back.float() - value.float()).abs().max()) if value.numel() else 0.0


def _check_range(weights: Mapping[str, Tensor], dtype: str) -> None:
    for name, value in weights.items():
        if not bool(value.isfinite().all()):
            raise ModelError(f"{name} holds a number that {dtype} can't; choose another dtype (float32, bfloat16).")
