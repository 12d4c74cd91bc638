"""Shares that were changed while the server ran, in a file for its next start."""

from __future__ import annotations

import json
import math
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

    def read(self) -> dict[str, dict[str, float]]:
        """Name -> model -> share; empty where nothing was kept.

        Raises:
            ConfigError: The file holds something else.
        """
        if not self.path.exists():
            return {}
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError:
            kept = None
        if not isinstance(kept, dict) or not all(map(_are_shares, kept.values())):
            raise ConfigError(
                f"{self.path} does not hold shares; wanted names with the shares of models, such as "
                '{"live": {"champion": 0.9, "challenger": 0.1}}. Correct it, or delete it and set the shares again.'
            )
        return {name: dict(shares) for name, shares in kept.items()}

    def write(self, shares: Mapping[str, Mapping[str, float]]) -> None:
        """Put all of them in the place of what was there.

        Raises:
            StorageError: There is no room, or no right to write.
        """
        write_json(self.path, {name: dict(of) for name, of in shares.items()})


def _are_shares(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(share, int | float) and not isinstance(share, bool) and math.isfinite(share)
        for share in value.values()
    )
