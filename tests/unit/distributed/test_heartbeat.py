"""A rank that says nothing any more and closes no connection ends the others, who would wait for it for half an hour."""

from __future__ import annotations

import threading
import time

import pytest

from rlhf.distributed import heartbeat, ranks
from rlhf.distributed.ranks import ProcessRanks, current_ranks
from tests.fixtures.two_ranks import run_over_ranks

QUIET_SECONDS = 20.0


def fall_silent(silent: int) -> float:
    """One rank's machine is gone, as the other sees it; seconds until that one's connection closes."""
    heartbeat.BEAT_SECONDS, heartbeat.SILENT_BEATS = 0.05, 20
    ranks = current_ranks()
    while ranks.heartbeat._answers == 0:  # a rank that never beat is still being started
        time.sleep(0.01)
    ranks.gather(None)
    began = time.monotonic()
    if ranks.rank == silent:
        ranks.heartbeat.close()
        time.sleep(QUIET_SECONDS)
        return time.monotonic() - began
    ranks.gather(None)
    raise AssertionError("the collective ended")


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_that_falls_silent_ends_the_other_one_in_the_middle_of_a_collective(silent, tmp_path, capfd):
    began = time.monotonic()
    results = run_over_ranks(fall_silent, silent, folder=tmp_path)
    assert results[1 - silent] is None, "it ended at once"
    assert f"Rank {silent} failed: nothing was heard of it" in capfd.readouterr().err
    assert time.monotonic() - began < 5 * QUIET_SECONDS


class Store:
    """Of a process: it counts what it is asked, and answers no more once ``silent`` is set."""

    def __init__(self) -> None:
        self.silent = threading.Event()
        self.asked = 0
        self.values: dict[str, str] = {}

    def clone(self) -> Store:
        return self

    def check(self, keys: list[str]) -> bool:
        return self.values.keys() >= set(keys)

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def compare_set(self, key: str, expected: str, wanted: str) -> None:
        assert not expected
        self.values.setdefault(key, wanted)

    def add(self, key: str, amount: int) -> int:
        while self.silent.is_set():
            time.sleep(0.01)
        self.asked += 1
        return self.asked


def test_a_store_that_does_not_answer_ends_a_rank_and_one_that_answers_does_not(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(heartbeat, "SILENT_BEATS", 30)
    said: list[str] = []
    monkeypatch.setattr(heartbeat, "_end", said.append)
    store = Store()
    beating = heartbeat.Heartbeat(store, 1, 2)
    try:
        time.sleep(1.0)
        assert said == []
        assert store.asked > 2
        store.silent.set()
        deadline = time.monotonic() + 30
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
        assert said
        assert "Rank 1 can't reach the store" in said[0]
    finally:
        beating.close()
        store.silent.clear()


def test_a_rank_that_can_not_connect_raises_its_error_and_is_not_ended_by_its_own_heartbeat(monkeypatch):
    for module in (heartbeat, ranks):
        monkeypatch.setattr(module, "BEAT_SECONDS", 0.2)
    said: list[str] = []
    monkeypatch.setattr(heartbeat, "_end", said.append)
    mine = object.__new__(ProcessRanks)
    mine.rank, mine.size, mine._store = 0, 2, Store()
    mine.heartbeat = heartbeat.Heartbeat(mine._store, 0, 2)
    error = mine._not_connected(RuntimeError("Unable to find address for: nowhere"))
    assert "Rank 0 can't be connected with the others: Unable to find address" in str(error)
    assert mine._store.check([heartbeat.FAULT])
    assert said == []


@pytest.mark.parametrize("connected", [False, True])
def test_a_store_that_is_closed_ends_a_rank_only_before_it_is_connected(connected, monkeypatch):
    class Closed(Store):
        def add(self, key: str, amount: int) -> int:
            raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.2)
    said: list[str] = []
    monkeypatch.setattr(heartbeat, "_end", said.append)
    beating = heartbeat.Heartbeat(Closed(), 1, 2)
    if connected:
        beating.connected.set()
    try:
        beating._threads[0].join(30)
        assert not beating._threads[0].is_alive()
        assert ["GLOO_SOCKET_IFNAME" in each for each in said] == ([] if connected else [True])
    finally:
        beating.close()
