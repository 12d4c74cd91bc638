"""Where a process finds modules and files, for actors that should find the same."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where the process that trains finds modules and files."""

    folder: str
    modules: tuple[str, ...]

    @classmethod
    def here(cls) -> Whereabouts:
        """Of this process."""
        return cls(os.getcwd(), tuple(sys.path))

    def take(self) -> None:
        """The same for this process, as far as they are on its node."""
        sys.path += [path for path in self.modules if path not in sys.path]
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
