"""What every reader of conversations shares: turns as messages, verdicts as words and numbers, and what can't become a row.

A reader takes all lines of its files and gives ``Opinion``s: a prompt, one or two answers, and what a user said of them. A
damaged line is a bad row; a sound one that says nothing that a row could hold is counted with its reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rlhf.data.cells import Cells
from rlhf.data.contracts import BadRow, Messages, RowError
from rlhf.data.expand import text_key
from rlhf.data.message_text import describe
from rlhf.data.read import OnBadRow
from rlhf.data.strict_json import RefusedJsonError, decode
from rlhf.errors import DataError
from rlhf.feedback.exchange.lines import Line
from rlhf.store.items import laid_out_as
from rlhf.store.values import TaskKind

GOOD_WORDS = frozenset({
    "1", "+1", "up", "good", "positive", "thumbs_up", "thumbs-up", "thumbsup", "thumb_up", "like", "liked", "helpful", "correct", "pass",
    "passed", "true", "yes",
})  # fmt: skip
BAD_WORDS = frozenset({
    "-1", "0", "down", "bad", "negative", "thumbs_down", "thumbs-down", "thumbsdown", "thumb_down", "dislike", "disliked", "unhelpful",
    "not_helpful", "incorrect", "fail", "failed", "false", "no",
})  # fmt: skip
UNITS = {"s": 1, "ms": 1_000, "ns": 1_000_000_000}
"""How many of them a second has."""
NO_VERDICT = "nobody said anything of this answer (--unjudged takes such answers as tasks to judge)"
MAX_STARS = 5
THOUGHTS = "reasoning"
"""What OpenTelemetry and Open WebUI call the type of a part that a model thought and did not say."""
THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Where messages of services have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model said, tool calls and their results among it."""

    messages: Messages
    model: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What one user said of one answer, or of two; or an answer of which nobody said anything."""

    where: str
    prompt: Messages
    answers: Sequence[Answer]
    kind: TaskKind
    value: Mapping[str, Any] | None
    """As a judgment has it; None where nobody judged."""
    trace: Mapping[str, Any]
    """``trace_id``, and whatever else leads back to the place in the tool."""
    record: Mapping[str, Any]
    """What the tool keeps of it, where a field that tells of consent is looked up."""
    user: str = ""
    """As the tool names them; empty where it does not tell."""
    said_by: str = ""
    """Whose the verdict is where no user is known, such as the name of an evaluation."""
    comment: str = ""
    made_at: datetime | None = None
    order: Sequence[int] | None = None
    """Places of the answers as they stood on the screen."""
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Reading:
    """What a reader is asked for, and what it gives."""

    on_bad_row: OnBadRow = "error"
    with_unjudged: bool = False
    label_field: str = ""
    """Where a session says whether it went well, of formats that have no field for it."""
    opinions: list[Opinion] = field(default_factory=list)
    bad_rows: list[BadRow] = field(default_factory=list)
    no_rows: list[BadRow] = field(default_factory=list)
    """What is sound and can't become a row."""

    @contextmanager
    def one(self, where: str, what: str) -> Iterator[None]:
        """Inside, whatever is wrong with a record makes it a bad row, and nothing of it is taken."""
        before = len(self.opinions), len(self.no_rows)
        try:
            with laid_out_as(what, where):
                yield
        except DataError as err:
            del self.opinions[before[0] :], self.no_rows[before[1] :]
            self.bad(err, where)

    def sound(self, lines: Sequence[Line | RowError]) -> list[Line]:
        """Lines that could be read; the others become bad rows."""
        for line in lines:
            if isinstance(line, RowError):
                self.bad(line, line.where)
        return [line for line in lines if not isinstance(line, RowError)]

    def bad(self, err: DataError, where: str) -> None:
        """A row that can't be read: an error, or listed where bad rows are left out."""
        reason = err.reason if isinstance(err, RowError) else str(err).removeprefix(f"{where}: ")
        if self.on_bad_row == "error":
            raise err if isinstance(err, RowError) else RowError(where, reason)
        self.bad_rows.append(BadRow(where, reason))

    def no_row(self, where: str, reason: str) -> None:
        """Count something that is sound and can't become a row."""
        self.no_rows.append(BadRow(where, reason))

    def take(self, opinion: Opinion) -> None:
        """Keep an opinion that has texts, and one without a verdict only where that is wanted."""
        if any(is_empty(answer.messages) for answer in opinion.answers):
            self.no_row(opinion.where, "the answer is empty")
        elif not any(turn["role"] == "user" for turn in opinion.prompt):
            self.no_row(opinion.where, "there is no user's turn before the answer")
        elif opinion.value is None and not self.with_unjudged:
            self.no_row(opinion.where, NO_VERDICT)
        elif len({text_key(answer.messages) for answer in opinion.answers}) < len(opinion.answers):
            self.no_row(opinion.where, "both answers say the same")
        else:
            self.opinions.append(opinion)


TraceReader = Callable[[Sequence[Line | RowError], Reading], None]
"""Takes all lines of the files, and puts what it finds into the reading."""


def thumbs(up: bool) -> dict[str, Any]:
    """A verdict on one answer."""
    return {"kind": TaskKind.BINARY, "value": {"label": up}}


FIRST_IS_BETTER: Mapping[str, Any] = {"kind": TaskKind.PAIRWISE, "value": {"preference": "a"}}
"""A verdict on two answers, the better one first."""


def label_of(value: Any) -> bool | None:
    """Good or bad, as tools write it (true, 1, -1, "up", "thumbs_down", "pass"); None where it is neither."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return {1.0: True, 0.0: False, -1.0: False}.get(float(value))
    word = value.strip().lower().replace(" ", "_") if isinstance(value, str) else ""
    return True if word in GOOD_WORDS else False if word in BAD_WORDS else None


def stars_of(value: Any) -> int | None:
    """1 to 5; None where it is no such number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in range(1, MAX_STARS + 1):
        return None
    return int(value)


