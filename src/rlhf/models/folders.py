"""Model folders on disk: written to a temporary folder and renamed, fingerprinted, with our metadata in a JSON file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.utils import logging as transformers_logging

from rlhf.distributed.sharding import whole
from rlhf.errors import ModelError, RLHFError
from rlhf.files import fsync, write_json
from rlhf.models.adapter_base import record_base
from rlhf.models.checks import ADAPTER_FILE


@contextlib.contextmanager
def write_folder_aside(folder: Path | str) -> Iterator[Path]:
    """Yield a temporary empty folder next to ``folder``; on exit without an error it is synced to disk and replaces it.

    A reader sees the old folder or the new one, or, for the instant between two renames, none: never a mixture.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"Can't save a model as {folder}: there is a file of that name.")
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        yield aside
        for path in aside.rglob("*"):
            fsync(path)
        aside.chmod(0o755)
        _swap(aside, folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def save_weights(model: Any, folder: Path, *, shard_bytes: int | None = None) -> None:
    """``save_pretrained`` for a transformers or peft model, as safetensors.

    Args:
        model: What to save.
        folder: Where to.
        shard_bytes: Most bytes of one file of weights; None for transformers' own limit.
    """
    if isinstance(model, PreTrainedModel) and isinstance(model, GenerationMixin):
        _make_saveable(model)
    with quiet():
        model.save_pretrained(folder, **({} if shard_bytes is None else {"max_shard_size": shard_bytes}))
    if isinstance(model, PeftModel):
        _put_in_order(folder / ADAPTER_FILE)
        record_base(folder, str(model.get_base_model().name_or_path))


def _put_in_order(path: Path) -> None:
    """peft lists layers in the order of a set, another one in each process; the same adapter should be the same bytes."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    ordered = {key: sorted(value) if _are_names(value) else value for key, value in settings.items()}
    path.write_text(json.dumps(ordered, indent=2, sort_keys=True), encoding="utf-8")


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of transformers inside, no table of weights that don't fit, which we refuse by name, and no warning
    about names that peft still uses and transformers renamed."""
    had_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    report = logging.getLogger("transformers.modeling_utils")
    report.addFilter(_is_no_table)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning
            )
            yield
    finally:
        report.removeFilter(_is_no_table)
        if had_bars:
            transformers_logging.enable_progress_bar()


def _is_no_table(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in str(record.msg)


HASHED_BYTES = 1 << 24
"""Copied at a time."""


def weights_fingerprint(parameters: Iterable[tuple[str, Tensor]]) -> str:
    """Hex sha256 over names, shapes, types and bytes: the same on every machine, another for any other weight.

    Of weights in shards all ranks ask at once.
    """
    digest = hashlib.sha256()
    for name, value in parameters:
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        data = whole(value.detach()).to("cpu").contiguous().reshape(-1)
        for piece in data.view(torch.uint8).split(HASHED_BYTES) if data.numel() else ():
            digest.update(
                piece.clone().numpy().data
            )  # numpy pins a storage for good, and that of a shard is freed after use
    return digest.hexdigest()


def module_fingerprint(module: nn.Module) -> str:
    """``weights_fingerprint`` of a module's parameters, tied ones once, without the originals that an adapter replaces."""
    return weights_fingerprint((n, p) for n, p in module.named_parameters() if ".original_module." not in n)


def read_settings(folder: Path, name: str) -> dict[str, Any] | None:
    """Our JSON in a model folder, or None where the folder was made by others."""
    path = folder / name
    if not path.is_file():
        return None
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as err:
        raise ModelError(f"{path} is damaged: {err}. Save the model again, or take an earlier copy.") from None
    if not isinstance(settings, dict):
        raise ModelError(f"{path} holds a {type(settings).__name__}; it should hold keys and values.")
    return settings


@contextlib.contextmanager
def described_by(path: Path) -> Iterator[None]:
    """Inside, our JSON at ``path`` is turned into a model: a key that is absent or holds something else is that file's fault.

    Raises:
        ModelError: Naming the file and what it lacks.
    """
    try:
        yield
    except RLHFError as err:
        raise ModelError(f"{path}: {err}") from err
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as err:
        what = f"it has no {err}" if isinstance(err, KeyError) else str(err).splitlines()[0]
        raise ModelError(f"{path} describes no model: {what}. Save the model again, or take an earlier copy.") from err


def write_settings(folder: Path, name: str, settings: dict[str, Any]) -> None:
    """The other side of ``read_settings``."""
    write_json(folder / name, settings)


def _make_saveable(model: GenerationMixin) -> None:
    """transformers refuses to save sampling settings with sampling switched off, which hub models often have."""
    generation = model.generation_config
    if generation is None or generation.do_sample:
        return
    try:
        generation.validate(strict=True)
    except ValueError:
        generation.do_sample = True


def _swap(aside: Path, folder: Path) -> None:
    if not folder.exists():
        os.replace(aside, folder)
        fsync(folder.parent)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".old", dir=folder.parent))
    os.replace(folder, old)
    try:
        os.replace(aside, folder)
    except OSError:
        os.replace(old, folder)
        raise
    fsync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
