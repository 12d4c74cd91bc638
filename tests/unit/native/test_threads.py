from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch

from rlhf.native.threads import in_parts, together

PATIENCE = 30
"""Seconds after which threads that wait for each other are taken for stuck."""


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("units", [1, 2, 7, 100])
@pytest.mark.parametrize("least", [1, 30])
def test_every_unit_is_done_once(threads, units, least):
    done = []
    in_parts(lambda _, first, last: done.append((first, last)), reached=range(units + 1), least=least, scratch=1)
    assert sorted(unit for first, last in done for unit in range(first, last)) == list(range(units))
    assert len(done) == max(1, min(threads, units // least))


def test_threads_have_memory_of_their_own(threads):
    places = []
    together(lambda memory, thread: places.append((thread, memory)), threads=threads, scratch=100)
    assert sorted(thread for thread, _ in places) == list(range(threads))
    addresses = sorted(memory for _, memory in places)
    assert all(b - a >= 400 for a, b in pairwise(addresses))


def test_callers_whose_threads_wait_for_each_other_do_not_lock_each_other_out():
    def call(_: int) -> None:
        barrier = threading.Barrier(3)
        together(lambda memory, thread: barrier.wait(PATIENCE), threads=3, scratch=1)

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(call, range(200)))  # a barrier that breaks raises


def test_what_one_thread_raises_is_raised_after_all_have_ended():
    ended = []

    def call(_: int, thread: int) -> None:
        if thread == 1:
            raise ValueError("one")
        ended.append(thread)

    with pytest.raises(ValueError, match="one"):
        together(call, threads=3, scratch=1)
    assert sorted(ended) == [0, 2]
