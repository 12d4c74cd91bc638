"""ONNX: a graph with a key-value cache, run by onnxruntime; int8 weights by onnxruntime's own quantizer."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from rlhf.errors import ModelError, require
from rlhf.export.format_writer import FormatWriter, OpenedModel, WrittenModel
from rlhf.export.onnx_graph import cache_names, cache_shapes, language_graph, score_graph

MODEL_FILE = "model.onnx"
LARGEST_FILE = 1_500_000_000
"""Bytes of weights that go into one file with the graph; protobuf ends at 2 GiB. More lie in a file next to it."""
INT8_BITS, INT8_BLOCK = 8, 32
Arrays = dict[str, np.ndarray[Any, Any]]


class OnnxWriter(FormatWriter):
    """``model.onnx`` with config and tokenizer, as Optimum lays them out."""

    @override
    def check(self) -> None:
        self.shapes = [] if self.source.reward is not None else cache_shapes(self.source.network)

    @override
    def write(self, folder: Path) -> WrittenModel:
        path = folder / MODEL_FILE
        with _quiet():
            if self.source.reward is not None:
                program = score_graph(self.source.reward, self.source.family)
            else:
                program = language_graph(self.source.network, self.shapes)
            program.save(str(path), external_data=self._is_large())
            if self.settings.quantization == "int8":
                _round_to_int8(path, large=self._is_large())
        self.source.network.config.save_pretrained(folder)
        if self.source.policy is not None:
            self.source.network.generation_config.save_pretrained(folder)
        self.source.tokenizer.save_pretrained(folder)
        files = [MODEL_FILE, *sorted(file.name for file in folder.glob(f"{MODEL_FILE}.*"))]
        return WrittenModel(files, self._notes())

    @override
    def open(self, folder: Path) -> OpenedModel:
        runtime = require("onnxruntime", extra="export", needed_for="Export to onnx")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            session = runtime.InferenceSession(
                str(folder / MODEL_FILE), sess_options=options, providers=["CPUExecutionProvider"]
            )
        except Exception as err:  # onnxruntime's own classes, one for each code
            raise ModelError(f"onnxruntime can't load the graph of {self.source.family!r}: {err}") from err
        if self.source.reward is not None:
            return _OpenedScores(session)
        return _OpenedLanguageModel(session, self.shapes)

    def _is_large(self) -> bool:
        model = self.source.policy or self.source.reward
        assert model is not None
        return sum(parameter.numel() * 4 for parameter in model.parameters()) > LARGEST_FILE

    def _notes(self) -> list[str]:
        if self.source.reward is not None:
            return [
                "Inputs are input_ids and attention_mask, with padding on the right; the output is scores, normalized as rlhf's."
            ]
        if self.settings.quantization == "int8":
            return [
                "Matrices are int8 in blocks of 32 (MatMulNBits, an operator of onnxruntime); embeddings stay float32."
            ]
        return []


class _OpenedLanguageModel(OpenedModel):
    """Logits without a cache, continuations with it."""

    def __init__(self, session: Any, shapes: Sequence[tuple[int, int, int]]) -> None:
        self.session, self.shapes = session, shapes

    @override
    def outputs(self, row: Sequence[int]) -> Tensor:
        ids = np.array([list(row)], dtype=np.int64)
        logits, _ = self._run(ids, np.ones_like(ids), np.arange(ids.shape[1])[None], self._empty(1))
        return torch.from_numpy(logits[0]).float()

    @override
    def greedy(self, prompts: Sequence[Sequence[int]], length: int) -> list[list[int]]:
        """All prompts in one batch, padded on the left, a token at a time on the cache of those before."""
        longest = max(map(len, prompts))
        ids = np.zeros((len(prompts), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for place, prompt in enumerate(prompts):
            ids[place, longest - len(prompt) :] = prompt
            mask[place, longest - len(prompt) :] = 1
        positions = np.maximum(mask.cumsum(-1) - 1, 0)
        cache, steps = self._empty(len(prompts)), []
        for _ in range(length):
            logits, cache = self._run(ids, mask, positions, cache)
            ids = logits[:, -1].argmax(-1).astype(np.int64)[:, None]
            mask = np.concatenate([mask, np.ones_like(ids)], 1)
            positions = positions[:, -1:] + 1
            steps.append(ids)
        return np.concatenate(steps, 1).tolist()

    def _empty(self, rows: int) -> Arrays:
        names = iter(cache_names("past_key_values", len(self.shapes)))
        feeds = {}
        for heads, key, value in self.shapes:
            for width in (key, value):
                feeds[next(names)] = np.zeros((rows, heads, 0, width), dtype=np.float32)
        return feeds

    def _run(
        self, ids: np.ndarray[Any, Any], mask: np.ndarray[Any, Any], positions: np.ndarray[Any, Any], cache: Arrays
    ) -> tuple[np.ndarray[Any, Any], Arrays]:
        wanted = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **cache}
        known = {given.name for given in self.session.get_inputs()}  # what a family does not read is not in the graph
        logits, *present = self.session.run(None, {name: value for name, value in wanted.items() if name in known})
        return logits, dict(zip(cache_names("past_key_values", len(self.shapes)), present, strict=True))


class _OpenedScores(OpenedModel):
    def __init__(self, session: Any) -> None:
        self.session = session

    @override
    def outputs(self, row: Sequence[int]) -> Tensor:
        """With padding behind it, next to a longer row: neither may change the score."""
        ids = np.array([[*row, 0, 0], [*row, *row[:2]]], dtype=np.int64)
        mask = np.ones_like(ids)
        mask[0, -2:] = 0
        (scores,) = self.session.run(None, {"input_ids": ids, "attention_mask": mask})
        return torch.from_numpy(scores[:1]).float()


def _round_to_int8(path: Path, *, large: bool) -> None:
    """Matrices in blocks of 32 with a scale each; activations stay float32."""
    quantizer = require(
        "onnxruntime.quantization.matmul_nbits_quantizer", extra="export", needed_for="Export to onnx in int8"
    )
    onnx = require("onnx", extra="export", needed_for="Export to onnx")
    model = onnx.load(str(path))
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    rounded = quantizer.MatMulNBitsQuantizer(model, bits=INT8_BITS, block_size=INT8_BLOCK, is_symmetric=True)
    rounded.process()
    rounded.model.save_model_to_file(str(path), large)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the logs of exporter and quantizer, a line for each node."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)
