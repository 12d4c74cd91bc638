"""Ranks over the nodes of a Ray cluster: `launch: {launcher: ray, nodes: 2, gpus_per_node: 8}`.

Ray keeps a place on each node and starts an actor there, which starts torch's launcher (``rlhf.distributed.node_ranks``), as a person would
type torchrun on each machine. This process trains nothing: it prints what the ranks print, and when one node ends badly it ends the others.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.config.launch import RayLaunchConfig
from rlhf.distributed.actor_calls import Actor, ActorLostError, Call, Cluster
from rlhf.distributed.ray_cluster import ADDRESS, RANKS, RayCluster
from rlhf.errors import ConfigError, InterruptedRun, TrainingError
from rlhf.files import sha256
from rlhf.version import __version__

BUILDS = "rlhf.distributed.node_ranks:NodeRanks"
START_SECONDS = 120.0
"""For the actor of each node to be there, and for each of its answers before ranks run."""
TICK_SECONDS = 0.5
"""Longest wait for something to print between two looks at signals."""
GRACE_SECONDS = 10.0
"""For the ranks of other nodes to end after a node was lost: they may be waiting for it and can't save."""
FAILED_SECONDS = 30.0
"""The same after ranks failed, for what is to be said and saved."""


@dataclass(slots=True, eq=False)
class _Node:
    """A node, in the order of its ranks."""

    number: int
    address: str
    actor: Actor
    call: Call
    """For what its ranks print next."""
    port: int = 0
    code: int | None = None
    """Once its ranks ended."""
    lost: str = ""
    """How, where its actor is gone; completes "node 1 ..."."""

    @property
    def name(self) -> str:
        return f"node {self.number} ({self.address})"

    @property
    def runs(self) -> bool:
        return self.code is None and not self.lost


def run_over_nodes(
    launch: RayLaunchConfig,
    arguments: Sequence[str],
    *,
    folder: Path,
    files: Sequence[Path],
    is_stopped: Callable[[], bool],
) -> int:
    """Run ``python -m rlhf ARGUMENTS`` as ranks over the nodes of a cluster, and wait for all of them.

    Args:
        launch: Which cluster, and how many ranks on how many nodes.
        arguments: Of the command line.
        folder: Where run folders are made; all nodes must see it.
        files: That all nodes must see with the content that they have here.
        is_stopped: Whether somebody asked this process to stop; the ranks then end after a step with a checkpoint.

    Returns:
        The exit code of the node that failed first, 0 where none did.

    Raises:
        MissingExtraError: There is no Ray.
        ConfigError: There is no such cluster, it has no room, or a node does not see the files or has another version.
        TrainingError: A node or the cluster's head was lost.
    """
    lost: list[str] = []
    cluster = RayCluster(launch, of_ranks=True, head_lost=lost.append)
    nodes: list[_Node] = []
    try:
        cluster.open()
        nodes = _start_actors(cluster)
        _check_nodes(cluster, nodes, folder, files)
        variables = {ADDRESS: cluster.gcs_address, "OMP_NUM_THREADS": str(launch.threads_per_rank)}
        if launch.gpus_per_node is None:
            variables["CUDA_VISIBLE_DEVICES"] = ""
        for node in nodes:
            place = (str(node.number), str(len(nodes)), nodes[0].address, str(nodes[0].port))
            node.call = node.actor.ask("begin", place, launch.ranks_per_node, list(arguments), variables)
        _answers(cluster, nodes)
        code = _follow(cluster, nodes, lambda: bool(lost) or is_stopped())
        if lost:
            raise TrainingError(
                f"{lost[0]}, so the ranks were stopped. The same command goes on from the newest checkpoint."
            )
        return code
    finally:
        if running := [node for node in nodes if node.runs]:
            _stop(running, at_once=True)
            cluster.wait([node.call for node in running], TICK_SECONDS)
        cluster.close()


def _start_actors(cluster: RayCluster) -> list[_Node]:
    """An actor on each node; rank 0's is this one, where it is one of them."""
    nodes = []
    for number, (replica, address) in enumerate(cluster.places(RANKS)):
        actor, call = cluster.start_actor(RANKS, replica, BUILDS, (str(Path.cwd()),))
        nodes.append(_Node(number, address, actor, call))
    for node, about in zip(nodes, _answers(cluster, nodes), strict=True):
        node.port = about["port"]
        if about["version"] != __version__:
            raise ConfigError(
                f"The {node.name} has rlhf {about['version']}, and this machine {__version__}; install the same on all nodes."
            )
    return nodes


