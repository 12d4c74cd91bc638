"""What `rlhf plan --cluster` prints."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf.formatting import bytes_text, percentage, seconds_text
from rlhf.scale.cluster_pipelines import PlannedPipeline
from rlhf.scale.cluster_plan import ClusterPlan, ClusterStagePlan, LayoutPlan
from rlhf.scale.clusters import Cluster

BEST_CASE = (
    "Seconds are a best case, by published figures and assumed shares of them: steps that others have published took 1.5 to 1.8 times as "
    "long with dense models, and longer with mixtures of experts (docs/results/pipelines.md)."
)


def cluster_plan_lines(plan: ClusterPlan) -> list[str]:
    """The plan for a person."""
    lines = [_cluster_line(plan.cluster)]
    for stage in plan.stages:
        lines += ["", *_stage_lines(stage, plan.cluster)]
    cost = plan.cost
    lines += ["", BEST_CASE]
    if cost is not None:
        lines.append(
            f"All stages, each in its cheapest layout: {_few_digits(cost)} {plan.cluster.currency}; evaluations come on top."
        )
    return lines


def _cluster_line(cluster: Cluster) -> str:
    flops = cluster.machine.flops("bfloat16") / 1e12
    words = [
        f"{cluster.name}: {bytes_text(cluster.machine.memory_bytes)} and {flops:,.0f} TFLOP/s bfloat16 each, "
        f"{cluster.machine.copy_bytes_per_second / 1e9:,.0f} GB/s of its memory"
    ]
    if cluster.gpus_per_node > 1:
        words.append(f"{cluster.within_node / 1e9:,.0f} GB/s within a node")
    if cluster.between_nodes is not None:
        words.append(f"{cluster.between_nodes / 1e9:,.1f} GB/s a GPU between nodes")
    if cluster.price_per_gpu_hour is not None:
        words.append(f"{cluster.price_per_gpu_hour:g} {cluster.currency} per GPU and hour")
    return ", ".join(words)


def _stage_lines(stage: ClusterStagePlan, cluster: Cluster) -> Iterator[str]:
    trained = "" if stage.num_trainable == stage.num_parameters else f", {stage.num_trainable:,} of them trained"
    yield f"{stage.name} ({stage.kind}): {stage.num_parameters:,} weights{trained}"
    yield f"  lengths      {stage.lengths}"
    best = stage.cheapest
    if stage.verdict == "constrained":
        yield f"  constrained  nothing fits; the nearest takes {percentage(best.memory_frac, 0)} of a GPU's memory: {best.layout}"
        yield from _memory_lines(best)
    else:
        yield f"  {stage.verdict:<12} cheapest: {_layout_text(best, cluster)}"
        yield from _memory_lines(best)
        spent = sorted(best.seconds.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in spent)
        yield f"  one step     {seconds_text(best.seconds_per_step)}: {parts}"
        now: LayoutPlan | None = best
        if best.needs:
            yield f"  needs        {'; '.join(best.needs)}: advice only, this version does not have it"
            now = stage.cheapest_now
            yield "  now          " + (
                "nothing that this version can run fits" if now is None else _layout_text(now, cluster)
            )
        if now is not None:
            yield from _start_lines(stage.name, now, cluster)
        if stage.fastest.layout != best.layout:
            yield f"  fastest      {_layout_text(stage.fastest, cluster)}{_advice(stage.fastest)}"
        for other in stage.others:
            if other.layout != stage.fastest.layout:
                yield f"  or           {_layout_text(other, cluster)}{_advice(other)}"
    for pipeline in stage.pipelines:
        yield f"  pipeline     {_pipeline_text(pipeline)}"
    for judge in stage.judges:
        yield from (f"  judge        {sentence}" for sentence in (judge.sentence(), judge.limit_sentence()) if sentence)
    yield from (f"  assumed      {sentence}" for sentence in stage.assumed)


def _start_lines(stage: str, plan: LayoutPlan, cluster: Cluster) -> Iterator[str]:
    """What to type: settings as overrides of the recipe, and what starts the ranks."""
    settings = [one if one.startswith("launch.") else f"stages.{stage}.{one}" for one in plan.settings]
    if settings:
        yield f"  settings     {' '.join(settings)}"
    nodes, each = plan.layout.on_nodes(cluster)
    if plan.layout.num_gpus > 1:
        where = "" if nodes == 1 else f"--nnodes {nodes} "
        machines = "" if nodes == 1 else " on each of them (docs/ranks.md has the other arguments)"
        yield f"  start        torchrun {where}--nproc-per-node {each} -m rlhf run RECIPE{machines}"


def _memory_lines(plan: LayoutPlan) -> Iterator[str]:
    parts = sorted(plan.memory.items(), key=lambda item: -item[1])
    words = ", ".join(f"{name} {bytes_text(size)}" for name, size in parts)
    yield f"  each GPU     {bytes_text(sum(plan.memory.values()))}: {words}"
    if plan.host_bytes:
        yield f"  each host    {bytes_text(plan.host_bytes)} of optimizer state"


def _layout_text(plan: LayoutPlan, cluster: Cluster) -> str:
    words = (
        f"{plan.layout}: {percentage(plan.memory_frac, 0)} of the memory, {seconds_text(plan.seconds_per_step)} a step"
    )
    if plan.run_seconds is not None and plan.gpu_hours is not None:
        words += f", {seconds_text(plan.run_seconds)} in all, {_few_digits(plan.gpu_hours)} GPU hours"
    return words if plan.cost is None else f"{words}, {_few_digits(plan.cost)} {cluster.currency}"


def _advice(plan: LayoutPlan) -> str:
    return f"; advice only, needs {'; '.join(plan.needs)}" if plan.needs else ""


def _pipeline_text(pipeline: PlannedPipeline) -> str:
    result = pipeline.result
    kind = f"{result.kind} (k = {result.max_staleness})" if result.kind == "asynchronous" else result.kind
    where = f"{pipeline.num_training} GPUs in turns"
    if pipeline.num_sampling:
        where = f"{pipeline.num_training} GPUs learn, {pipeline.num_sampling} sample"
    refused = (
        ""
        if result.kind == "synchronous" or pipeline.num_training == 1
        else "; advice only, ranks refuse async_rollouts"
    )
    ages = ", ".join(f"{age}: {percentage(share, 0)}" for age, share in result.staleness.items())
    return (
        f"{kind}, {where}: {seconds_text(pipeline.seconds_per_step)} a step; busy: engines {percentage(result.engine_utilization, 0)}, "
        f"trainer {percentage(result.trainer_utilization, 0)}; versions old: {ages}{refused}"
    )


def _few_digits(number: float) -> str:
    """``1,234``, ``12.3``, ``0.00081``."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
