"""Rolling checkpoints: written aside, synced, renamed, hashed; a damaged one is passed over for the one before it.

<folder>/checkpoint-00000120/
    weights-policy.safetensors     trainable parameters of each module
    state.pt                       everything else, loadable with ``weights_only``
    checkpoint.json                step, settings of the run, sha256 of each file
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf.errors import CheckpointError
from rlhf.files import fsync, sha256, write_json

logger = logging.getLogger(__name__)

PREFIX = "checkpoint-"
RECORD = "checkpoint.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What ``CheckpointStore.load_latest`` gives."""

    step: int
    weights: Mapping[str, Mapping[str, Tensor]]
    """Module name to parameter name to tensor."""
    state: Mapping[str, Any]
    path: Path


class CheckpointStore:
    """Checkpoints of one training run in one folder.

    Args:
        folder: Made when the first checkpoint is written.
        keep: How many of the newest stay.
        identity: JSON values that say which run this is; a checkpoint of another run is refused rather than mixed in.
    """

    def __init__(self, folder: Path, *, keep: int = 2, identity: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.keep = keep
        self.identity = json.loads(json.dumps(dict(identity or {})))  # as it will be read back

    def save(self, step: int, modules: Mapping[str, nn.Module], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint and remove the oldest ones beyond ``keep``."""
        final = self.folder / f"{PREFIX}{step:08d}"
        aside = self.folder / f".{final.name}.tmp"
        for left in self.folder.glob(f".{PREFIX}*.tmp"):
            shutil.rmtree(left)  # of a process that was killed while it wrote
        aside.mkdir(parents=True)
        for name, module in modules.items():
            weights = {k: p.detach().cpu().contiguous() for k, p in module.named_parameters() if p.requires_grad}
            save_file(weights, aside / f"weights-{name}.safetensors")
        torch.save(dict(state), aside / "state.pt")
        hashes = {}
        for file in sorted(aside.iterdir()):
            fsync(file)
            hashes[file.name] = sha256(file)
        write_json(aside / RECORD, {"step": step, "identity": self.identity, "sha256": hashes})
        fsync(aside)
        if final.exists():
            shutil.rmtree(final)
        os.replace(aside, final)
        fsync(self.folder)
        for old in self.paths()[: -self.keep]:
            shutil.rmtree(old)
        return final

    def paths(self) -> list[Path]:
        """Finished checkpoints, oldest first."""
        return sorted(p for p in self.folder.glob(f"{PREFIX}*") if p.is_dir())

    def load_latest(self, *, warn: Callable[[str], None] = logger.warning) -> Checkpoint | None:
        """The newest checkpoint whose files have the hashes they were written with; None where there is none.

        Args:
            warn: Told of each damaged one that is passed over.

        Raises:
            CheckpointError: A checkpoint belongs to another run, or all of them are damaged.
        """
        paths = self.paths()
        for path in reversed(paths):
            try:
                record = _Record.read(path)
            except CheckpointError as err:
                warn(f"{err} Trying the checkpoint before it.")
                continue
            self._check_identity(path, record.identity)
            return _load(path, record.step)
        if paths:
            raise CheckpointError(
                f"All {len(paths)} checkpoints in {self.folder} are damaged; remove them to start from the beginning."
            )
        return None

    def _check_identity(self, path: Path, theirs: Mapping[str, Any]) -> None:
        """Raise where the checkpoint is of another run, and say what is different."""
        mine = self.identity
        changed = [key for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key)]
        if changed:
            differences = ", ".join(f"{key} was {theirs.get(key)!r} and is {mine.get(key)!r}" for key in changed)
            raise CheckpointError(
                f"{path} was written by a run with other settings: {differences}. Go back to those, or remove the "
                f"checkpoints in {self.folder} to start from the beginning."
            )


@dataclass(frozen=True, slots=True)
class _Record:
    """What a checkpoint says about itself."""

    step: int
    identity: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> _Record:
        """Of a checkpoint whose every file has the hash that it says; CheckpointError where it has not."""
        try:
            told = json.loads((path / RECORD).read_text(encoding="utf-8"))
            record = cls(int(told["step"]), dict(told["identity"]))
            wrong = [name for name, digest in told["sha256"].items() if sha256(path / name) != digest]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
            raise CheckpointError(f"The checkpoint {path} is damaged: {type(err).__name__}: {err}.") from err
        if wrong:
            raise CheckpointError(f"The checkpoint {path} is damaged: {wrong[0]} is not what was written.")
        return record


def _load(path: Path, step: int) -> Checkpoint:
    weights = {
        file.stem.removeprefix("weights-"): load_file(file) for file in sorted(path.glob("weights-*.safetensors"))
    }
    state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    return Checkpoint(step=step, weights=weights, state=state, path=path)


def load_weights(modules: Mapping[str, nn.Module], weights: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Copy saved parameters into modules.

    Raises:
        CheckpointError: A module or a parameter is missing on one side, or has another shape.
    """
    if modules.keys() != weights.keys():
        raise CheckpointError(f"The checkpoint holds the modules {sorted(weights)}, this run trains {sorted(modules)}.")
    copies = []  # nothing is changed before everything is known to fit
    for name, module in modules.items():
        mine = {k: p for k, p in module.named_parameters() if p.requires_grad}
        if mine.keys() != weights[name].keys():
            odd = sorted(mine.keys() ^ weights[name].keys())[:3]
            raise CheckpointError(f"Module {name}: checkpoint and model differ in parameters such as {', '.join(odd)}.")
        for key, parameter in mine.items():
            saved = weights[name][key]
            if saved.shape != parameter.shape:
                raise CheckpointError(
                    f"Module {name}, {key}: the checkpoint has shape {tuple(saved.shape)}, "
                    f"the model {tuple(parameter.shape)}."
                )
            copies.append((parameter, saved))
    with torch.no_grad():
        for parameter, saved in copies:
            parameter.copy_(saved)
