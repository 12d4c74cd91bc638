"""One checkpoint: what a run is at one moment, copied, and the folder of hashed files that holds it.

checkpoint-00000120/
    weights-policy.safetensors     trainable parameters of each module
    shard-*.safetensors            of several ranks: each one's part of weights and moments (``sharded_checkpoint``)
    state.pt                       everything else, loadable with ``weights_only``
    checkpoint.json                step, settings of the run, whether it is the best so far, size and sha256 of each file
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import stat
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf.distributed.sharding import is_shard, whole
from rlhf.errors import CheckpointError, StorageError, with_article
from rlhf.files import fsync, sha256, write_json
from rlhf.training.sharded_checkpoint import (
    OF_STATE,
    OF_WEIGHTS,
    is_shard_file,
    mark_of,
    read_shards,
    restored,
    weights_in,
)

RECORD = "checkpoint.json"
STATE = "state.pt"
_WEIGHTS, _WEIGHTS_SUFFIX = "weights-", ".safetensors"
_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_BYTES_OF_ATOM = 16
"""At most what a number takes in a pickle, its place in a container included."""
_BYTES_OF_TENSOR = 512
"""Name, shape and alignment of a tensor in a file."""
_BYTES_BESIDES = 64 * 1024
"""The record, headers and the ends of blocks."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was read back."""

    step: int
    weights: Mapping[str, Mapping[str, Tensor]]
    """Module name to parameter name to tensor."""
    state: Mapping[str, Any]
    path: Path


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies that share nothing with the run, which may go on changing the originals."""

    weights: Mapping[str, Mapping[str, Tensor]]
    """Module name to parameter name to tensor, contiguous and in main memory."""
    state: Mapping[str, Any]
    num_bytes: int
    """At most what it will take on disk, without shards."""
    shards: Mapping[str, Tensor] = field(default_factory=dict)
    """Name to what the run itself holds, no copy."""

    @classmethod
    def of(cls, modules: Mapping[str, nn.Module], state: Mapping[str, Any], *, in_shards: bool = False) -> Snapshot:
        """Copy the trainable parameters and the state; of what lies in shards, on all ranks at once, the whole.

        Args:
            modules: Whose parameters.
            state: Everything else.
            in_shards: Leave what lies in shards as it is.

        Raises:
            CheckpointError: Something in the state could be written and never be read back; named by its keys.
        """
        shards: dict[str, Tensor] = {}
        weights: dict[str, dict[str, Tensor]] = {}
        for name, module in modules.items():
            weights[name] = {}
            for key, p in module.named_parameters():
                if not p.requires_grad:
                    continue
                if in_shards and is_shard(p):
                    shards[f"{OF_WEIGHTS}/{name}/{key}"] = p.detach()
                else:
                    values = whole(p.detach())
                    weights[name][key] = values.to("cpu", copy=True, memory_format=torch.contiguous_format)
        copier = _Copier(shards if in_shards else None)
        copied = copier.copy(dict(state), (OF_STATE,))
        tensors = [value for module in weights.values() for value in module.values()]
        num_bytes = _BYTES_BESIDES + copier.num_bytes + sum(_size_on_disk(value) for value in tensors)
        return cls(weights, copied, num_bytes, shards)

    def write(
        self,
        folder: Path,
        *,
        step: int,
        identity: Mapping[str, Any],
        best: bool,
        written: Mapping[str, str] | None = None,
    ) -> None:
        """Put it into a folder, and all of that on disk; the record, without which it is none, comes last.

        Args:
            folder: Empty, or with the files of ``written``, which are on disk.
            step: Of the run.
            identity: Settings of the run.
            best: Whether it is the best so far.
            written: Hashes of files that are there.
        """
        written = written or {}
        for name, weights in self.weights.items():
            _save_weights(name, weights, folder / f"{_WEIGHTS}{name}{_WEIGHTS_SUFFIX}")
        with (folder / STATE).open("wb") as open_file:  # by name, torch would hide what the system said
            torch.save(self.state, open_file)
        files = sorted(folder.iterdir())
        for file in files:
            if file.name not in written:
                fsync(file)
        record: dict[str, Any] = {
            "step": step,
            "best": best,
            "identity": identity,
            "bytes": {file.name: file.stat().st_size for file in files},
            "sha256": {file.name: written.get(file.name) or sha256(file) for file in files},
        }
        write_json(folder / RECORD, record | {"record_sha256": _seal(record)})


@dataclass(frozen=True, slots=True)
class Record:
    """What a checkpoint says about itself."""

    path: Path
    step: int
    best: bool
    identity: Mapping[str, Any]
    sizes: Mapping[str, int]
    hashes: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Record:
        """Of the checkpoint in a folder; its files are not looked at.

        Raises:
            CheckpointError: There is none, or it is not of the form that ``Snapshot.write`` gives it.
        """
        with _damage_named(path, RECORD):
            recorded = json.loads((path / RECORD).read_text(encoding="utf-8"))
            seal = (
                _seal({k: v for k, v in recorded.items() if k != "record_sha256"}) if isinstance(recorded, dict) else ""
            )
        if not isinstance(recorded, dict):
            raise _damaged(
                path, f"{RECORD} holds {with_article(type(recorded).__name__)}, where keys and values were written"
            )
        if recorded.get("record_sha256") != seal:
            raise _damaged(path, f"{RECORD} is not what was written: its own sha256 is another")
        fields = {"step": int, "best": bool, "identity": dict, "bytes": dict, "sha256": dict}
        for key, kind in fields.items():
            if type(recorded.get(key)) is not kind:  # isinstance would take true for a step
                raise _damaged(path, f"{RECORD} has no {key!r} of type {kind.__name__}")
        sizes, hashes = recorded["bytes"], recorded["sha256"]
        if sizes.keys() != hashes.keys() or STATE not in hashes:
            raise _damaged(path, f"{RECORD} does not name {STATE} and each other file with its size and hash")
        strange = [name for name in hashes if name != STATE and _module_of(name) is None and not is_shard_file(name)]
        if strange:
            raise _damaged(path, f"{RECORD} names {strange[0]!r}, which is not a file of a checkpoint")
        return cls(path, recorded["step"], recorded["best"], recorded["identity"], sizes, hashes)

    def verify(self) -> None:
        """Raise CheckpointError unless the folder holds exactly the files, with the bytes, that were written."""
        for name, digest in self.hashes.items():
            with _damage_named(self.path, name):
                status = (self.path / name).stat()
            if not stat.S_ISREG(status.st_mode):  # a pipe or a device would be read for ever
                raise _damaged(self.path, f"{name} is not a file")
            if status.st_size != self.sizes[name]:
                sizes = f"it has {status.st_size:,} bytes, and should have {self.sizes[name]}"
                raise _damaged(self.path, f"{name} is not what was written: {sizes}")
            with _damage_named(self.path, name):
                same = sha256(self.path / name) == digest
            if not same:
                raise _damaged(self.path, f"{name} is not what was written: its sha256 is another")
        known = {RECORD, *self.hashes}
        with _damage_named(self.path, RECORD):
            files = sorted(self.path.iterdir())
        for file in files:  # hidden ones are of the system (.DS_Store, .nfs0001)
            if file.name not in known and not file.name.startswith("."):
                raise _damaged(self.path, f"{file.name} is not one of its files; remove it if you put it there")

    def load(self) -> Checkpoint:
        """Read the files; CheckpointError where one has the bytes that were written and is of no use all the same."""
        weights = {}
        for name in sorted(self.hashes):
            if module := _module_of(name):
                with _damage_named(self.path, name):
                    weights[module] = load_file(self.path / name)
        with _damage_named(self.path, STATE):
            state = torch.load(self.path / STATE, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise _damaged(
                self.path, f"{STATE} holds {with_article(type(state).__name__)}, where keys and values were written"
            )
        if any(map(is_shard_file, self.hashes)):
            with _damage_named(self.path, STATE):
                shards = read_shards(self.path)
                state = restored(state, shards)
            for module, parameters in weights_in(shards).items():
                weights[module] = {**weights.get(module, {}), **parameters}
        return Checkpoint(step=self.step, weights=weights, state=state, path=self.path)


class _Copier:
    """Copies nested containers and the tensors in them; one thing that is met twice stays one thing.

    Args:
        shards: Gets tensors that lie in shards by the names that stand for them then; None to copy the whole ones.
    """

    def __init__(self, shards: dict[str, Tensor] | None = None) -> None:
        self.num_bytes = 0
        self.shards = shards
        self._copies: dict[int, Any] = {}

    def copy(self, value: Any, place: tuple[Any, ...]) -> Any:
        """A copy of a value that stands at ``place``."""
        kind = type(value)
        if kind in _ATOMS:
            self.num_bytes += _BYTES_OF_ATOM + (len(value) if kind in (str, bytes) else 0)
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        copied: Any
        if isinstance(value, Tensor) and is_shard(value) and self.shards is not None:
            name = "/".join(map(str, place))
            self.shards[name] = value.detach()
            copied = mark_of(name)
            self.num_bytes += len(name) + _BYTES_OF_ATOM
        elif isinstance(value, Tensor):
            copied = whole(value.detach()).to("cpu", copy=True)
            self.num_bytes += _size_on_disk(copied)
        elif kind in (list, tuple):
            copied = kind([self.copy(item, (*place, i)) for i, item in enumerate(value)])
        elif kind in (dict, OrderedDict):
            copied = kind((self.copy(key, place), self.copy(item, (*place, key))) for key, item in value.items())
        else:
            copied = self._round_trip(value, place)
        self._copies[id(value)] = copied
        return copied

    def _round_trip(self, value: Any, place: tuple[Any, ...]) -> Any:
        """What would be read back: a copy, and the proof today that the run can be resumed tomorrow."""
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            self.num_bytes += buffer.tell()
            buffer.seek(0)
            return torch.load(buffer, map_location="cpu", weights_only=True)
        except Exception as err:
            where = place[0] + "".join(f"[{key!r}]" for key in place[1:])
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise CheckpointError(
                f"{where} is a {kind}, which can't be read back from a checkpoint. Keep numbers, text, lists, dicts and "
                "tensors in a state_dict."
            ) from err


def _seal(record: Mapping[str, Any]) -> str:
    """Hash of what a record says: a settings value with a turned bit must not pass for another run's."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _size_on_disk(value: Tensor) -> int:
    return value.numel() * value.element_size() + _BYTES_OF_TENSOR


