"""Versions of models and the aliases that name them.

    registry/
      champion -> versions/0003/model     an alias: a link, so that its path is a model folder to any program
      history.jsonl                       what happened to aliases, and why
      versions/0003/model/                a copy, never changed
      versions/0003/version.json          where it came from, with the hash of every file

A version is written aside, synced and renamed; then the history gets its line, synced; then the link is replaced. After a kill between
these, the next use of the registry finishes what the history says.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf.errors import ConfigError, ModelError, StorageError, check_type, did_you_mean
from rlhf.files import check_space, fsync, make_folder, remove_leftovers, sha256, storage_errors, write_json
from rlhf.models.adapter_base import base_folder, base_name
from rlhf.registry.history import Action, Event, append_event, read_history

DEFAULT = "registry"
"""Next to the folder ``runs``."""
CHAMPION, CHALLENGER = "champion", "challenger"
VERSIONS = "versions"
ANY = -1
"""In the place of a version: whatever it is."""
RECORD = "version.json"
ADAPTER = "adapter_config.json"
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_TAKEN = {VERSIONS, "history"}


class AliasMovedError(ModelError):
    """An alias names another version by now than the one that a decision was made against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One released model."""

    number: int
    added: str
    """UTC, ISO 8601."""
    source: str
    """Folder that it was copied from."""
    content: str
    """Hash of all its files with their names, 64 hex digits."""
    files: Mapping[str, str]
    """Path in the model's folder -> sha256."""
    lineage: Mapping[str, Any] = field(default_factory=dict)
    """Run, stage and key that made it, where a record says so."""

    @property
    def name(self) -> str:
        """``0003``."""
        return f"{self.number:04d}"


