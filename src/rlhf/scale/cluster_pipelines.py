"""Rollouts on a cluster: room and seconds of engines, and what pipelines make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlhf.scale import memory
from rlhf.scale.clusters import Cluster
from rlhf.scale.costs import KERNELS_PER_LAYER, LAUNCH_SECONDS
from rlhf.scale.engine_speed import STEP_SECONDS, EngineSpeed, Row, dealt, published_speed, rollout_seconds
from rlhf.scale.layout_seconds import group_lengths
from rlhf.scale.layouts import Layout, Models, sampling_memory
from rlhf.scale.pipelines import Kind, PipelineResult, PipelineSpec, simulate
from rlhf.scale.plan import StageFacts
from rlhf.scale.sampled_lengths import SampledLengths
from rlhf.scale.shape import WIDTH, ModelShape
from rlhf.seeds import derive_seed

PIPELINES: tuple[tuple[Kind, int], ...] = (("one-step-off", 1), ("asynchronous", 1), ("asynchronous", 4))
"""Compared for every stage that samples; the staleness that its recipe asks for is another one."""
PHASES = 8
"""Phases that are simulated after a pipeline's start."""
SHARES = (0.25, 0.5, 0.75)
"""Of the accelerators that sample, where sampling and learning have their own."""
LEAST_CONCURRENT_ROWS = 64
"""Rows that an engine must have room for side by side, or all that it is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPipeline:
    """A pipeline on a cluster."""

    result: PipelineResult
    num_sampling: int
    """Accelerators that only sample; 0 where all do everything in turns."""
    num_training: int
    seconds_per_step: float
    """Of an optimizer step."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "mean_staleness": self.result.mean_staleness}


