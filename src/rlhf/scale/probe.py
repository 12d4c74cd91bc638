"""Costs of a model on this machine, measured on a thin copy: the same widths with random weights, and all of its layers if
these are few.

Of a deeper model, four points, few and more layers by few and more tokens, are enough for what is linear in both: a call's fixed
cost, a layer's, a token's, and a token's in a layer. The rows have the lengths of the real ones. Seconds are processor seconds.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from peft import TaskType
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlhf.config.training import Autocast, OfflineConfig
from rlhf.data.pack import Group, PackedBatch, pack
from rlhf.models.adapters import DTYPES, adapt
from rlhf.models.paths import choose_path
from rlhf.models.score import ScorePath, backbone_of, base_model, evaluating, hidden_at, score
from rlhf.models.vocabulary_tiles import KEPT_BYTES
from rlhf.scale.costs import Head, Learned
from rlhf.scale.heap import peak_bytes, resident_growth, used_bytes
from rlhf.scale.machine import Machine, processor_seconds
from rlhf.scale.shape import WIDTH, ModelShape
from rlhf.training.optim import Optimizer, TrainedModule, mixed_precision

MORE_LAYERS = 4
REPEATS = 3
SECONDS_PER_PASS = 0.5
"""At the machine's peak; a measured pass is cut to so many tokens, and takes about twice as long."""
MEMORY_SHARE = 0.25
"""Of the machine's memory that thin copies may take."""
SMALLER = 4
"""How many times fewer tokens the smaller point has."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement."""

    layers: int
    size: float
    """Tokens, or rows."""
    value: float


def extended(points: Sequence[Point], layers: float, size: float) -> float:
    """The bilinear function through four points (or the line through two, or the one), at other layers and sizes.

    Args:
        points: All pairs of one or two numbers of layers and one or two sizes.
        layers: Where.
        size: Where.

    Returns:
        At least 0.
    """
    by_layers: dict[int, list[Point]] = {}
    for point in points:
        by_layers.setdefault(point.layers, []).append(point)
    ends = [(float(count), _line([(p.size, p.value) for p in points], size)) for count, points in by_layers.items()]
    return max(0.0, _line(ends, layers))


def _line(points: Sequence[tuple[float, float]], at: float) -> float:
    (x0, y0), (x1, y1) = min(points), max(points)
    return y0 if x1 == x0 else y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def fits_a_probe(shape: ModelShape, machine: Machine) -> bool:
    """Whether thin copies of a model can be trained here in a few seconds."""
    layer = shape.num_body / shape.num_layers
    numbers = shape.num_embeddings + shape.num_head + 2 * layer
    in_memory = 4 * numbers * WIDTH["float32"] < MEMORY_SHARE * machine.memory_bytes
    return in_memory and 6 * numbers * 64 / machine.flops("float32") < 2 * SECONDS_PER_PASS


