"""Memory and a strategy from a number of parameters alone: no config, no recipe, no weights.

Bytes of each trained weight in mixed precision: 2 of the weight, 2 of its gradient, 4 of the float32 master weight and 8 of AdamW's two
averages, 16 in all (Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1). A frozen weight takes 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from rlhf.errors import ConfigError
from rlhf.formatting import bytes_text, percentage
from rlhf.scale.costs import activation_bytes, tile_bytes
from rlhf.scale.layouts import engine_settings
from rlhf.scale.memory import AVERAGES, GPU_CONTEXT
from rlhf.scale.model_families import SizedShape, shape_of_size
from rlhf.scale.rank_memory import ModelBytes, Sharding, rank_bytes
from rlhf.scale.shape import FOUR_BIT_BYTES, WIDTH
from rlhf.scale.strategy import FITS

GIGABYTE = 1e9
Verdict = Literal["fits", "tight", "constrained"]
"""``fits``: all weights are trained and at most 70 % of the memory is used. ``tight``: all weights are trained, with more of the memory, or
only with shared models or with the optimizer on the host. ``constrained``: only adapters are trained, or nothing fits."""
MODELS = {2: "the reference", 3: "the reference and the reward model", 4: "reference, reward model and critic"}
LORA_RANK = 16
ENGINE_SIZES = (2, 4, 8)
"""Accelerators of a rollout engine, as many as a node has at most."""
SHARED_BACKBONE = "a reward model on another model's backbone"
CRITIC = 4
"""Number of models from which on one of them is a critic, which is trained too: PPO's four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes by component, of all models whole, as on one accelerator."""

    num_parameters: int
    num_models: int
    num_trained: int
    """Models with gradients and optimizer state: the policy, and from four models on the critic."""
    weights: float
    """Of all models, in bfloat16."""
    gradients: float
    """Of the trained models, in bfloat16."""
    master_weights: float
    """Of the trained models, in float32."""
    optimizer: float
    """AdamW's two averages of the trained models, in float32."""
    activations: float
    """Of one model's forward pass, kept for the backward pass; models learn one after the other."""
    logits: float
    """Tiles of logits at work."""
    context: float
    """The libraries' own on an accelerator."""
    assumed: tuple[str, ...]

    @property
    def components(self) -> dict[str, float]:
        """Name to bytes."""
        names = ("weights", "gradients", "master_weights", "optimizer", "activations", "logits", "context")
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> float:
        """Bytes."""
        return sum(self.components.values())

    @property
    def total_gb(self) -> float:
        """In gigabytes of 10^9 bytes, as data sheets count them."""
        return self.total / GIGABYTE

    def __str__(self) -> str:
        """In words."""
        parts = ", ".join(f"{name.replace('_', ' ')} {bytes_text(size)}" for name, size in self.components.items())
        return f"{bytes_text(self.total)}: {parts} ({'; '.join(self.assumed)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeStrategy:
    """How to spread models of a size over accelerators."""

    verdict: Verdict
    name: str
    """replicated, zero-1, zero-2, zero-3, or lora, qlora, none."""
    gradient_checkpointing: bool
    offload: bool
    """Optimizer state and master weights in the host's memory."""
    shared: tuple[str, ...]
    """Models without a backbone of their own: of reference, reward, critic."""
    bytes_per_gpu: float
    host_bytes: float
    """In the memory of the host, for all accelerators; 0 without offloading."""
    why: str
    settings: tuple[str, ...] = ()
    """KEY=VALUE: the recipe's ``launch``, and otherwise those of a stage."""
    assumed: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """What the strategy takes and this version does not have: it is advice then."""

    def __str__(self) -> str:
        """In words."""
        advice = f"; advice only, this version does not have: {', '.join(self.needs)}" if self.needs else ""
        return f"{self.verdict}: {self.name}, {self.why}{advice}"


