"""Ways to spread a stage over a cluster, and what a rank holds in each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rlhf.scale import memory
from rlhf.scale.clusters import Cluster
from rlhf.scale.costs import activation_bytes, tile_bytes
from rlhf.scale.engine_speed import ROOM_SHARE
from rlhf.scale.rank_memory import SHARDED_WEIGHTS, ModelBytes, RankBytes, Sharding, rank_bytes
from rlhf.scale.shape import WIDTH, ModelShape

Placement = Literal["ranks", "service"]
"""Of the policy while completions are sampled. ``ranks``: whole on each rank. ``service``: in engines outside of the trainer, of one or
several accelerators."""
NEEDS: Mapping[str, str] = {"tensor": "tensor parallelism"}
"""Feature -> what has to be there for it. A feature that this version has leaves the table."""
MODEL_PARTS = (
    "weights",
    "optimizer",
    "gradients",
    "critic",
    "reference",
    "reward models",
    "teacher",
    "offloaded model in use",
)
"""Components that are counted here, by the models' shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to spread a stage."""

    num_gpus: int
    sharding: Sharding = "replicated"
    tensor_size: int = 1
    """Accelerators that compute each layer together, of one node."""
    gradient_checkpointing: bool = False
    offload: bool = False
    """Optimizer state in the host's memory."""
    placement: Placement = "ranks"
    engine_size: int = 1
    """Accelerators of one rollout engine."""

    @property
    def num_ranks(self) -> int:
        """That take different rows."""
        return self.num_gpus // self.tensor_size

    def shard_size(self, cluster: Cluster) -> int:
        """Ranks that divide what is sharded: all, or those of a node."""
        if self.sharding == "hybrid_shard":
            return max(1, min(self.num_ranks, cluster.gpus_per_node // self.tensor_size))
        return self.num_ranks

    @property
    def by_deepspeed(self) -> bool:
        """Whether DeepSpeed's ZeRO does it, and not FSDP2."""
        return self.sharding.startswith("zero") or self.offload

    @property
    def needs(self) -> list[str]:
        """What this version does not have and the layout takes."""
        used = {"tensor": self.tensor_size > 1}
        return [NEEDS[feature] for feature, is_used in used.items() if is_used and feature in NEEDS]

    def settings(self, cluster: Cluster) -> list[str]:
        """Settings that do it, as KEY=VALUE: the recipe's ``launch``, and otherwise the stage's; without any, ranks share weights by FSDP2
        (docs/ranks.md)."""
        copies = self.num_ranks if self.sharding == "replicated" else self.num_ranks // self.shard_size(cluster)
        settings = ["model.gradient_checkpointing=true"] if self.gradient_checkpointing else []
        settings += [f"fsdp.replicate={copies}"] if copies > 1 and not self.by_deepspeed else []
        settings += ["deepspeed=FILE"] if self.by_deepspeed else []
        if self.placement == "service":
            settings += engine_settings(self.num_gpus, self.engine_size)
            settings += ["launch.address=auto"] if self.on_nodes(cluster)[0] > 1 else []
        return settings

    def on_nodes(self, cluster: Cluster) -> tuple[int, int]:
        """How many nodes it takes, and the accelerators on each."""
        nodes = -(-self.num_gpus // cluster.gpus_per_node)
        return nodes, self.num_gpus // nodes

    def __str__(self) -> str:
        """In words: ``8 GPUs, full_shard, tensor size 2``."""
        words = ["1 GPU" if self.num_gpus == 1 else f"{self.num_gpus} GPUs"]
        words += [self.sharding.replace("_", " ")] if self.num_ranks > 1 else []
        words += [f"tensor size {self.tensor_size}"] if self.tensor_size > 1 else []
        words += ["gradient checkpointing"] if self.gradient_checkpointing else []
        words += ["optimizer on the host"] if self.offload else []
        words += [f"engines of {self.engine_size}"] if self.placement == "service" else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """A stage's models by what is done with them."""

    trained: tuple[ModelShape, ...]
    """The policy, and a critic of its own."""
    copies: int
    """Of each trained one: members of an ensemble."""
    reference: ModelShape | None
    rewards: tuple[ModelShape, ...]
    """Reward models."""
    teacher: ModelShape | None = None


def engine_settings(num_gpus: int, engine_size: int) -> list[str]:
    """Those of rollout engines on all accelerators; engines of several are vLLM's (docs/cluster.md).

    Args:
        num_gpus: Accelerators.
        engine_size: Of one engine.
    """
    several = ["engine.kind=vllm", f"engine.options.tensor_parallel_size={engine_size}"] if engine_size > 1 else []
    pool = {"replicas": num_gpus // engine_size, "gpus": engine_size}
    return [*several, "launch.launcher=ray", *(f"launch.pools.engines.{key}={value}" for key, value in pool.items())]


def layouts_for(
    cluster: Cluster, num_gpus: int, *, recomputed: bool, adapters: bool, samples: bool
) -> Iterator[Layout]:
    """Every way to spread a stage over so many accelerators, those that change least first.

    Args:
        cluster: They are part of it.
        num_gpus: Accelerators.
        recomputed: Whether the stage's settings have gradient checkpointing.
        adapters: Whether adapters are trained, whose optimizer is too small to be worth moving.
        samples: Whether the stage samples.
    """
    tensors = [size for size in (1, 2, 4, 8) if size <= min(num_gpus, cluster.gpus_per_node) and num_gpus % size == 0]
    for tensor_size in tensors:
        ranks = num_gpus // tensor_size
        shardings: list[Sharding] = ["full_shard", "replicated", "zero-1", "zero-2"] if ranks > 1 else ["replicated"]
        if num_gpus > cluster.gpus_per_node:
            shardings.append("hybrid_shard")
        for sharding in shardings:
            for checkpointing in [True] if recomputed else [False, True]:
                for offload in [False] if adapters or cluster.host_bytes is None else [False, True]:
                    plain = Layout(
                        num_gpus=num_gpus, sharding=sharding, tensor_size=tensor_size,
                        gradient_checkpointing=checkpointing, offload=offload,
                    )  # fmt: skip
                    if not samples or tensor_size == 1:
                        yield plain
                    if samples:
                        yield from (replace(plain, placement="service", engine_size=size) for size in tensors)


def model_bytes(shape: ModelShape, *, trained: bool, copies: int = 1) -> ModelBytes:
    """Whole bytes of a model; gradients and AdamW's averages of one that is trained."""
    learned = float(shape.num_trainable * shape.trained_width * copies) if trained else 0.0
    return ModelBytes(
        weights=float(shape.weight_bytes * copies),
        gradients=learned,
        optimizer=learned * memory.AVERAGES,
        num_layers=shape.num_layers,
        num_outside=1 - shape.num_body / shape.num_parameters,
    )


def layout_memory(
    models: Models,
    layout: Layout,
    cluster: Cluster,
    *,
    parts: Mapping[str, float],
    tokens: float,
    scored_share: float,
    stage: Any,
) -> tuple[dict[str, float], float]:
    """Bytes of one accelerator by component, without what sampling takes, and bytes of its host's memory.

    Args:
        models: Of the stage.
        layout: How they are spread.
        cluster: Over what.
        parts: Bytes of other components, the same on each rank.
        tokens: Of a micro-batch on one rank.
        scored_share: Tokens that a loss sees, of all.
        stage: Its settings.
    """
    policy, tensor = models.trained[0], layout.tensor_size
    how: dict[str, Any] = {
        "sharding": layout.sharding, "shard_size": layout.shard_size(cluster), "tensor_size": tensor,
        "vocab_parallel": stage.fsdp.vocab_parallel and not layout.by_deepspeed,
    }  # fmt: skip
    held = [
        rank_bytes(model_bytes(shape, trained=True, copies=models.copies), offload=layout.offload, **how)
        for shape in models.trained
    ]
    kept: list[RankBytes] = []
    components = {"weights": held[0].weights, "optimizer": held[0].optimizer, "gradients": held[0].gradients}
    components["critic"] = sum(one.on_device for one in held[1:])
    if models.reference is not None:
        kept.append(rank_bytes(model_bytes(models.reference, trained=False), **how))
        components["reference"] = kept[-1].weights
    rewards = [rank_bytes(model_bytes(shape, trained=False), **how) for shape in models.rewards]
    kept += rewards
    components["reward models"] = sum(one.weights for one in rewards)
    if models.teacher is not None:  # whole on each rank
        components["teacher"] = float(models.teacher.weight_bytes)
    components["gathered weights"] = max(one.gathered for one in [*held, *kept])
    width = WIDTH[policy.settings.dtype if stage.autocast == "none" else stage.autocast]
    components["activations"] = (
        activation_bytes(
            tokens, num_layers=policy.num_layers, hidden=policy.hidden, inner=policy.inner, width=width,
            recomputed=layout.gradient_checkpointing,
        )
        / tensor
    )  # fmt: skip
    components["logits tiles"] = tile_bytes(tokens * scored_share, policy.vocabulary, is_gpu=True)
    sharded = layout.sharding in SHARDED_WEIGHTS
    components["copies of weights"] = (
        memory.extra_copies(stage, policy) / tensor / (layout.shard_size(cluster) if sharded else 1)
    )
    components |= {name: size for name, size in parts.items() if name not in MODEL_PARTS}
    components["libraries"] = float(memory.GPU_CONTEXT)
    return {name: size for name, size in components.items() if size > 0}, sum(one.host for one in held)


def sampling_memory(
    models: Models, layout: Layout, components: Mapping[str, float], *, cached_bytes: float, lowered: float
) -> dict[str, float]:
    """The same while completions are sampled: nothing is kept for a backward pass; the policy is whole on each rank, or engines have their
    share of it; and as much of the keys and values as there is room for.

    Args:
        models: Of the stage.
        layout: How they are spread.
        components: From ``layout_memory``.
        cached_bytes: Keys and values of all that one engine is asked for at once.
        lowered: Bytes of a copy of the weights that the rank's own engine samples with; 0 for none.
    """
    at_rest = {
        name: size
        for name, size in components.items()
        if name not in ("activations", "gradients", "logits tiles", "gathered weights")
    }
    policy = float(models.trained[0].weight_bytes)
    if layout.placement == "service":
        engine = {"rollout engine": policy / layout.engine_size, "KV cache": cached_bytes / layout.engine_size}
        return at_rest | engine
    if layout.sharding in SHARDED_WEIGHTS and layout.num_ranks > 1:
        at_rest["policy whole for sampling"] = policy
    return at_rest | {"KV cache": cached_bytes, **({"weights for sampling": lowered} if lowered else {})}


def engine_room(cluster: Cluster, at_rest: Mapping[str, float]) -> float:
    """Bytes of an accelerator that are left for keys and values."""
    return cluster.machine.memory_bytes * ROOM_SHARE - sum(size for name, size in at_rest.items() if name != "KV cache")
