"""Whether the other ranks are still there. One that ends closes its connections; one whose machine or network is gone closes nothing, and a
collective would wait for it for half an hour.

Each rank counts up its own key of the store. Rank 0 looks at all counters, the others look at rank 0's. Nothing can interrupt a collective of
gloo or NCCL, so the process ends, as if it was killed: a run goes on from its newest checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from rlhf.errors import TrainingError

BEAT_SECONDS = 3.0
SILENT_BEATS = 60
"""Without a new count, or an answer of the store, after which a rank is taken for lost: three minutes, as a machine that swaps may stand still
for one. They are counted and not measured, so that a process that stood still itself accuses nobody. A
call that holds Python's lock for as long silences its rank, too; the longest known is DCP's, which turns a rank's shards into bytes at once."""
CLOSE_SECONDS = 2.0
"""For a store to answer that may be out of reach."""
FAULT = "rlhf/fault"
"""Key of what the first rank that failed has to say."""


class Heartbeat:
    """Beats and watches from two threads, as a store that is not reached never answers.

    Args:
        store: Of the ranks; cloned, as a thread that waits in a store holds it.
        rank: Of this process.
        size: How many there are.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.connected = threading.Event()
        """Set once the ranks are connected: from then on collectives notice a rank that failed."""
        self._store = store.clone()
        self._rank = rank
        self._counts = dict.fromkeys(range(1, size) if rank == 0 else [0], 0)
        self._missed = dict.fromkeys(self._counts, 0)
        self._answers = 0
        """Of the store."""
        self._why = ""
        """What a rank that failed said."""
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._watch)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads; one that is in a call of torch when the interpreter ends would abort the process."""
        self._closed.set()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)

    def _beat(self) -> None:
        """Count, and look at what others counted, until a rank said why it failed or the store is gone with its process."""
        try:
            while not self._closed.wait(BEAT_SECONDS):
                if self._look():
                    return
        except RuntimeError:
            # The store is gone with its process. Collectives notice that, and connecting to ranks does not.
            if not (self.connected.is_set() or self._closed.is_set()):
                _end(
                    "The store of the ranks was closed before they were connected; what rank 0 or its launcher said tells why. Where it is the "
                    "network, GLOO_SOCKET_IFNAME names the interface (docs/ranks.md)."
                )

    def _look(self) -> bool:
        """One beat; whether a rank has said why it failed."""
        self._store.add(f"rlhf/beat/{self._rank}", 1)
        if self._store.check([FAULT]):
            said = json.loads(self._store.get(FAULT))
            self._why = f"Rank {said['rank']} failed: {said['message']}"
            if not self.connected.is_set():
                _end(self._why)
            return True
        for rank, known in self._counts.items():
            count = self._counts[rank] = self._store.add(f"rlhf/beat/{rank}", 0)
            # One that never counted is still being started, which its launcher watches.
            self._missed[rank] = 0 if count != known or count == 0 else self._missed[rank] + 1
            if self._missed[rank] > SILENT_BEATS:
                self._store.compare_set(FAULT, "", json.dumps({"rank": rank, "message": _silence()}))
                _end(f"Rank {rank} failed: {_silence()}")
        self._answers += 1
        return False

    def _watch(self) -> None:
        """End a process that still waits long after the other thread heard the last of the store."""
        known = missed = 0
        while not self._closed.wait(BEAT_SECONDS):
            known, missed = self._answers, 0 if self._answers != known else missed + 1
            if missed > SILENT_BEATS:
                _end(self._why or f"Rank {self._rank} can't reach the store of rank 0's machine: {_silence()}")


def _silence() -> str:
    return (
        f"nothing was heard of it for {SILENT_BEATS * BEAT_SECONDS:g} seconds; its machine or the network is down, or it was stopped. "
        "The same command goes on from the newest checkpoint."
    )


def _end(why: str) -> None:
    sys.stderr.write(f"error: {why}\n")
    sys.stderr.flush()
    os._exit(TrainingError.exit_code)
