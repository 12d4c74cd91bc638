"""Allocator settings: keep freed memory for the next step, and fewer kernels for shapes that do not repeat."""

from __future__ import annotations

import ctypes
import functools
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of ``mallopt``'s parameters in glibc's <malloc.h>."""
LARGEST_KEPT = 1 << 25
"""Bytes of a block that may be kept; glibc allows no more, and larger ones go back to the system as before."""
MOST_FREE = (1 << 31) - 1
"""Bytes that may be free at the top of the heap, 2 GiB: the maximum of the parameter's type."""
SERVED_BLOCK, SERVED_FREE = 1 << 22, 1 << 24
"""The same two of a server: its steps take less, and what grows with the number of prompts takes more."""

PRIMITIVES, WRAPPED = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"
"""Environment variables of oneDNN, and of the layer between torch and it, which keeps kernels that oneDNN dropped, with scratch memory."""
KERNELS, WRAPPED_KERNELS = 256, 32
"""Kernels that the two keep. Layers share the kernels of a batch, so the first must hold those of a pass: some 25 where attention is in C, by
torch's operations more than 64 and fewer than 256 with 7,000 to 17,000 tokens. The second remakes cheaply what the first still has."""
SERVED_KERNELS = 128
"""What the first keeps in a server, whose passes have fewer shapes than those of training, where rows are filled up."""
CAPACITIES = (PRIMITIVES, WRAPPED, "DNNL_PRIMITIVE_CACHE_CAPACITY")
"""The variables, with the first one's former name."""


def forget_kernels() -> None:
    """Make oneDNN keep the kernels of fewer recent shapes than its default of 1,024; environment variables take precedence.

    It compiles one for each shape of a matrix product in bfloat16, of half a megabyte and more, and another packed batch hardly ever has
    the same shapes: 40 steps of SimPO with 20 million parameters on a Xeon peaked at 1,733 MiB without this, and do at 1,487.

    The setting is read before the first such product of a process: later calls have no effect. Models loaded by other code
    are covered only if this is called first.
    """
    if CAPACITIES[-1] not in os.environ:
        os.environ.setdefault(PRIMITIVES, str(KERNELS))
    os.environ.setdefault(WRAPPED, str(WRAPPED_KERNELS))


def num_kernels_kept() -> int:
    """Number that oneDNN keeps after ``forget_kernels`` was called."""
    setting = os.environ.get(PRIMITIVES, os.environ.get(CAPACITIES[-1], ""))
    return int(setting) if setting.isdecimal() else KERNELS


@functools.cache
def keep_freed_memory() -> bool:
    """Make glibc keep freed blocks for later allocations in this process.

    By default it returns the top of its heap to the system whenever 64 MB of it are free; each step of a training run on a CPU then
    pays for the same pages again, one fault per 4 KB (20,700 faults a step of DPO with 20 million parameters, and 7,600 with
    this; the peak is the same).

    Returns:
        Whether this was done: False with another C library, or if the environment sets ``MALLOC_...`` itself.
    """
    return _set_malloc(LARGEST_KEPT, MOST_FREE)


@functools.cache
def keep_small_blocks() -> bool:
    """``keep_freed_memory`` for blocks up to 4 MiB and 16 MiB of them, and ``forget_kernels`` for half of its number: for a server.

    By default glibc keeps ever larger blocks, and tables of keys and values that grow leave holes: a server of a model with 21 million
    parameters held 366 MiB in them for 32 completions at once, and holds 240. Half of the kernels are 35 MiB.
    """
    if os.environ.get(PRIMITIVES, str(KERNELS)) == str(KERNELS) and CAPACITIES[-1] not in os.environ:
        os.environ[PRIMITIVES] = str(SERVED_KERNELS)
    return _set_malloc(SERVED_BLOCK, SERVED_FREE)


def _set_malloc(largest: int, free: int) -> bool:
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # no glibc; on Windows no name at all
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, largest)) and bool(mallopt(M_TRIM_THRESHOLD, free))


def give_back_freed_memory() -> None:
    """Return to the system what this process has freed and glibc still holds, such as after a model was loaded; elsewhere nothing."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # no glibc; on Windows no name at all
        return
    trim(0)
