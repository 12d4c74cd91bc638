"""Seconds of a stage's step on a cluster, by activity: work of the slowest rank, and communication that nothing hides.

Rows are dealt to ranks by micro-batches of equal size, of which every rank takes as many. Where weights are sharded, the next layer is
fetched while one computes (Zhao et al. 2023, arXiv:2304.11277, section 3.3), so of a pass the longer of computing and communication
counts, and the first layer's gather. Tensor parallelism sums activations twice a layer in each direction (Shoeybi et al. 2019,
arXiv:1909.08053, section 3), and nothing hides that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf.data.pack import Group as Rows
from rlhf.scale.clusters import Cluster
from rlhf.scale.communication import Group
from rlhf.scale.costs import Head, Roofline
from rlhf.scale.layouts import Layout, model_bytes
from rlhf.scale.machine import Machine
from rlhf.scale.plan import StageFacts
from rlhf.scale.rank_memory import SHARDED_OPTIMIZER, SHARDED_WEIGHTS
from rlhf.scale.shape import WIDTH, ModelShape
from rlhf.scale.work import Pass

UPDATE_TRAFFIC = 8
"""Numbers that AdamW moves for each weight, see ``rlhf.scale.costs.Roofline.optimize``."""

CostKey = tuple[str, Head, int, bool]
"""Whose, what it reads, accelerators that compute each layer together, whether activations are recomputed."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a pass over rows is dealt to ranks."""

    turns: int
    """Micro-batches of each rank."""
    tokens: float
    """Of the largest of them."""


def cut(tokens: float, *, limit: int, ranks: int, unit: float) -> Cut:
    """As many micro-batches as all ranks take turns, see ``rlhf.distributed.work_shares.even_limit``.

    Args:
        tokens: Of all rows.
        limit: Tokens of a micro-batch.
        ranks: That share them.
        unit: Tokens of one group of rows, which is not cut; a rank without one waits.
    """
    turns = math.ceil(math.ceil(tokens / limit) / ranks)
    return Cut(turns, min(tokens, max(unit, tokens / (turns * ranks))))


