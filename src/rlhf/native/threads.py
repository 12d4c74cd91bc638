"""Runs a C function on torch's number of threads."""

from __future__ import annotations

import functools
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise

import torch
from torch import Tensor

START_SECONDS = 60
"""That threads have to come up."""
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
    _all_at_once(call, memory, list(pairwise(bounds)), lambda: None)


def together(call: Callable[[int, int], None], *, threads: int, scratch: int, abandon: Callable[[], None]) -> None:
    """Call a function once in each of some threads, which may wait for each other.

    Args:
        call: With the address of memory to work in, and the number of the thread; otherwise as above. It holds what it writes to: where
            this thread is interrupted, others may end later.
        threads: 1 and more.
        scratch: Floats that each works in.
        abandon: Has those that wait wait no longer. Called where one of them may not come: an interrupt, a process that ends.
    """
    memory = torch.empty(threads, scratch, dtype=torch.float32, device="cpu")
    _all_at_once(call, memory, [(thread,) for thread in range(threads)], abandon)


def _all_at_once(
    call: Callable[..., None], memory: Tensor, parts: Sequence[tuple[int, ...]], abandon: Callable[[], None]
) -> None:
    """Part i with row i of the memory; the first in this thread."""
    others: list[Future[None]] = []
    try:
        if len(parts) > 1:
            pool = _pool(len(parts) - 1)
            # All before anyone else's: of two callers whose threads wait for each other, one comes first.
            with _SUBMITTING:
                for row, part in zip(memory[1:], parts[1:], strict=True):
                    others.append(pool.submit(_call, call, row, part, abandon))
        _call(call, memory[0], parts[0], abandon)
    except BaseException:
        abandon()
        raise
    finally:
        wait(others)  # whatever happens to this thread: the memory that they write to is the caller's
    for other in others:
        other.result()


def _call(call: Callable[..., None], row: Tensor, part: tuple[int, ...], abandon: Callable[[], None]) -> None:
    try:
        call(row.data_ptr(), *part)  # the row lives as long as this
    except BaseException:
        abandon()
        raise


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads in addition to the calling one, all started: Python 3.12 may start too few for parts that wait for each other."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="rlhf-native")
    started = threading.Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(started.wait, START_SECONDS)
    started.wait(START_SECONDS)
    return pool


def _after_fork() -> None:
    """Threads do not come along, and what they held is not given back."""
    global _SUBMITTING
    _SUBMITTING = threading.Lock()
    _pool.cache_clear()


os.register_at_fork(after_in_child=_after_fork)
