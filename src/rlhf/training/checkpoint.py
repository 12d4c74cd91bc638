"""Rolling checkpoints: written aside, synced, renamed, hashed; a damaged one is passed over for the one before it.

    <folder>/checkpoint-00000120/
        weights-policy.safetensors     trainable parameters of each module
        state.pt                       everything else, loadable with ``weights_only``
        checkpoint.json                step, identity of the run, sha256 of each file
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
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
        identity: Says which run this is; a checkpoint of another identity is refused rather than mixed in.
    """

    def __init__(self, folder: Path, *, keep: int = 2, identity: str = "") -> None:
        self.folder = folder
        self.keep = keep
        self.identity = identity

    def save(self, step: int, modules: Mapping[str, nn.Module], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint and remove the oldest ones beyond ``keep``."""
        final = self.folder / f"{PREFIX}{step:08d}"
        aside = self.folder / f".{final.name}.tmp"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for name, module in modules.items():
            weights = {k: p.detach().cpu().contiguous() for k, p in module.named_parameters() if p.requires_grad}
            save_file(weights, aside / f"weights-{name}.safetensors")
        torch.save(dict(state), aside / "state.pt")
        hashes = {}
        for file in sorted(aside.iterdir()):
            fsync(file)
            hashes[file.name] = sha256(file)
        write_json(aside / "checkpoint.json", {"step": step, "identity": self.identity, "sha256": hashes})
        fsync(aside)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(aside, final)
        fsync(self.folder)
        for old in self.paths()[: -self.keep]:
            shutil.rmtree(old)
        return final

    def paths(self) -> list[Path]:
        """Finished checkpoints, oldest first."""
        return sorted(p for p in self.folder.glob(f"{PREFIX}*") if p.is_dir()) if self.folder.is_dir() else []

    def load_latest(self) -> Checkpoint | None:
        """The newest checkpoint whose files have the hashes they were written with; None where there is none.

        Raises:
            CheckpointError: A checkpoint belongs to another run, or all of them are damaged.
        """
        paths = self.paths()
        for path in reversed(paths):
            problem = self._problem(path)
            if problem is None:
                return self._load(path)
            logger.warning("Checkpoint %s is damaged (%s); trying the one before it.", path, problem)
        if paths:
            raise CheckpointError(f"All {len(paths)} checkpoints in {self.folder} are damaged; remove the folder to start anew.")
        return None

    def clear(self) -> None:
        """Remove all checkpoints: the training they would resume has ended."""
        for path in self.paths():
            shutil.rmtree(path)

    def _problem(self, path: Path) -> str | None:
        """What is wrong with a checkpoint's files, or None."""
        try:
            about = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))
            for name, digest in about["sha256"].items():
                if sha256(path / name) != digest:
                    return f"{name} does not have the hash it was written with"
        except (OSError, ValueError, KeyError) as err:
            return f"{type(err).__name__}: {err}"
        if about["identity"] != self.identity:
            raise CheckpointError(
                f"{path} was written by a run with other settings ({about['identity'][:12]}, this one is {self.identity[:12]}); "
                f"remove {self.folder} to start anew, or go back to the old settings."
            )
        return None

    def _load(self, path: Path) -> Checkpoint:
        about = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))
        weights = {
            file.stem.removeprefix("weights-"): load_file(file) for file in sorted(path.glob("weights-*.safetensors"))
        }
        state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
        return Checkpoint(step=about["step"], weights=weights, state=state, path=path)


def load_weights(modules: Mapping[str, nn.Module], weights: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Copy saved parameters into modules.

    Raises:
        CheckpointError: A module or a parameter is missing on one side, or has another shape.
    """
    if modules.keys() != weights.keys():
        raise CheckpointError(f"The checkpoint holds the modules {sorted(weights)}, this run trains {sorted(modules)}.")
    for name, module in modules.items():
        mine = {k: p for k, p in module.named_parameters() if p.requires_grad}
        if mine.keys() != weights[name].keys():
            odd = sorted(mine.keys() ^ weights[name].keys())[:3]
            raise CheckpointError(f"Module {name}: checkpoint and model differ in parameters such as {', '.join(odd)}.")
        with torch.no_grad():
            for key, parameter in mine.items():
                saved = weights[name][key]
                if saved.shape != parameter.shape:
                    raise CheckpointError(
                        f"Module {name}, {key}: the checkpoint has shape {tuple(saved.shape)}, the model {tuple(parameter.shape)}."
                    )
                parameter.copy_(saved)
