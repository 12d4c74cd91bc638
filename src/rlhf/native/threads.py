"""Work of a C function shared among torch's number of threads."""

from __future__ import annotations

import functools
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch

_SUBMITTING = threading.Lock()


def in_parts(call: Callable[[int, int, int], None], *, reached: Sequence[int], least: int, scratch: int) -> None:
    """Call a function for consecutive units of work, in as many threads as torch would use.

    Args:
        call: With the address of memory to work in, and the first unit and the one behind the last. Through ctypes it holds no lock
            of Python's.
        reached: What the units cost up to each, from 0 to the cost of all; ``range(units + 1)`` where they cost the same.
        least: Of that cost a thread gets about so much at least: waking one has its price.
        scratch: Floats that each thread works in.
    """
    threads = max(1, min(torch.get_num_threads(), reached[-1] // least))
    memory = torch.empty(threads, scratch, dtype=torch.float32, device="cpu")
    if threads == 1:
        call(memory.data_ptr(), 0, len(reached) - 1)
        return
    bounds = [bisect_left(reached, reached[-1] * thread // threads) for thread in range(threads + 1)]
    parts = [(memory[thread].data_ptr(), *bounds[thread : thread + 2]) for thread in range(threads)]
    _all_at_once(call, parts)


def together(call: Callable[[int, int], None], *, threads: int, scratch: int) -> None:
    """Call a function once in each of some threads, which may wait for each other.

    Args:
        call: With the address of memory to work in, and the number of the thread; otherwise as above.
        threads: 1 and more.
        scratch: Floats that each works in.
    """
    memory = torch.empty(threads, scratch, dtype=torch.float32, device="cpu")
    _all_at_once(call, [(memory[thread].data_ptr(), thread) for thread in range(threads)])


def _all_at_once(call: Callable[..., None], parts: Sequence[tuple[int, ...]]) -> None:
    # All or none are in the pool's queue before anyone else's: of two callers whose threads wait for each other, one comes first.
    with _SUBMITTING:
        others = [_pool(len(parts) - 1).submit(call, *part) for part in parts[1:]]
    try:
        call(*parts[0])
    finally:
        wait(others)  # whatever happens to this thread: the memory that they write to is the caller's
    for other in others:
        other.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads beside the calling one."""
    return ThreadPoolExecutor(threads, thread_name_prefix="rlhf-native")


def _after_fork() -> None:
    """Threads do not come along, and what they held is not given back."""
    global _SUBMITTING
    _SUBMITTING = threading.Lock()
    _pool.cache_clear()


os.register_at_fork(after_in_child=_after_fork)
