"""What stands in a table of another project's keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlhf.errors import ConfigError

TOP = "^"
"""Before a key of the recipe itself, not of a stage."""


class Reason(str):
    """Why a value is not carried over, and what to use."""

    __slots__ = ()


class Settings(NamedTuple):
    """Ours in place of theirs."""

    values: Mapping[str, Any]
    """Dotted keys of the stage; of the recipe with ``TOP`` in front."""
    note: str = ""


@dataclass(slots=True)
class Given:
    """All that a conversion may look at."""

    theirs: Mapping[str, Any]
    """Their keys, defaults included."""
    kind: str
    """Of the stage that is written."""
    fields: Mapping[str, Any]
    """Its class's ``model_fields``."""
    measures: tuple[str, ...] = ()
    """What its evaluation measures; empty where a setting decides."""
    processes: int = 1
    rows: int | None = None
    """Rows of the training data, where the user gave their number."""
    stage: dict[str, Any] = field(default_factory=dict)
    """Ours so far, dotted."""
    to_fill_in: dict[str, str] = field(default_factory=dict)
    """Ours with a value that the user has to look at -> what it is."""

    def get(self, key: str, default: Any = None) -> Any:
        """Theirs; the default where it is absent or null."""
        value = self.theirs.get(key)
        return default if value is None else value

    def number(self, key: str, default: int = 1) -> int:
        """A whole number of theirs.

        Raises:
            ConfigError: It is something else.
        """
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise ConfigError(f"{key} is {value!r}; wanted a whole number.")
        return int(value)

    def has(self, key: str) -> bool:
        """Whether a stage of this kind has the key."""
        return key.startswith(TOP) or key.partition(".")[0] in self.fields

    def ours(self, key: str) -> Any:
        """What the stage says so far, or its default; null for a key that it does not have."""
        return self.stage.get(key, self.fields[key].default if key in self.fields else None)

    @property
    def has_held_out(self) -> bool:
        """Whether the stage, so far, has something to evaluate on."""
        return any(self.stage.get(key) for key in ("eval_data", "eval_frac", "eval_prompts"))

    @property
    def learns_from_rewards(self) -> bool:
        """Whether the stage samples."""
        return self.has("prompts_per_rollout")

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps on one rollout."""
        sequences = self.ours("prompts_per_rollout") * self.ours("group_size")
        return int(self.ours("epochs_per_rollout") * math.ceil(sequences / self.ours("minibatch_size")))

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the stage, None where the number of rows would be needed."""
        if self.learns_from_rewards:
            return int(self.stage["rollouts"]) * self.steps_per_rollout if "rollouts" in self.stage else None
        if self.stage.get("max_steps"):
            return int(self.stage["max_steps"])
        return None if self.rows is None else math.ceil(self.ours("epochs") * self.rows / self.ours("batch_size"))


Conversion = Mapping[Any, Any] | Callable[[Any, Given], Settings | Reason]
"""Their value -> ours, several settings of ours or a reason; a value that is absent has none here."""


@dataclass(frozen=True, slots=True)
class To:
    """A key of theirs that is carried over."""

    ours: tuple[str, ...]
    """Dotted; the first that the stage has is meant. Where a function converts, all that it may set."""
    by: Conversion | None = None
    """None: the value as it is."""
    note: str = ""
    """What else to know."""
    when: int = 0
    """Conversions of a higher number are done after those of a lower one, whose results they need."""


Entry = To | Reason
Table = Mapping[str, Entry]


def to(*ours: str, by: Conversion | None = None, note: str = "", when: int = 0) -> To:
    """An entry that is carried over."""
    return To(ours, by, note, when)


def no(keys: str, because: str) -> dict[str, Entry]:
    """Entries that are not; keys in one text."""
    return dict.fromkeys(keys.split(), Reason(because))


def converted(entry: To, value: Any, given: Given) -> Settings | Reason:
    """What becomes of a value."""
    if callable(entry.by):
        return entry.by(value, given)
    ours = next((key for key in entry.ours if given.has(key)), None)
    if entry.ours and ours is None:
        return Reason(f"a stage of kind {given.kind} has no such setting")
    if entry.by is None:
        return Settings({str(ours): value})
    outcome = entry.by.get(value.lower() if isinstance(value, str) else value, _ABSENT) if _hashable(value) else _ABSENT
    if outcome is _ABSENT:
        known = ", ".join(str(word) for word in entry.by)
        return Reason(f"{value!r} has no counterpart{f' in {ours}' if ours else ''}; known are {known}")
    if isinstance(outcome, Reason):
        return outcome
    return Settings(outcome if isinstance(outcome, dict) else {str(ours): outcome})


_ABSENT = object()


def _hashable(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | None)