class Registry:
    """A folder of released models.

        registry = Registry("registry")
        registry.promote("runs/loop/dpo/model", reason="win rate .71 [.66, .76]")
        registry.path("champion")        # registry/versions/0001/model
        registry.rollback("champion", reason="complaints")

    Args:
        folder: Made at the first promotion.
    """

    def __init__(self, folder: Path | str = DEFAULT) -> None:
        check_type(folder, (str, Path), name="folder", expected="that of the registry")
        self.folder = Path(folder)

    def versions(self) -> list[Version]:
        """All whose record can be read, oldest first; ``damaged`` has the others."""
        versions = []
        for number in self._numbers():
            with contextlib.suppress(ModelError):
                versions.append(self.version(number))
        return versions

    def damaged(self) -> dict[int, str]:
        """Version -> why it can't be used: its record can't be read, or an alias names it and its folder is gone."""
        damaged = {}
        for number in sorted({*self._numbers(), *self.aliases().values()}):
            try:
                self.version(number)
            except ModelError as err:
                damaged[number] = str(err)
        return damaged

    def version(self, number: int) -> Version:
        """One of them.

        Raises:
            ModelError: There is none of that number.
        """
        record = self._home(number) / RECORD
        if not record.is_file():
            known = ", ".join(each.name for each in self.versions()) or "none"
            raise ModelError(f"The registry {self.folder} has no version {number}. It has: {known}.")
        return _read_version(record)

    def history(self, alias: str | None = None) -> list[Event]:
        """What happened, oldest first; to one alias or to all."""
        return [event for event in read_history(self.folder) if alias in (None, event.alias)]

    def aliases(self) -> dict[str, int]:
        """Alias -> version, as the history says."""
        aliases: dict[str, int | None] = {}
        for event in read_history(self.folder):
            aliases[event.alias] = event.version
        return {alias: version for alias, version in aliases.items() if version is not None}

    def current(self, alias: str = CHAMPION) -> Version | None:
        """What an alias names; None where it names nothing."""
        number = self.aliases().get(alias)
        return None if number is None else self.version(number)

    def path(self, name: str | int = CHAMPION) -> Path:
        """The model folder of an alias or a version.

        Raises:
            ModelError: There is no such alias or version.
        """
        if isinstance(name, int) or name.isdecimal():
            return self._home(self.version(int(name)).number) / "model"
        aliases = self.aliases()
        if name not in aliases:
            raise ModelError(
                f"The registry {self.folder} has no alias {name!r}.{did_you_mean(name, aliases)} It has: "
                f"{', '.join(aliases) or 'none'}."
            )
        return self._home(aliases[name]) / "model"

    def verify(self, number: int) -> None:
        """Read every file of a version, and compare with its record.

        Raises:
            ModelError: A file is missing or was changed; names it.
        """
        version, model = self.version(number), self._home(number) / "model"
        for name, expected in version.files.items():
            file = model / name
            if not file.is_file() or sha256(file) != expected:
                was = "was changed" if file.is_file() else "is missing"
                raise ModelError(
                    f"{file} {was} since version {number} was added. Promote the model again from its source."
                )

    def promote(
        self,
        model: Path | str,
        *,
        alias: str = CHAMPION,
        reason: str = "",
        evidence: Path | str | None = None,
        instead_of: int | None = ANY,
        content: str | None = None,
    ) -> Version:
        """Copy a model into the registry, and let an alias name it, in one step that a kill undoes or finishes.

        A model whose files are those of a version already is not copied again, unless that version was damaged since.

        Args:
            model: A model folder.
            alias: Letters, digits, ``-`` and ``_``, a letter first.
            reason: For people.
            evidence: A file that the decision is based on; its hash is kept.
            instead_of: What the alias names when the decision is made (None: nothing); by default it is not asked for.
            content: ``content_of`` the folder when the decision was made; by default it may hold anything.

        Raises:
            ConfigError: The alias is malformed.
            AliasMovedError: The alias names something else than ``instead_of`` by now.
            ModelError: There is no model folder, or its files are not those of ``content``, or change while they are copied.
            StorageError: The disk is full.
        """
        check_alias(alias)
        source = Path(model)
        if not (source / "config.json").is_file() and not (source / ADAPTER).is_file():
            raise ModelError(f"{source} is not a model folder: it has neither config.json nor {ADAPTER}.")
        with self._locked():
            if instead_of not in (ANY, present := self.aliases().get(alias)):
                raise AliasMovedError(
                    f"{alias} of {self.folder} names {_named(present)} by now, and the decision was made against {_named(instead_of)}; "
                    "decide again."
                )
            version = self._add(source.resolve(), content)
            self._record("promote", alias, version.number, reason=reason, evidence=evidence, candidate=str(source))
            return version

    def refuse(
        self, model: Path | str, *, alias: str = CHAMPION, reason: str = "", evidence: Path | str | None = None
    ) -> None:
        """Write down that a model was not promoted; the alias stays as it is, and the model is not copied."""
        check_alias(alias)
        with self._locked():
            current = self.aliases().get(alias)
            self._record("refuse", alias, current, reason=reason, evidence=evidence, candidate=str(model))

    def recorded(self, evidence: Path | str, *, alias: str = CHAMPION) -> Event | None:
        """The line of the history that is based on this very file, after what a killed process left is finished; None where there is none."""
        if not self.folder.is_dir():
            return None
        digest = sha256(evidence)
        with self._locked():
            events = [event for event in self.history(alias) if event.evidence.get("sha256") == digest]
        return events[-1] if events else None

    def rollback(self, alias: str = CHAMPION, *, reason: str = "", to: int | None = None) -> Version:
        """Let an alias name an earlier version again: what it named before its present one, or a given version.

        Raises:
            ModelError: There is no such version, or it is damaged: then nothing is changed.
        """
        with self._locked():
            present = self.aliases().get(alias)
            if present is None:
                raise ModelError(f"The registry {self.folder} has no alias {alias!r} to roll back.")
            number = self._before(alias) if to is None else to
            if number is None:
                raise ModelError(
                    f"{alias} has named no other version than {present}; there is nothing to roll back to."
                )
            self.verify(number)
            self._record("rollback", alias, number, reason=reason)
            return self.version(number)

    def _before(self, alias: str) -> int | None:
        """What an alias named before its present version was promoted; rollbacks themselves are not a step forward."""
        stack: list[int] = []
        for event in self.history(alias):
            if event.version is None or (stack and stack[-1] == event.version):
                continue
            if event.action == "rollback" and event.version in stack:
                while (
                    stack[-1] != event.version
                ):  # back to where it was last, as the same model may have been champion twice
                    stack.pop()
            elif event.action in ("promote", "rollback"):
                stack.append(event.version)
        return stack[-2] if len(stack) > 1 else None

    def _numbers(self) -> list[int]:
        """Of the folders of versions, whatever is in them."""
        return sorted(int(home.name) for home in (self.folder / VERSIONS).glob("*") if home.name.isdecimal())

    def _is_whole(self, number: int) -> bool:
        try:
            self.verify(number)
        except ModelError:
            return False
        return True

    def _home(self, number: int) -> Path:
        return self.folder / VERSIONS / f"{number:04d}"

    def _add(self, source: Path, expected: str | None) -> Version:
        """The version with this model's files; copied where there is none yet, or none that is still as it was added."""
        files = _hashes_of(source)
        content = _content(files)
        if expected not in (None, content):
            raise ModelError(
                f"The files of {source} were changed since it was decided to promote them, so nobody measured what is there now. "
                "Measure it again."
            )
        for version in self.versions():
            if version.content == content and self._is_whole(version.number):
                return version
        told = (event.version or 0 for event in self.history())  # a number of the history names one model for ever
        number = max([0, *self._numbers(), *told]) + 1
        home = self._home(number)
        check_space(home.parent, sum(file.stat().st_size for file in _files_of(source)), purpose="A version")
        with storage_errors(home):
            make_folder(home.parent)
            remove_leftovers(home.parent)
            aside = home.with_name(f".{home.name}.{secrets.token_hex(4)}.tmp")
            try:
                shutil.copytree(source, aside / "model")
                if _hashes_of(aside / "model") != files:
                    raise ModelError(f"The files of {source} change while they are copied; wait for who writes them.")
                if (aside / "model" / ADAPTER).is_file():
                    files = _with_base(source, aside / "model", files)
                version = Version(
                    number=number, added=_now(), source=str(source), content=content, files=files, lineage=_lineage(source)
                )  # fmt: skip
                write_json(aside / RECORD, asdict(version))
                for path in (*aside.rglob("*"), aside):
                    fsync(path)
                os.rename(aside, home)
                fsync(home.parent)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise
        return version

    def _record(
        self,
        action: Action,
        alias: str,
        version: int | None,
        *,
        reason: str,
        evidence: Path | str | None = None,
        candidate: str = "",
    ) -> None:
        """Add to the history, then set the link."""
        proof: dict[str, str] = {}
        if evidence is not None:
            proof = {"file": str(Path(evidence).resolve()), "sha256": sha256(evidence)}
        event = Event(
            time=_now(), action=action, alias=alias, version=version, previous=self.aliases().get(alias),
            candidate=candidate, reason=reason, evidence=proof, by=_user(),
        )  # fmt: skip
        append_event(self.folder, event)
        if version is not None:
            self._link(alias, version)

    def _link(self, alias: str, number: int) -> None:
        target = Path(VERSIONS) / f"{number:04d}" / "model"
        link = self.folder / alias
        if link.is_symlink() and Path(os.readlink(link)) == target:
            return
        if link.exists() and not link.is_symlink():
            raise StorageError(f"{link} is not a link of the registry's; move it away.")
        with storage_errors(link):
            aside = self.folder / f".{alias}.{secrets.token_hex(4)}.tmp"
            os.symlink(target, aside)
            os.replace(aside, link)
            fsync(self.folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time; begins with finishing what a killed one left."""
        with storage_errors(self.folder):
            make_folder(self.folder)
        with (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for left in self.folder.glob(".*.tmp"):
                left.unlink(missing_ok=True)
            for alias, number in self.aliases().items():
                self._link(alias, number)
            yield


def _named(number: int | None) -> str:
    return "nothing" if number is None else f"version {number}"


def check_alias(alias: str) -> None:
    """Refuse a name that an alias can't have."""
    if not _ALIAS.fullmatch(alias) or alias in _TAKEN:
        raise ConfigError(
            f"An alias can't be called {alias!r}; give letters, digits, - and _, a letter first, and neither "
            f"{' nor '.join(sorted(_TAKEN))}."
        )


def content_of(folder: Path | str) -> str:
    """Hash of all files of a model's folder with their names, as ``Version.content``."""
    return _content(_hashes_of(Path(folder)))


def _hashes_of(folder: Path) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): sha256(file) for file in _files_of(folder)}