def _save_weights(name: str, weights: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file(dict(weights), path)
    except KeyError as err:
        raise CheckpointError(
            f"Module {name} trains a parameter of type {err}, which safetensors can't store; train it in another type."
        ) from err


def _module_of(name: object) -> str | None:
    """'policy' of 'weights-policy.safetensors'; None for any other name, and for one that leads out of the folder."""
    if not isinstance(name, str) or not name.startswith(_WEIGHTS) or not name.endswith(_WEIGHTS_SUFFIX):
        return None
    return None if "/" in name or "\0" in name else name.removeprefix(_WEIGHTS).removesuffix(_WEIGHTS_SUFFIX)


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint {path} is damaged: {what}.")


@contextmanager
def _damage_named(path: Path, name: str) -> Iterator[None]:
    """Errors of reading one file, named; one of this process (rights, open files) says nothing about the file."""
    try:
        yield
    except FileNotFoundError as err:
        raise _damaged(path, f"{name} is missing") from err
    except OSError as err:
        if err.errno in (errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
            raise _damaged(path, f"{name} can't be read ({err.strerror})") from err
        raise StorageError(
            f"Can't read {path / name}: {err.strerror or err}. It may be whole, so no older checkpoint is used in its "
            "place: make it readable, or remove that folder to go on from the one before."
        ) from err
    except MemoryError:
        raise
    except UnicodeDecodeError as err:
        raise _damaged(path, f"{name} is not UTF-8 text (byte {err.start})") from err
    except Exception as err:  # the readers' own errors have no common class
        raise _damaged(path, f"{name} {_unreadable(name, err)}") from err


def _unreadable(name: str, err: Exception) -> str:
    if name == RECORD:
        return f"is not JSON ({err})"
    if name == STATE:  # not in torch's words: they advise to load it without the safety
        return f"is not a file of torch, or holds more than numbers, text and tensors ({type(err).__name__})"
    return f"is not a safetensors file ({err})"
