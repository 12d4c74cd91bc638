"""The part of a checkpoint that lies in shards: every rank writes its own, and reads what it needs for any number of ranks.

It is torch's distributed checkpoint (``torch.distributed.checkpoint``) in its safetensors form: one file of each rank, whose header says
where its pieces are in the whole tensors.

    shard-00001-model-00001-of-00001.safetensors     of rank 0, and so on

In the state of the run a shard is replaced by its name there, and its tensor comes back in its place.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.distributed.ranks import current_ranks
from rlhf.distributed.sharding import empty_shard, part
from rlhf.files import sha256

MARK = "rlhf shard"
"""The only key of what stands in a state for a shard."""
OF_WEIGHTS = "weights"
"""Names of weights begin so, and go on with module and parameter."""
OF_STATE = "state"
"""Names of tensors in the state begin so, and go on with its keys."""
_FILE = re.compile(r"shard-\d{5}-model-00001-of-00001\.safetensors")


def is_shard_file(name: object) -> bool:
    """Whether a file of a checkpoint is one of these."""
    return isinstance(name, str) and _FILE.fullmatch(name) is not None


def mark_of(name: str) -> dict[str, str]:
    """What stands for a shard."""
    return {MARK: name}


def write_shards(folder: Path, shards: Mapping[str, Tensor]) -> dict[str, str]:
    """Write this rank's part of each tensor into a folder that is there; all ranks do so at once.

    Returns:
        File name to sha256, of all ranks' files.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with _plain_errors():
        save(dict(shards), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    ranks = current_ranks()
    own = folder / f"shard-{ranks.rank + 1:05d}-model-00001-of-00001.safetensors"
    hashes = {own.name: sha256(own)} if own.exists() else {}
    return {name: digest for written in ranks.gather(hashes) for name, digest in written.items()}


def read_shards(folder: Path) -> dict[str, Tensor]:
    """Name to tensor: this rank's part of each, or the whole of it in a process by itself. No rank waits for another."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    known = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    tensors: dict[str, Any] = {}
    for name, tensor in known.items():
        if name.startswith((f"{OF_WEIGHTS}/", f"{OF_STATE}/")):  # torch reads every safetensors file that is there
            kind: Any = tensor
            tensors[name] = empty_shard(kind.size, kind.properties.dtype)
    with torch.no_grad(), _plain_errors(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as it is in a process by itself
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    return tensors


def restored(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """A state with the tensors in the place of their names."""
    if isinstance(state, dict):
        if state.keys() == {MARK}:
            return tensors[state[MARK]]
        return type(state)((key, restored(value, tensors)) for key, value in state.items())
    if isinstance(state, list | tuple):
        return type(state)(restored(value, tensors) for value in state)
    return state


def weights_in(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Module name to parameter name to tensor, of the weights among them."""
    weights: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == OF_WEIGHTS:
            module, _, parameter = rest.partition("/")
            weights.setdefault(module, {})[parameter] = tensor
    return weights


def bytes_of(shards: Mapping[str, Tensor]) -> int:
    """On this rank."""
    return sum(part(shard).numel() * shard.element_size() for shard in shards.values())


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What went wrong, and not the list of it by ranks that torch raises, which is no ``Exception``."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as err:
        _, (cause, _) = min(err.failures.items(), key=lambda failure: failure[0])
        raise cause from err
