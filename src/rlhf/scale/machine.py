"""A machine in three figures: matrix throughput, memory bandwidth and memory size."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rlhf.config.model import DType

ROWS, WIDTH = 1024, 1024
COPIED = 1 << 27
"""Bytes; more than any cache."""
TIMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a plan knows of a machine."""

    name: str
    is_gpu: bool
    memory_bytes: int
    """That a run can have."""
    matmul_flops: Mapping[DType, float]
    """Floating-point operations a second of large matrix products, a multiplication and an addition as two."""
    copy_bytes_per_second: float
    """Of memory, read and written counted once."""
    source: str
    """Where the figures come from."""
    threads: int = 1
    """CPU threads that work together."""

    def flops(self, dtype: DType) -> float:
        """``matmul_flops`` of a type; float32's where it is not known."""
        return self.matmul_flops.get(dtype, self.matmul_flops["float32"])


def this_machine(*dtypes: DType, threads: int | None = None) -> Machine:
    """This machine's CPU, measured now: about a second. Nothing is kept anywhere.

    Args:
        dtypes: Types of matrix products to measure in addition to float32.
        threads: That a run would use; torch's own number by default.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    wanted: list[DType] = list(dict.fromkeys(("float32", *dtypes)))
    return Machine(
        name="this machine",
        is_gpu=False,
        memory_bytes=memory_bytes(),
        matmul_flops={dtype: _matmul_flops(dtype) for dtype in wanted},
        copy_bytes_per_second=_copy_rate(),
        source=f"measured now in processor seconds, {torch.get_num_threads()} thread(s)",
        threads=torch.get_num_threads(),
    )


def memory_bytes() -> int:
    """Of the machine, or of the control group that this process is in."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if text.isdigit():
            size = min(size, int(text))
    return size


def resident_bytes(key: str = "VmRSS") -> int:
    """This process's resident memory now, or with ``VmHWM`` at its highest; 0 if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), 0)


def processor_seconds(work: Callable[[], object], *, least: int = 2, most: int = TIMES, budget: float = 0.3) -> float:
    """The median of a few repeats, after one that is not counted.

    Args:
        work: What to measure.
        least: Repeats at least.
        most: Repeats at most.
        budget: Seconds after which no further repeat begins.
    """
    work()
    seconds: list[float] = []
    while len(seconds) < least or (len(seconds) < most and sum(seconds) < budget):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def _matmul_flops(dtype: DType) -> float:
    """Floating-point operations per wall second if the threads have their cores to themselves."""
    kind: torch.dtype = getattr(torch, dtype)
    left, right = torch.randn(ROWS, WIDTH).to(kind), torch.randn(WIDTH, ROWS).to(kind)
    out = torch.empty(ROWS, ROWS, dtype=kind)
    seconds = processor_seconds(lambda: torch.mm(left, right, out=out)) / torch.get_num_threads()
    return 2 * ROWS * ROWS * WIDTH / seconds


def _copy_rate() -> float:
    source = torch.zeros(COPIED // 4)
    target = torch.zeros(COPIED // 4)
    seconds = processor_seconds(lambda: target.copy_(source)) / torch.get_num_threads()
    return COPIED / seconds
