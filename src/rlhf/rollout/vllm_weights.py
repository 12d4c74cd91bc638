"""The trainer's weights as a folder that another process loads, each file with its checksum."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import save_file

from rlhf.errors import ModelError
from rlhf.files import check_space, make_folder, sha256, storage_errors, write_json
from rlhf.models.folders import save_weights
from rlhf.models.policy import merged
from rlhf.rollout.vllm_worker import digest_of

HEAD_FILE = "untied_head.safetensors"


@dataclass(frozen=True, slots=True)
class PushedWeights:
    """Weights on their way to an engine."""

    folder: Path
    files: Mapping[str, str]
    """Name -> hex sha256 of each file with weights."""
    dtype: str
    """Of the weights in them, as ``float32``."""
    trainer: str
    """The policy's own fingerprint when they were written."""

    @property
    def digest(self) -> str:
        """One hash for all files: what an engine that has loaded them calls them."""
        return digest_of(self.files)


def write_weights(policy: Any, folder: Path, *, fingerprint: str, untied: bool = False) -> PushedWeights:
    """Write a policy as a plain transformers folder without a tokenizer; an adapter is added into the weights of a copy first.

    Args:
        policy: With a ``model``, plain or with LoRA.
        folder: A new one.
        fingerprint: The policy's.
        untied: Write an output head that shares the embeddings' weights as a separate tensor, see ``untie``.

    Raises:
        ModelError: The model gives no safetensors.
        StorageError: There is no room.
    """
    model = policy.model
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    make_folder(folder.parent)
    check_space(
        folder.parent, size, purpose="Weights for the rollout engine", advice="Set TMPDIR to a disk with more room."
    )
    with storage_errors(folder), torch.no_grad():
        make_folder(folder)
        plain = merged(model) if isinstance(model, PeftModel) else model
        save_weights(plain, folder)
        if untied:
            untie(plain, folder)
    files = {path.name: sha256(path) for path in sorted(folder.glob("*.safetensors"))}
    if not files:
        raise ModelError(
            f"{type(model).__name__} was not written as safetensors, which is what engine: vllm loads; take engine: local."
        )
    return PushedWeights(folder, files, dtype, fingerprint)


def untie(model: Any, folder: Path) -> None:
    """Give a saved model's output head separate weights if it shared those of the embeddings.

    vLLM (0.32.0) on a CPU packs the head's weights for its kernels when it starts. A reload brings new embeddings, which are all that
    the files hold of a tied head, and the packed copy stays: the first layers learn and the head does not. A head of its own is
    loaded and packed again.
    """
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or head.weight is not embeddings.weight:
        return
    (name,) = [name for name, module in model.named_modules() if module is head]
    key = f"{name}.weight"
    save_file({key: head.weight.detach().contiguous()}, folder / HEAD_FILE, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for part in (config, config.get("text_config", {})):
        part["tie_word_embeddings"] = False
    write_json(folder / "config.json", config)
    index = folder / "model.safetensors.index.json"
    if index.is_file():  # several files: those that it does not name are not read
        listed = json.loads(index.read_text(encoding="utf-8"))
        listed["weight_map"][key] = HEAD_FILE
        write_json(index, listed)


class Outbox:
    """A temporary folder in which the newest weights wait for an engine."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rlhf-vllm-"))
        self.newest: PushedWeights | None = None
        self._count = 0
        self._remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def write(self, policy: Any, *, untied: bool = False) -> PushedWeights:
        """The policy's weights as they are now: what lies here where they are the same, else a new folder in its place.

        The weights' hash decides and not their version, of which one may have two: a run that evaluates between the steps of a
        rollout counts those weights as it counts the next rollout's.
        """
        fingerprint = policy.fingerprint()
        old = self.newest
        if old is not None and old.trainer == fingerprint:
            return old
        self._count += 1
        folder = self.folder / f"weights-{self._count}"
        self.newest = write_weights(policy, folder, fingerprint=fingerprint, untied=untied)
        if old is not None:
            shutil.rmtree(old.folder, ignore_errors=True)
        return self.newest

    def close(self) -> None:
        """Remove the folder."""
        self._remove()
