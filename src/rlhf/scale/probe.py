"""What a model takes on this machine, measured on a thin copy of it: the same widths with random weights and a few of its layers.

Four points, few and more layers by few and more tokens, are enough for what is linear in both: a call's fixed cost, a layer's, a
token's, and a token's in a layer. The rows have the lengths of the real ones. Seconds are processor seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from peft import TaskType
from torch import Tensor
from torch.profiler import ProfilerActivity
from transformers import AutoModelForCausalLM, LlamaConfig

from rlhf.config.engines import RolloutWeights
from rlhf.config.policy import SamplingConfig
from rlhf.config.training import Autocast, OfflineConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, PackedBatch, pack
from rlhf.models.adapters import DTYPES, adapt
from rlhf.models.paths import choose_path
from rlhf.models.score import ScorePath, backbone_of, base_model, evaluating, hidden_at, score
from rlhf.rollout.local import LocalEngine
from rlhf.scale.costs import Head, Learned
from rlhf.scale.machine import Machine, processor_seconds, resident_bytes
from rlhf.scale.shape import WIDTH, ModelShape
from rlhf.training.optim import Optimizer, TrainedModule, mixed_precision

MORE_LAYERS = 4
REPEATS = 3
SECONDS_PER_PASS = 0.25
"""At the machine's peak; a measured pass is cut to so many tokens, and takes about twice as long."""
MEMORY_SHARE = 0.25
"""Of the machine's memory that thin copies may take."""
SMALLER = 4
"""How many times fewer tokens the smaller point has."""
STEPS = 12
"""Tokens of each row that a sampling probe draws."""
MIN_ROWS = 4


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
    ends = [(float(count), _line([(p.size, p.value) for p in found], size)) for count, found in by_layers.items()]
    return max(0.0, _line(ends, layers))


def _line(points: Sequence[tuple[float, float]], at: float) -> float:
    (x0, y0), (x1, y1) = min(points), max(points)
    return y0 if x1 == x0 else y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def fits_a_probe(shape: ModelShape, machine: Machine) -> bool:
    """Whether thin copies of a model can be trained here in a few seconds."""
    layer = shape.num_body / shape.num_layers
    numbers = shape.num_embeddings + shape.num_head + 2 * layer
    in_memory = 4 * numbers * WIDTH["float32"] < MEMORY_SHARE * machine.memory_bytes
    return in_memory and 6 * numbers * 64 / machine.flops("float32") < 4 * SECONDS_PER_PASS


