"""One raw row, its columns taken and checked one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.data.contracts import Messages, RowError, Text
from rlhf.data.message_text import LONGEST, describe, short
from rlhf.data.strict_json import MAX_NESTING, RefusedJsonError, decode, nesting

SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "observation": "tool", "function_call": "assistant"}

EITHER = frozenset({
    "prompt", "chosen", "rejected", "completion", "completion_a", "completion_b", "instruction", "input", "response", "output",
    "response_a", "response_b",
})  # fmt: skip
"""Columns that hold a text or a dialogue, under all their names."""

TRUE_LABELS = frozenset({"desirable", "true", "1", "good"})
FALSE_LABELS = frozenset({"undesirable", "false", "0", "bad"})


class Cells:
    """The columns of one row, taken one by one; what is left over becomes ``columns``."""

    def __init__(self, cells: Mapping[str, Any], where: str, cells_are_text: bool) -> None:
        self.cells = dict(cells)
        self.where = where
        self.cells_are_text = cells_are_text

    def bad(self, column: str, reason: str) -> RowError:
        return RowError(self.where, f"column {short(column)} {reason}")

    def text(self, column: str) -> str:
        value = self.cells.pop(column)
        if not isinstance(value, str):
            raise self.bad(column, f"is {describe(value)}; wanted a string.")
        return self.clean(value, column)

    def either(self, column: str) -> Text:
        """A string or messages."""
        value = self.cells.pop(column)
        if self.cells_are_text and isinstance(value, str) and _may_be_turns(value):
            value = self.from_json(value, column, or_prose=True)
        if isinstance(value, str):
            return self.clean(value, column)
        if isinstance(value, Mapping):
            value = [value]
        if not isinstance(value, (list, tuple)):
            raise self.bad(column, f"is {describe(value)}; wanted a string or a list of messages.")
        return self.dialogue(value, column)

    def messages(self, column: str) -> Messages:
        value = self.either(column)
        if isinstance(value, str):
            raise self.bad(column, f"is {describe(value)}; wanted a list of messages.")
        return value

    def dialogue(self, value: Sequence[Any], column: str) -> Messages:
        if not value:
            raise self.bad(column, "is an empty list; wanted at least one message.")
        return [self.message(item, f"{column}[{number}]") for number, item in enumerate(value)]

    def message(self, item: Any, column: str) -> dict[str, Any]:
        if not isinstance(item, Mapping):
            raise self.bad(column, f'is {describe(item)}; wanted a message {{"role": ..., "content": ...}}.')
        if "role" not in item and "from" in item and "value" in item:
            rest = {key: v for key, v in item.items() if key not in ("from", "value") and v is not None}
            speaker = item["from"]
            role = SHAREGPT_ROLES.get(speaker, speaker) if isinstance(speaker, str) else speaker
            item = {"role": role, "content": item["value"], **rest}
        role, content = item.get("role"), item.get("content")
        if not isinstance(role, str) or not role.strip():
            raise self.bad(column, f"has the role {describe(role)}; wanted a name such as 'user' or 'assistant'.")
        if not isinstance(content, (str, list, tuple)) and not (content is None and item.get("tool_calls")):
            content_text = "no content" if content is None else f"the content {describe(content)}"
            raise self.bad(column, f"has {content_text}; wanted a string.")
        return {key: self.sound(v, f"{column}.{key}") for key, v in item.items() if v is not None}

    def list_of(self, column: str, take: Callable[[Any, str], Any]) -> list[Any]:
        value = self.cells.pop(column)
        if self.cells_are_text and isinstance(value, str):
            value = self.from_json(value, column)
        if not isinstance(value, (list, tuple)):
            raise self.bad(column, f"is {describe(value)}; wanted a list.")
        return [take(item, f"{column}[{number}]") for number, item in enumerate(value)]

    def one_text(self, value: Any, column: str) -> str:
        if not isinstance(value, str):
            raise self.bad(column, f"is {describe(value)}; wanted a string.")
        return self.clean(value, column)

    def one_either(self, value: Any, column: str) -> Text:
        return self.dialogue(value, column) if isinstance(value, list) else self.one_text(value, column)

    def one_number(self, value: Any, column: str) -> float:
        if self.cells_are_text and isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise self.bad(column, f"is {describe(value)}; wanted a number.") from None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.bad(column, f"is {describe(value)}; wanted a number.")
        if not _is_finite(value):
            raise self.bad(column, f"is {_number_words(value)}; wanted a finite number.")
        return value

    def one_label(self, value: Any, column: str) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, (int, float)) and value in (0, 1):
            return bool(value)
        if isinstance(value, str) and value.strip().lower() in TRUE_LABELS | FALSE_LABELS:
            return value.strip().lower() in TRUE_LABELS
        raise self.bad(column, f"is {describe(value)}; wanted true/false, 1/0 or 'desirable'/'undesirable'.")

    def clean(self, value: str, column: str) -> str:
        """Refuse text that no tokenizer can encode."""
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as err:
                code = f"\\u{ord(value[err.start]):04x}"
                raise self.bad(
                    column,
                    f"holds half a surrogate pair ({code}) at character {err.start + 1}, which is not Unicode text; "
                    "write the character whole or remove it.",
                ) from None
        return value

    def from_json(self, text: str, column: str, *, or_prose: bool = False) -> Any:
        """What a cell of a CSV file holds as JSON; with ``or_prose`` the text itself where it is none."""
        try:
            return decode(text)
        except json.JSONDecodeError as err:
            if or_prose:
                return text
            raise self.bad(column, f"is {describe(text)}, which is not JSON ({err.msg}).") from None
        except RefusedJsonError as err:
            raise self.bad(column, f"can't be read as JSON: {err}.") from None

    def sound(self, value: Any, column: str) -> Any:
        """Refuse a value in which text is not Unicode, a number not finite, or the nesting without end."""
        if isinstance(value, str):
            return self.clean(value, column)
        if isinstance(value, float) and not math.isfinite(value):
            raise self.bad(column, f"is {value}; wanted a finite number (drop the column with `columns`, or use null).")
        if isinstance(value, (list, tuple, dict)):
            if nesting(value) > MAX_NESTING:
                raise self.bad(column, f"is nested more than {MAX_NESTING} deep.")
            self._sound_items(value, column)
        return value

    def _sound_items(self, value: Any, column: str) -> None:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(key, str):
                self.clean(key, column)
            if isinstance(item, (list, tuple, dict)):
                self._sound_items(item, f"{column}[{str(key)[:LONGEST]}]")
            elif isinstance(item, (str, float)):
                self.sound(item, f"{column}[{str(key)[:LONGEST]}]")

    def number(self, column: str) -> float:
        return self.one_number(self.cells.pop(column), column)

    def rest(self, *named: str) -> dict[str, Any]:
        """Everything not taken. Numbers in it must be finite: they may end up in a loss."""
        columns = {name: value for name, value in self.cells.items() if name not in named}
        for name, value in columns.items():
            if name in ("margin", "label_probability"):
                if self.cells_are_text and value == "":
                    continue
                columns[name] = self.one_number(value, name)
            else:
                self.sound(value, self.clean(name, name))
        return {
            name: value
            for name, value in columns.items()
            if not (name in ("margin", "label_probability") and value == "")
        }

    def judgment(self) -> dict[str, Any]:
        """The fields every judgment has, and the left-over columns."""
        given: dict[str, Any] = {}
        if self.cells.get("annotator_id") not in (None, ""):
            given["annotator_id"] = self.clean(str(self.cells["annotator_id"]), "annotator_id")
        if self.cells.get("label_probability") not in (None, ""):
            given["label_probability"] = self.one_number(self.cells["label_probability"], "label_probability")
        metadata = self.cells.get("metadata")
        if self.cells_are_text and isinstance(metadata, str) and metadata.startswith("{"):
            metadata = self.from_json(metadata, "metadata")
        taken = ["annotator_id", "label_probability"]
        if isinstance(metadata, Mapping):  # metadata of another type is somebody's own column
            given["metadata"] = dict(self.sound(dict(metadata), "metadata"))
            taken.append("metadata")
        return {**given, "where": self.where, "columns": self.rest(*taken)}

    def others(self) -> dict[str, Any]:
        return {"where": self.where, "columns": self.rest()}


def is_read_as_turns(text: str) -> bool:
    """Whether a cell of a CSV file that holds this text would be read as a dialogue, or refused as a broken one."""
    if not _may_be_turns(text):
        return False
    try:
        decode(text)
    except json.JSONDecodeError:
        return False
    except RefusedJsonError:
        pass
    return True


def _may_be_turns(text: str) -> bool:
    """Objects in a list are turns where some key of a message is among them; else they are somebody's text about JSON."""
    return text.lstrip().startswith("[{") and any(f'"{key}"' in text for key in ("role", "content", "from"))


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond what a float holds
        return False


def _number_words(value: float) -> str:
    return describe(value) if isinstance(value, int) else str(value)
