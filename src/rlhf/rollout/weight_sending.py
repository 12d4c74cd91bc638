"""Weights on their way to the engines of a pool: one copy in Ray's object store, or one safetensors file."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from rlhf.config.launch import EnginePoolConfig
from rlhf.distributed.actor_calls import Cluster
from rlhf.errors import ConfigError, ModelError
from rlhf.files import check_space, make_folder, storage_errors
from rlhf.formatting import bytes_text, percentage
from rlhf.models.folders import weights_fingerprint
from rlhf.models.policy import PolicyModel
from rlhf.rollout.snapshot import weight_bytes

FILES_KEPT = 2
"""Newest weights whose files stay in the folder in any case: an engine may still read the ones before."""
STORE_SHARE = 0.8
"""Of the object store that all versions may take which are wanted at the same time."""


class SentFile:
    """A file of weights, removed when it is not wanted any more: nothing refers to this object.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.remove = weakref.finalize(self, path.unlink, missing_ok=True)


@dataclass(frozen=True, slots=True)
class SentWeights:
    """One version."""

    version: int
    checksum: str
    """Of the parameters that training changes."""
    kept: Any
    """The file, or a reference into the object store: what the weights are in stays there as long as this."""

    @property
    def argument(self) -> Any:
        """What an engine is given for them: a reference into the object store, or a path."""
        return str(self.kept.path) if isinstance(self.kept, SentFile) else self.kept


class WeightSender:
    """Puts weights where every engine of a pool can read them.

    Args:
        cluster: Of the engines.
        settings: By which way, and where.
        notify: Called with a message where the object store is too small and a file is taken in its place.
        versions_held: How many versions may be wanted at the same time: those of rollouts that wait to be sampled, and the newest.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: EnginePoolConfig,
        *,
        notify: Callable[[str], None],
        versions_held: Callable[[], int],
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self.notify = notify
        self.versions_held = versions_held
        self.newest: SentWeights | None = None
        self._folder: Path | None = None
        self._count = 0
        self._files: weakref.WeakSet[SentFile] = weakref.WeakSet()
        self._policy_file: SentFile | None = None
        """An engine that is started again needs it."""
        self._recent: deque[SentFile] = deque(maxlen=FILES_KEPT)
        self._too_small = False

    def send_policy(self, policy: PolicyModel) -> Any:
        """A copy of the whole policy, as it is now.

        Raises:
            ModelError: It can't be copied into another process.
            ConfigError, StorageError: There is no place for it.
        """
        size = sum(parameter.nbytes for parameter in policy.parameters())
        try:
            if self._by_folder(size):
                path = self._new_path(size, "policy.pt")
                with storage_errors(path):
                    torch.save(policy, path)
                self._policy_file = self._owned(path)
                return str(path)
            buffer = io.BytesIO()
            torch.save(policy, buffer)
        except (AttributeError, TypeError, RuntimeError) as err:
            raise ModelError(
                f"Engines of a pool sample with copies of the policy, and this policy can't be sent to another process "
                f"({type(err).__name__}: {err}). Leave launch.pools.engines out."
            ) from err
        return self.cluster.put(buffer.getvalue())

    def send(self, policy: PolicyModel, version: int) -> SentWeights:
        """The weights that training changes, as they are now; those that were sent last where they are still the same."""
        changing = policy.trainable_parameters()
        checksum = weights_fingerprint(changing.items())
        if self.newest is None or self.newest.checksum != checksum:
            self.newest = SentWeights(version, checksum, self._put(changing))
        elif self.newest.version != version:
            self.newest = SentWeights(version, checksum, self.newest.kept)
        return self.newest

    def close(self) -> None:
        """Forget what was sent, and remove its files."""
        self.newest = self._policy_file = None
        self._recent.clear()
        for file in list(self._files):
            file.remove()

    def _put(self, changing: Mapping[str, torch.Tensor]) -> Any:
        size = sum(parameter.nbytes for parameter in changing.values())
        if not self._by_folder(size):
            return self.cluster.put(
                {name: np.frombuffer(weight_bytes(value), dtype=np.uint8) for name, value in changing.items()}
            )
        self._count += 1
        path = self._new_path(size, f"weights-{self._count}.safetensors")
        aside = path.with_suffix(".tmp")
        with storage_errors(path):
            save_file({name: value.detach().cpu().contiguous() for name, value in changing.items()}, aside)
            os.replace(aside, path)
        self._recent.append(self._owned(path))
        return self._recent[-1]

    def _by_folder(self, size: int) -> bool:
        """Whether a file is written: because it was asked for, or the object store is too small."""
        if self.settings.weights == "folder":
            return True
        room, share = self.cluster.object_store_bytes, STORE_SHARE / self.versions_held()
        if size <= share * room:
            return False
        too_small = (
            f"The weights take {bytes_text(size)}, and Ray's object store has {bytes_text(room)} on its smallest node, of which "
            f"{percentage(share, 0)} may be taken by one version"
        )
        if self.settings.folder is None and self.cluster.num_nodes > 1:
            raise ConfigError(
                f"{too_small}. Name a folder that all nodes see in launch.pools.engines.folder, or give Ray more "
                "(`ray start --object-store-memory`)."
            )
        if not self._too_small:
            self._too_small = True
            self.notify(f"{too_small}; they go through files in {self._place()}.")
        return True

    def _owned(self, path: Path) -> SentFile:
        file = SentFile(path)
        self._files.add(file)
        return file

    def _new_path(self, size: int, name: str) -> Path:
        folder = self._place()
        make_folder(folder)
        check_space(folder, size, purpose="Weights for the engines", advice="Name another launch.pools.engines.folder.")
        return folder / name

    def _place(self) -> Path:
        if self._folder is None:
            above = self.settings.folder
            if above is None and self.cluster.num_nodes > 1:
                raise ConfigError(
                    "`weights: folder` on a cluster of several nodes needs launch.pools.engines.folder: one that all of them see."
                )
            if above is not None:
                make_folder(Path(above))
            self._folder = Path(tempfile.mkdtemp(prefix="rlhf-weights-", dir=above))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder
