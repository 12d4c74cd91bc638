"""Harbor's agent trajectories (ATIF 1.0 to 1.x): one JSON object a trajectory, as a file of its own or one on each line.

    schema_version "ATIF-v1.4", session_id, agent {name, version, model_name, tool_definitions}, final_metrics, notes, extra
    steps [{step_id, source system|user|agent, message, timestamp, model_name, reasoning_content,
            tool_calls [{tool_call_id, function_name, arguments}], observation {results [{source_call_id, content}]}, metrics}]

The format has no place for what users said: ``--label-field`` names a field that tells (``extra.reward``), and
``--unjudged`` takes final answers as tasks to judge. Specification: Harbor, docs/rfcs/0001-trajectory-format.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.data.contracts import Messages, RowError
from rlhf.data.message_text import describe
from rlhf.feedback.exchange.conversations import (
    Answer,
    Opinion,
    Reading,
    as_text,
    checked,
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

VERSION = re.compile(r"ATIF-v1\.\d+")
ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def from_atif(lines: Sequence[Line | RowError], reading: Reading) -> None:
    """Read all lines of such a file."""
    for line in reading.sound(lines):
        with reading.one(line.where, "an ATIF trajectory"):
            _trajectory(line, reading)


def _trajectory(line: Line, reading: Reading) -> None:
    row, where = line.cells, line.where
    version = row.get("schema_version")
    if not isinstance(version, str) or not VERSION.fullmatch(version):
        raise line.bad(f"'schema_version' is {describe(version)}; wanted ATIF-v1.4 or another version 1.")
    agent = object_at(row, "agent", where)
    steps = row.get("steps")
    if not isinstance(steps, list) or not steps:
        raise line.bad(f"'steps' is {describe(steps)}; wanted a list of steps.")
    session = text_at(row, "session_id", where, needed=True)
    if any(isinstance(step, Mapping) and step.get("source") != "agent" and step.get("observation") for step in steps):
        reading.no_row(where, "a step of the system or the user has an observation, for which there is no message")
        return
    prompt, answered = split_at_last_user(checked(_turns(steps, where), where, "steps"))
    if not answered or answered[-1]["role"] != "assistant":
        reading.no_row(where, "the trajectory does not end with an answer of the agent")
        return
    last = next(step for step in reversed(steps) if step.get("source") == "agent")
    columns = {name: value for name, value in (("tools", agent.get("tool_definitions")),) if value}
    opinion: dict[str, Any] = {
        "where": where, "prompt": prompt, "record": row, "said_by": text_at(agent, "name", where, needed=True), "columns": columns,
        "answers": [Answer(messages=answered, model=text_at(last, "model_name", where) or text_at(agent, "model_name", where) or None)],
        "trace": {"trace_id": session, "message_id": text_at(last, "step_id", where)},
        "made_at": moment(last.get("timestamp"), where, "timestamp"),
    }  # fmt: skip
    if not reading.label_field:
        reading.take(Opinion(kind=TaskKind.BINARY, value=None, **opinion))
        return
    label = label_of(value_at(row, reading.label_field))
    if label is None:
        reading.no_row(where, f"{reading.label_field!r} does not say good or bad")
        return
    reading.take(Opinion(**thumbs(label), **opinion))


def _turns(steps: Sequence[Any], where: str) -> Messages:
    """Steps as turns; an observation becomes a tool's message for each result."""
    turns: Messages = []
    for number, step in enumerate(steps):
        if not isinstance(step, Mapping) or step.get("source") not in ROLES:
            raise RowError(
                where, f"steps[{number}] is {describe(step)}; wanted an object whose source is system, user or agent."
            )
        calls = [
            tool_call(call["function_name"], call.get("arguments"), call.get("tool_call_id"))
            for call in step.get("tool_calls") or ()
        ]
        message = step.get("message")
        results = object_at(step, "observation", where).get("results") or []
        if step["source"] != "agent" and not message:
            continue  # an empty instruction says nothing
        content = "" if message is None else message
        turns.append(
            turn(ROLES[step["source"]], content, reasoning_content=step.get("reasoning_content"), tool_calls=calls)
        )
        turns += [turn("tool", as_text(one.get("content")), tool_call_id=one.get("source_call_id")) for one in results]
    return turns
