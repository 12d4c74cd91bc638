"""Learning to compress contexts: answers from k vectors, as likely as those of the model that reads the whole context."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from rlhf.config.context_compression import CompressorConfig
from rlhf.data.pack import Group, PackedBatch, pack
from rlhf.errors import DataError, ModelError
from rlhf.losses import nll_loss, token_mean
from rlhf.models.context_compressor import CONTEXT_TOKENS, ContextCompressor, with_context
from rlhf.models.divergence import teacher_divergence
from rlhf.models.score import TokenScores
from rlhf.seeds import derive_seed
from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics, describe
from rlhf.training.offline import ROWS_FOR_PATH, OfflineTrainer, RowsOfStep
from rlhf.training.optim import TrainedModule

NUM_VECTORS = "num_vectors"
"""Column of a batch: how many of its vectors, the first ones, a sequence is answered from."""


class CompressorTrainer(OfflineTrainer[ContextCompressor, CompressorConfig]):
    """Minimizes (1 - f) NLL + f KL(whole context || vectors) of the scored tokens, averaged over all of a step's tokens; f is ``distill_frac``.

    Sources: distillation from the model that reads the context: Mu et al. 2023, arXiv:2304.08467; Snell et al. 2022, arXiv:2209.15189;
    likelihood: Chevalier et al. 2023, arXiv:2305.14788; vectors of which the first ones do alone: Rippel et al. 2014 (nested dropout),
    arXiv:1402.0915.

    Called with the fields of ``OfflineInputs``: a ``ContextCompressor``, and a ``SFTDataset`` whose rows have a text in the column
    ``context``.
    """

    name = "compressor"
    config_class = CompressorConfig
    model_kind = "compressor"

    @override
    def prepare(self) -> None:
        """Contexts as tokens behind BOS, and the order of rows."""
        self.train_data = self._with_contexts(self.train_data)
        if self.eval_data:
            self.eval_data = self._with_contexts(self.eval_data)
        super().prepare()
        choice = self.model.choice or self.model.choose_path(self.rows.take(0)[:ROWS_FOR_PATH])
        if choice.path == "logits":
            raise ModelError(
                f"A context compressor needs hidden states and an output projection, and this family only has its own forward: "
                f"{choice.reason}. Take another model."
            )

    @override
    def modules(self) -> Sequence[TrainedModule]:
        """What the compressor learns."""
        return [TrainedModule(self.name, self.model, self.config.learning_rate)]

    @override
    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """With the lengths of contexts."""
        return pack(groups, columns={CONTEXT_TOKENS: torch.tensor([g.columns[CONTEXT_TOKENS] for g in groups])})

    @override
    def steps(self, phase: int, experience: RowsOfStep) -> Iterator[list[PackedBatch]]:
        """One step, in micro-batches; how many vectors a row is answered from is drawn by its id and the phase."""
        for batches in super().steps(phase, experience):
            yield [self._with_counts(batch, phase) for batch in batches] if self.config.nested else batches

    @override
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Token mean of both terms."""
        batch = batch.to(self.model.device)
        scores = self._answered(batch)
        nll = nll_loss(scores.logprobs)
        frac = self.config.distill_frac
        losses = (1 - frac) * nll
        if frac:
            divergence = self._divergence(scores, batch)
            losses = losses + frac * divergence
            metrics.mean("compressor/divergence", divergence)
        metrics.mean("loss/train", losses)
        metrics.mean("loss/nll", nll)
        return token_mean(losses, num_tokens=totals.num_tokens)

    @override
    def measure(self, batch: PackedBatch, metrics: Metrics) -> None:
        """Nats per token of answers from vectors and from whole contexts, and how far apart both are."""
        batch = batch.to(self.model.device)
        scores = self._answered(batch)
        metrics.mean("eval/loss", nll_loss(scores.logprobs))
        metrics.mean("eval/full_loss", nll_loss(self.model.reader.score(batch).logprobs))
        metrics.mean("eval/divergence", self._divergence(scores, batch))

    @override
    def headline(self, metrics: Mapping[str, float]) -> str:
        """Likelihood from vectors."""
        return describe(metrics, {"loss/nll": "loss"})

    def _answered(self, batch: PackedBatch) -> TokenScores:
        vectors: Sequence[Tensor] = list(self.model.encode(contexts_of(batch, self.model.bos)))
        if NUM_VECTORS in batch.columns:
            counts = batch.columns[NUM_VECTORS].tolist()
            vectors = [own[:count] for own, count in zip(vectors, counts, strict=True)]
        return self.model.score(vectors, batch, with_hidden=True)

    def _with_counts(self, batch: PackedBatch, phase: int) -> PackedBatch:
        sizes = nested_sizes(self.model.num_vectors)
        draws = [random.Random(derive_seed(self.config.seed, self.name, "vectors", phase, name)) for name in batch.ids]
        return batch.with_columns(**{NUM_VECTORS: torch.tensor([draw.choice(sizes) for draw in draws])})

    def _divergence(self, scores: TokenScores, batch: PackedBatch) -> Tensor:
        reader = self.model.reader
        return teacher_divergence(reader, reader, batch, beta=0.0, hidden=scores.hidden)

    def _with_contexts(self, data: Any) -> list[Group]:
        groups = list(data)
        for group in groups:
            if not isinstance(group.columns.get("context"), str):
                raise DataError(
                    f"Row {group.columns.get('id')!r} has no text in the column `context`; rows of a compressor have `context`, `prompt` "
                    "and `completion`."
                )
        ids = self.model.ids([group.columns["context"] for group in groups])
        limit = self.config.max_context_length
        for group, own in zip(groups, ids, strict=True):
            if limit is not None and len(own) > limit:
                raise DataError(
                    f"The context of row {group.columns.get('id')!r} has {len(own)} tokens; max_context_length is {limit}."
                )
        return [with_context(group, own, self.model.bos) for group, own in zip(groups, ids, strict=True)]


def nested_sizes(num_vectors: int) -> list[int]:
    """Powers of two up to k, and k."""
    return sorted({*(2**power for power in range(num_vectors.bit_length())), num_vectors})


def contexts_of(batch: PackedBatch, bos: int | None) -> list[list[int]]:
    """Token ids of each sequence's context."""
    starts, lengths = (batch.prefix_start + (bos is not None)).tolist(), batch.columns[CONTEXT_TOKENS].tolist()
    return [batch.tokens[start : start + length].tolist() for start, length in zip(starts, lengths, strict=True)]
