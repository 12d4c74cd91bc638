"""What the ranks of a run tell each other: small values, requests, and why one of them failed.

``current_ranks()`` is always there; in a process by itself every exchange is with itself and costs nothing.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rlhf.distributed.heartbeat import BEAT_SECONDS, FAULT, Heartbeat
from rlhf.distributed.launch_environment import Launch, find_launch
from rlhf.distributed.network_interface import interface_towards
from rlhf.errors import ConfigError, RLHFError, TrainingError, text_of

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT = timedelta(minutes=30)
"""After which a rank that waits for the others gives up."""
WAIT_FOR_REASON_SECONDS = 5.0
"""How long a rank that lost another waits for what that one has to say."""
POLL_SECONDS = 0.05
ENDED = "rlhf/ended"
"""Key that rank 0 sets when it ends with an error."""
LOST_PEER = (
    "gloo",
    "nccl",
    "connection closed",
    "connection reset",
    "connection refused",
    "connection was",
    "broken pipe",
)
"""Words of gloo's and NCCL's errors about a process that is gone, where torch raises a plain RuntimeError."""


class Ranks:
    """One process by itself, and what several have in common."""

    rank = 0
    size = 1
    gpu: int | None = None
    """Number of the GPU on this machine that is this rank's, as torch counts; None for a process by itself, or where a rank has none."""
    gpu_is_shared = False
    """Whether some rank's is another's as well, which NCCL can't connect."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes and prints."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks in their order, on every rank; anything that can be pickled."""
        return [value]

    def sum_in_place(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over the ranks, which give as many of the same shapes."""

    def order(self, work: Mapping[str, Any] | None) -> None:
        """Rank 0 tells the others what to do next; None for nothing more."""

    def named(self, err: BaseException) -> BaseException:
        """The error that the run ends with: that of the rank which failed first, where this one only lost it."""
        return err

    def orders(self) -> Iterator[Mapping[str, Any]]:
        """What rank 0 tells the others to do, until there is nothing more or a rank failed."""
        return iter(())

    @contextmanager
    def naming_failures(self) -> Iterator[None]:
        """Inside, an error that only says that another rank is gone becomes that rank's own."""
        try:
            yield
        except BaseException as err:
            named = self.named(err)
            if named is err:
                raise
            raise named from err


class ProcessRanks(Ranks):
    """Several processes, connected by gloo, and their GPUs by NCCL where each has its own.

    Args:
        launch: What the launcher said.
    """

    def __init__(self, launch: Launch) -> None:
        from torch.distributed.rendezvous import rendezvous

        os.environ.update(MASTER_ADDR=launch.address, MASTER_PORT=str(launch.port))
        self.rank, self.size = launch.rank, launch.world_size
        meeting = rendezvous("env://", rank=launch.rank, world_size=launch.world_size, timeout=TIMEOUT)
        self._store, _, _ = next(iter(meeting))
        self.heartbeat = Heartbeat(self._store, self.rank, self.size)
        try:
            self._connect(launch)
        except BaseException:
            self.heartbeat.close()
            raise
        self.heartbeat.connected.set()
        self._orders = 0
        self._own_fault: BaseException | None = None
        """What this rank failed of."""

    def _connect(self, launch: Launch) -> None:
        """Find this rank's GPU and connect it with the other ranks."""
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore

        self._find_gpu(launch.local_rank)
        if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_towards(launch.address, launch.port)):
            os.environ["GLOO_SOCKET_IFNAME"] = name
        try:
            dist.init_process_group(
                "gloo" if self.gpu is None or self.gpu_is_shared else "cpu:gloo,cuda:nccl",
                store=PrefixStore("group", self._store),
                rank=self.rank,
                world_size=self.size,
                timeout=TIMEOUT,
            )
        except RuntimeError as err:
            raise self._not_connected(err) from err

    def _not_connected(self, err: RuntimeError) -> ConfigError:
        """Say it to the others, too, who wait for this rank."""
        self.heartbeat.close()  # which would hear it as well, and end this process before its error is raised
        how = (
            f"can't be connected with the others: {str(err).splitlines()[0][:300]}. Ranks listen at ports of their own choice, so all TCP "
            "ports between the machines must be open; GLOO_SOCKET_IFNAME names the network interface (docs/ranks.md)."
        )
        with suppress(RuntimeError):  # the store is gone where rank 0 ended of the same
            self._store.compare_set(FAULT, "", json.dumps({"rank": self.rank, "message": how}))
            time.sleep(2 * BEAT_SECONDS)  # with the first one that ends its launcher does, which may have the store
        return ConfigError(f"Rank {self.rank} {how}")

    def _find_gpu(self, local_rank: int) -> None:
        """Which GPU is this rank's, and whether all ranks have one and each another."""
        gpu = own_gpu(local_rank)
        self._store.set(f"rlhf/gpu/{self.rank}", "" if gpu is None else gpu_identity(gpu))
        said = [self._store.get(f"rlhf/gpu/{rank}").decode() for rank in range(self.size)]
        if all(said):
            self.gpu, self.gpu_is_shared = gpu, len(set(said)) < self.size

    def gather(self, value: Any) -> list[Any]:
        """By pickle."""
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def sum_in_place(self, tensors: Sequence[Tensor]) -> None:
        """One after the other."""
        import torch.distributed as dist

        for tensor in tensors:
            dist.all_reduce(tensor)

    def order(self, work: Mapping[str, Any] | None) -> None:
        """By the store: what lies between two orders may take hours, and no collective would wait so long."""
        self._store.set(f"rlhf/order/{self._orders}", json.dumps(work))
        self._orders += 1

    def orders(self) -> Iterator[Mapping[str, Any]]:
        """What rank 0 tells the others to do, until there is nothing more or a rank failed."""
        while True:
            key = f"rlhf/order/{self._orders}"
            while not self._store.check([key]):
                if self._store.check([FAULT]):
                    raise TrainingError(_sentence(json.loads(self._store.get(FAULT))))
                time.sleep(POLL_SECONDS)
            work = json.loads(self._store.get(key))
            self._orders += 1
            if work is None:
                return
            yield work

    def named(self, err: BaseException) -> BaseException:
        """Say to the others what happened here, or find out what happened to them."""
        lost = _is_lost_peer(err)
        try:
            if not lost and isinstance(err, Exception):  # not a signal, and not SystemExit
                said = {"rank": self.rank, "message": _message(err)}
                self._store.compare_set(FAULT, "", json.dumps(said))
                self._own_fault = self._own_fault or err
                return err
            patience = time.monotonic() + (WAIT_FOR_REASON_SECONDS if lost else 0)
            while not self._store.check([FAULT]):
                if time.monotonic() > patience:
                    return TrainingError(_unsaid(err)) if lost else err
                time.sleep(POLL_SECONDS)
            said = json.loads(self._store.get(FAULT))
        except RuntimeError:  # the store is gone with its process
            return TrainingError(_unsaid(err)) if lost else err
        if said["rank"] == self.rank:  # and the signal is that of a launcher which saw another rank end
            return self._own_fault or err
        return TrainingError(_sentence(said))

    def end_after_main(self) -> None:
        """Let rank 0 end first, which finds the same mistake in the settings: a launcher stops all ranks as soon as one ends."""
        limit = time.monotonic() + WAIT_FOR_REASON_SECONDS
        with suppress(RuntimeError):  # the store is gone with its process
            while not self._store.check([ENDED]) and time.monotonic() < limit:
                time.sleep(POLL_SECONDS)

    def say_ended(self) -> None:
        """Of rank 0."""
        with suppress(RuntimeError):
            self._store.set(ENDED, "")

    def close(self) -> None:
        """Leave the group, after all others came here too."""
        import torch.distributed as dist

        self.gather(None)  # a barrier of torch's would be one of GPUs
        dist.destroy_process_group()


