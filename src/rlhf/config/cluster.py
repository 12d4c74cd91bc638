"""A cluster as `rlhf plan --cluster` reads it: what accelerators there are, how they are connected, what they cost."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rlhf.config.base import BaseConfig


class AcceleratorConfig(BaseConfig):
    """An accelerator by its figures, where its name is not in the table of published ones."""

    name: str = "accelerator"
    """What the plan calls it."""
    memory_gib: float = Field(gt=0)
    """That a process can have, in GiB."""
    bfloat16_tflops: float = Field(gt=0)
    """TFLOP/s of dense matrix products in bfloat16."""
    float32_tflops: float | None = Field(None, gt=0)
    """TFLOP/s of float32 without TF32; null for a sixteenth of bfloat16's, as on an H100."""
    bandwidth_gb_per_second: float = Field(gt=0)
    """Of its memory, in GB/s."""


class LinksConfig(BaseConfig):
    """Links by their names in the table of published ones (`NVLink4`, `InfiniBand-NDR`), or in GB/s of one direction."""

    within_node: str | float | None = None
    """From one accelerator to the others of its node; null for what is published of it."""
    between_nodes: str | float | None = None
    """From a node to the others, for each of its accelerators; null for what is published of the maker's own systems."""
    host: str | float | None = None
    """From an accelerator to the memory of its node; null for what is published of it."""

    @model_validator(mode="after")
    def _speeds_are_positive(self) -> Self:
        for key in ("within_node", "between_nodes", "host"):
            value = getattr(self, key)
            if isinstance(value, float) and value <= 0:
                raise ValueError(f"{key} is {value:g}; a link has more than 0 GB/s")
        return self


class ClusterConfig(BaseConfig):
    """Nodes of equal accelerators."""

    accelerator: str | AcceleratorConfig
    """Its name in the table of published figures (docs/planning-clusters.md), or its figures."""
    nodes: int = Field(1, ge=1)
    """Available; a plan may use fewer."""
    gpus_per_node: int = Field(8, ge=1)
    """Accelerators of a node."""
    links: LinksConfig = LinksConfig()
    """How they are connected."""
    host_memory_gib: float | None = Field(None, gt=0)
    """Memory of a node's processors; null where it is not known, and then nothing is planned to be kept there."""
    host_gb_per_second: float = Field(200.0, gt=0)
    """Bandwidth of that memory in GB/s: with it AdamW runs there."""
    price_per_gpu_hour: float | None = Field(None, gt=0)
    """Of one accelerator with its part of the node; null for a plan without costs, which goes by hours of accelerators."""
    currency: str = "USD"
    """Of the price."""
