"""What every kind of engine declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from rlhf.config.base import BaseConfig, Kind
from rlhf.errors import RLHFError


def kind_from_text(value: Any) -> Any:
    """A plain word stands for the kind of that name with its defaults."""
    return {"kind": value} if isinstance(value, str) else value


class MismatchConfig(BaseConfig):
    """How far the sampler's probabilities may lie from the trainer's own, on the tokens that were sampled.

    Measured in every rollout as mean |p_engine - p_trainer|. The limits are those of verl's FAQ.
    """

    warn_at: float = Field(0.005, gt=0, lt=1)
    """An alarm from here on."""
    stop_at: float | None = Field(0.01, gt=0, lt=1)
    """The run stops from here on, and says what the cause is as far as it can be measured; null to go on."""

    @model_validator(mode="after")
    def _warns_first(self) -> Self:
        if self.stop_at is not None and self.warn_at > self.stop_at:
            raise ValueError(f"warn_at ({self.warn_at:g}) must not be above stop_at ({self.stop_at:g})")
        return self


class EngineConfig(Kind):
    """Settings of an engine, and what the library has to know of its kind.

    A new kind is a class like ``LocalEngineConfig`` in a module of its own, its line in ``ENGINE_KINDS``, and the function that
    ``builds`` names.
    """

    builds: ClassVar[str]
    """``package.module:function`` that makes the engine: takes the policy, the settings and ``autocast``, the type that the trainer
    multiplies matrices in; gives a ``rlhf.rollout.types.RolloutEngine``."""
    in_this_process: ClassVar[bool] = False
    """Whether it samples from the module that is trained."""
    free_to_change: ClassVar[frozenset[str]] = frozenset()
    """Settings that do not decide what is sampled, so that a resumed run may change them."""

    mismatch: MismatchConfig = MismatchConfig()
    """How far its probabilities may lie from the trainer's."""

    @property
    def lowered(self) -> str | None:
        """The lower precision of the copy of the weights that it samples with; None where it takes the policy's own."""
        return None

    def complaint(self, sampling: Any) -> str | None:
        """Why it can't sample in this way, a ``rlhf.config.policy.SamplingConfig``; None where it can."""
        return None

    def missing(self) -> Iterator[tuple[str, str, type[RLHFError]]]:
        """What this machine lacks for it: setting, message, class of the error."""
        return iter(())


def is_lowered(engine: Any) -> bool:
    """Whether an engine samples with a copy of the weights in a lower precision.

    Args:
        engine: Its settings, or what a recipe says of them.
    """
    if isinstance(engine, EngineConfig):
        return engine.lowered is not None
    return isinstance(engine, Mapping) and engine.get("weights", "same") != "same"
