"""``rlhf plan --cluster``: for every training stage the layouts that fit a cluster, their seconds and costs, and the cheapest."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from rlhf.config.judge_requests import JudgeRequests
from rlhf.config.rank_limits import refused_of_stage
from rlhf.config.recipe import RecipeConfig
from rlhf.config.stage_inputs import OfflineStage
from rlhf.config.threads import check_threads
from rlhf.scale import memory
from rlhf.scale.cluster_pipelines import PlannedPipeline, Sampling, pipelines_of
from rlhf.scale.clusters import Cluster
from rlhf.scale.costs import Roofline
from rlhf.scale.layout_seconds import CostKey, LayoutSeconds, micro_batch_tokens
from rlhf.scale.layouts import Layout, Models, layout_memory, layouts_for
from rlhf.scale.plan import StageFacts, StagePlanner, stages_to_plan
from rlhf.scale.sampled_lengths import SampledLengths
from rlhf.scale.strategy import FITS

Verdict = Literal["fits", "tight", "constrained"]
"""``fits``: some layout takes at most 70 % of an accelerator's memory, and only such ones are compared; ``tight``: more, and all of it at most;
``constrained``: no layout fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan:
    """A layout of a stage."""

    layout: Layout
    memory: dict[str, float]
    """Bytes of one accelerator by component, at the highest moment."""
    memory_frac: float
    """Of the accelerator's memory, or of its host's where that is fuller."""
    host_bytes: float
    """Of a node's memory, for optimizer state; 0 where it stays on the accelerators."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By activity, per optimizer step; communication is what computing does not hide."""
    run_seconds: float | None = None
    """Of the whole run; None where the number of steps is not known."""
    settings: list[str] = field(default_factory=list)
    """KEY=VALUE, inside the stage."""
    gpu_hours: float | None = None
    cost: float | None = None
    """None without a price."""
    refused: list[str] = field(default_factory=list)
    """What of the stage's settings such ranks, or DeepSpeed, refuse."""

    @property
    def needs(self) -> list[str]:
        """What this version does not have and the layout takes for this stage."""
        return [*self.layout.needs, *self.refused]

    @property
    def seconds_per_step(self) -> float:
        """All activities."""
        return sum(self.seconds.values())

    @property
    def gpu_seconds_per_step(self) -> float:
        """By which layouts are compared: the price of an hour is the same for each accelerator of a cluster."""
        return self.seconds_per_step * self.layout.num_gpus

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **asdict(self),
            "says": str(self.layout),
            "needs": self.needs,
            "memory_bytes": sum(self.memory.values()),
            "seconds_per_step": self.seconds_per_step,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStagePlan:
    """What a stage will need on a cluster."""

    name: str
    kind: str
    num_parameters: int
    num_trainable: int
    steps: int | None
    steps_per_phase: float
    lengths: str
    verdict: Verdict
    cheapest: LayoutPlan
    """Of all that fit; where none does, the one that is nearest to it."""
    cheapest_now: LayoutPlan | None
    """Of those that this version can run; None where none of them fits. It may be tight where others fit."""
    fastest: LayoutPlan
    others: list[LayoutPlan]
    """The cheapest of other numbers of accelerators."""
    pipelines: list[PlannedPipeline] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    judges: list[JudgeRequests] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        plans = {"cheapest": self.cheapest, "cheapest_now": self.cheapest_now, "fastest": self.fastest}
        return {
            **asdict(self),
            **{name: None if plan is None else plan.as_dict() for name, plan in plans.items()},
            "others": [plan.as_dict() for plan in self.others],
            "pipelines": [pipeline.as_dict() for pipeline in self.pipelines],
            "judges": [judge.as_dict() for judge in self.judges],
        }


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The plan of a recipe on a cluster."""

    cluster: Cluster
    stages: list[ClusterStagePlan]

    @property
    def cost(self) -> float | None:
        """Of all stages, each in its cheapest layout; None without a price, or where a stage's steps are not known or nothing fits."""
        costs = [stage.cheapest.cost if stage.verdict != "constrained" else None for stage in self.stages]
        return None if any(cost is None for cost in costs) else sum(cost for cost in costs if cost is not None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        cluster = {**asdict(self.cluster), "name": self.cluster.name}
        return {"cluster": cluster, "cost": self.cost, "stages": [stage.as_dict() for stage in self.stages]}


def plan_on_cluster(
    recipe: RecipeConfig, cluster: Cluster, *, only: str | None = None, sampled: SampledLengths | None = None
) -> ClusterPlan:
    """Plan every training stage.

    Args:
        recipe: What would be run.
        cluster: Where.
        only: Plan this stage alone.
        sampled: Lengths of completions, in place of those that the recipe's data lets expect.

    Raises:
        ConfigError: No stage trains, or the one named does not.
        ModelError: A model is not there.
    """
    check_threads(recipe.threads)
    chosen = stages_to_plan(recipe, only)
    planners = [_ClusterPlanner(recipe, name, stage, cluster, sampled) for name, stage in chosen.items()]
    return ClusterPlan(cluster, [planner.plan() for planner in planners])


class _ClusterPlanner:
    """One stage."""

    def __init__(
        self, recipe: RecipeConfig, name: str, stage: Any, cluster: Cluster, sampled: SampledLengths | None
    ) -> None:
        self.inner = StagePlanner(recipe, name, stage, cluster.machine, float(memory.GPU_CONTEXT), sampled)
        self.name, self.stage, self.cluster, self.sampled = name, stage, cluster, sampled
        self.facts: StageFacts = self.inner.facts()
        self.shapes = self.inner.shapes
        self.models = self._models()
        self.costs: dict[CostKey, Roofline] = {}
        self.sampling = (
            None
            if self.facts.sampling is None
            else Sampling(self.facts, self.shapes["policy"], cluster, stage, sampled)
        )

    def plan(self) -> ClusterStagePlan:
        tried = [plan for size in self.cluster.part_sizes for plan in self._tried(size)]
        easy_ones = {plan.layout for plan in tried if plan.memory_frac <= FITS}
        fitting = [plan for plan in tried if plan.memory_frac <= 1]
        # what fits as it is needs no memory of the host
        timed = [
            self._timed(plan)
            for plan in fitting
            if not plan.layout.offload or replace(plan.layout, offload=False) not in easy_ones
        ]
        if not timed:
            nearest = self._timed(min(tried, key=lambda plan: plan.memory_frac))
            return self._stage_plan("constrained", nearest, None, nearest, [])
        easy = [plan for plan in timed if plan.memory_frac <= FITS]
        usable = easy or timed
        cheapest = min(usable, key=_price)
        now = [plan for plan in timed if not plan.needs]
        now = [plan for plan in now if plan.memory_frac <= FITS] or now
        fastest = min(usable, key=lambda plan: (plan.seconds_per_step, plan.layout.num_gpus))
        sizes = {plan.layout.num_gpus for plan in usable} - {cheapest.layout.num_gpus}
        others = [min((plan for plan in usable if plan.layout.num_gpus == size), key=_price) for size in sorted(sizes)]
        return self._stage_plan(
            "fits" if easy else "tight", cheapest, min(now, key=_price, default=None), fastest, others
        )

    def _stage_plan(
        self,
        verdict: Verdict,
        cheapest: LayoutPlan,
        now: LayoutPlan | None,
        fastest: LayoutPlan,
        others: list[LayoutPlan],
    ) -> ClusterStagePlan:
        shape, sources = self.shapes["policy"], self.inner.sources
        sources.assume("communication reaches 80 % of the links, and computing hides it where weights are sharded")
        pipelines: list[PlannedPipeline] = []
        if self.sampling is not None:
            if verdict != "constrained":
                pipelines = pipelines_of(self.sampling, fastest.layout, self._work_on, self._fits)
            if cheapest.layout.placement == "service" or fastest.layout.placement == "service":
                sources.assume(
                    "an engine of several GPUs samples with 2 ms for each token besides its products, as vLLM reports"
                )
        return ClusterStagePlan(
            name=self.name,
            kind=self.stage.kind,
            num_parameters=shape.num_parameters,
            num_trainable=shape.num_trainable,
            steps=self.facts.steps,
            steps_per_phase=self.facts.work.steps,
            lengths=self.facts.said,
            verdict=verdict,
            cheapest=cheapest,
            cheapest_now=now,
            fastest=fastest,
            others=others,
            pipelines=pipelines,
            assumed=list(sources.assumed),
            judges=[] if self.sampling is None else self.inner.judges(self.facts.groups),
        )

    def _models(self) -> Models:
        policy, stage = self.shapes["policy"], self.stage
        trained = [self.shapes[whose] for whose in self.facts.work.optimized]
        offline = isinstance(stage, OfflineStage)
        asked = "reference" in self.shapes and (
            not offline or bool(self.facts.work.once) or stage.measures_reference_point
        )
        reference = self.shapes["reference"] if asked and stage.model.lora is None else None
        return Models(
            trained=tuple(trained or [policy]),
            copies=int(getattr(stage, "num_models", 1)),
            reference=reference,
            rewards=tuple(shape for name, shape in self.shapes.items() if name.startswith("reward ")),
            teacher=self.shapes.get("teacher"),
        )

    def _tried(self, num_gpus: int) -> list[LayoutPlan]:
        """All layouts of so many accelerators, with their memory."""
        settings = self.stage.model
        layouts = layouts_for(
            self.cluster, num_gpus, recomputed=settings.gradient_checkpointing is True, adapters=settings.lora is not None,
            samples=self.sampling is not None,
        )  # fmt: skip
        return [self._with_memory(layout) for layout in layouts]

    def _with_memory(self, layout: Layout) -> LayoutPlan:
        components, host = layout_memory(
            self.models, layout, self.cluster, parts=self.facts.parts, tokens=micro_batch_tokens(self.facts, layout),
            scored_share=self.facts.scored_share, stage=self.stage,
        )  # fmt: skip
        host *= min(layout.num_gpus, self.cluster.gpus_per_node)
        room = float(self.cluster.machine.memory_bytes)
        frac = sum(components.values()) / room
        if self.cluster.host_bytes is not None:
            frac = max(frac, host / self.cluster.host_bytes)
        if self.sampling is not None:
            at_rest, has_room = self.sampling.memory(self.models, layout, components)
            if sum(at_rest.values()) > sum(components.values()):
                components = at_rest
            frac = max(frac, sum(at_rest.values()) / room, 0.0 if has_room else 1.01)
        settings = layout.settings(self.cluster)
        if self.sampling is not None and layout.placement == "service" and layout.engine_size > 1:
            engine = at_rest["rollout engine"] + at_rest["KV cache"] + memory.GPU_CONTEXT
            settings.append(f"engine.options.gpu_memory_utilization={math.ceil(100 * engine / room) / 100}")
        return LayoutPlan(layout=layout, memory=components, memory_frac=frac, host_bytes=host, settings=settings)

    def _fits(self, layout: Layout) -> bool:
        """Whether a trainer that does not sample fits."""
        components, _ = layout_memory(
            self.models, layout, self.cluster, parts=self.facts.parts, tokens=micro_batch_tokens(self.facts, layout),
            scored_share=self.facts.scored_share, stage=self.stage,
        )  # fmt: skip
        return sum(components.values()) <= self.cluster.machine.memory_bytes

    def _work_on(self, layout: Layout) -> tuple[dict[str, float], dict[str, float], float]:
        """Seconds of a phase: learning, passes without gradient, giving weights away."""
        costs = self._costs_on(layout)
        return costs.learning(), costs.reading(self.facts.work.read), costs.push()

    def _refused(self, layout: Layout) -> list[str]:
        """What a run in this layout would refuse, or leave undone."""
        if layout.num_ranks == 1:
            return ["DeepSpeed in one process"] if layout.by_deepspeed else []
        stage = self.stage.model_copy(update={"deepspeed": "FILE" if layout.by_deepspeed else None})
        return [f"{setting} over ranks" for setting in refused_of_stage(stage)]

    def _timed(self, plan: LayoutPlan) -> LayoutPlan:
        learning, reading, push = self._work_on(plan.layout)
        phase = dict(learning)
        for name, seconds in reading.items():
            phase[name] = phase.get(name, 0.0) + seconds
        if self.sampling is not None:
            phase["rollout"] = self.facts.work.asked * self.sampling.seconds(plan.layout, plan.memory)
            phase["weights to engines"] = push
        steps = self.facts.work.steps
        by_activity = {name: seconds / steps for name, seconds in phase.items() if seconds > 0}
        first = self._costs_on(plan.layout).reading(self.facts.work.once)
        run = None if self.facts.steps is None else self.facts.steps * sum(by_activity.values()) + sum(first.values())
        hours = None if run is None else run * plan.layout.num_gpus / 3600
        price = self.cluster.price_per_gpu_hour
        cost = None if hours is None or price is None else hours * price
        return replace(
            plan, seconds=by_activity, run_seconds=run, gpu_hours=hours, cost=cost, refused=self._refused(plan.layout)
        )

    def _costs_on(self, layout: Layout) -> LayoutSeconds:
        return LayoutSeconds(self.facts, self.shapes, layout, self.cluster, self.stage, self.costs)


def _price(plan: LayoutPlan) -> tuple[float, int, int]:
    """Cheaper first; of the same price, the one that needs less of what is not there, on fewer accelerators."""
    return (round(plan.gpu_seconds_per_step, 9), len(plan.needs), plan.layout.num_gpus)
