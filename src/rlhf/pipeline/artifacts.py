"""What a stage is made from, what it leaves behind, and the key by which one is held against the other.

A stage's key is the hash of its resolved settings, the keys of the stages it reads from, the content of the files it reads
(a user's own functions among them) and the code that matters (``rlhf.pipeline.code_hash``). The artifact record is written
last: a folder without one is unfinished.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.config.base import Config, Names, named_things
from rlhf.data.message_text import counted
from rlhf.errors import DataError, ModelError
from rlhf.files import sha256, sha256_once, write_json
from rlhf.models.adapter_base import base_folder, base_name
from rlhf.models.checks import ADAPTER_FILE
from rlhf.models.sources import EMBEDDED, embedded_folder
from rlhf.pipeline.code_hash import code_of_stage, files_of_function, is_own_function, source_of_function

if TYPE_CHECKING:
    from rlhf.config.recipe import RecipeConfig

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
        # Where a file lies is told by the settings, if by anything; here only what is in it counts.
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
    """Which request to begin anew it answers; empty for none."""
    finished: str = ""
    """When, in UTC."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages that decide results."""
    device: str = ""
    """Where its models were; no part of its key, no more than the kind of processor is."""

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
            found = cls(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return found if isinstance(found.files, dict) and isinstance(found.parents, dict) else None


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
            found = json.loads((folder / STARTED).read_text(encoding="utf-8"))
            return cls(**{**found, "made_from": MadeFrom(**found["made_from"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


def made_from(name: str, recipe: RecipeConfig, keys: Mapping[str, str]) -> MadeFrom:
    """What a stage would be made from now.

    Args:
        name: Of the stage.
        recipe: The whole recipe.
        keys: Keys of the stages before it.

    Raises:
        DataError: A file that it names can't be read.
    """
    from rlhf.config.training import FREE_TO_CHANGE  # who only reads records waits for no class of settings

    stage = recipe.stages[name]
    settings = stage.model_dump(mode="json", exclude=FREE_TO_CHANGE)
    return MadeFrom(settings, inputs_of(name, recipe, keys), code_of_stage(stage.kind, stage))


def inputs_of(name: str, recipe: RecipeConfig, keys: Mapping[str, str]) -> dict[str, str]:
    """What a stage reads now: the place of a setting -> ``stage:NAME@key``, or a path and the hash of what is there.

    Arguments and errors are those of ``made_from``.
    """
    from rlhf.config.recipe import stage_references

    stage = recipe.stages[name]
    parents = {}
    for place, parent, file in stage_references(stage):
        parents[place] = f"{STAGE_INPUT}{parent}{'/' + file if file else ''}@{keys[parent]}"
    for place, path in local_inputs(stage):
        try:
            parents[place] = f"{path.absolute()}@{content_hash(path)}"
        except OSError as err:
            raise DataError(
                f"stages.{name}.{place} names {path}, and {err.filename or path} can't be read: {err.strerror or err}. Give "
                "this user the right to read it, or name another."
            ) from None
    return parents


def local_inputs(stage: Config) -> list[tuple[str, Path]]:
    """Files and folders on this machine that a stage names, with the place of the key."""
    found: list[tuple[str, Path]] = []
    for place, text, names in named_things(stage):
        path = _local_file(text, names)
        if names is Names.FUNCTION and path is not None:
            helpers = [file for file in files_of_function(text) if file != path.resolve()]
            found += [(f"{'.'.join(place)}.imports.{number}", file) for number, file in enumerate(helpers)]
        if path is not None:
            found.append((".".join(place), path))
            found += [(f"{'.'.join(place)}.base", base) for base in _bases(path)]
    return found


def _local_file(text: str, names: Names) -> Path | None:
    """What a setting names on this machine, if it names anything; code of this library is no input, but code."""
    from rlhf.config.recipe import STAGE

    if STAGE.match(text) or is_own_function(text, names):
        return None
    if names is Names.FUNCTION:
        return source_of_function(text)
    if names is Names.TEXT_OR_FILE:
        return Path(text) if os.path.isfile(text) else None
    path = embedded_folder() if text == EMBEDDED else Path(text).expanduser()
    return path if os.path.exists(path) else None


def _bases(folder: Path) -> Iterator[Path]:
    """The local model that an adapter in ``folder`` belongs to: its weights decide as much as the adapter's."""
    try:
        name = base_name(folder) if (folder / ADAPTER_FILE).is_file() else None
    except ModelError:
        return  # anyone who loads it will say so
    if name is not None and (base := base_folder(folder, name)) is not None and base.is_dir():
        yield base


def content_hash(path: Path) -> str:
    """Hash of a file, or of all files in a folder with their names; 16 hex digits."""
    if path.is_file():
        return sha256_once(path)[:16]
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(path)}={sha256_once(file)};".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def plain_numbers(value: Any) -> Any:
    """The same with Python's own numbers in the place of numpy's and torch's, inside mappings and lists too."""
    if isinstance(value, Mapping):
        return {name: plain_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(inner) for inner in value]
    return value.item() if hasattr(value, "item") else value


def stage_files(folder: Path) -> dict[str, str]:
    """Every file a stage left, with its hash; checkpoints and tracker files are working material, a profile is no result: both are left out."""
    found = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        relative = file.relative_to(folder)
        if file.name in (RECORD, STARTED) or any(p.startswith((*NOT_HASHED, ".")) for p in relative.parts):
            continue
        found[relative.as_posix()] = sha256(file)
    return found
