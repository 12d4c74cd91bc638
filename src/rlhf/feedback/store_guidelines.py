"""Which guidelines a store asks for: its own, or the built-in ones."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.config.guidelines import STANDARD_GUIDELINES, AnnotationGuideline
from rlhf.data.message_text import counted
from rlhf.errors import ConfigError
from rlhf.store import PreferenceStore


def guidelines_of(store: PreferenceStore) -> Sequence[AnnotationGuideline]:
    """What annotators of a store are asked to look at: its own guidelines, or the built-in ones."""
    kept = store.setting("guidelines")
    return [AnnotationGuideline.of(one) for one in kept] if kept else STANDARD_GUIDELINES


def set_guidelines(store: PreferenceStore, guidelines: Sequence[AnnotationGuideline]) -> None:
    """Ask for these from now on.

    Raises:
        ConfigError: There are none, two have one name, or ratings in the store are of a dimension that would be gone: their
            weight in overall ratings would be lost.
    """
    known = {guideline.name for guideline in guidelines_of(store)}
    names = [guideline.name for guideline in guidelines]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"Guidelines have at least one dimension, each its own name; got {', '.join(names) or 'none'}."
        )
    rated: dict[str, int] = {}
    for judgment in store.judgments():
        for name in judgment.value.get("ratings", ()):
            rated[name] = rated.get(name, 0) + 1
    for task in store.tasks():
        for name in (task.gold or {}).get("ratings", ()):
            rated.setdefault(name, 0)
    if gone := [name for name in rated if name in known and name not in names]:
        held = counted(rated[gone[0]], "judgment") if rated[gone[0]] else "gold items"
        raise ConfigError(
            f"This store holds {held} of {gone[0]!r}, and the new guidelines are {', '.join(names)}. Keep every "
            "dimension that is rated already, or begin a store of its own."
        )
    store.set_setting("guidelines", [guideline.model_dump(mode="json") for guideline in guidelines])