class LayoutSeconds:
    """Seconds of a stage's activities in one layout.

    Args:
        facts: What the stage does.
        shapes: Its models by name.
        layout: How they are spread.
        cluster: Over what.
        stage: Its settings.
        known: Costs of models on tensor-parallel groups, which layouts share; filled in here.
    """

    def __init__(
        self,
        facts: StageFacts,
        shapes: Mapping[str, ModelShape],
        layout: Layout,
        cluster: Cluster,
        stage: Any,
        known: dict[CostKey, Roofline] | None = None,
    ) -> None:
        self.facts, self.layout, self.cluster, self.stage = facts, layout, cluster, stage
        self.shapes = shapes
        self.unit = facts.tokens_per_group
        self.machine = faster(cluster.machine, layout.tensor_size)
        self.ranks = Group.over(cluster, layout.num_ranks, stride=layout.tensor_size)
        self.shards = Group.over(cluster, layout.shard_size(cluster), stride=layout.tensor_size)
        self.tensors = Group.over(cluster, layout.tensor_size)
        self.is_sharded = layout.sharding in SHARDED_WEIGHTS and self.shards.size > 1
        self.known = {} if known is None else known

    def learning(self) -> dict[str, float]:
        """Of one phase: forward, backward, optimizer and communication."""
        spent = dict.fromkeys(("forward", "backward", "optimizer", "communication"), 0.0)
        for one in self.facts.work.learned:
            for name, seconds in self._learned(one).items():
                spent[name] += seconds
        for whose, times in self.facts.work.optimized.items():
            spent["optimizer"] += times * self._optimizer(whose)
            spent["communication"] += times * self._at_step_end(self.shapes[whose])
        return spent

    def reading(self, passes: Sequence[Pass]) -> dict[str, float]:
        """Of passes without gradient, and the communication that they do not hide."""
        spent: dict[str, float] = {"communication": 0.0}
        for one in passes:
            dealt = self._cut(one)
            seconds = self._cost(one.whose, one.head).read(dealt.tokens)
            exposed = self._summed(one, dealt.tokens, 2)
            if one.whose != "teacher":  # which is whole on each rank
                exposed += self._gathered(self.shapes[one.whose], seconds)
            spent[one.activity] = spent.get(one.activity, 0.0) + one.times * dealt.turns * seconds
            spent["communication"] += one.times * dealt.turns * exposed
        return spent

    def push(self) -> float:
        """Of giving the new weights to those that sample: everyone gathers them."""
        shape = self.shapes["policy"]
        return Group.over(self.cluster, self.layout.num_gpus).gather(float(shape.weight_bytes), times=shape.num_layers)

    def _learned(self, one: Pass) -> dict[str, float]:
        """All optimizer steps of a phase."""
        shape, dealt = self.shapes[one.whose], self._cut(one)
        learned = self._cost(one.whose, one.head).learn(dealt.tokens)
        exposed = self._gathered(shape, learned.forward)
        exposed += self._gathered(shape, learned.backward, gradients=True)
        exposed += self._summed(one, dealt.tokens, 6 if self.layout.gradient_checkpointing else 4)
        times = one.times * dealt.turns
        return {
            "forward": times * learned.forward,
            "backward": times * learned.backward,
            "communication": times * exposed,
        }

    def _gathered(self, shape: ModelShape, computing: float, *, gradients: bool = False) -> float:
        """Seconds of communication of one pass through all layers that computing does not hide."""
        whole = model_bytes(shape, trained=True)
        layers, tensor = shape.num_layers, self.layout.tensor_size
        seconds = self.shards.gather(whole.weights / tensor, times=layers) if self.is_sharded else 0.0
        first = seconds / layers
        if gradients and (self.is_sharded or self.layout.sharding == "zero-2"):
            seconds += self.shards.gather(whole.gradients / tensor, times=layers)
        if gradients and self.layout.sharding == "hybrid_shard":
            nodes = self.layout.num_ranks // self.shards.size
            between = Group(self.cluster, nodes, 1)
            seconds += between.all_reduce(whole.gradients / tensor / self.shards.size, times=layers)
        return first + max(0.0, seconds - first - computing)

    def _at_step_end(self, shape: ModelShape) -> float:
        """What is exchanged once a step: gradients that are whole, and the weights that ranks updated for each other."""
        if self.layout.num_ranks == 1 or self.layout.sharding in SHARDED_WEIGHTS:
            return 0.0
        whole, layers, tensor = model_bytes(shape, trained=True), shape.num_layers, self.layout.tensor_size
        if self.layout.sharding == "replicated":
            return self.ranks.all_reduce(whole.gradients / tensor, times=layers)
        weights = self.ranks.gather(whole.gradients / tensor, times=layers)  # as many bytes as the trained weights
        return weights + (
            self.ranks.gather(whole.gradients / tensor, times=layers) if self.layout.sharding == "zero-1" else 0.0
        )

    def _summed(self, one: Pass, tokens: float, times_per_layer: int) -> float:
        """Tensor parallelism's sums of activations."""
        shape = self.shapes[one.whose]
        width = WIDTH[shape.settings.dtype if self.stage.autocast == "none" else self.stage.autocast]
        return times_per_layer * shape.num_layers * self.tensors.all_reduce(tokens * shape.hidden * width)

    def _optimizer(self, whose: str) -> float:
        """One step of AdamW on a rank's part."""
        shape = self.shapes[whose]
        part = self.shards.size if self.layout.sharding in SHARDED_OPTIMIZER else 1
        if not self.layout.offload:
            return self._cost(whose, "logprobs").optimize() / part
        numbers = shape.num_trainable * shape.trained_width / self.layout.tensor_size / part
        beside = min(self.layout.num_gpus, self.cluster.gpus_per_node)  # ranks of a node share its memory's bandwidth
        return 2 * numbers / self.cluster.host + UPDATE_TRAFFIC * numbers * beside / self.cluster.host_bytes_per_second

    def _cut(self, one: Pass) -> Cut:
        return cut(one.tokens, limit=one.max_tokens, ranks=self.layout.num_ranks, unit=self.unit)

    def _cost(self, whose: str, head: Head) -> Roofline:
        recomputed = self.layout.gradient_checkpointing
        key = (whose, head, self.layout.tensor_size, recomputed)
        if key not in self.known:
            shape = self.shapes[whose]
            shape = replace(shape, settings=shape.settings.updated(gradient_checkpointing=recomputed))
            self.known[key] = Roofline(shape, self.facts.groups, self.machine, autocast=self.stage.autocast, head=head)
        return self.known[key]


def faster(machine: Machine, times: int) -> Machine:
    """So many accelerators that compute each layer together, without what they exchange."""
    flops = {dtype: rate * times for dtype, rate in machine.matmul_flops.items()}
    return replace(machine, matmul_flops=flops, copy_bytes_per_second=machine.copy_bytes_per_second * times)


def micro_batch_tokens(facts: StageFacts, layout: Layout) -> float:
    """Tokens of the largest micro-batch that learns on one rank."""
    unit = facts.tokens_per_group
    return max(
        cut(one.tokens, limit=one.max_tokens, ranks=layout.num_ranks, unit=unit).tokens for one in facts.work.learned
    )


def group_lengths(groups: Sequence[Rows]) -> list[tuple[int, list[int]]]:
    """Tokens of each prompt and of its completions."""
    return [(len(group.prefix), [len(branch.tokens) for branch in group.branches]) for group in groups]
