"""How the processes of a recipe are started: one process, torchrun or Ray. Results depend on it by rounding alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rlhf.config.base import BaseConfig, FilePath
from rlhf.config.launch_presets import with_preset
from rlhf.config.yaml_text import read_yaml

LAUNCHER = "launcher"
"""The key that tells launchers apart."""
RANKS = (
    "Ranks of one machine are `launch: {launcher: torchrun, processes: N}`; over several machines "
    "`launch: {launcher: ray, nodes: N, gpus_per_node: M}` (docs/cluster.md)."
)
ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "processes",
            "num_processes",
            "nproc_per_node",
            "processes_per_node",
            "world_size",
            "nodes",
            "num_nodes",
            "nnodes",
            "num_machines",
        ),
        RANKS,
    ),
    **dict.fromkeys(
        ("gpus_per_node", "num_gpus", "gpus"),
        "With `launcher: ray`, gpus_per_node is for the ranks that train, and pools.engines.gpus for each engine.",
    ),
    "replicas": "Each pool has its own: pools.engines.replicas.",
    "pools": "Pools are of Ray's actors: `launcher: ray`.",
    "launch": "The file of --launch holds what is below `launch:` in a recipe, without that line.",
}
"""Keys that people look for -> where what they want is said."""


class _Launch(BaseConfig):
    """What launchers share."""

    @classmethod
    def hint_on_key(cls, key: str) -> str:
        """For a key that is not there."""
        return ELSEWHERE.get(key, "")


class LocalLaunchConfig(_Launch):
    """This process alone, or the ranks of the launcher that started it."""

    launcher: Literal["local"] = "local"


class TorchrunLaunchConfig(_Launch):
    """Ranks on this machine, as `torchrun --nproc-per-node` starts them; a process that is a rank already starts no others."""

    launcher: Literal["torchrun"]
    processes: int = Field(2, ge=2)
    """Ranks, each a process."""


class PoolConfig(BaseConfig):
    """A pool of actors that do the same."""

    replicas: int = Field(1, ge=1)
    """Actors."""
    cpus: float = Field(1.0, ge=0)
    """Cores of each, as Ray counts them; also its threads of torch, at least one."""
    gpus: float = Field(0.0, ge=0)
    """GPUs of each; below 1 it shares one with others."""
    memory_gib: float | None = Field(None, gt=0)
    """Memory of each, as Ray counts it; Ray does not hold an actor to it."""
    start_timeout_seconds: float = Field(300.0, gt=0)
    """For an actor to be ready."""
    timeout_seconds: float = Field(600.0, gt=0)
    """For one piece of work; an actor that takes longer is killed and replaced."""
    max_restarts: int = Field(3, ge=0)
    """How often in a row an actor is replaced, or a piece of work given to another one, before the run ends."""

    @model_validator(mode="after")
    def _gpus_are_whole_or_shared(self) -> Self:
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(
                f"gpus is {self.gpus:g}; Ray gives a part of one GPU, or whole ones: wanted up to 1, or a whole number"
            )
        return self

    @property
    def threads(self) -> int:
        """Of torch, in each replica."""
        return max(1, int(self.cpus))

    @property
    def resources(self) -> dict[str, float]:
        """What Ray reserves for each replica; memory in bytes."""
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(int((self.memory_gib or 0) * 2**30))}
        return {name: amount for name, amount in asked.items() if amount}


class EnginePoolConfig(PoolConfig):
    """Engines that sample a policy's completions, of the kind that a stage's `engine` says."""

    weights: Literal["object_store", "folder"] = "object_store"
    """How new weights reach them: by Ray's object store, or as a safetensors file in `folder`."""
    folder: FilePath | None = None
    """Where that file lies: one that all nodes see; by default a temporary one of this machine."""
    prompts_per_unit: int | None = Field(None, ge=1)
    """Prompts, with all their completions, that an engine is given at a time; by default a rollout is cut into one unit for each
    engine, or two where they have 32 prompts at least and there are several engines. Log-probabilities depend on it by rounding, as on the
    size of any batch."""
    reissue_after: float | None = Field(3.0, gt=1)
    """A unit that takes so many times as long as its length lets expect is given to an idle engine, too, and the first answer is taken;
    null for never."""


