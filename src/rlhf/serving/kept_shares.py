"""Shares that were changed while the server ran, in a file for its next start."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from rlhf.errors import ConfigError
from rlhf.files import write_json


class KeptShares:
    """A file of JSON: {"live": {"champion": 0.9, "challenger": 0.1}}.

    Args:
        path: It need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changing = threading.Lock()
        """Held from a change to its line in the file, so that the two stay alike."""

    def read(self) -> dict[str, dict[str, float]]:
        """Name -> model -> share; empty where nothing was kept.

        Raises:
            ConfigError: The file can't be read, or holds something else.
        """
        if not self.path.exists():
            return {}
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except OSError as err:
            raise ConfigError(f"{self.path} can't be read: {err.strerror}; wanted a file of shares.") from err
        except (ValueError, RecursionError):
            kept = None
        if not isinstance(kept, dict) or not all(map(_are_shares, kept.values())):
            raise ConfigError(
                f"{self.path} does not hold shares; wanted names with the shares of models, such as "
                '{"live": {"champion": 0.9, "challenger": 0.1}}. Correct it, or delete it and set the shares again.'
            )
        return {name: dict(shares) for name, shares in kept.items()}

    def write(self, name: str, shares: Mapping[str, float]) -> None:
        """Put the shares of a name in the place of what was there of it.

        Raises:
            StorageError: There is no room, or no right to write.
            ConfigError: As ``read``.
        """
        write_json(self.path, self.read() | {name: dict(shares)})


def is_share(value: object) -> bool:
    """Whether it is a number that a share may be in JSON."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max  # false for NaN


def _are_shares(value: object) -> bool:
    return isinstance(value, dict) and all(map(is_share, value.values()))
