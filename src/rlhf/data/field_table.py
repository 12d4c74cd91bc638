"""What becomes of each field of a row: its columns, and the keys of each message. Measured, as in ``template_fields``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from rlhf.data.chat import ChatFormat
from rlhf.data.contracts import Messages, PromptRow, Row, RowError, StepwiseRow
from rlhf.data.expand import row_texts
from rlhf.data.row_kinds import canonical_columns
from rlhf.data.template_fields import REASONING_KEYS, Arrival
from rlhf.data.tokenize import ID_COLUMNS

Fate = Literal["kept", "renamed", "dropped"]
TO_TEMPLATE = ("tools", "chat_template_kwargs")
"""Columns that go to the chat template."""


@dataclass(frozen=True, slots=True)
class FieldFate:
    """A column, or a key of some messages, and what becomes of it."""

    field: str
    """``prompt``, or ``messages.reasoning``."""
    messages: tuple[int, ...]
    """Which messages, from 1; empty for a column."""
    fate: Fate
    note: str
    """What it is renamed to, who drops it, or who else reads it."""


def field_table(
    raw: Any,
    row: Row,
    chat: ChatFormat,
    columns: Mapping[str, str | None] | None = None,
    *,
    unread: frozenset[str] = frozenset(),
) -> list[FieldFate]:
    """Every field of a row as it stood in its file.

    Args:
        raw: The row in its file.
        row: The same row, read.
        chat: The template that renders its dialogues.
        columns: Other names, theirs to ours, as a stage has them.
        unread: Texts that the stage does not look at.
    """
    texts = row_texts(row)
    dialogues = list(_dialogues(row, texts))
    made = [
        FieldFate(each.field, (), "dropped", "by the stage, which does not read it")
        if (each.note.partition(";")[0] or each.field) in unread or each.field in unread
        else each
        for each in _column_fates(raw, row, texts, chat, dialogues, columns or {})
    ]
    by_key: dict[tuple[str, Fate, str], list[int]] = {}
    for names, messages, how in dialogues:
        for number, key, fate, note in _key_fates(chat, row, messages, how):
            column, place = names[number]
            numbers = by_key.setdefault((f"{column}.{key}", fate, note), [])
            if place not in numbers:
                numbers.append(place)
    return made + [FieldFate(name, tuple(numbers), fate, note) for (name, fate, note), numbers in by_key.items()]


Dialogue = tuple[Sequence[tuple[str, int]], Messages, Mapping[str, bool]]
"""Column and number (from 1) of each message, the messages, and how they are rendered."""


def _dialogues(row: Row, texts: Mapping[str, Any]) -> Iterator[Dialogue]:
    """The dialogues that are rendered of a row: each completion behind its prompt."""
    prompt = texts.get("prompt")
    if isinstance(prompt, list) and isinstance(row, PromptRow | StepwiseRow):
        how = "continue_final_message" if prompt[-1]["role"] == "assistant" else "add_generation_prompt"
        yield _named("prompt", prompt), prompt, {how: True}
        return
    before = prompt if isinstance(prompt, list) else []
    for name, text in texts.items():
        if name != "prompt" and isinstance(text, list):
            yield [*_named("prompt", before), *_named(name, text)], before + text, {}


def _named(column: str, messages: Messages) -> list[tuple[str, int]]:
    return [(column, number) for number in range(1, len(messages) + 1)]


def _column_fates(
    raw: Any,
    row: Row,
    texts: Mapping[str, Any],
    chat: ChatFormat,
    dialogues: Sequence[Dialogue],
    columns: Mapping[str, str | None],
) -> Iterator[FieldFate]:
    given = raw if isinstance(raw, Mapping) else {next(iter(texts)): raw}
    ours = _names_after_reading(given, columns)
    own = {field.name for field in fields(row)} - {"id", "where", "columns"}
    read = {name.partition("[")[0] for name in texts}
    for name, value in given.items():
        new = ours.get(name)
        if columns.get(name, name) is None:
            yield FieldFate(name, (), "dropped", "by `columns`")
        elif value is None:
            yield FieldFate(name, (), "dropped", "it is null")
        elif new is None or new not in (*read, *own, *row.columns):
            yield FieldFate(name, (), "dropped", "by the reader: another column says the same")
        else:
            fate, note = _fate_of_column(new, row, read, own, chat, dialogues)
            yield FieldFate(
                name,
                (),
                "renamed" if fate == "kept" and new != name else fate,
                f"{new}{note and '; '}{note}" if new != name else note,
            )


def _fate_of_column(
    name: str, row: Row, read: set[str], own: set[str], chat: ChatFormat, dialogues: Sequence[Dialogue]
) -> tuple[Fate, str]:
    """What becomes of a column under our name."""
    if name in read:
        return "kept", ""
    if name in own:
        return "kept", "what the row says of its texts, no token"
    if any(name in names for names in (("prompt_ids", *ids) for ids in ID_COLUMNS.values())) and name in row.columns:
        return "kept", "tokens as they are"
    if name == "chat_template_kwargs" and dialogues:
        return "kept", "given to the chat template"
    if name == "tools" and dialogues:
        _, messages, how = dialogues[0]
        marks = [a for a in chat.arrivals(messages, row.columns, row.where, **how) if a.mark.field == "tools"]
        if marks:
            return ("kept", "") if all(a.arrives for a in marks) else ("dropped", "by the chat template")
    return "kept", "no token: for rewards, judges and reports"


def _names_after_reading(given: Mapping[str, Any], columns: Mapping[str, str | None]) -> dict[str, str]:
    """Names of columns in the file -> ours; found by reading a row of the same columns whose values are their names."""
    renamed = {columns.get(name, name): name for name, value in given.items() if value is not None}
    probe = {new: f"\0{name}\0" if isinstance(given[name], str) else [name] for new, name in renamed.items() if new}
    try:
        after = canonical_columns(probe)
    except RowError:
        return dict.fromkeys(given, "")
    return {
        name: new
        for new, value in after.items()
        for name in given
        if (f"\0{name}\0" in value if isinstance(value, str) else name in value)
    }


def _key_fates(
    chat: ChatFormat, row: Row, messages: Messages, how: Mapping[str, bool]
) -> Iterator[tuple[int, str, Fate, str]]:
    """Number of the message, key, what becomes of it, and a note."""
    columns, where = row.columns, row.where
    arrivals = chat.arrivals(messages, columns, where, **how)
    after = chat.handed_over(messages, columns, where)
    by_template = "by the chat template"
    for number, message in enumerate(messages):
        of_message = [a for a in arrivals if a.mark.message == number]
        for key in message:
            if key == "role":
                yield number, key, "kept", ""
            elif key == "content":
                yield from _content_fates(number, of_message)
            elif key in REASONING_KEYS and (new := _reasoning_name(after[number], key)) is not None:
                arrives = all(a.arrives for a in of_message if a.mark.key == new)
                fate: Fate = "dropped" if not arrives else "kept" if new == key else "renamed"
                yield number, key, fate, by_template if not arrives else "" if new == key else new
            elif key == "tool_calls" and any(a.mark.field == "tool_calls" for a in of_message):
                arrives = all(a.arrives for a in of_message if a.mark.field == "tool_calls")
                other = after[number].get(key) != message[key]
                yield number, key, "kept" if arrives else "dropped", _calls_note(arrives, other, after[number])
            elif _changes_text(chat, messages, number, key, columns, where, how):
                yield number, key, "kept", ""
            else:
                yield number, key, "dropped", by_template


def _content_fates(number: int, of_message: Sequence[Arrival]) -> Iterator[tuple[int, str, Fate, str]]:
    """Of a content and of the thoughts in it."""
    for key, field in (("content", "content"), ("content <think>", "reasoning")):
        marks = [a for a in of_message if a.mark.field == field and a.mark.key.startswith("content")]
        if marks or key == "content":
            arrives = all(a.arrives for a in marks)
            note = "" if marks else "it is empty"
            yield number, key, "kept" if arrives else "dropped", note if arrives else "by the chat template"


def _reasoning_name(after: Mapping[str, Any], key: str) -> str | None:
    """The key under which the template is given what stands under ``key``; None where it says nothing."""
    if key in after:
        value = after[key]
        return key if isinstance(value, str) and value.strip() else None
    return next((name for name in REASONING_KEYS if name in after), None)


def _calls_note(arrives: bool, other: bool, after: Mapping[str, Any]) -> str:
    if not arrives:
        return "by the chat template"
    if not other:
        return ""
    text = any(isinstance(call.get("function", call).get("arguments"), str) for call in after["tool_calls"])
    return "arguments as JSON text" if text else "arguments as an object"


def _changes_text(
    chat: ChatFormat,
    messages: Messages,
    number: int,
    key: str,
    columns: Mapping[str, Any],
    where: str,
    how: Mapping[str, bool],
) -> bool:
    """Whether the text differs without a key, or the template can't do without it."""
    without = [m if n != number else {k: v for k, v in m.items() if k != key} for n, m in enumerate(messages)]
    try:
        return chat.render(without, columns, where, **how) != chat.render(messages, columns, where, **how)
    except RowError:
        return True
