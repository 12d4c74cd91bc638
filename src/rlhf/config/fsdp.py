"""How weights are cut over ranks by torch's FSDP2."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.base import BaseConfig


class FSDPConfig(BaseConfig):
    """Settings of FSDP2 (torch's ``fully_shard``); a process by itself leaves weights whole and reads none of them."""

    cpu_offload: bool = False
    """Weights, gradients and optimizer state lie in main memory, and layers are on the device only while they compute."""
    replicate: int = Field(1, ge=1)
    """Hybrid sharding: so many groups of ranks hold the whole model each, in shards over the ranks of a group. Best as many as there are
    machines: weights are then gathered inside of one, and only gradients cross the network."""
    param_dtype: Literal["bfloat16"] | None = None
    """Weights are gathered and computed with in this type, while shards, gradients over ranks and optimizer keep that of the weights. Half
    the traffic; results differ from those of one process, as with `autocast`."""
    vocab_parallel: bool = False
    """Embeddings and the output projection are divided by tokens of the vocabulary (as in Megatron-LM) and computed with where they lie:
    hidden states are gathered in their place. For a vocabulary that is large beside the rest of the model."""
