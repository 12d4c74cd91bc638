"""Ray, and nowhere else: a cluster is started or joined, places for pools are reserved, actors are started, asked and killed.

Ray's own restart of an actor would bring back the object as it was made first, engines with the weights of version 0; so actors are never
restarted by Ray, but by ``rlhf.distributed.actor_pool``, which prepares them again.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlhf import errors
from rlhf.config.launch import PoolConfig, RayLaunchConfig, asked_words, resource_words
from rlhf.distributed.actor_calls import ActorLostError
from rlhf.distributed.launch_environment import RANK_VARIABLES
from rlhf.distributed.ray_head import HeadWatch, why_no_head
from rlhf.errors import ConfigError, RLHFError, TrainingError, require, text_of

logger = logging.getLogger(__name__)

TOKEN = secrets.token_hex(16)
"""Of a cluster that this process starts: other users of the machine can't run code in it, and nothing is written to ~/.ray."""
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 lets any other program of the machine go before an engine that the trainer waits for
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray 2.60 otherwise warns about at every start
}
ADDRESS = "RAY_ADDRESS"
"""Ray's own environment variable for the cluster of this process."""
LAST_LINES = 3
"""Of a traceback, in a message."""
RANKS = "ranks"
"""Role of the actors that each start the ranks of their node."""


class Answer:
    """What a call of an actor gives: a value, or why there is none."""

    def __init__(self, value: Any = None, *, refused: RLHFError | None = None, failed: str = "") -> None:
        self.value = value
        self.refused = None if refused is None else (type(refused).__name__, text_of(refused))
        self.failed = failed


class Host:
    """Lives in the actor's process, and calls the methods of one object there.

    Args:
        builds: ``package.module:function`` that makes it.
        threads: Of torch; 0 for an object that computes nothing.
    """

    def __init__(self, builds: str, threads: int) -> None:
        self.builds = builds
        self.threads = threads
        self.built: Any = None

    def start(self, *arguments: Any) -> Answer:
        """Make the object; ``started()`` of it answers."""

        def build() -> Any:
            for name in RANK_VARIABLES:  # of the rank that started Ray
                os.environ.pop(name, None)
            if self.threads:
                import torch

                torch.set_num_threads(self.threads)
            module, _, function = self.builds.partition(":")
            self.built = getattr(importlib.import_module(module), function)(*arguments)
            return self.built.started()

        return self._answered(build)

    def ask(self, method: str, *arguments: Any) -> Answer:
        """Call a method of the object."""
        return self._answered(lambda: getattr(self.built, method)(*arguments))

    def _answered(self, action: Any) -> Answer:
        try:
            return Answer(action())
        except RLHFError as err:
            return Answer(refused=err)
        except Exception as err:
            where = "".join(traceback.format_tb(err.__traceback__)[-1:]).strip().splitlines()
            return Answer(failed=f"raised {type(err).__name__}: {text_of(err)} ({' '.join(where[:1]).strip()})")


class RayCall:
    """A call of a Ray actor, a ``Call`` of ``rlhf.distributed.actor_calls``."""

    def __init__(self, ray: Any, ref: Any) -> None:
        self.ray = ray
        self.ref = ref

    def result(self) -> Any:
        """The answer of a call that is done."""
        try:
            with _signals_of_ray():
                answer: Answer = self.ray.get(self.ref)
        except self.ray.exceptions.RayError as err:
            raise ActorLostError(_how_it_was_lost(err)) from None
        if answer.failed:
            raise ActorLostError(answer.failed)
        if answer.refused is not None:
            kind, text = answer.refused
            raise getattr(errors, kind, TrainingError)(text)
        return answer.value


