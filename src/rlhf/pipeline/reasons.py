"""Why a stage is not what the recipe asks for, in words for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from rlhf.pipeline.artifacts import STAGE_INPUT, MadeFrom

if TYPE_CHECKING:
    from rlhf.config.base import BaseConfig

LONGEST_VALUE = 60
"""Characters of a setting's value that are shown."""
CONTEXT = 15
"""Characters that two long values have in common and that are shown all the same."""
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


def differences(was: MadeFrom | None, wanted: MadeFrom, *, stage: BaseConfig, redone: Set[str]) -> Differences:
    """Compare what something was made from with what it should be made from.

    Args:
        was: What it was made from; None where an older version did not record that.
        wanted: What the recipe asks for now.
        stage: The settings asked for, which know their defaults.
        redone: Stages that this run does again.
    """
    if was is None:
        return Differences(["it was made by an older version, which did not record what from"])
    changes = Differences()
    _compare_settings(was.settings, wanted.settings, stage, changes)
    # Where the kind of a thing is another, so is all that it reads.
    moved = [place.removesuffix(".kind") for place, _, _ in changed_settings(was.settings, wanted.settings)]
    _compare_inputs(was.parents, wanted.parents, moved, redone, changes)
    _compare_code(was.code, wanted.code, changes)
    return changes


def changed_settings(was: Any, wanted: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted place, value before, value now) of every setting that differs; ``MISSING`` for one that is not there.

    As far inside as there is a place to name. Where another kind of thing stands, its kind is the difference.
    """
    before, now = _entries(was), _entries(wanted)
    if was == wanted:
        return
    if before is not None and now is not None and type(was) is type(wanted):
        kinds = before.get("kind", MISSING), now.get("kind", MISSING)
        for key in dict.fromkeys((*before, *now)) if kinds[0] == kinds[1] else ["kind"]:
            yield from changed_settings(
                before.get(key, MISSING), now.get(key, MISSING), f"{place}.{key}" if place else key
            )
    else:
        yield place, was, wanted


def shown(value: Any) -> str:
    """A setting's value as one writes it, cut where it is long."""
    text = _written(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def shown_both(was: Any, wanted: Any) -> tuple[str, str]:
    """Two values; where both are long, from a little before the place where they begin to differ."""
    texts = _written(was), _written(wanted)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    start = max(0, same - CONTEXT) if same > LONGEST_VALUE - 2 * CONTEXT else 0
    first, second = (f"...{text[start:]}" if start else text for text in texts)
    return shown(first), shown(second)


def _written(value: Any) -> str:
    if value is MISSING:
        return "not there"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _entries(value: Any) -> Mapping[str, Any] | None:
    """What has places inside: a mapping, and a list of mappings by number; None for all else."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return {str(number): item for number, item in enumerate(value)}
    return value if isinstance(value, Mapping) else None


def _compare_settings(
    was: Mapping[str, Any], wanted: Mapping[str, Any], stage: BaseConfig, changes: Differences
) -> None:
    given = stage.model_dump(mode="json", exclude_defaults=True)
    for place, before, now in changed_settings(was, wanted):
        parent = _at(stage, place.split(".")[:-1])
        fixed = not isinstance(parent, Mapping | Sequence)  # whose keys this library decides, and no user
        if now is MISSING and fixed:
            changes.code.append(f"this version has no setting {place} any more")
        elif before is MISSING and fixed and _at(given, place.split(".")) is MISSING:
            changes.code.append(f"this version has a new setting {place}, {shown(now)} by default")
        else:
            first, second = shown_both(before, now)
            changes.reasons.append(f"{place} was {first}, is {second}")


def _at(tree: Any, place: Sequence[str]) -> Any:
    """What stands at a place of settings, or of their dump; ``MISSING`` where nothing does."""
    for key in place:
        if isinstance(tree, Mapping):
            tree = tree.get(key, MISSING)
        elif isinstance(tree, Sequence) and not isinstance(tree, str):
            tree = tree[int(key)] if key.isdigit() and int(key) < len(tree) else MISSING
        else:
            tree = getattr(tree, key, MISSING)
    return tree


def _compare_inputs(
    was: Mapping[str, str], wanted: Mapping[str, str], moved: Sequence[str], redone: Set[str], changes: Differences
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
    changes.reasons += reasons


def _overlap(place: str, other: str) -> bool:
    """Whether one is the other or lies in it."""
    return f"{place}.".startswith(f"{other}.") or f"{other}.".startswith(f"{place}.")


def _split(parent: str | None) -> tuple[str, str]:
    """Where an input comes from, and the key or hash that it has."""
    source, _, digest = (parent or "").rpartition("@")
    return source, digest


def _compare_code(was: Mapping[str, str], wanted: Mapping[str, str], changes: Differences) -> None:
    changed = sorted(name for name in {*was, *wanted} if was.get(name) != wanted.get(name))
    if changed:
        more = f" and {len(changed) - FILES_NAMED} more" if len(changed) > FILES_NAMED else ""
        changes.code.append(f"code changed: {', '.join(changed[:FILES_NAMED])}{more}")