def estimate_memory(
    num_parameters: int,
    batch_size: int = 1,
    seq_length: int = 2048,
    num_models: int = 1,
    *,
    gradient_checkpointing: bool = False,
) -> MemoryEstimate:
    """Memory of training models of a size, all on one accelerator, in mixed precision (bfloat16) with AdamW.

    Args:
        num_parameters: Weights of each model.
        batch_size: Sequences of one micro-batch.
        seq_length: Tokens of each.
        num_models: Models of this size in memory: 1 for SFT, 2 with a reference (DPO), 3 with a reward model (GRPO), 4 with a critic
            (PPO). The policy is trained, and of four the critic.
        gradient_checkpointing: Whether activations are recomputed.

    Raises:
        ConfigError: An argument is no positive number.
    """
    shape = shape_of_size(num_parameters)
    _check_counts(batch_size=batch_size, seq_length=seq_length, num_models=num_models)
    trained = 2 if num_models >= CRITIC else 1
    one = _full_training(shape)
    tokens = float(batch_size * seq_length)
    assumed = [
        shape.said,
        "mixed precision: bfloat16 with float32 master weights, AdamW, attention without a matrix of scores",
    ]
    if num_models > 1:
        others = MODELS.get(num_models, f"reference, reward model, critic and {num_models - CRITIC} more frozen models")
        assumed.append(f"{others} are as large as the policy")
    return MemoryEstimate(
        num_parameters=shape.num_parameters,
        num_models=num_models,
        num_trained=trained,
        weights=one.weights * num_models,
        gradients=one.gradients * trained,
        master_weights=one.master * trained,
        optimizer=one.optimizer * trained,
        activations=_activations(shape, tokens, recomputed=gradient_checkpointing),
        logits=tile_bytes(tokens, shape.vocabulary, is_gpu=True),
        context=float(GPU_CONTEXT),
        assumed=tuple(assumed),
    )


def recommend_strategy(
    memory_gb: float,
    num_parameters: int,
    num_gpus: int = 1,
    *,
    batch_size: int = 1,
    seq_length: int = 2048,
    num_models: int = 4,
) -> SizeStrategy:
    """The first strategy that fits, from the one that changes least: as it is; recomputed activations; ZeRO's stages; reference and reward
    model on one frozen backbone and the critic a head of the policy; the optimizer on the host; LoRA, whose base is the reference, too, and
    the backbone of reward model and critic; QLoRA.

    Args:
        memory_gb: Of one accelerator, in gigabytes of 10^9 bytes.
        num_parameters: Weights of each model.
        num_gpus: Accelerators.
        batch_size: Sequences of a micro-batch on each.
        seq_length: Tokens of each.
        num_models: As in ``estimate_memory``.

    Raises:
        ConfigError: An argument is no positive number.
    """
    shape = shape_of_size(num_parameters)
    _check_counts(batch_size=batch_size, seq_length=seq_length, num_models=num_models, num_gpus=num_gpus)
    if not isinstance(memory_gb, int | float) or not 0 < memory_gb < math.inf:
        raise ConfigError(f"memory_gb is {memory_gb!r}; wanted the memory of one accelerator in gigabytes, such as 80")
    ladder = _Ladder(shape, float(memory_gb) * GIGABYTE, num_gpus, float(batch_size * seq_length), num_models)
    return ladder.first_that_fits()