def is_empty(messages: Messages) -> bool:
    """Whether nothing was said and no tool called."""
    return not any(turn.get("content") or turn.get("tool_calls") for turn in messages)


def turn(role: Any, content: Any, **extra: Any) -> dict[str, Any]:
    """One message; what is empty is left out."""
    return {
        "role": role,
        "content": content,
        **{name: value for name, value in extra.items() if value not in (None, "", [])},
    }


def tool_call(name: Any, arguments: Any, call_id: Any = None) -> dict[str, Any]:
    """A call of a tool as chat templates read it; arguments that are JSON text become the object."""
    call = {"type": "function", "function": {"name": name, "arguments": from_json(arguments)}}
    return call if call_id in (None, "") else {"id": call_id, **call}


def from_json(value: Any) -> Any:
    """What a text holds, where it is an object or a list in JSON; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return decode(value)
        except (json.JSONDecodeError, RefusedJsonError):
            return value
    return value


def as_text(value: Any) -> str:
    """What a tool gave back, as its message holds it."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def checked(messages: Any, where: str, name: str) -> Messages:
    """Messages that can be kept: a role and a content each, whole Unicode, finite numbers.

    Raises:
        RowError: They are none; names the field.
    """
    if not isinstance(messages, list) or not messages:
        raise RowError(where, f"{name} is {describe(messages)}; wanted a list of messages.")
    dialogue = Cells({}, where, False).dialogue(messages, name)
    for number, one in enumerate(dialogue):
        for call in one.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                raise RowError(
                    where, f"{name}[{number}].tool_calls holds {describe(call)}; wanted a function with a name."
                )
    return dialogue


def split_at_last_user(messages: Messages) -> tuple[Messages, Messages]:
    """A conversation as what was asked, up to the last user's turn, and what was answered."""
    last = max((place for place, one in enumerate(messages) if one["role"] == "user"), default=-1)
    return messages[: last + 1], messages[last + 1 :]


def moment(value: Any, where: str, name: str, *, unit: str = "s") -> datetime | None:
    """A time as the tool writes it: a number since 1970, or ISO 8601 (without a zone: UTC).

    Raises:
        RowError: It is no time.
    """
    if value in (None, "", 0):
        return None
    try:
        if isinstance(value, bool):
            raise ValueError
        if isinstance(value, int | float) or (isinstance(value, str) and re.fullmatch(r"\d{9,20}", value)):
            return datetime.fromtimestamp(float(value) / UNITS[unit], UTC)
        given = datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError, OSError):
        raise RowError(where, f"{name} is {describe(value)}; wanted a time such as 2026-11-21T10:00:00Z.") from None
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)


def text_at(record: Mapping[str, Any], name: str, where: str, *, needed: bool = False) -> str:
    """A name or an id, as text; empty where there is none.

    Raises:
        RowError: It is neither a text nor a whole number; or it is ``needed`` and missing.
    """
    value = record.get(name)
    if value is None or value == "":
        if needed:
            raise RowError(where, f"{name!r} is missing or empty; wanted an id.")
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RowError(where, f"{name!r} is {describe(value)}; wanted a text.")
    return Cells({}, where, False).clean(str(value), name)


def object_at(record: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """An object; an empty one where there is none.

    Raises:
        RowError: It is something else.
    """
    value = record.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RowError(where, f"{name!r} is {describe(value)}; wanted an object.")
    return value


def value_at(record: Any, path: str) -> Any:
    """What stands at a dotted path; a key that itself has dots (as OpenTelemetry's) is found too. None where nothing does."""
    if not path:
        return record
    if not isinstance(record, Mapping):
        return None
    if path in record:
        return record[path]
    for dot in (place for place, letter in enumerate(path) if letter == "."):
        if path[:dot] in record and (deeper := value_at(record[path[:dot]], path[dot + 1 :])) is not None:
            return deeper
    return None


def pairs_of_thumbs(opinions: Sequence[Opinion]) -> list[Opinion]:
    """What one user's thumbs on two answers to the same question say of the two: the good one is better.

    Args:
        opinions: Of a whole import. Two answers are compared where prompt and user are the same, and both are known.
    """
    groups: dict[tuple[str, str], list[Opinion]] = {}
    for one in opinions:
        if one.kind is TaskKind.BINARY and one.value is not None and one.user:
            groups.setdefault((one.user, text_key(one.prompt)), []).append(one)
    known = {
        (one.user, text_key(one.prompt), frozenset(text_key(answer.messages) for answer in one.answers))
        for one in opinions
        if one.kind is TaskKind.PAIRWISE and one.value is not None
    }
    pairs = []
    for (user, prompt), group in groups.items():
        for good in (one for one in group if one.value and one.value["label"]):
            for bad in (one for one in group if one.value and not one.value["label"]):
                answers = (good.answers[0], bad.answers[0])
                texts = frozenset(text_key(answer.messages) for answer in answers)
                if len(texts) < 2 or (user, prompt, texts) in known:
                    continue
                known.add((user, prompt, texts))
                trace = {**good.trace, "rejected": dict(bad.trace)}
                made_at = max((moment for moment in (good.made_at, bad.made_at) if moment is not None), default=None)
                pair = Opinion(
                    where=good.where, prompt=good.prompt, answers=answers, **FIRST_IS_BETTER, trace=trace, record=good.record, user=user,
                    comment=good.comment, made_at=made_at, columns=good.columns,
                )  # fmt: skip
                pairs.append(pair)
    return pairs