class Sampling:
    """What a stage samples, on engines of some size.

    Args:
        facts: What the stage does.
        shape: Of the policy.
        cluster: Where.
        stage: Its settings.
        sampled: Lengths of completions of a file, whose groups a simulation draws.
    """

    def __init__(
        self, facts: StageFacts, shape: ModelShape, cluster: Cluster, stage: Any, sampled: SampledLengths | None
    ) -> None:
        self.facts, self.shape, self.cluster, self.stage = facts, shape, cluster, stage
        self.sampled = sampled or SampledLengths("the plan", group_lengths(facts.groups))
        self.groups = group_lengths(facts.groups)
        rows = [prompt + length for prompt, lengths in self.groups for length in lengths]
        self.num_rows, self.row_tokens, self.longest_row = len(rows), sum(rows), max(rows)
        self.width = float(WIDTH[stage.model.dtype if stage.autocast == "none" else stage.autocast])
        self.per_token = shape.cached_numbers_per_token * self.width
        self._known: dict[tuple[object, ...], float] = {}

    def memory(self, models: Models, layout: Layout, components: Mapping[str, float]) -> tuple[dict[str, float], bool]:
        """Bytes of one accelerator while completions are sampled, and whether an engine has room for a few of them."""
        engines = layout.num_gpus // layout.engine_size
        asked = max(1, -(-self.num_rows // engines))
        mean = self.row_tokens / self.num_rows
        lowered = memory.sampling_copy_bytes(self.shape, getattr(self.stage.engine, "weights", "same"))
        empty = sampling_memory(models, layout, components, cached_bytes=0.0, lowered=lowered)
        free = (self.cluster.machine.memory_bytes - sum(empty.values())) * layout.engine_size
        least = max(self.longest_row, min(asked, LEAST_CONCURRENT_ROWS) * mean) * self.per_token
        cached = max(least, min(asked * mean * self.per_token, free))
        return sampling_memory(models, layout, components, cached_bytes=cached, lowered=lowered), free >= least

    def speed(self, layout: Layout, components: Mapping[str, float]) -> EngineSpeed:
        """Of one engine; ``components`` is what an accelerator holds while it samples."""
        others = sum(
            size
            for name, size in components.items()
            if name not in ("KV cache", "rollout engine", "activations", "gradients", "logits tiles")
        )
        own = self.shape.num_layers * KERNELS_PER_LAYER * LAUNCH_SECONDS
        speed = published_speed(
            self.shape, self.cluster.machine, tensor_size=layout.engine_size, weight_width=self.width,
            taken_bytes=others, per_step=own if layout.placement == "ranks" else STEP_SECONDS,
        )  # fmt: skip
        return replace(speed, max_tokens=min(float(self.row_tokens), max(speed.max_tokens, float(self.longest_row))))

    def seconds(self, layout: Layout, components: Mapping[str, float]) -> float:
        """Of one rollout, until the last engine has ended."""
        speed, engines = self.speed(layout, components), layout.num_gpus // layout.engine_size
        key = (speed, engines)
        if key not in self._known:
            groups = [
                [Row(number, prompt, length) for length in lengths]
                for number, (prompt, lengths) in enumerate(self.groups)
            ]
            self._known[key] = max(rollout_seconds(speed, rows) for rows in dealt(groups, engines) if rows)
        return self._known[key]

    def batches(self, count: int) -> list[list[list[Row]]]:
        """Rollouts to simulate."""
        stage = self.stage
        return self.sampled.batches(
            count, groups=stage.prompts_per_rollout, group_size=stage.group_size, longest=stage.sampling.max_new_tokens,
            seed=derive_seed(0, "plan", "pipelines"),
        )  # fmt: skip


def pipelines_of(
    sampling: Sampling,
    layout: Layout,
    work_on: Callable[[Layout], tuple[dict[str, float], dict[str, float], float]],
    fits: Callable[[Layout], bool],
) -> list[PlannedPipeline]:
    """Pipelines on the accelerators of a layout: in turns on all of them, and with some of them for sampling alone, each with the share of
    them that is fastest.

    Args:
        sampling: What is sampled.
        layout: How the stage is spread in turns.
        work_on: Seconds of a phase of a layout, see ``rlhf.scale.cluster_plan``.
        fits: Whether a layout's memory is enough for a trainer.
    """
    pipelines = [_simulated(sampling, "synchronous", 0, layout, layout.num_gpus, work_on)]
    asked: tuple[Kind, int] = ("asynchronous", sampling.stage.max_staleness)
    more = () if asked[1] < 2 or asked in PIPELINES else (asked,)
    for kind, staleness in (*PIPELINES, *more):
        tried = []
        for share in SHARES:
            num_sampling = round(layout.num_gpus * share / layout.engine_size) * layout.engine_size
            num_training = layout.num_gpus - num_sampling
            trainer = _trainer(layout, num_training)
            if 0 < num_sampling < layout.num_gpus and trainer is not None and fits(trainer):
                tried.append(_simulated(sampling, kind, staleness, trainer, num_sampling, work_on))
        if tried:
            pipelines.append(min(tried, key=lambda each: each.seconds_per_step))
    return pipelines


def _trainer(layout: Layout, num_gpus: int) -> Layout | None:
    """The layout of those that learn only; None where tensor parallelism does not divide them."""
    if num_gpus % layout.tensor_size:
        return None
    sharding = layout.sharding if num_gpus > layout.tensor_size else "replicated"
    return replace(layout, num_gpus=num_gpus, sharding=sharding)


def _simulated(
    sampling: Sampling,
    kind: Kind,
    staleness: int,
    trainer: Layout,
    num_sampling: int,
    work_on: Callable[[Layout], tuple[dict[str, float], dict[str, float], float]],
) -> PlannedPipeline:
    learning, reading, push = work_on(trainer)
    mean = sum(prompt + sum(lengths) for prompt, lengths in sampling.groups)
    spec = PipelineSpec(
        kind=kind,
        max_staleness=staleness,
        num_engines=max(1, num_sampling // trainer.engine_size),
        speed=sampling.speed(trainer, {}),
        score_seconds=lambda tokens: sum(reading.values()) * tokens / mean,
        learn_seconds=lambda tokens: sum(learning.values()) * tokens / mean,
        push_seconds=push,
    )
    result = simulate(spec, sampling.batches(staleness + 1 + PHASES))
    separate = kind != "synchronous"
    return PlannedPipeline(
        result=result,
        num_sampling=num_sampling if separate else 0,
        num_training=trainer.num_gpus,
        seconds_per_step=result.seconds_per_phase / sampling.facts.work.steps,
    )