class RewardPoolConfig(PoolConfig):
    """Actors that each have all rewards of a stage which take time: reward models, functions, programs that are run."""

    completions_per_unit: int = Field(32, ge=1)
    """Completions that an actor is given at a time, those of one prompt together. A reward model's scores depend on it by rounding, and a
    function sees so many in one call."""
    reissue_after: float | None = Field(None, gt=1)
    """A unit that takes so many times as long as its length lets expect is given to an idle actor, too; null for never."""


class PoolsConfig(BaseConfig):
    """Pools by role; what has no pool is done by the process that trains."""

    engines: EnginePoolConfig | None = None
    """Sample the completions of stages that learn from them."""
    reward: RewardPoolConfig | None = None
    """Score the completions of stages that learn from them."""
    reference: PoolConfig | None = None
    """Hold a frozen reference, and give its log-probabilities of a rollout's micro-batches."""
    environments: PoolConfig | None = None
    """Hold the environments of episodes, of the kinds `python` and `trl`, and step many at a time."""

    def by_role(self) -> dict[str, PoolConfig]:
        """Those that are asked for."""
        pools = {role: getattr(self, role) for role in type(self).model_fields}
        return {role: pool for role, pool in pools.items() if pool is not None}


class RayLaunchConfig(_Launch):
    """One process that trains, or ranks over the nodes of a cluster; and pools of Ray's actors that work for it."""

    launcher: Literal["ray"]
    address: str | None = None
    """Of a running cluster: `HOST:PORT`, or `auto` for the one of this machine; null to start one here that ends with the run, unless
    RAY_ADDRESS names one. With several nodes it is `auto`."""
    nodes: int = Field(1, ge=1)
    """Machines that the ranks which train are spread over."""
    gpus_per_node: int | None = Field(None, ge=1)
    """Ranks on each node, each with a GPU of its own."""
    processes_per_node: int | None = Field(None, ge=1)
    """Ranks on each node, on its processor where gpus_per_node is not given; null for one process that trains where `rlhf run` was
    typed."""
    cpus_per_process: float = Field(1.0, gt=0)
    """Cores that Ray reserves for each of these ranks; also its threads of torch, at least one."""
    pools: PoolsConfig = PoolsConfig(engines=EnginePoolConfig())
    """Actors by role; by default none with ranks, which sample by themselves."""
    placement: Literal["colocated", "separate"] = "separate"
    """`separate`: each replica where there is room, spread over nodes. `colocated`: one replica of each pool together on a node, and
    on one GPU where their parts of it add up to no more than 1."""
    placement_timeout_seconds: float = Field(20.0, gt=0)
    """For Ray to reserve what the pools need; a cluster that adds nodes on demand needs minutes."""
    object_store_gib: float | None = Field(None, gt=0)
    """Shared memory of a cluster that is started here; by default Ray's own choice, about a third of the memory."""

    @field_validator("address")
    @classmethod
    def _is_where_a_cluster_listens(cls, address: str | None) -> str | None:
        if address is None or address == "auto" or re.fullmatch(r"[^/\s]+:\d+", address):
            return address
        raise ValueError(
            f"{address!r} is not `auto` (the cluster of this machine) or HOST:PORT, as `ray start --head --port` gives it. Ray's client "
            "(`ray://`) is not used: run on a machine of the cluster"
        )

    @model_validator(mode="before")
    @classmethod
    def _with_what_ranks_need(cls, written: Any) -> Any:
        if not isinstance(written, Mapping):
            return written
        has_ranks = any(written.get(key) is not None for key in ("gpus_per_node", "processes_per_node"))
        several = isinstance(nodes := written.get("nodes"), int) and nodes > 1
        return {
            **({"pools": {}} if has_ranks else {}),
            **written,
            **({"address": "auto"} if several and written.get("address") is None else {}),
        }

    @model_validator(mode="after")
    def _ranks_are_counted_once(self) -> Self:
        if self.nodes > 1 and not self.num_ranks:
            raise ValueError(
                f"nodes is {self.nodes}; how many ranks does each have? Give gpus_per_node, one rank for each GPU, or processes_per_node"
            )
        if self.cpus_per_process != 1 and not self.num_ranks:  # one is what a recipe has that a run wrote
            raise ValueError(
                "cpus_per_process is of ranks, and there are none: give gpus_per_node or processes_per_node, or leave it out"
            )
        if None not in (asked := (self.gpus_per_node, self.processes_per_node)) and asked[0] != asked[1]:
            raise ValueError(
                f"gpus_per_node is {asked[0]} and processes_per_node {asked[1]}; each rank has a GPU of its own: leave processes_per_node out"
            )
        return self

    @model_validator(mode="after")
    def _starts_what_it_sizes(self) -> Self:
        if self.address is not None and self.object_store_gib is not None:
            raise ValueError(
                "object_store_gib sizes a cluster that is started here, and address names a running one; leave one out"
            )
        return self

    @property
    def ranks_per_node(self) -> int:
        """Ranks that Ray starts on each node; 0 where one process trains, which Ray does not start."""
        return self.gpus_per_node or self.processes_per_node or 0

    @property
    def num_ranks(self) -> int:
        """On all nodes together."""
        return self.nodes * self.ranks_per_node

    @property
    def rank_pool(self) -> PoolConfig:
        """What the ranks of a node need, as one actor on each node."""
        return PoolConfig(
            replicas=self.nodes,
            cpus=self.ranks_per_node * self.cpus_per_process,
            gpus=self.gpus_per_node or 0,
        )

    @property
    def threads_per_rank(self) -> int:
        """Of torch."""
        return max(1, int(self.cpus_per_process))


