"""The head of a Ray cluster: whether one answers at an address, and whether it still does.

Once its head has not answered for a minute, Ray ends each process that joined the cluster, without a message of ours. A thread that asks the
head stops the run before that, so that it can save. A head that was started again without a database knows none of its nodes; they exit, and
Ray mostly ends this process before the thread can do anything.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from rlhf.errors import text_of

CONNECT_SECONDS = 10.0
"""For a running cluster to answer at its address."""
SILENT_SECONDS = 30.0
"""Without an answer, after which a head is taken for dead; Ray waits for 60."""
ASK_SECONDS = 0.25
"""Between two questions; a node whose head was started again ends within a second or so, and Ray then ends this process."""


def why_no_head(address: str) -> str | None:
    """Why no head of a cluster answers at `HOST:PORT`; None where one does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as err:
        return text_of(err)
    grpc = importlib.import_module("grpc")
    with _channel(address) as channel:
        try:
            _cluster_id(channel)
        except grpc.RpcError as err:
            if err.code() is grpc.StatusCode.UNAUTHENTICATED:
                return "it refuses the token of this process"
            return f"what listens there gives no answer of Ray's within {CONNECT_SECONDS:g} seconds ({err.code().name})"
    return None


class HeadWatch:
    """Asks the head of a cluster from a thread.

    Args:
        address: `HOST:PORT`.
        lost: Called once from that thread, with what happened to the head in a sentence.
    """

    def __init__(self, address: str, lost: Callable[[str], None]) -> None:
        self.address = address
        self.lost = lost
        self.is_lost = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _watch(self) -> None:
        grpc = importlib.import_module("grpc")
        known: bytes | None = None
        heard = time.monotonic()
        with _channel(self.address) as channel:
            while not self._closed.wait(ASK_SECONDS):
                with contextlib.suppress(grpc.RpcError):
                    answering = _cluster_id(channel)
                    known, heard = known or answering, time.monotonic()
                    if answering != known:
                        self._lose("was started again, and does not know this run")
                        return
                if time.monotonic() - heard > SILENT_SECONDS:
                    self._lose(f"has not answered for {SILENT_SECONDS:g} seconds")
                    return

    def _lose(self, how: str) -> None:
        self.is_lost = True
        self.lost(f"The head of the Ray cluster at {self.address} {how}")


def _channel(address: str) -> Any:
    return importlib.import_module("ray._private.gcs_utils").create_gcs_channel(address)


def _cluster_id(channel: Any) -> bytes:
    """Of the head; another one after a start without a database."""
    messages = importlib.import_module("ray.core.generated.gcs_service_pb2")
    stubs = importlib.import_module("ray.core.generated.gcs_service_pb2_grpc")
    stub = stubs.NodeInfoGcsServiceStub(channel)
    cluster: bytes = stub.GetClusterId(messages.GetClusterIdRequest(), timeout=CONNECT_SECONDS).cluster_id
    return cluster
