"""Stages that were converted become a recipe; what it refuses is taken out again."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf.config.error_messages import shortened
from rlhf.config.foreign import common
from rlhf.config.foreign.key_table import TOP, Given
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError

MUST_BE_GIVEN = {
    "model": ("MODEL", "a folder or a hub name"),
    "data": ("rows.jsonl", "a file or a hub name (docs/data.md)"),
    "prompts": ("prompts.jsonl", "a file or a hub name (docs/data.md)"),
    "reward": ("rewards.py:reward", "who judges (docs/rewards.md): a reward model, a rule, or a Python function"),
}
"""Key that a stage can't do without -> what stands there until somebody fills it in, and what it is."""


@dataclass(slots=True)
class Line:
    """What became of one key."""

    key: str
    value: Any
    stage: str
    ours: dict[str, Any] = field(default_factory=dict)
    """Dotted; empty where nothing is set."""
    note: str = ""
    is_left: bool = False
    """Whether the value is not carried over; the note says why."""
    is_default: bool = False
    """Whether it is a default of theirs, which the file does not give."""

    def __str__(self) -> str:
        shown = "(hidden)" if common.SECRET.search(self.key) else _shown(self.value)
        if self.is_left:
            return f"not carried over: {self.key} = {shown}: {self.note}"
        places = [key.removeprefix(TOP) if key.startswith(TOP) else f"{self.stage}.{key}" for key in self.ours]
        values = ", ".join(
            f"{place} = {_shown(value)}" for place, value in zip(places, self.ours.values(), strict=True)
        )
        note = f" ({self.note})" if self.note else ""
        return f"{'default ' if self.is_default else ''}{self.key} = {shown} -> {values or 'nothing to set'}{note}"


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return shortened(text)


@dataclass(slots=True)
class Conversion:
    """A recipe, and how it came about."""

    title: str
    """Whose keys these were, and which method."""
    tree: dict[str, Any]
    """The recipe as it is written."""
    lines: list[Line]
    to_fill_in: list[str]

    def to_text(self) -> str:
        """The table."""
        carried = [line for line in self.lines if not line.is_left]
        left = [line for line in self.lines if line.is_left]
        heads = [f"{self.title}: {len(carried)} keys carried over, {len(left)} not, {len(self.to_fill_in)} to fill in"]
        return "\n".join(
            [*heads, *map(str, carried), *map(str, left), *(f"to fill in: {text}" for text in self.to_fill_in)]
        )


@dataclass(slots=True)
class Part:
    """One stage on the way."""

    name: str
    given: Given
    lines: list[Line]

    def finish(self) -> None:
        """Correct the lines whose settings another line has changed, and leave out defaults that count for nothing."""
        for line in self.lines:
            kept = {key: value for key, value in line.ours.items() if _holds(self.given.stage.get(key), value)}
            if line.ours and not kept:
                line.is_left, line.note = True, f"another key sets {', '.join(line.ours)}"
            line.ours = kept
        self.lines = [line for line in self.lines if line.ours or not line.is_default]

    def drop(self, key: str, why: str) -> None:
        """Take a setting out again; what set it is not carried over."""
        self.given.stage.pop(key)
        for line in self.lines:
            if key in line.ours:
                line.ours.pop(key)
                if not line.ours:
                    line.is_left, line.note = True, why
        self.lines = [line for line in self.lines if not (line.is_left and line.is_default)]


def _holds(now: Any, value: Any) -> bool:
    """Whether a setting is still what a line has made of it; of a section, whether its keys are in it."""
    return now == value or (isinstance(now, dict) and isinstance(value, dict) and value.items() <= now.items())