class RayActor:
    """A Ray actor, an ``Actor`` of ``rlhf.distributed.actor_calls``."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self.ray = ray
        self.handle = handle

    def ask(self, method: str, *arguments: Any) -> RayCall:
        """Begin a call."""
        return RayCall(self.ray, self.handle.ask.remote(method, *arguments))

    def kill(self) -> None:
        """End its process."""
        with contextlib.suppress(Exception):  # it may be gone, and the cluster with it
            self.ray.kill(self.handle, no_restart=True)


class RayCluster:
    """A ``Cluster`` of ``rlhf.distributed.actor_calls`` that is Ray's. Nothing is started before ``open``.

    Args:
        launch: Which cluster, and what its pools and ranks need.
        of_ranks: Reserve the places of the ranks, one on each node, and not those of the pools.
        head_lost: Called from a thread, with a sentence, when the cluster's head is gone; not watched where None.
    """

    def __init__(
        self,
        launch: RayLaunchConfig,
        *,
        of_ranks: bool = False,
        head_lost: Callable[[str], None] | None = None,
    ) -> None:
        self.head_lost = head_lost
        self.launch = launch
        self.of_ranks = of_ranks
        self.pools: Mapping[str, PoolConfig] = {RANKS: launch.rank_pool} if of_ranks else launch.pools.by_role()
        """By role."""
        self._ray: Any = None
        self._started_here = False
        self._group: Any = None
        self._watch: HeadWatch | None = None

    @property
    def ray(self) -> Any:
        """The module; connects at the first use."""
        self.open()
        return self._ray

    def open(self) -> None:
        """Start or join the cluster, and reserve what the pools need.

        Raises:
            MissingExtraError: There is no Ray in this environment.
            ConfigError: There is no cluster at the address, or it has no room for the pools.
        """
        if self._ray is not None:
            return
        self._ray = self._connected()
        try:
            self._reserve()
        except BaseException:
            self.close()
            raise
        if self.head_lost is not None:
            self._watch = HeadWatch(self.gcs_address, self.head_lost)

    def close(self) -> None:
        """Give back what was reserved, which ends all actors, and leave the cluster; one that was started here ends."""
        ray, self._ray = self._ray, None
        if ray is None:
            return
        if self._watch is not None:
            self._watch.close()
            if self._watch.is_lost:  # whom nothing can be given back to, and whose answer Ray would wait for
                return
        with contextlib.suppress(Exception):
            if self._group is not None and ray.is_initialized():
                ray.util.remove_placement_group(self._group)
        self._group = None
        if self._started_here:
            self._started_here = False
            with _signals_kept():
                ray.shutdown()

    def put(self, value: Any) -> Any:
        """A reference to a copy of a value in the object store."""
        return self.ray.put(value)

    @property
    def object_store_bytes(self) -> int:
        """Room for objects on the smallest node; what is larger goes to disk, and is slow."""
        sizes = [node["Resources"].get("object_store_memory", 0.0) for node in self._live_nodes()]
        return int(min(sizes, default=0))

    @property
    def num_nodes(self) -> int:
        """Machines that are there."""
        return len(self._live_nodes())

    @property
    def gcs_address(self) -> str:
        """Where other processes join the cluster."""
        address: str = self.ray.get_runtime_context().gcs_address
        return address

    def places(self, role: str) -> list[tuple[int, str]]:
        """(replica, address of the node where its place is) of a pool, those of this node first."""
        here = self.ray.get_runtime_context().get_node_id()
        nodes = self.ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in self._live_nodes()}
        of_replica = {replica: nodes[self._bundle(role, replica)] for replica in range(self.pools[role].replicas)}
        return sorted(
            ((replica, addresses.get(node, node)) for replica, node in of_replica.items()),
            key=lambda place: of_replica[place[0]] != here,
        )

    def start_actor(self, role: str, replica: int, builds: str, arguments: Sequence[Any]) -> tuple[RayActor, RayCall]:
        """Let an actor begin in its place."""
        ray, pool = self.ray, self.pools[role]
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        place = strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=self._bundle(role, replica)
        )
        handle = (
            ray.remote(Host)
            .options(
                num_cpus=pool.cpus, num_gpus=pool.gpus, memory=int(pool.resources.get("memory", 0)) or None,
                scheduling_strategy=place, max_restarts=0, max_task_retries=0,
            )
            .remote(builds, 0 if self.of_ranks else pool.threads)
        )  # fmt: skip
        return RayActor(ray, handle), RayCall(ray, handle.start.remote(*arguments))

    def wait(self, calls: Sequence[Any], timeout_seconds: float) -> list[Any]:
        """Those that are done."""
        by_ref = {call.ref: call for call in calls}
        with _signals_of_ray():
            done, _ = self.ray.wait(list(by_ref), num_returns=1, timeout=timeout_seconds)
            if len(done) < len(by_ref):
                rest = [ref for ref in by_ref if ref not in done]
                done = done + self.ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [by_ref[ref] for ref in done]

    def _connected(self) -> Any:
        """Ray, with a cluster; what it would change in this process stays as it was."""
        address = self.launch.address or os.environ.get(ADDRESS)
        has_new_token = address is None and "RAY_AUTH_MODE" not in os.environ
        if has_new_token:
            os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
        ray = require("ray", extra="scale", needed_for="launcher: ray")
        if ray.is_initialized():  # a script's own; it is left as it is
            return ray
        if has_new_token:
            _read_token()
        how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
        if address is None:
            how |= {"address": "local", "include_dashboard": False}  # without an address, one that runs here is joined
            if self.launch.object_store_gib is not None:
                how["object_store_memory"] = int(self.launch.object_store_gib * 2**30)
        else:
            how |= {"address": address}
            if address != "auto" and (why := why_no_head(address)) is not None:
                raise ConfigError(_no_cluster(address, why))
        try:
            with _signals_kept():
                _init(ray, how)
        except (ConnectionError, ray.exceptions.RayError, RuntimeError, ValueError, OSError) as err:
            raise ConfigError(_no_cluster(address, text_of(err))) from None
        self._started_here = True
        _take_over_messages()
        return ray

    def _reserve(self) -> None:
        """A placement group with a bundle for each replica, or for one replica of each pool."""
        bundles = self._bundles()
        if not bundles:
            return
        strategy = "PACK" if self.launch.placement == "colocated" else "SPREAD"
        self._group = self._ray.util.placement_group(bundles, strategy="STRICT_SPREAD" if self.of_ranks else strategy)
        if not self._group.wait(self.launch.placement_timeout_seconds):
            what = "the ranks of launch" if self.of_ranks else "the pools of launch.pools"
            how = "each on a node of its own" if self.of_ranks else self.launch.placement
            lower = "`nodes`, `gpus_per_node`" if self.of_ranks else "`replicas`, `cpus`, `gpus`"
            raise ConfigError(
                f"Ray can't place {what}: {'; '.join(asked_words(self.pools))} ({how}) did not fit "
                f"within {self.launch.placement_timeout_seconds:g} seconds (placement_timeout_seconds). {self._free()} Lower {lower} "
                "or what else is asked for, end what else runs there, or add nodes."
            )

    def _bundles(self) -> list[dict[str, float]]:
        # Ray makes no empty bundle, and a replica may need nothing.
        if self.launch.placement == "separate":
            return [pool.resources or {"CPU": 0.001} for pool in self.pools.values() for _ in range(pool.replicas)]
        bundles: list[dict[str, float]] = []
        for pool in self.pools.values():
            for replica in range(pool.replicas):
                bundles += [{}] if replica == len(bundles) else []
                for name, amount in pool.resources.items():
                    bundles[replica][name] = bundles[replica].get(name, 0.0) + amount
        return [bundle or {"CPU": 0.001} for bundle in bundles]

    def _bundle(self, role: str, replica: int) -> int:
        if self.launch.placement == "colocated":
            return replica
        before = 0
        for name, pool in self.pools.items():
            if name == role:
                return before + replica
            before += pool.replicas
        raise AssertionError(f"no pool {role}")

    def _live_nodes(self) -> list[Any]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _free(self) -> str:
        """What each node has and what of it is free, in words."""
        state = importlib.import_module("ray._private.state")
        try:
            available = state.available_resources_per_node()
        except Exception:
            available = {}
        words = []
        for node in self._live_nodes():
            has, free = node["Resources"], available.get(node["NodeID"], {})
            shown = {name: free.get(name, 0.0) for name in ("CPU", "GPU", "memory") if name in has or name != "memory"}
            whole = {name: has.get(name, 0.0) for name in shown}
            words.append(f"{node['NodeManagerAddress']}: {resource_words(shown)} of {resource_words(whole)}")
        return f"Free are, by node: {'; '.join(words)}."


def _init(ray: Any, how: Mapping[str, Any]) -> None:
    """Call ``ray.init``, and once more if the node was not ready within Ray's fixed 30 seconds, which Ray reports as a plain Exception.

    Raises:
        RuntimeError: The second attempt timed out, too.
    """
    for is_last in (False, True):
        try:
            ray.init(**how)
            return
        except Exception as err:
            if type(err) is not Exception:
                raise
            ray.shutdown()
            if is_last:
                raise RuntimeError(text_of(err)) from None


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray's handler of SIGTERM would end the process without saving; the run's own handler saves first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _signals_of_ray() -> Iterator[None]:
    """What a signal's handler raises inside Ray's compiled code may arrive as a SystemError that has it as its cause (Ray 2.60)."""
    try:
        yield
    except SystemError as err:
        if err.__cause__ is None:
            raise
        raise err.__cause__ from None


def _take_over_messages() -> None:
    """Ray prints a paragraph to standard output for each actor that ends; a pool says the same in a line, as an alarm of the run."""
    worker: Any = importlib.import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):  # no public switch turns it off (Ray 2.60)
        worker.print_to_stdstream = lambda data, **how: logger.debug("Ray: %s", data.get("lines"))


def _read_token() -> None:
    """Ray reads these variables when it is imported, which a script may have done before; no public call reads them again (Ray 2.60)."""
    with contextlib.suppress(ImportError, AttributeError):
        raylet = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def _no_cluster(address: str | None, said: str) -> str:
    lines = said.strip().splitlines()
    why = lines[0][:300] if lines else "no reason was given"
    if address is None:
        return f"Ray can't be started on this machine: {why}"
    return (
        f"There is no Ray cluster to join at {address!r} (launch.address, or {ADDRESS}): {why.rstrip('.')}. Start one with `ray start "
        "--head` and give this process its RAY_AUTH_TOKEN; with one node, `launch.address: null` starts one with the run."
    )


def _how_it_was_lost(err: BaseException) -> str:
    """Of Ray's paragraphs, the part that says what happened."""
    text = text_of(err)
    if "OOM" in type(err).__name__ or "OutOfMemory" in type(err).__name__:
        return f"was ended by Ray, because the memory of its node ran out: {text.splitlines()[0][:200]}"
    for line in reversed(text.splitlines()):
        if "exit detail:" in line:
            detail = line.partition("exit detail:")[2].strip().partition(". Some common causes")[0]
            return f"ended ({detail[:200]})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"was lost: {type(err).__name__}, {' '.join(lines[-LAST_LINES:])[:300]}"
