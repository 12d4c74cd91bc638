"""Why a stage is not what the recipe asks for, in words for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from rlhf.config.base import Config
from rlhf.pipeline.artifacts import STAGE_INPUT, MadeFrom

LONGEST_VALUE = 60
"""Characters of a setting's value that are shown."""
FILES_NAMED = 3
"""Changed source files that are named; the others are counted."""
MISSING = object()


@dataclass(slots=True)
class Differences:
    """What is not the same; the code of this library apart, because a user may let that pass."""

    reasons: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.reasons or self.code)


def differences(was: MadeFrom | None, wanted: MadeFrom, *, stage: Config, redone: Set[str]) -> Differences:
    """Compare what something was made from with what it should be made from.

    Args:
        was: What it was made from; None where an older version did not record that.
        wanted: What the recipe asks for now.
        stage: The settings asked for, which know their defaults.
        redone: Stages that this run does again.
    """
    if was is None:
        return Differences(["it was made by an older version, which did not record what from"])
    found = Differences()
    _compare_settings(was.settings, wanted.settings, stage.model_dump(mode="json", exclude_defaults=True), found)
    moved = [place for place, _, _ in changed_settings(was.settings, wanted.settings)]
    _compare_inputs(was.parents, wanted.parents, moved, redone, found)
    _compare_code(was.code, wanted.code, found)
    return found


def changed_settings(was: Any, wanted: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted place, value before, value now) of every setting that differs; ``MISSING`` for one that is not there."""
    if isinstance(was, Mapping) and isinstance(wanted, Mapping):
        for key in dict.fromkeys((*was, *wanted)):
            yield from changed_settings(
                was.get(key, MISSING), wanted.get(key, MISSING), f"{place}.{key}" if place else key
            )
    elif was != wanted:
        yield place, was, wanted


def shown(value: Any) -> str:
    """A setting's value as one writes it."""
    if value is MISSING:
        return "not there"
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def _compare_settings(
    was: Mapping[str, Any], wanted: Mapping[str, Any], given: Mapping[str, Any], found: Differences
) -> None:
    for place, before, now in changed_settings(was, wanted):
        if now is MISSING:
            found.code.append(f"this version has no setting {place} any more")
        elif before is MISSING and not _has(given, place):
            found.code.append(f"this version has a new setting {place}, {shown(now)} by default")
        else:
            found.reasons.append(f"{place} was {shown(before)}, is {shown(now)}")


def _has(tree: Any, place: str) -> bool:
    for key in place.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True


def _compare_inputs(
    was: Mapping[str, str], wanted: Mapping[str, str], moved: Sequence[str], redone: Set[str], found: Differences
) -> None:
    """Inputs that the same settings name, and that hold something else now; ``moved`` are the other settings."""
    reasons: dict[str, None] = {}
    for place in dict.fromkeys((*was, *wanted)):
        before, before_hash = _split(was.get(place))
        now, now_hash = _split(wanted.get(place))
        if before_hash == now_hash or any(_overlap(place, other) for other in moved):
            continue
        if now.startswith(STAGE_INPUT):
            name = now.removeprefix(STAGE_INPUT).partition("/")[0]
            reasons[f"stage {name} {'is' if name in redone else 'was'} done again"] = None
        elif not now:
            reasons[f"{before} is not there any more"] = None
        elif not before:
            reasons[f"{now} was not there before"] = None
        else:
            reasons[f"{now} has other content (sha256 {before_hash[:6]}.. -> {now_hash[:6]}..)"] = None
    found.reasons += reasons


def _overlap(place: str, other: str) -> bool:
    """Whether one is the other or lies in it."""
    return f"{place}.".startswith(f"{other}.") or f"{other}.".startswith(f"{place}.")


def _split(parent: str | None) -> tuple[str, str]:
    """Where an input comes from, and the key or hash that it has."""
    source, _, digest = (parent or "").rpartition("@")
    return source, digest


def _compare_code(was: Mapping[str, str], wanted: Mapping[str, str], found: Differences) -> None:
    changed = sorted(name for name in {*was, *wanted} if was.get(name) != wanted.get(name))
    if changed:
        more = f" and {len(changed) - FILES_NAMED} more" if len(changed) > FILES_NAMED else ""
        found.code.append(f"code changed: {', '.join(changed[:FILES_NAMED])}{more}")