class Probe:
    """See ``rlhf.scale.costs.Costs``; measures each requested value once.

    Args:
        shape: Of the model.
        groups: Rows as they will come.
        machine: This one.
        autocast: Type of the matrix products.
        head: Whether the rows' tokens are scored, or the rows by one number each.
        tokens: Distinct tokens of a micro-batch, about.
        temperature: Of scoring; another than 1 costs a pass over the logits.
        with_entropy: Whether the entropy is asked for with each score.
    """

    def __init__(
        self,
        shape: ModelShape,
        groups: Sequence[Group],
        machine: Machine,
        *,
        autocast: Autocast,
        head: Head,
        tokens: float,
        temperature: float = 1.0,
        with_entropy: bool = False,
    ) -> None:
        self.shape, self.machine = shape, machine
        self.autocast, self.head = autocast, head
        self.options = {"temperature": temperature, "with_entropy": with_entropy}
        more = MORE_LAYERS if shape.num_body / shape.num_layers * MORE_LAYERS < 1e8 else 2
        self.layers = [shape.num_layers] if shape.num_layers <= more else [1, more]
        self.batches = self._choose_batches(groups, tokens)

    def learn(self, tokens: float) -> Learned:
        """A micro-batch of so many distinct tokens, packed, forward and back."""
        points = [(layers, size, astuple(costs)) for layers, size, costs in self._learned]
        columns = range(len(points[0][2]))
        learned = Learned(*(self._extended([Point(n, size, of[i]) for n, size, of in points], tokens) for i in columns))
        # layers of one width share their kernels, and a kernel is no larger for more tokens
        return replace(learned, kept_bytes=max(one.kept_bytes for _, _, one in self._learned))

    def read(self, tokens: float) -> float:
        """Seconds of packing a batch and of a forward pass without gradient."""
        return self._extended(self._read, tokens)

    def reading_bytes(self, tokens: float) -> float:
        """What such a pass takes above the weights, at its highest. Of one layer, for without a gradient no two are in memory at once;
        at the real size where that is quick."""
        per_token = 2 * (self.shape.num_body / self.shape.num_layers + self.shape.num_head)
        most = SECONDS_PER_PASS * self.machine.flops("float32") * self.machine.threads / per_token
        model, batch = self.thin_copy(1), pack(_up_to(self.rows, min(tokens, most)))
        with torch.no_grad(), evaluating(model):
            self.path_of(model)
            growth = resident_growth(lambda: self._forward(model, batch))
        return growth * max(1.0, tokens / batch.num_tokens)

    def optimize(self) -> float:
        """Seconds of clipping and of one step of AdamW."""
        return self._extended(self._optimized, 1.0)

    def _extended(self, points: Sequence[Point], size: float) -> float:
        return extended(points, self.shape.num_layers, size)

    @functools.cached_property
    def _learned(self) -> list[tuple[int, float, Learned]]:
        """Layers, tokens, and what was found there."""
        measured = []
        for layers in self.layers:
            model = self.thin_copy(layers)
            measured += [(layers, _mean_tokens(rows), self._measure_learning(model, rows)) for rows in self.batches]
        return measured

    @functools.cached_property
    def _read(self) -> list[Point]:
        """Seconds of packing and of a pass without gradient, at each point."""
        points = []
        for layers in self.layers:
            model = self.thin_copy(layers)
            for batches in self.batches:
                seconds = []
                with torch.no_grad(), evaluating(model):
                    for rows in batches:
                        began = time.process_time()
                        self._forward(model, pack(rows))
                        seconds.append(time.process_time() - began)
                points.append(Point(layers, _mean_tokens(batches), _middle(seconds, batches)))
        return points

    @functools.cached_property
    def _optimized(self) -> list[Point]:
        points = []
        for layers in self.layers:
            model = self.thin_copy(layers)
            optimizer = Optimizer([TrainedModule("probe", model, 1e-9)], OfflineConfig(), total_steps=10)

            def step(optimizer: Optimizer = optimizer) -> None:
                for parameter in optimizer.parameters:
                    parameter.grad = parameter.detach()
                optimizer.step(0)

            points.append(Point(layers, 1.0, processor_seconds(step)))
        return points

    def _measure_learning(self, model: Any, batches: Sequence[Sequence[Group]]) -> Learned:
        """Seconds of packing, forward and back, the middle ones of a few batches; bytes with and without earlier gradients."""
        model.train()
        spent: list[tuple[float, ...]] = []
        used = 0
        for rows in batches:
            clocks = [time.process_time()]
            batch = pack(rows)
            clocks.append(time.process_time())
            loss = self._forward(model, batch)
            clocks.append(time.process_time())
            loss.backward()
            clocks.append(time.process_time())
            spent.append(tuple(after - before for before, after in pairwise(clocks)))
            del loss, batch
            model.zero_grad(set_to_none=True)
            used = used if len(spent) > 1 else used_bytes()  # the first pass makes what all passes share
        kept = max(0, used_bytes() - used) / REPEATS
        packing, forward, backward = (_middle(seconds, batches) for seconds in zip(*spent, strict=True))
        batch = pack(batches[0])
        first = peak_bytes(lambda: self._forward(model, batch).backward())
        gradients = sum(p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None)
        batch = pack(batches[0])
        again = peak_bytes(lambda: self._forward(model, batch).backward()) + gradients
        model.zero_grad(set_to_none=True)
        return Learned(packing, forward, backward, float(first), float(again), kept)

    def _forward(self, model: Any, batch: PackedBatch) -> Tensor:
        """A number that depends on everything a loss would."""
        with mixed_precision(self.autocast, torch.device("cpu")):
            if self.head == "logprobs":
                scores = score(model, batch, path=self.path_of(model), **self.options)  # type: ignore[arg-type]
                return scores.logprobs.sum()
            base = base_model(model)
            path = self.path_of(model)
            sequences = torch.arange(batch.num_sequences)
            hidden = hidden_at(
                backbone_of(base), batch, batch.last, sequences, path="padded" if path == "logits" else path
            )
            return hidden.float().mean(-1).sum()

    def path_of(self, model: Any) -> ScorePath:
        if not hasattr(model, "_probe_path"):
            model._probe_path = choose_path(model, self.rows[:2]).path
        score_path: ScorePath = model._probe_path
        return score_path

    def thin_copy(self, layers: int) -> Any:
        """A thin copy, remade each time it is needed: this is quick, and two at once would take more memory."""
        settings = self.shape.settings
        with torch.random.fork_rng():
            model = AutoModelForCausalLM.from_config(self.shape.cut(layers), dtype=DTYPES[settings.dtype])
            plain = settings.lora.updated(quantize_4bit=False) if settings.lora is not None else None
            return adapt(model, settings.updated(compile=False, lora=plain), task=TaskType.CAUSAL_LM, seed=0)

    def _choose_batches(self, groups: Sequence[Group], tokens: float) -> list[list[list[Group]]]:
        """A few batches of other rows each, of two sizes: a micro-batch's where that is quick, and a part of it.

        However slow, the larger size has ``SMALLER`` rows: two sizes of a row each are one, and say nothing of what more tokens cost.
        """
        layer = self.shape.num_body / self.shape.num_layers
        per_token = 6 * (layer * self.layers[-1] + self.shape.num_head)
        quick = SECONDS_PER_PASS * self.machine.flops("float32") * self.machine.threads / per_token
        row = sum(group.num_tokens for group in groups) / len(groups)
        self.rows = list(groups)
        large = self._batches_of(groups, min(tokens, max(quick, SMALLER * row, self._bent_at(quick))))
        small = self._batches_of(groups, max(_mean_tokens(large) / SMALLER, min(row, _mean_tokens(large) / 2)))
        return [small, large] if 1.5 * _mean_tokens(small) < _mean_tokens(large) else [large]

    def _bent_at(self, quick: float) -> float:
        """Tokens of a batch whose half is no longer remembered from forward to backward (see ``rlhf.models.vocabulary_tiles``): what more
        tokens cost shows only beyond. 0 where so many take too long.
        """
        if self.head != "logprobs":
            return 0.0
        tokens = 2 * KEPT_BYTES / WIDTH["float32"] / self.shape.vocabulary
        return tokens if tokens < 4 * quick else 0.0

    def _batches_of(self, groups: Sequence[Group], tokens: float) -> list[list[Group]]:
        """Batches of about so many tokens, one for each repeat: a run meets other lengths in each step, too."""
        batches, first = [], 0
        for _ in range(1 + REPEATS):
            rows = _up_to([*groups[first:], *groups[:first]], tokens)
            batches.append(rows)
            first = (first + len(rows)) % len(groups)
        return batches


def _up_to(groups: Sequence[Group], tokens: float) -> list[Group]:
    """Rows of about so many distinct tokens together, at least one; taken over from the beginning where there are too few."""
    rows: list[Group] = []
    total = 0
    while not rows or total + groups[len(rows) % len(groups)].num_tokens <= tokens:
        rows.append(groups[len(rows) % len(groups)])
        total += rows[-1].num_tokens
    return rows


def _mean_tokens(batches: Sequence[Sequence[Group]]) -> float:
    return sum(group.num_tokens for rows in batches for group in rows) / len(batches)


def _middle(seconds: Sequence[float], batches: Sequence[Sequence[Group]]) -> float:
    """Of a batch of the mean size, by the middle rate: batches differ in size, and their middle one is not their mean. The first is
    not counted."""
    rates = [spent / _mean_tokens([rows]) for spent, rows in zip(seconds, batches, strict=True)]
    return statistics.median(rates[1:]) * _mean_tokens(batches)
