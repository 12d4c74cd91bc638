"""A Ray cluster of several nodes on this machine, in a process of its own, whose nodes and head can be killed from outside.

    python tools/ray_nodes.py --nodes 2 --cpus 2        prints the address, then takes `kill 1`, `kill head`, `start head` from standard input

Each node is a raylet with its own workers; all of them end with this process, or when its standard input ends.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STARTS = 5
"""Ray gives up a node whose agents are not there within 15 seconds, which a busy machine may need longer for."""
TOKEN = secrets.token_hex(16)
"""Of the clusters of this process."""


class RayNodes:
    """The process, seen from outside."""

    def __init__(self, nodes: int, cpus: int, variables: dict[str, str]) -> None:
        command = [sys.executable, str(Path(__file__)), "--nodes", str(nodes), "--cpus", str(cpus)]
        self.variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_worker_niceness": "0", **variables}
        """That a process needs to join."""
        self.address = ""
        """`HOST:PORT` of the head."""
        for attempt in range(1, STARTS + 1):
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**os.environ, **self.variables},
            )
            try:
                self.address = self._said()
                break
            except RuntimeError:
                self.close()
                if attempt == STARTS:
                    raise

    def tell(self, words: str) -> None:
        """Have something done to the cluster, and wait until it is."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        self._said()

    def _said(self) -> str:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("> "):
                return line[2:].strip()
        raise RuntimeError("the cluster did not start, or ended")

    def close(self) -> None:
        """End the cluster."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@contextmanager
def ray_nodes(nodes: int, cpus: int, **variables: str) -> Iterator[RayNodes]:
    """Such a cluster, with these variables in the environment of its workers."""
    cluster = RayNodes(nodes, cpus, variables)
    try:
        yield cluster
    finally:
        cluster.close()


def main() -> None:
    """Start the cluster, and do what is asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--cpus", type=int, required=True)
    chosen = parser.parse_args()
    from ray._private.node import Node
    from ray.cluster_utils import Cluster

    setattr(Node, "start_api_server", lambda self, **how: None)  # noqa: B010 -- the dashboard, which nothing here asks
    each: dict[str, Any] = {"num_cpus": chosen.cpus, "num_gpus": 0, "include_log_monitor": False, "no_monitor": True}
    with socket.socket() as free:  # a head that is started again must be where it was
        free.bind(("", 0))
        each["gcs_server_port"] = free.getsockname()[1]
    cluster: Any = Cluster(initialize_head=True, head_node_args=each)
    nodes = [cluster.head_node, *(cluster.add_node(num_cpus=chosen.cpus, num_gpus=0) for _ in range(chosen.nodes - 1))]
    print(f"> {cluster.address}", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["kill", "head"]:
                nodes[0].kill_gcs_server()
            case ["start", "head"]:
                nodes[0].start_gcs_server()
            case ["kill", number]:
                cluster.remove_node(nodes[int(number)], allow_graceful=False)
        print("> done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