class Probe:
    """See ``rlhf.scale.costs.Costs``; measures what it is asked, once.

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
        self.layers = sorted({1, min(shape.num_layers, more)}) if shape.num_layers > 1 else [1]
        self.batches = self._choose_batches(groups, tokens)

    def learn(self, tokens: float) -> Learned:
        """See ``Costs``."""
        found = self._learned
        return Learned(*(self._extended(list(points), tokens) for points in zip(*found, strict=True)))

    def read(self, tokens: float) -> float:
        """See ``Costs``."""
        return self._extended(self._read, tokens)

    def reading_bytes(self, tokens: float) -> float:
        """See ``Costs``: of one layer, for without a gradient no two are in memory at once; at the real size where that is quick."""
        per_token = 2 * (self.shape.num_body / self.shape.num_layers + self.shape.num_head)
        most = SECONDS_PER_PASS * self.machine.flops("float32") * self.machine.threads / per_token
        model, batch = self._model(1), pack(_up_to(self.rows, min(tokens, most)))
        with torch.no_grad(), evaluating(model):
            self._path(model)
            found = resident_growth(lambda: self._forward(model, batch))
        return found * max(1.0, tokens / batch.num_tokens)

    def optimise(self) -> float:
        """See ``Costs``."""
        return self._extended(self._optimised, 1.0)

    def _extended(self, points: Sequence[Point], size: float) -> float:
        return extended(points, self.shape.num_layers, size)

    @functools.cached_property
    def _learned(self) -> list[tuple[Point, Point, Point, Point]]:
        """Forward seconds, backward seconds, and both peaks, at each point."""
        found = []
        for layers in self.layers:
            model = self._model(layers)
            for batches in self.batches:
                numbers, size = self._measure_learning(model, batches), _mean_tokens(batches)
                found.append(cast(Any, tuple(Point(layers, size, number) for number in numbers)))
        return found

    @functools.cached_property
    def _read(self) -> list[Point]:
        """Seconds without gradient, at each point."""
        found = []
        for layers in self.layers:
            model = self._model(layers)
            for batches in self.batches:
                seconds = []
                with torch.no_grad(), evaluating(model):
                    for batch in batches:
                        began = time.process_time()
                        self._forward(model, batch)
                        seconds.append(time.process_time() - began)
                found.append(Point(layers, _mean_tokens(batches), statistics.median(seconds[1:])))
        return found

    @functools.cached_property
    def _optimised(self) -> list[Point]:
        found = []
        for layers in self.layers:
            model = self._model(layers)
            optimizer = Optimizer([TrainedModule("probe", model, 1e-9)], OfflineConfig(), total_steps=10)

            def step(optimizer: Optimizer = optimizer) -> None:
                for parameter in optimizer.parameters:
                    parameter.grad = parameter.detach()
                optimizer.step(0)

            found.append(Point(layers, 1.0, processor_seconds(step)))
        return found

    def _measure_learning(self, model: Any, batches: Sequence[PackedBatch]) -> tuple[float, float, float, float]:
        """Seconds forward and back, the middle ones of a few batches; bytes with and without earlier gradients."""
        model.train()
        forward: list[float] = []
        backward: list[float] = []
        for batch in batches:
            began = time.process_time()
            loss = self._forward(model, batch)
            between = time.process_time()
            loss.backward()
            backward.append(time.process_time() - between)
            forward.append(between - began)
            model.zero_grad(set_to_none=True)
        first = peak_bytes(lambda: self._forward(model, batches[0]).backward())
        gradients = sum(p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None)
        again = peak_bytes(lambda: self._forward(model, batches[0]).backward()) + gradients
        model.zero_grad(set_to_none=True)
        return statistics.median(forward[1:]), statistics.median(backward[1:]), float(first), float(again)

    def _forward(self, model: Any, batch: PackedBatch) -> Tensor:
        """A number that depends on everything a loss would."""
        fresh = replace(batch, derived={})  # the layout of a real batch is built anew each step
        with mixed_precision(self.autocast, torch.device("cpu")):
            if self.head == "logprobs":
                found = score(model, fresh, path=self._path(model), **self.options)  # type: ignore[arg-type]
                return found.logprobs.sum()
            base = base_model(model)
            path = self._path(model)
            sequences = torch.arange(fresh.num_sequences)
            hidden = hidden_at(
                backbone_of(base), fresh, fresh.last, sequences, path="padded" if path == "logits" else path
            )
            return hidden.float().mean(-1).sum()

    def _path(self, model: Any) -> ScorePath:
        if not hasattr(model, "_probe_path"):
            model._probe_path = choose_path(model, self.rows[:2]).path
        found: ScorePath = model._probe_path
        return found

    def _model(self, layers: int) -> Any:
        """A thin copy, made anew each time it is needed: it is quick, and two at once would take more memory."""
        settings = self.shape.settings
        with torch.random.fork_rng():
            model = AutoModelForCausalLM.from_config(self.shape.cut(layers), dtype=DTYPES[settings.dtype])
            plain = settings.lora.updated(quantize_4bit=False) if settings.lora is not None else None
            return adapt(model, settings.updated(compile=False, lora=plain), task=TaskType.CAUSAL_LM, seed=0)

    def _choose_batches(self, groups: Sequence[Group], tokens: float) -> list[list[PackedBatch]]:
        """A few batches of other rows each, of two sizes: a micro-batch's where that is quick, and a part of it."""
        layer = self.shape.num_body / self.shape.num_layers
        per_token = 6 * (layer * self.layers[-1] + self.shape.num_head)
        most = min(tokens, SECONDS_PER_PASS * self.machine.flops("float32") * self.machine.threads / per_token)
        self.rows = list(groups)
        large = self._batches_of(groups, most)
        small = self._batches_of(groups, _mean_tokens(large) / SMALLER)
        return [small, large] if _mean_tokens(small) < _mean_tokens(large) else [large]

    def _batches_of(self, groups: Sequence[Group], tokens: float) -> list[PackedBatch]:
        """Batches of about so many tokens, one for each repeat: a run meets other lengths in each step, too."""
        found, first = [], 0
        for _ in range(1 + REPEATS):
            rows = _up_to([*groups[first:], *groups[:first]], tokens)
            found.append(pack(rows))
            first = (first + len(rows)) % len(groups)
        return found


