"""Memory that a piece of work takes in this process, and memory that it leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from rlhf.scale.machine import resident_bytes


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc's <malloc.h>."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def used_bytes() -> int:
    """Bytes in use that the C library has allocated; 0 if it does not report them.

    Other than the resident size, it does not depend on what was freed before: the difference around work that returns nothing is what
    libraries keep for the next time.
    """
    try:
        tell = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):  # no glibc, or one before 2.33
        return 0
    tell.restype = _MallocInfo
    usage = tell()
    return int(usage.uordblks) + int(usage.hblkhd)


def resident_growth(work: Callable[[], object]) -> int:
    """Bytes by which this process grows at most while this works: what allocators waste is in it, other than in ``peak_bytes``.

    Where the system does not tell, what ``peak_bytes`` finds.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # else what was freed before is used again, and nothing grows
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM
        before = resident_bytes()
        work()
        return max(0, resident_bytes("VmHWM") - before)
    return peak_bytes(work)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory of tensors that is alive at once while this works, above what was alive before."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    results: Any = profile.profiler.kineto_results
    events = sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns())
    alive = highest = 0
    for event in events:
        alive += event.nbytes()
        highest = max(highest, alive)
    return highest
