"""Refuses a dialogue of which a chat template leaves a field out, unless the loss is allowed by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rlhf.config.lost_fields import LostField
from rlhf.data.contracts import RowError
from rlhf.data.template_fields import Arrival, FieldMark

WAYS_OUT = (
    "Give another template with chat_template, take {0} out of the rows, or allow the loss with allow_lost_fields: [{0}]; "
    "`rlhf data show` shows what is left."
)
PARTS_HINT = " Does it want content as a list of parts, or as a string?"


def check_arrivals(
    arrivals: Sequence[Arrival],
    *,
    allowed: Collection[LostField],
    num_messages: int,
    where: str,
    turns: Sequence[int] = (),
) -> bool:
    """Whether fields are lost, all of them allowed.

    Args:
        arrivals: Of every field of the dialogue.
        allowed: What may be lost.
        num_messages: Of the dialogue.
        where: The row, for messages.
        turns: Numbers of the assistant's messages that are to be trained.

    Raises:
        RowError: A field is lost that may not be, or no token of a turn would be trained.
    """
    lost = [a.mark for a in arrivals if not a.arrives]
    refused = [mark for mark in lost if mark.field not in allowed]
    if refused:
        names = ", ".join(dict.fromkeys(mark.field for mark in refused))
        hint = PARTS_HINT if any(mark.field == "content" for mark in refused) else ""
        raise RowError(
            where,
            f"the chat template leaves out {lost_in_words(refused, num_messages)}.{hint} {WAYS_OUT.format(names)}",
        )
    for number in turns:
        of_turn = [a for a in arrivals if a.mark.message == number and a.arrives]
        untrained = [a.mark.key for a in of_turn if not a.is_trained]
        if len(untrained) == len(of_turn) > 0 or "content" in untrained:
            what = f"{untrained[0]} of message {number + 1}"
            raise RowError(
                where, f"no token of {what} would be trained: the chat template's generation marks do not hold it."
            )
    return bool(lost)


def lost_in_words(marks: Sequence[FieldMark], num_messages: int) -> str:
    """``reasoning of messages 2 and 4 (of 6), tools``."""
    by_field: dict[str, list[int]] = {}
    for mark in marks:
        numbers = by_field.setdefault(mark.field, [])
        if mark.message is not None and mark.message + 1 not in numbers:
            numbers.append(mark.message + 1)
    return ", ".join(f"{name}{_of_messages(numbers, num_messages)}" for name, numbers in by_field.items())


def _of_messages(numbers: Sequence[int], num_messages: int) -> str:
    if not numbers:
        return ""
    *others, last = map(str, numbers)
    these = f"s {', '.join(others)} and {last}" if others else f" {last}"
    return f" of message{these} (of {num_messages})"