def _check_nodes(cluster: Cluster, nodes: Sequence[_Node], folder: Path, files: Sequence[Path]) -> None:
    """Refuse nodes that do not see what this machine sees."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder.absolute() / f".rlhf-{secrets.token_hex(8)}"
    probe.write_text(secrets.token_hex(), encoding="ascii")
    try:
        seen = {str(path.absolute()): sha256(path) for path in (*files, probe)}
        for node in nodes:
            node.call = node.actor.ask("check_files", seen)
        try:
            _answers(cluster, nodes)
        except ConfigError as err:
            what = str(err).replace(str(probe), f"the folder {folder} (output_dir) of this machine")
            raise ConfigError(
                f"{what}. The working folder, the recipe, what it reads and output_dir must lie where all nodes see them under the same "
                "path, such as on a network file system (docs/cluster.md)."
            ) from None
    finally:
        probe.unlink()


def _answers(cluster: Cluster, nodes: Sequence[_Node]) -> list[Any]:
    """What each node answers to its call, and a new call for what its ranks print.

    Raises:
        TrainingError: One was lost, or gave no answer.
        ConfigError: One refused, with its name.
    """
    waiting = {id(node.call): node for node in nodes}
    answers: dict[int, Any] = {}
    deadline = time.monotonic() + START_SECONDS
    while waiting:
        done = cluster.wait([node.call for node in waiting.values()], TICK_SECONDS)
        for call in done:
            node = waiting.pop(id(call))
            try:
                answers[node.number] = call.result()
            except ActorLostError as err:
                raise TrainingError(f"The {node.name} {err}, before its ranks were started.") from None
            except ConfigError as err:
                raise ConfigError(f"On the {node.name} {err}") from None
        if waiting and time.monotonic() > deadline:
            names = ", ".join(node.name for node in waiting.values())
            raise TrainingError(
                f"The {names} gave no answer within {START_SECONDS:g} seconds, before ranks were started."
            )
    return [answers[node.number] for node in nodes]


def _follow(cluster: Cluster, nodes: Sequence[_Node], is_stopped: Callable[[], bool]) -> int:
    """Print what ranks print until all have ended, and end them when one node ends badly; the exit code."""
    for node in nodes:
        node.call = node.actor.ask("output", TICK_SECONDS)
    failed: _Node | None = None
    stopped = asked = False
    kill_at = float("inf")
    while running := [node for node in nodes if node.runs]:
        by_call = {id(node.call): node for node in running}
        for call in cluster.wait([node.call for node in running], TICK_SECONDS):
            _take(by_call[id(call)])
        ended = [node for node in running if node.lost or node.code]
        if failed is None and ended:
            failed = next((node for node in ended if node.lost), ended[0])
        asked = asked or (failed is None and is_stopped())
        if (failed is not None or asked) and not stopped:
            stopped = True
            _stop([node for node in nodes if node.runs], at_once=False)
        if ended and not asked:
            kill_at = min(kill_at, time.monotonic() + FAILED_SECONDS)
        if any(node.lost for node in ended):
            kill_at = min(kill_at, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > kill_at:
            kill_at = float("inf")
            _stop([node for node in nodes if node.runs], at_once=True)
    if failed is None:
        return 0
    if failed.lost:
        raise TrainingError(
            f"The {failed.name} was lost with its ranks, and the others ended: it {failed.lost}. "
            "The same command goes on from the newest checkpoint."
        )
    assert failed.code is not None
    if asked:
        return InterruptedRun.exit_code
    if failed.code < 0:
        raise TrainingError(
            f"The launcher of the ranks on {failed.name} was ended by signal {-failed.code}, and the others ended. The same command goes on "
            "from the newest checkpoint."
        )
    return failed.code


def _take(node: _Node) -> None:
    """Print what a node's ranks printed, and ask for more."""
    try:
        lines, node.code = node.call.result()
    except ActorLostError as err:
        node.lost = str(err)
        return
    for stream, line in lines:
        out = getattr(sys, stream)
        out.write(line if node.number == 0 else f"[{node.name}] {line}")
        out.flush()
    if node.code is None:
        node.call = node.actor.ask("output", TICK_SECONDS)


def _stop(nodes: Sequence[_Node], *, at_once: bool) -> None:
    for node in nodes:
        node.actor.ask("stop", at_once)
