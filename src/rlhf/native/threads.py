"""Work of a C function shared among torch's number of threads."""

from __future__ import annotations

import functools
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch


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
    bounds = [bisect_left(reached, reached[-1] * thread // threads) for thread in range(threads + 1)]
    parts = [(memory[thread].data_ptr(), *bounds[thread : thread + 2]) for thread in range(threads)]
    others = [_pool(threads - 1).submit(call, *part) for part in parts[1:]]
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


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not come along
