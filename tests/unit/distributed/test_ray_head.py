"""An address where something else listens, and a head that goes away or is started again, without a cluster."""

from __future__ import annotations

import importlib.util
import queue
import socket
import time
from typing import Any

import pytest

from rlhf.config.launch import RayLaunchConfig
from rlhf.distributed import ray_head
from rlhf.distributed.ray_cluster import RayCluster
from rlhf.distributed.ray_head import HeadWatch
from rlhf.errors import ConfigError

grpc = pytest.importorskip("grpc")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install ray")


@pytest.fixture
def listener():
    """`HOST:PORT` of something that takes connections and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_an_address_where_something_else_listens_is_one_error_within_seconds(listener, monkeypatch):
    monkeypatch.setattr(ray_head, "CONNECT_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=rf"{listener}.*no answer of Ray's within 0\.5 seconds"):
        RayCluster(RayLaunchConfig(launcher="ray", address=listener)).open()
    assert time.monotonic() - began < 30


def watched(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> str | None:
    """What is said of a head that answers so, the last answer for ever; None for nothing."""
    left = list(answers)

    def cluster_id(channel: Any) -> bytes:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray_head, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(ray_head, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(ray_head, "_cluster_id", cluster_id)
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    watch = HeadWatch("127.0.0.1:1", said.put)
    try:
        return said.get(timeout=1.5)
    except queue.Empty:
        return None
    finally:
        watch.close()
        watch._thread.join(10)


def test_a_head_that_is_silent_or_another_one_is_told_and_one_that_comes_back_is_not(monkeypatch):
    gone = grpc.RpcError()
    assert "has not answered" in (watched(monkeypatch, b"a", gone) or "")
    assert "started again" in (watched(monkeypatch, b"a", gone, b"b") or "")
    assert watched(monkeypatch, b"a", gone, gone, b"a") is None
