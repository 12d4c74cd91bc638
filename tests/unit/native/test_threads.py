from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch

from rlhf.native import threads as threads_module
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
    together(lambda memory, thread: places.append((thread, memory)), threads=threads, scratch=100, abandon=never)
    assert sorted(thread for thread, _ in places) == list(range(threads))
    addresses = sorted(memory for _, memory in places)
    assert all(b - a >= 400 for a, b in pairwise(addresses))


def test_callers_whose_threads_wait_for_each_other_do_not_lock_each_other_out():
    def call(_: int) -> None:
        barrier = threading.Barrier(3)
        together(lambda memory, thread: barrier.wait(PATIENCE), threads=3, scratch=1, abandon=never)

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(call, range(200)))  # a barrier that breaks raises


@pytest.mark.parametrize("raising", [0, 1, 2])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_threads_that_wait_for_one_that_raises_are_told(raising, error):
    given_up, ended = threading.Event(), []

    def call(_: int, thread: int) -> None:
        if thread == raising:
            raise error("one")
        assert given_up.wait(PATIENCE)
        ended.append(thread)

    with pytest.raises(error):
        together(call, threads=3, scratch=1, abandon=given_up.set)
    assert sorted(ended) == sorted({0, 1, 2} - {raising})


def test_threads_that_wait_for_one_that_cannot_be_started_are_told(monkeypatch):
    given_up, ended = threading.Event(), []
    pool = threads_module._pool(2)
    own, left = pool.submit, [1]

    def submit(*args):
        if not left:
            raise RuntimeError("cannot schedule new futures after shutdown")
        left.pop()
        return own(*args)

    monkeypatch.setattr(pool, "submit", submit)
    with pytest.raises(RuntimeError, match="after shutdown"):
        together(
            lambda _, thread: ended.append((thread, given_up.wait(PATIENCE))),
            threads=3,
            scratch=1,
            abandon=given_up.set,
        )
    assert ended == [(1, True)]


def test_a_pool_has_all_its_threads_from_the_start():
    threads_module._pool.cache_clear()
    assert len(threads_module._pool(4)._threads) == 4


def never() -> None:
    raise AssertionError("nobody was to give up")
