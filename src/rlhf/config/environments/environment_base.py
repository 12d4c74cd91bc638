"""What every kind of environment declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from rlhf.config.base import Kind
from rlhf.errors import RLHFError

CALLS_OF_EVENT = 3
"""Calls that one turn of the policy may lead to, each of which may take ``timeout_seconds``: the class, ``reset`` and ``step``."""
ToolFormatName = Literal["auto", "hermes", "llama3", "mistral", "harmony", "plain"]
"""How a policy writes a call of a tool; ``auto`` is read off its chat template."""


class EnvironmentBase(Kind):
    """What every kind of environment has: settings, and what the library has to know of the kind.

    A new kind is a class below this one in a module of its own, its line in ``ENVIRONMENT_KINDS``, and the function that ``builds``
    names.
    """

    builds: ClassVar[str]
    """``package.module:function`` that opens it: takes the settings and a ``rlhf.rollout.environments.EnvironmentContext``; gives a
    ``rlhf.rollout.environments.OpenedEnvironment``."""

    played_by: ClassVar[str | None] = None
    """Who plays the episodes, where no object of a Python class does: it does so in the process that trains, also where a recipe's
    `launch` has a pool `environments`."""

    max_turns: int = Field(8, ge=1)
    """Of the policy, in one episode; after so many it counts as cut."""
    max_turn_tokens: int | None = Field(None, ge=1)
    """Longest single turn of the policy; null for what `sampling.max_new_tokens`, the limit of a whole episode, leaves."""
    max_observation_tokens: int = Field(256, ge=1)
    """A longer answer of the environment loses its end."""
    timeout_seconds: float = Field(60.0, gt=0)
    """For one answer of the environment. One that takes longer ends its episode without a score; three in one rollout stop
    the run."""

    @property
    def speaker(self) -> str:
        """The role that says observations in a conversation."""
        return "user"

    def why_one_turn(self, stop: Sequence[str]) -> str | None:
        """Why no episode with prompts in plain text has a second turn; None where one may.

        Args:
            stop: Texts that end a turn of the policy (`sampling.stop`).
        """
        if stop or self.max_turn_tokens is not None or self.max_turns == 1:
            return None
        return (
            "Prompts are plain text, and nothing ends a turn but EOS, which ends the episode too: every episode has one turn. Give the texts "
            "that end a turn, such as sampling.stop: [')='] for calls of tools, or environment.max_turn_tokens."
        )

    def problem_in_actors(self, timeout_seconds: float) -> str | None:
        """What is wrong with the time that an actor of the pool `environments` has for one piece of work; None for nothing.

        Args:
            timeout_seconds: Of the pool.
        """
        least = CALLS_OF_EVENT * self.timeout_seconds
        if timeout_seconds >= least:
            return None
        return (
            f"launch.pools.environments.timeout_seconds is {timeout_seconds:g}, and one turn may take {least:g} seconds: "
            f"environment.timeout_seconds ({self.timeout_seconds:g}) for each of the class, reset and step. Raise the first to {least:g}, "
            "or lower the second; else an actor is killed while its environment has time left."
        )

    def missing(self) -> Iterator[tuple[str, str, type[RLHFError]]]:
        """What this machine lacks for it: setting, message, class of the error."""
        return iter(())
