"""Langfuse's exports: observations (or traces) and scores of them, in one file or several, as the blob storage integration, the
API and the table export write them (``trace_id`` or ``traceId``).

    observation   id, trace_id, type, start_time, end_time, input, output, provided_model_name | model, user_id, session_id,
                  metadata, tool_definitions
    trace         id, timestamp, input, output, user_id, session_id, metadata
    score         id, timestamp, trace_id, observation_id, name, value, string_value, data_type, source, comment, author_user_id

A score of an observation belongs to it; one of a trace belongs to the trace's own input and output, or else to its last
generation. Scores by evaluators (``source`` EVAL) are no user's. A score is a thumb where all numbers of its name are 0 or 1 (or
-1 and 1), or its category says good or bad; it is a rating where they are whole numbers from 1 to 5. A correction is better
than the output. https://langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf.data.contracts import Messages, RowError
from rlhf.data.message_text import describe
from rlhf.feedback.exchange.conversations import (
    FIRST_IS_BETTER,
    MAX_STARS,
    THOUGHT_KEYS,
    Answer,
    Opinion,
    Reading,
    checked,
    from_json,
    label_of,
    moment,
    stars_of,
    text_at,
    thumbs,
    tool_call,
    turn,
)
from rlhf.feedback.exchange.lines import Line
from rlhf.feedback.row_tasks import OVERALL
from rlhf.store.values import TaskKind

UPPER = re.compile(r"(?<=[a-z0-9])([A-Z])")
EVALUATOR = "EVAL"
NO_SOURCE = frozenset({"EVALUATOR", "EMBEDDING"})
"""Types of observations that answer nobody."""
SCORE_MARKS = ("data_type", "string_value", "source")
"""A score has its name, its value and one of these."""


def is_langfuse(row: Mapping[str, Any]) -> bool:
    """Whether a row with its columns is an observation, a trace or a score."""
    row = _snake(row)
    is_trace = {"input", "output", "timestamp"} <= row.keys() and bool(
        {"user_id", "session_id", "project_id"} & row.keys()
    )
    return is_trace or _is_score(row) or ("trace_id" in row and "input" in row and "output" in row)


@dataclass(slots=True)
class _Export:
    """Rows of all files by what they are."""

    observations: dict[str, Line] = field(default_factory=dict)
    traces: dict[str, Line] = field(default_factory=dict)
    scores: dict[str, Line] = field(default_factory=dict)

    def last_generation(self, trace_id: str) -> Line | None:
        """Of a trace: the one that a user saw last."""
        own = [
            one
            for one in self.observations.values()
            if one.cells.get("trace_id") == trace_id and one.cells.get("output")
        ]
        own = [one for one in own if one.cells.get("type") == "GENERATION"] or own
        return max(
            own, key=lambda one: str(one.cells.get("end_time") or one.cells.get("start_time") or ""), default=None
        )


def from_langfuse(lines: Sequence[Line | RowError], reading: Reading) -> None:
    """Read all lines of such a file."""
    export = _sorted(lines, reading)
    numbers: dict[str, list[Any]] = {}
    for line in export.scores.values():
        if line.cells.get("data_type") == "NUMERIC":
            numbers.setdefault(str(line.cells.get("name")), []).append(line.cells.get("value"))
    judged: set[str] = set()
    for line in export.scores.values():
        with reading.one(line.where, "a score of Langfuse"):
            said = _target(line, export)
            if line.cells.get("source") == EVALUATOR:
                reading.no_row(line.where, "the score is an evaluator's (source EVAL), and no user's")
            elif said is None:
                reading.no_row(line.where, "the trace or observation of this score is not in the files")
            else:
                judged.add(said.where)
                _score(line, said, numbers, export, reading)
    for said in [*export.observations.values(), *export.traces.values()]:
        if said.where in judged:
            continue
        if said.cells.get("type") != "GENERATION":
            kind = said.cells.get("type") if "trace_id" in said.cells else "TRACE"
            reading.no_row(
                said.where, f"a row of type {kind if isinstance(kind, str) else 'unknown'} without a user's score"
            )
        else:
            with reading.one(said.where, "an observation of Langfuse"):
                about = _about(said, said, export)
                if about is not None:
                    reading.take(Opinion(kind=TaskKind.BINARY, value=None, **about))
                else:
                    reading.no_row(said.where, "the generation has no input or no output")


def _sorted(lines: Sequence[Line | RowError], reading: Reading) -> _Export:
    export = _Export()
    for line in reading.sound(lines):
        with reading.one(line.where, "a row of Langfuse's"):
            cells = _snake(line.cells)
            name = text_at(cells, "id", line.where, needed=True)
            if _is_score(cells):
                table = export.scores
                text_at(cells, "name", line.where, needed=True)
            else:
                table = export.observations if "trace_id" in cells else export.traces
                if "output" not in cells and "input" not in cells:
                    raise line.bad(
                        "is neither an observation, a trace nor a score: it has neither input and output nor a value."
                    )
            if name in table and table[name].cells != cells:
                raise line.bad(
                    f"the id {name!r} is also that of another row in {table[name].where}; export again, each row once."
                )
            table.setdefault(name, Line(line.where, cells))
    return export


def _is_score(row: Mapping[str, Any]) -> bool:
    return "value" in row and "name" in row and any(mark in row for mark in SCORE_MARKS) and "output" not in row


def _snake(row: Mapping[str, Any]) -> dict[str, Any]:
    return {UPPER.sub(r"_\1", name).lower() if isinstance(name, str) else name: value for name, value in row.items()}


def _target(score: Line, export: _Export) -> Line | None:
    observation = text_at(score.cells, "observation_id", score.where)
    if observation:
        return export.observations.get(observation)
    trace_id = text_at(score.cells, "trace_id", score.where)
    own = export.traces.get(trace_id)
    if own is not None and own.cells.get("input") and own.cells.get("output"):
        return own
    return export.last_generation(trace_id) if trace_id else None


def _score(line: Line, said: Line, numbers: Mapping[str, Sequence[Any]], export: _Export, reading: Reading) -> None:
    row, where = line.cells, line.where
    if said.cells.get("type") in NO_SOURCE:
        reading.no_row(where, f"the score is of an observation of type {said.cells['type']}, which answers nobody")
        return
    about = _about(line, said, export)
    if about is None:
        reading.no_row(where, "what was scored has no input or no output")
        return
    name, kind = row["name"], row.get("data_type")
    text = row.get("string_value")
    if kind == "CORRECTION":
        answers = [
            Answer(messages=[turn("assistant", text_at(row, "string_value", where, needed=True))]),
            *about["answers"],
        ]
        reading.take(
            Opinion(**{**about, "answers": answers, "trace": {**about["trace"], "edited": True}}, **FIRST_IS_BETTER)
        )
        return
    if kind not in ("NUMERIC", "BOOLEAN", "CATEGORICAL"):
        reading.no_row(
            where, f"a score of type {kind if isinstance(kind, str) else 'unknown'} says neither good nor bad"
        )
        return
    given = row.get("value") if kind != "CATEGORICAL" or not text else text
    if kind == "NUMERIC" and not all(value in (-1, 0, 1) for value in numbers[name]):
        if all(stars_of(value) for value in numbers[name]):
            reading.take(Opinion(kind=TaskKind.RATING, value={"ratings": {OVERALL: [stars_of(given)]}}, **about))
        else:
            reading.no_row(
                where,
                f"the numbers of the score {name!r} are neither thumbs (-1, 0, 1) nor whole from 1 to {MAX_STARS}",
            )
        return
    is_middle = kind == "NUMERIC" and given == 0 and -1 in numbers[name]
    label = None if is_middle else label_of(given)
    if label is None:
        reading.no_row(where, f"the score {name!r} says neither good nor bad")
        return
    reading.take(Opinion(**thumbs(label), **about))


def _about(line: Line, said: Line, export: _Export) -> dict[str, Any] | None:
    """All of an opinion but the verdict; None where there is no question or no answer."""
    row, where = said.cells, said.where
    asked, answered = from_json(row.get("input")), from_json(row.get("output"))
    if asked in (None, "", [], {}) or answered in (None, "", [], {}):
        return None
    trace_id = text_at(row, "trace_id", where) or text_at(row, "id", where)
    outer = export.traces.get(trace_id)
    user = text_at(row, "user_id", where) or (text_at(outer.cells, "user_id", outer.where) if outer is not None else "")
    is_score = line is not said
    author = (
        text_at(line.cells, "author_user_id", line.where)
        if is_score and line.cells.get("source") == "ANNOTATION"
        else ""
    )
    model = text_at(row, "provided_model_name", where) or text_at(row, "model", where)
    trace = {
        "trace_id": trace_id,
        "message_id": text_at(row, "id", where),
        "session_id": text_at(row, "session_id", where),
    }
    trace |= {"score_id": text_at(line.cells, "id", line.where), "score": str(line.cells["name"])} if is_score else {}
    if author and user:
        trace["text_of"] = user  # who wrote the question is somebody else than who judged the answer
    tools = from_json(row.get("tool_definitions"))
    return {
        "where": line.where, "prompt": checked(_input(asked, where), where, "input"),
        "answers": [Answer(messages=checked(_output(answered, where), where, "output"), model=model or None)],
        "trace": {name: value for name, value in trace.items() if value},
        "record": {**(dict(outer.cells) if outer is not None else {}), **row, **({"score": dict(line.cells)} if is_score else {})},
        "user": author or user, "said_by": str(line.cells.get("name") or "") if is_score else "",
        "comment": text_at(line.cells, "comment", line.where) if is_score else "",
        "made_at": moment(line.cells.get("timestamp") or line.cells.get("end_time") or line.cells.get("start_time"), line.where, "timestamp"),
        "columns": {"tools": list(tools.values()) if isinstance(tools, Mapping) else tools} if tools else {},
    }  # fmt: skip


def _input(value: Any, where: str) -> Messages:
    """A question in the shapes that the SDKs write: a text, messages, or messages under a key."""
    if isinstance(value, str):
        return [turn("user", value)]
    if isinstance(value, Mapping):
        inner = value.get("messages", value.get("input", value.get("prompt", value.get("query"))))
        if inner is None and "role" in value:
            inner = [value]
        if inner is None:
            raise RowError(
                where, f"'input' is an object with {', '.join(map(repr, list(value)[:5]))}; wanted a text or messages."
            )
        return _input(inner, where)
    if not isinstance(value, list):
        raise RowError(where, f"'input' is {describe(value)}; wanted a text or messages.")
    return [_message(one, where) for one in value]


def _output(value: Any, where: str) -> Messages:
    """An answer in the shapes that the SDKs write."""
    if isinstance(value, str):
        return [turn("assistant", value)]
    if isinstance(value, Mapping):
        if isinstance(value.get("choices"), list) and value["choices"]:
            return _output(value["choices"][0]["message"], where)
        inner = next(
            (value[key] for key in ("output", "answer", "text", "completion", "response") if key in value), None
        )
        if "role" in value or "content" in value or "tool_calls" in value:
            return [_message({"role": "assistant", **value}, where)]
        if inner is not None:
            return _output(inner, where)
        raise RowError(
            where, f"'output' is an object with {', '.join(map(repr, list(value)[:5]))}; wanted a text or a message."
        )
    if not isinstance(value, list):
        raise RowError(where, f"'output' is {describe(value)}; wanted a text or a message.")
    return [_message(one, where) for one in value]


def _message(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RowError(where, f"a message is {describe(value)}; wanted an object with role and content.")
    calls = [
        tool_call(call["function"]["name"], call["function"].get("arguments"), call.get("id"))
        for call in value.get("tool_calls") or ()
    ]
    thought = next((value[key] for key in THOUGHT_KEYS if isinstance(value.get(key), str)), "")
    content = value.get("content")
    return turn(
        value.get("role"), "" if content is None and calls else content, reasoning_content=thought, tool_calls=calls,
        tool_call_id=value.get("tool_call_id"), name=value.get("name"),
    )  # fmt: skip