def assembled(parts: list[Part], title: str, name: str) -> Conversion:
    """The recipe, without settings that it refuses: those are not carried over, and the refusal says why."""
    for part in parts:
        part.finish()
    to_fill_in: list[str] = []
    while True:
        for part in parts:
            to_fill_in += [f"stages.{part.name}.{key} = {value}: {what}" for key, value, what in _filled_in(part)]
        tree = _tree(parts, name)
        try:
            RecipeConfig.of(tree, source="the recipe")
        except ConfigError as err:
            if not any(_settled(part, line) for line in str(err).splitlines()[1:] for part in parts):
                raise
            continue
        for part in parts:
            to_fill_in += [
                f"stages.{part.name}.{key} = {part.given.stage[key]}: {what}"
                for key, what in part.given.to_fill_in.items()
                if key in part.given.stage
            ]
        return Conversion(title, tree, [line for part in parts for line in part.lines], to_fill_in)


def _filled_in(part: Part) -> Iterator[tuple[str, Any, str]]:
    for key, (value, what) in MUST_BE_GIVEN.items():
        field_of = part.given.fields.get(key)
        if (
            field_of is None
            or (key == "data" and not field_of.is_required())
            or any(ours == key or ours == f"{key}.path" for ours in part.given.stage)
        ):
            continue
        part.given.stage = {key: value, **part.given.stage}
        yield key, value, what
    if "rollouts" in part.given.fields and "rollouts" not in part.given.stage:
        length = part.given.stage["rollouts"] = part.given.ours("rollouts")
        yield "rollouts", length, "the default; epochs x prompts / prompts_per_rollout, which --rows N computes"


def _settled(part: Part, complaint: str) -> bool:
    """Drop the setting that a line of an error is about; whether there was one."""
    top = re.match(r"\s*(?P<key>\w+): (?P<why>.*)", complaint)
    if top is not None and TOP + top["key"] in part.given.stage:
        part.drop(TOP + top["key"], top["why"])
        return True
    match = re.match(rf"\s*stages\.{re.escape(part.name)}(?:\.(?P<place>[\w.]+))?: (?P<why>.*)", complaint)
    if match is None:
        return False
    place, why = match["place"] or "", match["why"]
    settings = [key for key in part.given.stage if not key.startswith(TOP)]
    exact = [key for key in settings if key == place or place.startswith(f"{key}.")]
    inside = [key for key in settings if key not in MUST_BE_GIVEN and (not place or key.startswith(f"{place}."))]
    last = {key: [key, key.rpartition(".")[2]] for key in inside}
    within = {key: key.removeprefix(f"{place}.").split(".") for key in inside}
    named = _first_mentioned(why, last) or _first_mentioned(why, within)
    culprit = max(exact, key=len) if exact else named
    if culprit is None or part.given.stage[culprit] == MUST_BE_GIVEN.get(culprit, (None,))[0]:
        return False
    part.drop(culprit, why)
    return True


def _first_mentioned(text: str, words: Mapping[str, list[str]]) -> str | None:
    """The key of which a word comes first in a text."""
    at = {
        key: min((m.start() for word in names if (m := re.search(rf"(?<![\w.]){re.escape(word)}\b", text))), default=-1)
        for key, names in words.items()
    }
    mentioned = [key for key, place in at.items() if place >= 0]
    return min(mentioned, key=lambda key: at[key]) if mentioned else None


def _tree(parts: list[Part], name: str) -> dict[str, Any]:
    top: dict[str, Any] = {"name": re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._") or "converted"}
    stages: dict[str, Any] = {}
    for part in parts:
        stage: dict[str, Any] = {"kind": part.given.kind}
        for key, value in sorted(part.given.stage.items(), key=lambda item: item[0] not in MUST_BE_GIVEN):
            if key.startswith(TOP):
                top[key.removeprefix(TOP)] = value
            else:
                _put(stage, key.split("."), copy.deepcopy(value))
        stages[part.name] = stage
    return {**top, "stages": stages}


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    *sections, leaf = path
    node = tree
    for section in sections:
        inner = node.get(section)
        node[section] = inner = inner if isinstance(inner, dict) else {} if inner is None else {"path": inner}
        node = inner
    if isinstance(node.get(leaf), dict) and isinstance(value, str):
        node[leaf] = {"path": value, **node[leaf]}
    elif isinstance(node.get(leaf), dict) and isinstance(value, dict):
        node[leaf].update(value)
    else:
        node[leaf] = value
