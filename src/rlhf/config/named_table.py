"""A table of names that a process may add to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

from rlhf.errors import ConfigError, look_up

Entry = TypeVar("Entry")
NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)


class NamedTable(Mapping[str, Entry]):
    """Names and what stands behind each: the library's, and those that were registered in this process.

    Args:
        kind: What errors call an entry, such as ``reward``.
        entries: The library's, in order.
    """

    def __init__(self, kind: str, entries: Mapping[str, Entry]) -> None:
        self.kind = kind
        self._entries = dict(entries)
        self._own = frozenset(entries)

    def __getitem__(self, name: str) -> Entry:
        """The entry of a name.

        Raises:
            UnknownNameError: There is none; a KeyError too.
        """
        return look_up(self._entries, name, kind=self.kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def registered(self) -> list[str]:
        """Names that are not the library's."""
        return [name for name in self._entries if name not in self._own]

    def add(self, name: str, entry: Entry) -> None:
        """Register an entry for this process; another process, such as one that resumes a run, has to do so too.

        Raises:
            ConfigError: The name is not lower-case letters, digits and underscores, or one of the library's.
        """
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ConfigError(f"{name!r} can't name a {self.kind}; use lower-case letters, digits and underscores.")
        if name in self._own:
            raise ConfigError(f"{name!r} is a {self.kind} of the library; register yours under another name.")
        self._entries[name] = entry

    def remove(self, name: str) -> None:
        """Forget a registered name.

        Raises:
            ConfigError: It was not registered.
        """
        if name not in self.registered:
            raise ConfigError(f"{name!r} was not registered as a {self.kind}.")
        del self._entries[name]
