"""One raw row, its columns taken and checked one by one."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.data.contracts import Messages, RowError, Text

SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "observation": "tool", "function_call": "assistant"}

TRUE_LABELS = frozenset({"desirable", "true", "1", "good"})
FALSE_LABELS = frozenset({"undesirable", "false", "0", "bad"})


def describe(value: Any) -> str:
    """How an error calls a value: its type, and the value itself where it is short."""
    names = {bool: "true/false", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    name = names.get(type(value), "null" if value is None else f"a {type(value).__name__}")
    text = repr(value)
    return name if value is None or len(text) > 40 else f"{name} ({text})"


class Cells:
    """The columns of one row, taken one by one; what is left over becomes ``columns``."""

    def __init__(self, cells: Mapping[str, Any], where: str, cells_are_text: bool) -> None:
        self.cells = dict(cells)
        self.where = where
        self.cells_are_text = cells_are_text

    def bad(self, column: str, reason: str) -> RowError:
        return RowError(self.where, f"column {column!r} {reason}")

    def text(self, column: str) -> str:
        value = self.cells.pop(column)
        if not isinstance(value, str):
            raise self.bad(column, f"is {describe(value)}; wanted a string.")
        return self.clean(value, column)

    def either(self, column: str) -> Text:
        """A string or messages."""
        value = self.cells.pop(column)
        if self.cells_are_text and isinstance(value, str) and value.lstrip().startswith("[{"):
            with contextlib.suppress(json.JSONDecodeError):  # prose may begin like a list
                value = json.loads(value)
        if isinstance(value, str):
            return self.clean(value, column)
        if isinstance(value, Mapping):
            value = [value]
        if not isinstance(value, Sequence):
            raise self.bad(column, f"is {describe(value)}; wanted a string or a list of messages.")
        return self.dialogue(value, column)

    def messages(self, column: str) -> Messages:
        value = self.either(column)
        if isinstance(value, str):
            raise self.bad(column, "is a string; wanted a list of messages.")
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
            item = {"role": SHAREGPT_ROLES.get(item["from"], item["from"]), "content": item["value"], **rest}
        role, content = item.get("role"), item.get("content")
        if not isinstance(role, str) or not role:
            raise self.bad(column, f"has role {role!r}; wanted a name such as 'user' or 'assistant'.")
        if isinstance(content, str):
            self.clean(content, column)
        elif not (content is None and item.get("tool_calls")) and not isinstance(content, Sequence):
            raise self.bad(column, f"has content {describe(content)}; wanted a string.")
        return {key: v for key, v in item.items() if v is not None}

    def list_of(self, column: str, take: Callable[[Any, str], Any]) -> list[Any]:
        value = self.cells.pop(column)
        if self.cells_are_text and isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as err:
                raise self.bad(column, f"is not a JSON list ({err.msg}).") from None
        if isinstance(value, str) or not isinstance(value, Sequence):
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
                raise self.bad(column, f"is {value!r}; wanted a number.") from None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.bad(column, f"is {describe(value)}; wanted a number.")
        if not math.isfinite(value):
            raise self.bad(column, f"is {value}; wanted a finite number.")
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
        try:
            value.encode()
        except UnicodeEncodeError as err:
            raise self.bad(
                column, f"holds a character that is not Unicode text (at {err.start}); is the file UTF-8?"
            ) from None
        return value

    def number(self, column: str) -> float:
        return self.one_number(self.cells.pop(column), column)

    def rest(self, *named: str) -> dict[str, Any]:
        """Everything not taken. Numbers in it must be finite: they may end up in a loss."""
        columns = {name: value for name, value in self.cells.items() if name not in named}
        for name, value in columns.items():
            if name in ("margin", "confidence"):
                if self.cells_are_text and value == "":
                    continue
                columns[name] = self.one_number(value, name)
            elif isinstance(value, float) and not math.isfinite(value):
                raise self.bad(
                    name, f"is {value}; wanted a finite number (drop the column with columns=, or use null)."
                )
            elif isinstance(value, str):
                self.clean(value, name)
        return {
            name: value for name, value in columns.items() if not (name in ("margin", "confidence") and value == "")
        }

    def judgement(self) -> dict[str, Any]:
        """The fields every judgement has, and the left-over columns."""
        given: dict[str, Any] = {}
        if self.cells.get("annotator_id") not in (None, ""):
            given["annotator_id"] = str(self.cells["annotator_id"])
        if self.cells.get("confidence") not in (None, ""):
            given["confidence"] = self.one_number(self.cells["confidence"], "confidence")
        metadata = self.cells.get("metadata")
        if self.cells_are_text and isinstance(metadata, str) and metadata.startswith("{"):
            try:
                metadata = json.loads(metadata)
            except json.JSONDecodeError as err:
                raise self.bad("metadata", f"is not a JSON object ({err.msg}).") from None
        taken = ["annotator_id", "confidence"]
        if isinstance(metadata, Mapping):  # metadata of another type is somebody's own column
            given["metadata"] = dict(metadata)
            taken.append("metadata")
        return {**given, "where": self.where, "columns": self.rest(*taken)}

    def others(self) -> dict[str, Any]:
        return {"where": self.where, "columns": self.rest()}
