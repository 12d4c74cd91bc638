"""What a detector of reward hacking is shown, and what it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_LOGOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(f"[{_LOGOGRAPHS}]|[^\\s{_LOGOGRAPHS}]+")


def words_of(text: str) -> list[str]:
    """A text cut at white space; where a script has none between words, each character counts as one."""
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutObservation:
    """One completion to each of n held-out prompts, always the same prompts in the same order. NaN where there is no score."""

    step: int
    proxy: Array
    """[n] what the policy is trained for."""
    judge: Array
    """[n] what it is not trained for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutObservation:
    """The n completions of one rollout."""

    step: int
    rewards: Array
    """[n]."""
    groups: NDArray[np.int64]
    """[n] which completions have one prompt, as numbers from 0 on."""
    num_words: Array
    """[n]."""
    repeated_words: Array
    """[n] words of the longest block that is repeated at once, see ``longest_repeated_block``."""
    trigram_rates: Array
    """[n] share of three-word runs that stood there before."""
    reference_repeated: Array
    """[n] chance that the starting policy's completion of the same prompt is flagged for repetition."""
    reference_log_words: Array
    """[n] mean log length of the starting policy's completions of the same prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """What a detector found wrong."""

    value: float
    limit: float
    message: str
    """What it is, what was found, what was allowed, what to do."""
    places: tuple[int, ...] = ()
    """Completions of the observation that show it, the clearest first."""
    good_step: int | None = None
    """Newest step whose weights showed nothing yet; None where that is the step before."""


ObservationT = TypeVar("ObservationT", contravariant=True)


class Detector(Protocol[ObservationT]):
    """Looks at one kind of observation and remembers what it needs."""

    value: float | None
    """Its statistic after the newest observation; None until it knows enough."""

    def update(self, observation: ObservationT) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        ...

    def penalties(self, observation: ObservationT) -> Array:
        """[n] what `penalize` subtracts from the rewards of an observation that was just taken in."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        ...


def none_penalized(rewards: Array) -> Array:
    """[n] zeros, of a detector that can't point at single completions."""
    return np.zeros(len(rewards))


def strongest(evidence: Array) -> tuple[int, ...]:
    """Places of the values above 0, the largest first."""
    order = np.argsort(-np.nan_to_num(evidence), kind="stable")
    return tuple(int(place) for place in order if evidence[place] > 0)