def _with_launcher(value: Any) -> Any:
    """A plain word stands for a preset, or for the launcher of that name with its defaults."""
    value = with_preset(value)
    if isinstance(value, str):
        return {LAUNCHER: value}
    return {LAUNCHER: "local", **value} if isinstance(value, Mapping) else value


LaunchConfig = LocalLaunchConfig | TorchrunLaunchConfig | RayLaunchConfig
LaunchSpec = Annotated[LaunchConfig, Field(discriminator=LAUNCHER), BeforeValidator(_with_launcher)]
"""A recipe's `launch:`."""


class LaunchFile(BaseConfig):
    """What the file of `rlhf run --launch FILE` is checked as, under the key that it has in a recipe."""

    launch: LaunchSpec
    """What the file holds."""


def launch_of_file(path: Path | str) -> dict[str, Any]:
    """What the file of ``--launch`` holds, checked.

    Raises:
        ConfigError: It is not there, is not YAML, or is not the section `launch` of a recipe.
    """
    tree = read_yaml(path, wanted="it should hold the section `launch` of a recipe, such as `launcher: ray`")
    LaunchFile.of({"launch": tree}, source=str(path))
    return tree


def asked_of_ray(launch: RayLaunchConfig) -> Iterator[str]:
    """What the ranks and each pool ask for, in words."""
    yield from asked_words({"ranks": launch.rank_pool} if launch.num_ranks else {})
    yield from asked_words(launch.pools.by_role())


def asked_words(pools: Mapping[str, PoolConfig]) -> Iterator[str]:
    """What each pool asks for, in words."""
    for role, pool in pools.items():
        yield f"{role}: {pool.replicas} x ({resource_words(pool.resources)})"


def resource_words(resources: Mapping[str, float]) -> str:
    """`2 CPU, 0.4 GPU, 8 GiB memory`, as Ray counts them."""
    known = {"CPU": "CPU", "GPU": "GPU"}
    words = [f"{resources[name]:g} {word}" for name, word in known.items() if name in resources]
    if "memory" in resources:
        words.append(f"{resources['memory'] / 2**30:.3g} GiB memory")
    return ", ".join(words) or "nothing"
