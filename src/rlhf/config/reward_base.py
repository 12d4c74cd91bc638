"""What every kind of reward declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import FiniteFloat

from rlhf.config.base import Kind


class RewardBase(Kind):
    """What every kind of reward has: settings, and what the library has to know of the kind.

    A new kind is a class below this one in a module of its own, its line in ``rlhf.config.rewards.REWARD_KINDS``, and the function that
    ``builds`` names.
    """

    builds: ClassVar[str]
    """``package.module:function`` that makes the scorer: takes the settings and a ``rlhf.rewards.types.RewardContext``."""
    text_key: ClassVar[str] = ""
    """The setting that a plain text in place of the settings stands for, as ``rlhf.config.rewards`` reads it; empty where there is none."""

    unbounded: ClassVar[bool] = False
    """Whether scores may lie outside of [0, 1] even where none of those seen does."""

    free_to_change: ClassVar[Mapping[str, Any]] = {}
    """Settings that a resumed run may change, as pydantic's ``exclude`` has them: limits and retries, which decide no score."""

    weight: FiniteFloat = 1.0
    """The score is multiplied by this before several are added up; negative for something unwanted."""
    normalize: bool = False
    """Shift and scale the score to mean 0 and deviation 1 over each rollout before it is weighted."""
    name: str | None = None
    """What metrics call it; by default its kind or its function's name."""

    length_debias: bool = False
    """Subtract a local regression of the score on length, over the completions of each rollout (arXiv:2409.17407); needs the extra `eval`."""

    @property
    def needs_siblings(self) -> bool:
        """Whether a completion has a score only next to others of its prompt."""
        return False

    @property
    def in_actors(self) -> bool:
        """Whether a pool `reward` of a recipe's `launch` computes it: what takes time, and keeps nothing in the stage's folder."""
        return False

    def models_asked(self) -> list[tuple[str, str]]:
        """Key and source of every reward model that it asks."""
        return []

    def rewards_inside(self) -> list[tuple[str, RewardBase]]:
        """Key and settings of the rewards that it is made of."""
        return []