class SamplingProbe:
    """Seconds of sampling from a model, measured with the rollout engine on thin copies.

    Args:
        shape: Of the model.
        prompts: As they will come.
        group_size: Completions of each.
        machine: This one.
        autocast: Type of the matrix products.
        sampling: How completions are drawn.
        weights: What the engine multiplies with.
    """

    def __init__(
        self,
        shape: ModelShape,
        prompts: Sequence[Prompt],
        group_size: int,
        machine: Machine,
        *,
        autocast: Autocast,
        sampling: SamplingConfig,
        weights: RolloutWeights = "same",
    ) -> None:
        self.inner = Probe(
            shape, [_as_group(p) for p in prompts], machine, autocast=autocast, head="logprobs", tokens=1
        )
        self.prompts, self.group_size = list(prompts), group_size
        self.autocast, self.sampling, self.weights = autocast, sampling, weights

    def decode(self, prompt_tokens: float, num_prompts: int, lengths: Sequence[int]) -> tuple[float, float]:
        """See ``SamplingCosts``."""
        rows = len(lengths)
        steps, begins = self._measured(rows)
        layers = self.inner.shape.num_layers
        decoding = 0.0
        for place in range(1, max(lengths)):
            alive = sum(length > place for length in lengths)
            decoding += extended(steps, layers, max(alive, 1))
        return extended(begins, layers, rows), decoding

    def sampling_bytes(self, prompts: Sequence[int], rows: int) -> float:
        """See ``SamplingCosts``: one layer, one token of each row."""
        model = self.inner._model(1)
        policy = _Sampled(model, self.inner._path(model))
        return float(resident_growth(self._work(policy, rows, 1)))

    def _measured(self, rows: int) -> tuple[list[Point], list[Point]]:
        """Seconds of one step of so many rows, and of all that comes before the second token."""
        steps, begins = [], []
        sizes = sorted({min(MIN_ROWS, rows), rows})
        for layers in self.inner.layers:
            model = self.inner._model(layers)
            policy = _Sampled(model, self.inner._path(model))
            for size in sizes:
                first, last = (self._seconds(policy, size, tokens) for tokens in (1, 1 + STEPS))
                steps.append(Point(layers, size, max(0.0, last - first) / STEPS))
                begins.append(Point(layers, size, first))
        return steps, begins

    def _seconds(self, policy: _Sampled, rows: int, tokens: int) -> float:
        return processor_seconds(self._work(policy, rows, tokens))

    def _work(self, policy: _Sampled, rows: int, tokens: int) -> Callable[[], object]:
        count = max(1, rows // self.group_size)
        samples = max(1, rows // count)
        prompts = [Prompt(str(place), self.prompts[place % len(self.prompts)].ids, "") for place in range(count)]
        sampling = self.sampling.updated(max_new_tokens=tokens, stop=[])
        engine = LocalEngine(policy, autocast=self.autocast, weights=self.weights)
        return lambda: engine.generate(prompts, num_samples=samples, sampling=sampling, seed=0, step=0)


class _Sampled:
    """A thin copy as an engine takes it; nothing it says ends before its time, and nobody reads it."""

    def __init__(self, model: Any, path: ScorePath) -> None:
        self.model = model.eval()
        self.tokenizer: Any = _Silent()
        self.path: ScorePath | None = path
        beyond = int(base_model(model).config.get_text_config().vocab_size)
        base_model(model).config.get_text_config().eos_token_id = beyond
        if getattr(base_model(model), "generation_config", None) is not None:
            base_model(model).generation_config.eos_token_id = beyond

    def choose_path(self, groups: Sequence[Group]) -> object:
        """Known already."""
        return self.path

    def fingerprint(self) -> str:
        """Nobody asks."""
        return ""


class _Silent:
    """In the place of a tokenizer."""

    eos_token_id = None

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        """Nothing."""
        return ""

    def batch_decode(self, rows: Sequence[Sequence[int]], **_: Any) -> list[str]:
        """Nothing, of each."""
        return [""] * len(rows)


def warm_up() -> None:
    """Learn one step with next to nothing: what torch loads when it is first used is in memory from then on."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        model = AutoModelForCausalLM.from_config(config)
    batch = pack([Group([1, 2], [Branch([3, 4])]), Group([1], [Branch([5]), Branch([3, 4, 5])])])
    optimizer = Optimizer([TrainedModule("warm", model, 1e-9)], OfflineConfig(), total_steps=2)
    optimizer.backward(
        score(model, batch, path=choose_path(model, [Group([1, 2], [Branch([3, 4])])]).path).logprobs.sum()
    )
    optimizer.step(0)


def resident_growth(work: Callable[[], object]) -> int:
    """Bytes by which this process grows at most while this works: what allocators waste is in it, other than in ``peak_bytes``.

    Where the system does not tell, what ``peak_bytes`` finds.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # else what was freed before is used again, and nothing grows
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # VmHWM begins anew
        before = resident_bytes()
        work()
        return max(0, resident_bytes("VmHWM") - before)
    return peak_bytes(work)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory of tensors that is alive at once while this works, above what was alive before."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    results: Any = profile.profiler.kineto_results
    events = sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns())
    alive = highest = 0
    for event in events:
        alive += event.nbytes()
        highest = max(highest, alive)
    return highest


def _up_to(groups: Sequence[Group], tokens: float) -> list[Group]:
    """Rows of about so many distinct tokens together, at least one; taken over from the beginning where there are too few."""
    found: list[Group] = []
    total = 0
    while not found or total + groups[len(found) % len(groups)].num_tokens <= tokens:
        found.append(groups[len(found) % len(groups)])
        total += found[-1].num_tokens
    return found


def _mean_tokens(batches: Sequence[PackedBatch]) -> float:
    return sum(batch.num_tokens for batch in batches) / len(batches)


def _as_group(prompt: Prompt) -> Group:
    return Group(prompt.ids, [Branch(prompt.ids[-1:])])
