"""The base model of an adapter: where it is, and whether its weights are still those that the adapter was trained on.

An adapter's ``adapter_config.json`` names its base. A base in the same run is named relative to the adapter's folder, so that a run
that is moved or copied finds its own; peft itself takes such a path relative to the working directory. ``rlhf_base.json`` in its folder
holds the hash of the base's weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from rlhf.errors import ModelError
from rlhf.files import sha256_once, write_json
from rlhf.models.checks import ADAPTER_FILE, ADAPTER_WEIGHTS, PICKLES, read_json
from rlhf.models.sources import model_source

BASE_FILE = "rlhf_base.json"
MEMBER = "member-"
"""Beginning of the names of an ensemble's folders, which lie inside its own."""


def adapter_base(source: str) -> str:
    """What the adapter in a folder was trained on, as a source to load; its weights are the ones it was trained on.

    Raises:
        ModelError: The adapter names no base, one that is not there, or one whose weights are others now.
    """
    folder = Path(source)
    name = base_name(folder)
    if name is None:
        raise ModelError(
            f"{source} is an adapter that does not name its base; set base_model_name_or_path in {ADAPTER_FILE}."
        )
    try:
        base = model_source(str(base_folder(folder, name) or name))
    except ModelError as err:
        raise ModelError(
            f"{source} is an adapter, and its base model can't be found: {err} Put the base there, or write where it is now "
            f"as base_model_name_or_path in {folder / ADAPTER_FILE}."
        ) from None
    expected = expected_weights(folder)
    if expected is not None and Path(base).is_dir() and (weights := weights_hash(Path(base))) != expected:
        raise ModelError(
            f"{source} is an adapter of other weights than {base} holds now: their hash is {weights[:16]}, and {BASE_FILE} expects "
            f"{expected[:16]}. Put the base that it was trained on there, name its place as base_model_name_or_path in {ADAPTER_FILE}, "
            f"or train the adapter again."
        )
    return base


def base_name(folder: Path) -> str | None:
    """What an adapter's folder calls its base; None where it names none.

    Raises:
        ModelError: Its settings can't be read.
    """
    name = read_json(folder / ADAPTER_FILE).get("base_model_name_or_path")
    return name if isinstance(name, str) and name else None


def base_folder(folder: Path, name: str) -> Path | None:
    """The folder that ``name`` means in an adapter's folder; None for a name on the hub, or an absolute path where nothing is."""
    if os.path.isabs(name) or not name.startswith("."):
        return Path(name) if os.path.isdir(name) else None
    relative = Path(os.path.normpath(folder.resolve() / name))
    return (
        Path(name) if not relative.is_dir() and os.path.isdir(name) else relative
    )  # others may have meant the working directory


def record_base(folder: Path, base: str) -> None:
    """Write into an adapter's folder what it was trained on: a name on the hub as it is, a folder with the hash of its weights.

    Args:
        folder: With what peft wrote; may still have a temporary name in the same parent folder.
        base: A folder or a name on the hub.
    """
    if not os.path.isdir(base):
        return
    place, adapter = Path(base).resolve(), folder.resolve()
    outer = adapter.parent if adapter.name.startswith(MEMBER) else adapter
    in_run = place.is_relative_to(outer.parent.parent)  # of run/stage/model
    settings = json.loads((folder / ADAPTER_FILE).read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = os.path.relpath(place, adapter) if in_run else str(place)
    write_json(folder / ADAPTER_FILE, settings)
    write_json(folder / BASE_FILE, {"weights_sha256": weights_hash(place)})


def expected_weights(folder: Path) -> str | None:
    """The hash that the base's weights had when an adapter was saved; None if it was not recorded."""
    path = folder / BASE_FILE
    return str(read_json(path).get("weights_sha256")) if path.is_file() else None


def weights_hash(folder: Path) -> str:
    """Hex sha256 over the names and contents of a model folder's files of weights."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in (".safetensors", *PICKLES) and file.name != ADAPTER_WEIGHTS:
            digest.update(f"{file.name}={sha256_once(file)};".encode())
    return digest.hexdigest()
