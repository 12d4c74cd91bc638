"""Which annotators of a store are simulated. What they said looks like judgments everywhere, so everywhere it is said."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from rlhf.data.message_text import counted

if TYPE_CHECKING:
    from rlhf.store import PreferenceStore

SETTING = "simulated annotators"
"""Of a store: their names."""
PREFIX = "sim-"
"""Begins the names of simulated annotators, so that they are known in files as well."""


def simulated_annotators(store: PreferenceStore) -> frozenset[str]:
    """Names of those that ``simulate`` made, here or in the store that a file with their judgments came from.

    A name with the prefix for which a link was ever made is somebody's who wanted to be called so.
    """
    from_files = {row.name for row in store.annotators() if row.name.startswith(PREFIX) and not row.invitations}
    return frozenset({*store.setting(SETTING, []), *from_files})


def mark_simulated(store: PreferenceStore, names: Iterable[str]) -> None:
    """Remember that these are no people."""
    store.set_setting(SETTING, sorted({*store.setting(SETTING, []), *names}))


def simulated_words(annotators: Iterable[str], simulated: Collection[str]) -> str:
    """How many of some judgments are simulated; nothing where none is.

    Args:
        annotators: Of each judgment.
        simulated: Names, of ``simulated_annotators``.
    """
    made_up = [name in simulated for name in annotators]
    if not any(made_up):
        return ""
    are = "is" if sum(made_up) == 1 else "are"
    return f"{sum(made_up):,} of {counted(len(made_up), 'judgment')} {are} simulated (rlhf feedback simulate) and no opinion of anybody's."
