"""The records in a stage's folder: what it was made from, what it left behind, and the key by which the two are compared.

A stage's key is the hash of its resolved settings, the keys of the stages it reads from, the content of the files it reads
(a user's own functions among them) and the code that matters (``rlhf.pipeline.code_hash``). ``rlhf.pipeline.provenance`` finds
these. The artifact record is written last: a folder without one is unfinished. Reading a record loads no settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf.data.message_text import counted
from rlhf.files import sha256, sha256_once, write_json

RECORD = "artifact.json"
STARTED = "started.json"
"""What an unfinished stage is being made from."""
STAGE_INPUT = "stage:"
NOT_HASHED = ("checkpoint-", "tensorboard", "profile.json", "profile_trace.")


@dataclass(frozen=True, slots=True)
class MadeFrom:
    """Everything that decides what a stage makes."""

    settings: Mapping[str, Any]
    parents: Mapping[str, str]
    """Input to where it comes from: ``stage:NAME@key``, ``stage:NAME/FILE@key`` or ``path@sha256``."""
    code: Mapping[str, str]
    """Source file of this library to its sha256."""

    @property
    def key(self) -> str:
        """16 hex digits; equal where everything is."""
        # The settings say where a file is, if by anything; here only what is in it counts.
        parents = {k: v if v.startswith(STAGE_INPUT) else v.rpartition("@")[2] for k, v in self.parents.items()}
        text = json.dumps({**asdict(self), "parents": parents}, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True, repr=False)
class Artifact:
    """The record of a finished stage. Fields with defaults are absent from records of older versions."""

    stage: str
    kind: str
    key: str
    seconds: float
    headline: str
    """One line for people."""
    metrics: Mapping[str, Any]
    parents: Mapping[str, str]
    """As in ``MadeFrom``."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path inside the stage's folder to sha256."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Path inside the stage's folder to bytes."""
    settings: Mapping[str, Any] | None = None
    """As in ``MadeFrom``."""
    code: Mapping[str, str] = field(default_factory=dict)
    """As in ``MadeFrom``."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """Input from an earlier stage to the hash of what it held."""
    asked: str = ""
    """Which request to begin again it answers; empty for none."""
    finished: str = ""
    """When, in UTC."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages that decide results."""
    device: str = ""
    """Where its models were; no part of its key, no more than the kind of processor is."""
    names: Mapping[str, str] | None = None
    """Inputs that are not files of this machine, such as models on a hub: dotted place to name."""

    def __repr__(self) -> str:
        held = f"{counted(len(self.metrics), 'metric')}, {counted(len(self.files), 'file')}"
        return f"Artifact({self.stage!r}, {self.headline!r}, {self.seconds:.0f} s, {held})"

    @property
    def made_from(self) -> MadeFrom | None:
        """What decided it; None where an older version did not record that."""
        return MadeFrom(self.settings, self.parents, self.code) if self.settings is not None else None

    def content(self, file: str | None) -> str:
        """Hash of one of its files, or of its model without the card (which holds no weights); empty where it has none."""
        if file is not None and file in self.files:
            return self.files[file][:16]
        folder = f"{file or 'model'}/"
        listed = [f"{f}={h}" for f, h in self.files.items() if f.startswith(folder) and f != "model/README.md"]
        return hashlib.sha256(";".join(sorted(listed)).encode()).hexdigest()[:16] if listed else ""

    def damage(self, folder: Path) -> str | None:
        """The first file that is gone or has another size than it was written with; sizes are quick to ask for."""
        for name in self.files:
            try:
                size = (folder / name).stat().st_size
            except OSError:
                return f"a file is missing: {name}"
            if size != self.sizes.get(name, size):
                return f"{name} has {size:,} bytes and was written with {self.sizes[name]:,}"
        return None

    def write(self, folder: Path) -> None:
        """Into the stage's folder, in one step."""
        write_json(folder / RECORD, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Artifact | None:
        """The record in a folder; None where the stage never finished."""
        try:
            artifact = cls(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return artifact if isinstance(artifact.files, dict) and isinstance(artifact.parents, dict) else None


@dataclass(frozen=True, slots=True)
class Started:
    """The record of an unfinished stage."""

    made_from: MadeFrom
    contents: Mapping[str, str]
    asked: str = ""

    def write(self, folder: Path) -> None:
        """Into the stage's folder, in one step."""
        write_json(folder / STARTED, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Started | None:
        """The record in a folder; None where there is none."""
        try:
            record = json.loads((folder / STARTED).read_text(encoding="utf-8"))
            return cls(**{**record, "made_from": MadeFrom(**record["made_from"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


def content_hash(path: Path) -> str:
    """Hash of a file, or of all files in a folder with their names; 16 hex digits."""
    if path.is_file():
        return sha256_once(path)[:16]
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(path)}={sha256_once(file)};".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def plain_numbers(value: Any) -> Any:
    """The same with Python's own numbers instead of numpy's and torch's, inside mappings and lists too."""
    if isinstance(value, Mapping):
        return {name: plain_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(inner) for inner in value]
    return value.item() if hasattr(value, "item") else value


def stage_files(folder: Path) -> dict[str, str]:
    """Every file a stage left, with its hash; checkpoints, tracker files and profiles are working material and left out."""
    hashes = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        relative = file.relative_to(folder)
        if file.name in (RECORD, STARTED) or any(p.startswith((*NOT_HASHED, ".")) for p in relative.parts):
            continue
        hashes[relative.as_posix()] = sha256(file)
    return hashes
