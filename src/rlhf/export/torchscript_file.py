"""TorchScript: one file for torch.jit.load and libtorch, by torch's tracer, without a key-value cache; torch has deprecated it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import override

from rlhf.errors import ModelError
from rlhf.export.format_writer import FormatWriter, OpenedModel, TensorDifference, WrittenModel
from rlhf.export.onnx_graph import ScoringModel
from rlhf.models.sources import first_line

MODEL_FILE = "model.pt"


class LanguageModel(nn.Module):
    """Logits of whole sequences."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[B, T] tokens, padded on the right -> logits [B, T, V]."""
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        return logits


class TorchScriptWriter(FormatWriter):
    """``model.pt`` with config and tokenizer."""

    @override
    def check(self) -> None:
        """Whether a family can be traced is known once it was."""

    @override
    def write(self, folder: Path) -> WrittenModel:
        is_reward = self.source.reward is not None
        module = (
            ScoringModel(self.source.reward) if self.source.reward is not None else LanguageModel(self.source.network)
        )
        inputs = (torch.zeros(2, 5, dtype=torch.long), torch.tensor([[1] * 5, [1] * 3 + [0] * 2]))
        with _quiet():
            try:
                traced: Any = torch.jit.trace(module.eval(), inputs, check_trace=False)
                traced.save(str(folder / MODEL_FILE))
            except Exception as err:  # the tracer and its serializer have no class of errors of their own
                raise ModelError(f"torch can't trace the family {self.source.family!r}: {first_line(err)}") from err
        self.source.network.config.save_pretrained(folder)
        self.source.tokenizer.save_pretrained(folder)
        gives = "scores [B], normalized as rlhf's" if is_reward else "logits [B, T, V]; there is no key-value cache"
        note = (
            f"Inputs are input_ids and attention_mask, int64 [B, T] with padding on the right; the output is {gives}."
        )
        return WrittenModel([MODEL_FILE], [note], _differences(module, _loaded(folder)))

    @override
    def open(self, folder: Path) -> OpenedModel:
        return _Opened(_loaded(folder), has_scores=self.source.reward is not None)


class _Opened(OpenedModel):
    def __init__(self, module: Any, *, has_scores: bool) -> None:
        self._module, self._has_scores = module, has_scores

    @override
    def outputs(self, row: Sequence[int]) -> Tensor:
        """With padding behind it, next to a longer row: neither may change the answer."""
        ids = torch.tensor([[*row, 0, 0], [*row, *row[:1], *row[:1]]])
        mask = torch.ones_like(ids)
        mask[0, -2:] = 0
        answer: Tensor = self._module(ids, mask)
        return answer[:1].float() if self._has_scores else answer[0, : len(row)].float()


def _loaded(folder: Path) -> Any:
    with _quiet():
        return torch.jit.load(str(folder / MODEL_FILE))


def _differences(module: nn.Module, written: Any) -> list[TensorDifference]:
    """Each weight, which must be equal to the bit."""
    there = dict(written.named_parameters())
    differences = []
    for name, weight in module.named_parameters():
        if name in there:  # of weights that are tied, one is
            largest = float((weight.detach() - there[name]).abs().max())
            differences.append(TensorDifference(name, str(weight.dtype).removeprefix("torch."), largest, 0.0))
    return differences


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the tracer's warnings: that it is deprecated, and that sizes are constants; what was traced is compared at other sizes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
