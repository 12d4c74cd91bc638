"""What a pool needs of a cluster: actors that are started, asked and killed. ``ray_cluster`` has those of Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class ActorLostError(Exception):
    """The actor of a call is gone, or raised what no caller expects; completes "replica 0 of the pool `engines` ..."."""


class Call(Protocol):
    """A question to an actor that is under way."""

    def result(self) -> Any:
        """Its answer, once ``wait`` gave the call.

        Raises:
            ActorLostError: The actor ended, or raised what it should not.
            RLHFError: What the actor refused the question for.
        """
        ...


class Actor(Protocol):
    """An object in a process of its own, that answers one call after the other."""

    def ask(self, method: str, *arguments: Any) -> Call:
        """Begin a call of one of its methods."""
        ...

    def kill(self) -> None:
        """End its process, whatever it does."""
        ...


class Cluster(Protocol):
    """Where actors live."""

    def start_actor(self, role: str, replica: int, builds: str, arguments: Sequence[Any]) -> tuple[Actor, Call]:
        """Let an actor begin, in the place that is reserved for this replica.

        Args:
            role: Of its pool.
            replica: Its number there, from 0.
            builds: ``package.module:function`` that makes the object, called in the actor's process.
            arguments: Of the function; values that ``put`` gave arrive as what they stand for.

        Returns:
            The actor, and the call that makes the object; its answer is what ``started()`` of the object gives.
        """
        ...

    @property
    def num_nodes(self) -> int:
        """Machines that are there."""
        ...

    @property
    def object_store_bytes(self) -> int:
        """Room for what ``put`` is given, on the smallest node; what is larger goes to disk, and is slow."""
        ...

    def wait(self, calls: Sequence[Any], timeout_seconds: float) -> list[Any]:
        """Those that can give their result; returns with the first of them, or when the time is up."""
        ...

    def put(self, value: Any) -> Any:
        """A reference to a copy of a value in shared memory, which is given to actors in its place."""
        ...
