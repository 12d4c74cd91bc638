"""A cluster with every figure filled in, from a file or from a name such as ``2x8xH100``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf.config.cluster import AcceleratorConfig, ClusterConfig
from rlhf.config.yaml_text import read_yaml
from rlhf.errors import ConfigError, UnknownNameError
from rlhf.scale.gpus import GIB, gpu
from rlhf.scale.links import OF_GPUS, link_bytes_per_second
from rlhf.scale.machine import Machine

NAMED = re.compile(r"^(?:(?P<nodes>[1-9]\d*)x)?(?P<gpus>[1-9]\d*)x(?P<accelerator>[A-Za-z][\w -]*)$")
"""``8xH100``: a node of eight; ``2x8xH100``: two of them."""
FLOAT32_SHARE = 1 / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes of equal accelerators; speeds in bytes per second of one accelerator and one direction."""

    machine: Machine
    """One accelerator."""
    nodes: int
    gpus_per_node: int
    within_node: float
    between_nodes: float | None
    """None for a single node."""
    host: float
    host_bytes: float | None
    """Of the memory of a node's processors; None where it is not known."""
    host_bytes_per_second: float
    """Of that memory."""
    price_per_gpu_hour: float | None
    currency: str

    @property
    def num_gpus(self) -> int:
        """All of them."""
        return self.nodes * self.gpus_per_node

    @property
    def name(self) -> str:
        """How a person would call it: ``2x8xH100``."""
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{nodes}{self.gpus_per_node}x{self.machine.name}"

    def part(self, num_gpus: int) -> Cluster:
        """So many of the accelerators: some of one node, or whole nodes."""
        if num_gpus <= self.gpus_per_node:
            return replace(self, nodes=1, gpus_per_node=num_gpus)
        return replace(self, nodes=num_gpus // self.gpus_per_node)

    @property
    def part_sizes(self) -> list[int]:
        """Numbers of accelerators that a plan tries: powers of two in one node, then whole nodes, doubled each time, and all."""
        inside = [count for count in _doubled(self.gpus_per_node) if self.gpus_per_node % count == 0]
        return sorted({*inside, *(count * self.gpus_per_node for count in _doubled(self.nodes))})


def read_cluster(text: str) -> Cluster:
    """A cluster from a YAML file, or from a name: ``8xH100``, or ``2x8xH100`` for two nodes.

    Raises:
        ConfigError: There is no such file, a setting of it is wrong, or a speed is neither given nor published.
        UnknownNameError: An accelerator or a link has no published figures; says which is near.
    """
    named = NAMED.match(text)
    if named is not None and not Path(text).exists():
        tree = {
            "accelerator": named["accelerator"],
            "nodes": int(named["nodes"] or 1),
            "gpus_per_node": int(named["gpus"]),
        }
        return cluster_of(ClusterConfig.of(tree, source=text), source=text)
    if not Path(text).is_file():
        raise ConfigError(
            f"--cluster {text!r} is no file, and no name of a cluster; wanted a YAML file (docs/planning-clusters.md), or NODESxGPUSxNAME "
            "such as 2x8xH100"
        )
    tree = read_yaml(text, wanted="it needs at least `accelerator:` (docs/planning-clusters.md)")
    return cluster_of(ClusterConfig.of(tree, source=text), source=text)


def cluster_of(config: ClusterConfig, *, source: str) -> Cluster:
    """Figures of a cluster, published ones where it gives none.

    Args:
        config: Its settings.
        source: What errors call it.

    Raises:
        ConfigError: A link is neither given nor published.
        UnknownNameError: A name is not in a table.
    """
    machine = _machine(config.accelerator, source)
    published = OF_GPUS.get(machine.name) if isinstance(config.accelerator, str) else None

    def speed(key: str) -> float:
        given = getattr(config.links, key)
        link = given if given is not None else getattr(published, key, None)
        if link is None:
            raise ConfigError(
                f"{source}: links.{key} is not given, and nothing is published of it for {machine.name}; give GB/s of one direction, or a name "
                "such as PCIe5 or InfiniBand-NDR"
            )
        try:
            return link_bytes_per_second(link)
        except UnknownNameError as err:
            raise UnknownNameError(f"{source}: links.{key}: {err}") from None

    return Cluster(
        machine=machine,
        nodes=config.nodes,
        gpus_per_node=config.gpus_per_node,
        within_node=speed("within_node") if config.gpus_per_node > 1 else 1.0,
        between_nodes=speed("between_nodes") if config.nodes > 1 else None,
        host=speed("host"),
        host_bytes=None if config.host_memory_gib is None else config.host_memory_gib * GIB,
        host_bytes_per_second=config.host_gb_per_second * 1e9,
        price_per_gpu_hour=config.price_per_gpu_hour,
        currency=config.currency,
    )


def _machine(accelerator: str | AcceleratorConfig, source: str) -> Machine:
    if isinstance(accelerator, str):
        try:
            return gpu(accelerator)
        except UnknownNameError as err:
            raise UnknownNameError(
                f"{source}: accelerator: {err} One that is not in the table can be given by its figures (docs/planning-clusters.md)."
            ) from None
    half = accelerator.bfloat16_tflops * 1e12
    single = half * FLOAT32_SHARE if accelerator.float32_tflops is None else accelerator.float32_tflops * 1e12
    return Machine(
        name=accelerator.name,
        is_gpu=True,
        memory_bytes=int(accelerator.memory_gib * GIB),
        matmul_flops={"bfloat16": half, "float16": half, "float32": single},
        copy_bytes_per_second=accelerator.bandwidth_gb_per_second * 1e9,
        source=source,
    )


def _doubled(most: int) -> list[int]:
    """1, 2, 4 ... and the last."""
    counts = []
    count = 1
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most]