def own_gpu(local_rank: int) -> int | None:
    """Of a rank of this machine: the GPU of its number, or the only one that it sees; None without one."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 1:
        return 0
    return local_rank if local_rank < count else None


def gpu_identity(gpu: int) -> str:
    """The same for no two GPUs, whatever number they have in a process."""
    import torch

    return f"{socket.gethostname()}/{torch.cuda.get_device_properties(gpu).uuid}"


_ALONE = Ranks()
_current: Ranks = _ALONE


def current_ranks() -> Ranks:
    """Those that this process belongs to."""
    return _current


@contextmanager
def launched_ranks() -> Iterator[Ranks]:
    """Inside, the ranks that a launcher started are connected; a process by itself only runs what is inside.

    An error on any rank ends all of them with that rank's message, which rank 0 raises; the others leave silently.

    Raises:
        ConfigError: The launcher's variables do not say how the ranks find each other.
        TrainingError: Another rank failed; its number and message.
    """
    global _current
    launch = find_launch(os.environ)
    if launch is None:
        yield _ALONE
        return
    ranks = ProcessRanks(launch)
    _current = ranks
    try:
        yield ranks
        ranks.close()
    except BaseException as err:
        with _launcher_ignored():
            named = ranks.named(err)
            if ranks.is_main:
                ranks.say_ended()
        if ranks.is_main:
            raise named from (None if named is err else err)
        if isinstance(err, ConfigError):
            ranks.end_after_main()
        # At once: with its connections rank 0 loses this rank, and asks the store why.
        raise SystemExit(named.code if isinstance(named, SystemExit) else getattr(named, "exit_code", 1)) from None
    finally:
        ranks.heartbeat.close()
        # A gloo thread releases the tensors of the last collective shortly after it completes. If the interpreter is shutting down by
        # then, the thread can't acquire the GIL, and the process ends with SIGABRT after all work was done (3 of about 20 runs).
        time.sleep(POLL_SECONDS)
        _current = _ALONE


@contextmanager
def _launcher_ignored() -> Iterator[None]:
    """Inside, SIGTERM is ignored: a launcher sends it to all ranks as soon as one ends, and this one still has to find out why."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_lost_peer(err: BaseException) -> bool:
    from torch.distributed import DistError

    if isinstance(err, RLHFError) or not isinstance(err, RuntimeError):
        return False
    return isinstance(err, DistError) or any(word in str(err).lower() for word in LOST_PEER)


def _message(err: BaseException) -> str:
    return text_of(err) if isinstance(err, RLHFError) else f"{type(err).__name__}: {text_of(err)}"


def _sentence(said: Mapping[str, Any]) -> str:
    return f"Rank {said['rank']} failed: {said['message']}"


def _unsaid(err: BaseException) -> str:
    return (
        f"Another rank ended without saying why (was it killed, or out of memory?): {str(err).splitlines()[0][:200]} "
        "The same command goes on from the newest checkpoint."
    )