def _content(files: Mapping[str, str]) -> str:
    return hashlib.sha256("".join(f"{name}={digest};" for name, digest in files.items()).encode()).hexdigest()


def _files_of(folder: Path) -> list[Path]:
    paths = sorted(folder.rglob("*"))
    if dangling := [path for path in paths if path.is_symlink() and not path.exists()]:
        raise ModelError(
            f"{dangling[0]} is a link to {os.readlink(dangling[0])}, which does not exist; fix or remove it."
        )
    return [path for path in paths if path.is_file()]


def _with_base(source: Path, copy: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Names the adapter's base by its full path in the copy: a relative one would lead elsewhere from here."""
    settings = json.loads((copy / ADAPTER).read_text(encoding="utf-8"))
    name = base_name(source)
    base = base_folder(source, name) if name is not None else None
    if base is None:
        return dict(files)
    settings["base_model_name_or_path"] = str(base.resolve())
    write_json(copy / ADAPTER, settings)
    return {**files, ADAPTER: sha256(copy / ADAPTER)}


def _lineage(source: Path) -> dict[str, Any]:
    """What the record next to a model says of who made it."""
    record = source.parent / "artifact.json"
    try:
        artifact = json.loads(record.read_text(encoding="utf-8"))
        return {"run": str(record.parent.parent), "stage": str(artifact["stage"]), "key": str(artifact["key"])}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _read_version(record: Path) -> Version:
    try:
        return Version(**json.loads(record.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as err:
        raise ModelError(
            f"{record} can't be read as the record of a version: {err}. Restore it from a copy, or promote the model again from its source."
        ) from err


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
