"""Classes that labels of kind ``multiclass`` choose from: named on the command line, or read from the labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlhf.data.contracts import BadRow, RowError
from rlhf.data.message_text import listed, short
from rlhf.data.read import OnBadRow
from rlhf.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:  # the store needs an extra
    from rlhf.feedback.tasks import SourceItems
    from rlhf.store import PreferenceStore

CLASSES = "classes"
"""Setting of a store: all classes there can be, in order."""


def parsed_classes(text: str) -> tuple[str, ...]:
    """The names in ``a,b,c``.

    Raises:
        ConfigError: There are fewer than two, one is named twice, or one is not a name.
    """
    from rlhf.store.values import TaskKind, check_value

    names = tuple(name.strip() for name in text.split(","))
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(f"--classes is {short(text)}; wanted two or more different names, such as a,b,c.")
    for name in names:
        try:
            check_value(TaskKind.MULTICLASS, {"class": name}, num_responses=1)
        except DataError as err:
            raise ConfigError(f"--classes is {short(text)}: {short(name)} is not a name of a class.") from err
    return names


def scale_of(store: PreferenceStore, answered: Iterable[str], given: Sequence[str] | None) -> tuple[str, ...] | None:
    """All classes there can be, in order: those given, those that an import declared, or those that occur.

    Args:
        store: Where the labels are.
        found: Classes that occur in them.
        given: By ``--classes``.

    Returns:
        None where no label of several classes is there.

    Raises:
        ConfigError: Classes are given, and a label is none of them, or there is no label of several classes.
    """
    names = sorted(set(answered))
    if given is None:
        declared = store.setting(CLASSES) or ()
        return (*declared, *(name for name in names if name not in declared)) if names else None
    if not names:
        raise ConfigError("--classes is for labels of several classes (kind multiclass), and the store holds none.")
    if unknown := [name for name in names if name not in given]:
        raise ConfigError(
            f"The store holds labels {listed(unknown)}, and --classes does not name them; name all classes."
        )
    return tuple(given)


def check_classes(source_items: SourceItems, classes: Sequence[str], on_bad_row: OnBadRow) -> None:
    """Refuse, or leave out, labels that are none of the classes there are.

    Args:
        source_items: What a file held; labels that are left out are taken out of it.
        classes: All there can be.
        on_bad_row: ``error`` stops at the first; ``skip`` lists them in ``left_out``.

    Raises:
        RowError: A label is none of them.
    """

    def is_known(value: Mapping[str, Any] | None, where: str) -> bool:
        if value is None or "class" not in value or value["class"] in classes:
            return True
        name = value["class"]
        reason = f"the label {short(name)} is none of {listed(classes)}.{did_you_mean(name, classes)}"
        if on_bad_row == "error":
            raise RowError(where, f"{reason} Correct it, or name all classes with --classes.")
        source_items.left_out.append(BadRow(where, reason))
        return False

    kept = []
    for item in source_items.items:
        judgments = tuple(one for one in item.judgments if is_known(one.value, one.where))
        if is_known(item.task.gold, item.where) and len(judgments) >= min(len(item.judgments), 1):
            kept.append(replace(item, judgments=judgments))
    source_items.items = kept
