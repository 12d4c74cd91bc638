"""How many threads a recipe may ask for on this machine."""

from __future__ import annotations

import os

from rlhf.errors import ConfigError

MOST_PER_CORE = 4
"""More only slow each other down; very many end in a crash of the OpenMP library before anything can be said."""


def usable_cores() -> int:
    """Cores that this process may run on: taskset and cpusets counted, a quota not."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_threads(threads: int | None) -> None:
    """Refuse what the machine could not start.

    Args:
        threads: A recipe's; None for torch's own number.

    Raises:
        ConfigError: More than ``MOST_PER_CORE`` for each usable core.
    """
    cores = usable_cores()
    if threads is not None and threads > MOST_PER_CORE * cores:
        raise ConfigError(
            f"{threads:,} threads are more than {MOST_PER_CORE} for each of the usable cores of this machine, which has {cores}; "
            f"give threads={cores} or fewer."
        )