class _Ladder:
    """Strategies in the order in which they are tried."""

    def __init__(self, shape: SizedShape, room: float, num_gpus: int, tokens: float, num_models: int) -> None:
        self.shape, self.room, self.num_gpus, self.tokens, self.num_models = shape, room, num_gpus, tokens, num_models

    def first_that_fits(self) -> SizeStrategy:
        stages: tuple[Sharding, ...] = (
            ("replicated", "zero-1", "zero-2", "zero-3") if self.num_gpus > 1 else ("replicated",)
        )
        whole = self._full("replicated", recomputed=False)
        for tried in (whole, *(self._full(stage, recomputed=True) for stage in stages)):
            if tried.bytes_per_gpu <= FITS * self.room:
                return tried
        last, can_share = stages[-1], self.num_models > 2
        for shared, offload in ((False, False), (True, False), (False, True), (True, True)):
            tried = self._full(last, recomputed=True, shared=shared, offload=offload)
            if tried.bytes_per_gpu <= self.room and (can_share or not shared):
                return replace(tried, verdict="tight")
        adapters = [self._adapters(quantized) for quantized in (False, True)]
        for tried in adapters:
            if tried.bytes_per_gpu <= self.room:
                return tried
        return self._nothing(adapters[-1])

    def _full(
        self, sharding: Sharding, *, recomputed: bool, shared: bool = False, offload: bool = False
    ) -> SizeStrategy:
        """All weights are trained."""
        names = tuple(name for name, least in (("reward", 3), ("critic", 4)) if shared and self.num_models >= least)
        with_critic = self.num_models >= CRITIC
        trained = 2 if with_critic and not shared else 1
        frozen = (1 if self.num_models > 1 else 0) if shared else self.num_models - trained
        how = {"sharding": sharding, "shard_size": self.num_gpus}
        one = rank_bytes(_full_training(self.shape), offload=offload, **how)  # type: ignore[arg-type]
        size = trained * one.on_device + frozen * one.weights + one.gathered + self._working(recomputed=recomputed)
        done = [f"{self.num_gpus} GPUs" if self.num_gpus > 1 else "one GPU"]
        done += ["activations recomputed"] if recomputed else []
        done += ["reference and reward model on one frozen backbone"] if "reward" in names else []
        done += ["the critic a head of the policy"] if "critic" in names else []
        done += ["optimizer and master weights in the host's memory"] if offload else []
        settings = ["model.gradient_checkpointing=true"] if recomputed else []
        settings += ["value_model=shared"] if "critic" in names else []
        by_deepspeed = offload or sharding in ("zero-1", "zero-2")
        settings += ["deepspeed=FILE"] if by_deepspeed else []
        settings += [f"fsdp.replicate={self.num_gpus}"] if sharding == "replicated" and self.num_gpus > 1 else []
        needs = [SHARED_BACKBONE] if "reward" in names else []
        whole = (
            self.shape.num_parameters * WIDTH["bfloat16"]
        )  # the policy, on each rank while it samples (docs/ranks.md)
        in_shards = self.num_gpus > 1 and sharding == "zero-3" and self.num_models > 2
        if in_shards and size + whole > self.room:
            sizes = [several for several in ENGINE_SIZES if self.num_gpus % several == 0] or [self.num_gpus]
            fitting = (several for several in sizes if size + whole / several <= self.room)
            engine_size = next(fitting, sizes[-1])
            done.append(f"rollout engines of {engine_size} GPUs")
            settings += engine_settings(self.num_gpus, engine_size)
        needs += ["DeepSpeed in one process"] if by_deepspeed and self.num_gpus == 1 else []
        needs += ["DeepSpeed with a critic"] if by_deepspeed and self.num_gpus > 1 and with_critic else []
        return self._strategy("fits", sharding, size, done, settings, recomputed=recomputed, shared=names, offload=offload,
                              host_bytes=one.host * trained * self.num_gpus, needs=needs)  # fmt: skip

    def _adapters(self, quantized: bool) -> SizeStrategy:
        """One frozen backbone for all models, and adapters that are trained."""
        sharded = self.num_gpus > 1 and not quantized
        width = FOUR_BIT_BYTES if quantized else WIDTH["bfloat16"]
        sharding: Sharding = "full_shard" if sharded else "replicated"
        base = replace(
            _full_training(self.shape),
            weights=self.shape.num_parameters * width,
            gradients=0.0,
            master=0.0,
            optimizer=0.0,
        )
        adapter = _adapter_weights(self.shape) * WIDTH["float32"]
        trained = ModelBytes(weights=adapter, gradients=adapter, optimizer=adapter * AVERAGES)
        held = [rank_bytes(part, sharding=sharding, shard_size=self.num_gpus) for part in (base, trained)]
        of_reward = adapter if self.num_models > 2 else 0.0
        size = sum(part.on_device for part in held) + held[0].gathered + of_reward + self._working(recomputed=True)
        names = tuple(
            name for name, least in (("reference", 2), ("reward", 3), ("critic", 4)) if self.num_models >= least
        )
        done = ["frozen weights in 4 bits" if quantized else "frozen weights in bfloat16", "trained adapters"]
        done += [f"sharded over {self.num_gpus} GPUs"] if sharded else []
        done += ["the base without its adapter is the reference"] if "reference" in names else []
        done += [f"{' and '.join(names[1:])} on the same backbone"] if names[1:] else []
        lora = f"{{rank: {LORA_RANK}{', quantize_4bit: true' if quantized else ''}}}"
        settings = [f"model.lora={lora}", "model.dtype=bfloat16", "model.gradient_checkpointing=true"]
        settings += ["value_model=shared"] if "critic" in names else []
        name = "qlora" if quantized else "lora"
        needs = [SHARED_BACKBONE] if "reward" in names else []
        return self._strategy("constrained", name, size, done, settings, recomputed=True, shared=names, needs=needs)

    def _nothing(self, smallest: SizeStrategy) -> SizeStrategy:
        factor = smallest.bytes_per_gpu / self.room
        why = f"even adapters on weights in 4 bits take {factor:.1f} times the memory of one GPU: take larger ones"
        return SizeStrategy(
            verdict="constrained", name="none", gradient_checkpointing=True, offload=False, shared=smallest.shared,
            bytes_per_gpu=smallest.bytes_per_gpu, host_bytes=0.0, why=why, assumed=smallest.assumed,
        )  # fmt: skip

    def _strategy(
        self, verdict: Verdict, name: str, size: float, done: list[str], settings: list[str], *, recomputed: bool,
        shared: tuple[str, ...], offload: bool = False, host_bytes: float = 0.0,
        needs: list[str],
    ) -> SizeStrategy:  # fmt: skip
        why = f"{percentage(size / self.room, 0)} of each GPU's memory with {', '.join(done)}"
        return SizeStrategy(
            verdict=verdict, name=name, gradient_checkpointing=recomputed, offload=offload, shared=shared,
            bytes_per_gpu=size, host_bytes=host_bytes, why=why, settings=tuple(settings), assumed=(self.shape.said,),
            needs=tuple(needs),
        )  # fmt: skip

    def _working(self, *, recomputed: bool) -> float:
        """Activations, tiles of logits and the libraries' own."""
        tiles = tile_bytes(self.tokens, self.shape.vocabulary, is_gpu=True)
        return _activations(self.shape, self.tokens, recomputed=recomputed) + tiles + GPU_CONTEXT


def _full_training(shape: SizedShape) -> ModelBytes:
    """16 bytes a weight, see the top of the file."""
    count = float(shape.num_parameters)
    embeddings = shape.vocabulary * shape.hidden / count
    return ModelBytes(
        weights=count * WIDTH["bfloat16"],
        gradients=count * WIDTH["bfloat16"],
        master=count * WIDTH["float32"],
        optimizer=count * WIDTH["float32"] * AVERAGES,
        num_layers=shape.num_layers,
        num_outside=min(1.0, 2 * embeddings),
    )


def _adapter_weights(shape: SizedShape) -> float:
    """Of adapters on all linear maps: rank * (in + out) of four of attention, none wider than H, and of three of the MLP."""
    return float(LORA_RANK * shape.num_layers * (4 * 2 * shape.hidden + 3 * (shape.hidden + shape.inner)))


def _activations(shape: SizedShape, tokens: float, *, recomputed: bool) -> float:
    return activation_bytes(
        tokens, num_layers=shape.num_layers, hidden=shape.hidden, inner=shape.inner, width=WIDTH["bfloat16"],
        recomputed=recomputed,
    )  # fmt: skip


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigError(f"{name} is {count!r}; wanted a whole number, 1 or more")
