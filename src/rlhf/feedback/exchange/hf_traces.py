"""Session traces of the Hugging Face Hub (STS format): JSON lines, a header and then its messages.

    {"type": "session", "harness", "id", "name", ...}
    {"type": "message", "message": {role, content, reasoningContent, toolCalls [{id, function {name, arguments}}], toolCallId,
                                    timestamp (ms), model, ...}}

The format has no place for what users said: ``--label-field`` names a field of the header (or of a message) that tells, and
``--unjudged`` takes answers as tasks to judge. Harnesses that keep branches (``id``, ``parent``) have several answers to one
turn; those become one task. https://huggingface.co/docs/hub/session-traces-format
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from rlhf.data.contracts import Messages, RowError
from rlhf.data.message_text import describe
from rlhf.feedback.exchange.conversations import (
    Answer,
    Opinion,
    Reading,
    checked,
    is_empty,
    label_of,
    moment,
    object_at,
    split_at_last_user,
    text_at,
    thumbs,
    tool_call,
    turn,
    value_at,
)
from rlhf.feedback.exchange.lines import Line
from rlhf.store.values import TaskKind

ROLES = ("user", "assistant", "system", "tool")


def is_hf_trace(row: Mapping[str, Any]) -> bool:
    """Whether a line is a header or a message of a session."""
    return row.get("type") in ("session", "message")


@dataclass(slots=True)
class _Session:
    header: Line
    messages: list[tuple[Line, Mapping[str, Any]]] = field(default_factory=list)
    is_damaged: bool = False


def from_hf_traces(lines: Sequence[Line | RowError], reading: Reading) -> None:
    """Read all lines of such a file."""
    for session in _sessions(lines, reading):
        if session.is_damaged:
            reading.no_row(session.header.where, "a line of this session is damaged, so the whole session is left out")
            continue
        with reading.one(session.header.where, "a session trace"):
            _session(session, reading)


def _sessions(lines: Sequence[Line | RowError], reading: Reading) -> list[_Session]:
    """Lines as sessions. One damaged message spoils the conversation: what follows it was said to it."""
    sessions: list[_Session] = []
    file = ""
    for line in lines:
        if (its_file := line.where.rpartition(":")[0]) != file:
            file, inside = its_file, False
        before = len(reading.bad_rows)
        with reading.one(line.where, "a session trace"):
            if isinstance(line, RowError):
                raise line
            kind = line.cells.get("type")
            if kind == "session":
                sessions.append(_Session(line))
                inside = True
                text_at(line.cells, "id", line.where, needed=True)
                text_at(line.cells, "harness", line.where, needed=True)
            elif kind == "message" and not inside:
                raise line.bad(
                    "there is a message before the header of its session; the first line of a file is a header."
                )
            elif kind == "message":
                sessions[-1].messages.append((line, _checked_message(line)))
            else:
                raise line.bad(f"'type' is {describe(kind)}; wanted 'session' or 'message'.")
        if inside and len(reading.bad_rows) > before:
            sessions[-1].is_damaged = True
    return sessions


def _checked_message(line: Line) -> Mapping[str, Any]:
    message = object_at(line.cells, "message", line.where)
    if message.get("role") not in ROLES:
        raise line.bad(f"the role is {describe(message.get('role'))}; wanted one of {', '.join(ROLES)}.")
    if not isinstance(message.get("content"), str):
        raise line.bad(f"'content' is {describe(message.get('content'))}; wanted a text, which may be empty.")
    return message


def _session(session: _Session, reading: Reading) -> None:
    where, header = session.header.where, session.header.cells
    trace_id = text_at(header, "id", where, needed=True)
    harness = text_at(header, "harness", where, needed=True)
    shared: dict[str, Any] = {"record": header, "said_by": harness}
    leaves = list(_branches([message for _, message in session.messages]))
    places = {id(message): line.where for line, message in session.messages}
    answers: dict[str, tuple[Messages, list[tuple[Answer, Mapping[str, Any], str]]]] = {}
    for branch in leaves:
        prompt, answered = split_at_last_user(_turns(branch, where))
        if not answered or answered[-1]["role"] != "assistant" or is_empty(answered):
            reading.no_row(where, "the session does not end with an answer of the assistant")
            continue
        last = branch[-1]
        model = text_at(last, "model", where) or None
        # one list for each question: answers of several branches are siblings
        siblings = answers.setdefault(repr(prompt), (prompt, []))[1]
        siblings.append((Answer(messages=answered, model=model), last, places[id(last)]))
    for prompt, group in answers.values():
        judged = [label_of(_verdict(header, last, reading.label_field)) for _, last, _ in group]
        for (answer, last, at), label in zip(group, judged, strict=True):
            own = {"trace_id": trace_id, "message_id": text_at(last, "id", where), "harness": harness}
            about = {
                "where": at, "trace": {key: value for key, value in own.items() if value}, **shared, "prompt": prompt,
                "made_at": moment(last.get("timestamp"), at, "timestamp", unit="ms"),
            }  # fmt: skip
            if label is not None:
                reading.take(Opinion(answers=[answer], **thumbs(label), **about))
            elif reading.label_field:
                reading.no_row(at, f"{reading.label_field!r} does not say good or bad")
            elif len(group) == 1:
                reading.take(Opinion(answers=[answer], kind=TaskKind.BINARY, value=None, **about))
        if len(group) > 1 and not reading.label_field:
            for (first, one, at), (second, other, _) in combinations(group, 2):
                trace = {
                    "trace_id": trace_id,
                    "message_id": text_at(one, "id", where),
                    "sibling_id": text_at(other, "id", where),
                }
                reading.take(
                    Opinion(
                        where=at,
                        prompt=prompt,
                        answers=[first, second],
                        kind=TaskKind.PAIRWISE,
                        value=None,
                        trace=trace,
                        **shared,
                    )
                )


def _verdict(header: Mapping[str, Any], message: Mapping[str, Any], path: str) -> Any:
    if not path:
        return None
    of_session = value_at(header, path)
    return value_at(message, path) if of_session is None else of_session


def _branches(messages: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Conversations from the first turn to the last: one, or one for each leaf where messages name their parents."""
    by_id = {one["id"]: one for one in messages if isinstance(one.get("id"), str)}
    if len(by_id) < len(messages) or not any(one.get("parent") in by_id for one in messages):
        yield list(messages)
        return
    parents = {one.get("parent") for one in messages}
    for leaf in (one for one in messages if one["id"] not in parents):
        path, seen = [leaf], {leaf["id"]}
        while (up := path[-1].get("parent")) in by_id:
            if up in seen:
                raise RowError("", f"the parent {describe(up)} leads in a circle; export the session again.")
            seen.add(up)
            path.append(by_id[up])
        yield path[::-1]


def _turns(branch: Sequence[Mapping[str, Any]], where: str) -> Messages:
    turns = []
    for one in branch:
        if one.get("type") == "root" and not one["content"]:
            continue  # llama.app's first node, which nobody said
        calls = one.get("toolCalls") or []
        if not isinstance(calls, list):
            raise RowError(where, f"'toolCalls' is {describe(calls)}; wanted a list.")
        made = [
            tool_call(call["function"]["name"], call["function"].get("arguments"), call.get("id")) for call in calls
        ]
        turns.append(
            turn(
                one["role"], one["content"], reasoning_content=one.get("reasoningContent"), tool_calls=made,
                tool_call_id=one.get("toolCallId"),
            )
        )  # fmt: skip
    return checked(turns, where, "the session") if turns else []
