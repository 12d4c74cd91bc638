"""OpenTelemetry's GenAI conventions: what was said to models and by them, and evaluations of it, as OTLP JSON or flat JSON lines.

    span or event gen_ai.client.inference.operation.details
        gen_ai.input.messages, gen_ai.output.messages [{role, parts [{type text | reasoning | tool_call | tool_call_response ...}]}],
        gen_ai.system_instructions, gen_ai.tool.definitions, gen_ai.request.model, gen_ai.response.model, gen_ai.response.id,
        gen_ai.conversation.id
    event gen_ai.evaluation.result
        gen_ai.evaluation.name, .score.value, .score.label, .explanation, gen_ai.response.id

An evaluation belongs to the answer with its ``gen_ai.response.id``, or else to the one of its span. ``user.id`` (or
``enduser.id``) of either says whose it is. Messages may be JSON text, which is how spans hold them. A collector's file exporter
writes one OTLP object a line; a flat line has ``attributes`` as an object.
https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-events.md and non-normative/models.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.data.contracts import Messages, RowError
from rlhf.data.message_text import describe
from rlhf.feedback.exchange import conversations
from rlhf.feedback.exchange.conversations import (
    Answer,
    Opinion,
    Reading,
    as_text,
    checked,
    from_json,
    label_of,
    moment,
    text_at,
    thumbs,
    tool_call,
    turn,
)
from rlhf.feedback.exchange.lines import Line
from rlhf.store.values import TaskKind

EVALUATION = "gen_ai.evaluation.result"
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
USERS = ("user.id", "enduser.id")
TOOLS = "gen_ai.tool.definitions"
TOLD_TWICE = "the same answer comes before it, in a span or an event"
ENVELOPES = (("resourceSpans", "scopeSpans", "spans"), ("resourceLogs", "scopeLogs", "logRecords"))
"""How OTLP JSON nests spans and log records."""


def is_otel_genai(row: Mapping[str, Any]) -> bool:
    """Whether a line is OTLP JSON, or a flat record with attributes of these conventions."""
    attributes = row.get("attributes")
    if isinstance(attributes, Mapping):
        return any(str(name).startswith("gen_ai.") for name in attributes)
    return any(isinstance(row.get(outer), list) for outer, _, _ in ENVELOPES)


@dataclass(frozen=True, slots=True)
class _Record:
    """A span, an event or a log record, with its attributes as an object."""

    where: str
    name: str
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    trace_id: str
    span_id: str
    at: Any

    @property
    def everything(self) -> dict[str, Any]:
        """Attributes of the resource and its own, where a field that tells of consent is looked up."""
        return {**self.resource, **self.attributes}

    @property
    def response_id(self) -> str:
        """Of the completion."""
        return text_at(self.attributes, "gen_ai.response.id", self.where)

    @property
    def user(self) -> str:
        """Who sat in front of it; empty where nothing tells."""
        return next((user for name in USERS if (user := text_at(self.everything, name, self.where))), "")


def from_otel_genai(lines: Sequence[Line | RowError], reading: Reading) -> None:
    """Read all lines of such a file."""
    records: list[_Record] = []
    for line in reading.sound(lines):
        before = len(records)
        bad = len(reading.bad_rows)
        with reading.one(line.where, "OTLP JSON"):
            records += list(_records(line))
            for record in records[before:]:
                _ = record.response_id, record.user
        if len(reading.bad_rows) > bad:
            del records[before:]
    answers = _Answers(records)
    judged: set[int] = set()
    for record in records:
        if record.name != EVALUATION:
            continue
        with reading.one(record.where, "an evaluation of GenAI"):
            said = answers.of(record)
            if said is None:
                reading.no_row(record.where, "the answer that this evaluation is of is not in the files")
                continue
            judged.add(id(said))
            _evaluation(record, said, reading)
    for record in records:
        if record.name != EVALUATION and id(record) not in answers.taken:
            twice = OUTPUT in record.attributes
            reading.no_row(
                record.where,
                TOLD_TWICE if twice else "neither an answer of a model (with gen_ai.output.messages) nor an evaluation",
            )
    for said in answers.all:
        if id(said) not in judged:
            with reading.one(said.where, "an operation of GenAI"):
                _unjudged(said, reading)


class _Answers:
    """Records with a model's input and output messages, by the id that evaluations refer to."""

    def __init__(self, records: Sequence[_Record]) -> None:
        self.all: list[_Record] = []
        self.taken: set[int] = set()
        self.by_response: dict[str, _Record] = {}
        self.by_span: dict[tuple[str, str], _Record] = {}
        for record in records:
            if OUTPUT not in record.attributes:
                continue
            # a span and its event tell the same: the first counts
            known = (
                self.by_response.get(record.response_id)
                if record.response_id
                else self.by_span.get((record.trace_id, record.span_id))
            )
            if known is not None and (record.response_id or record.span_id):
                continue
            self.all.append(record)
            self.taken.add(id(record))
            if record.response_id:
                self.by_response[record.response_id] = record
            if record.span_id:
                self.by_span.setdefault((record.trace_id, record.span_id), record)

    def of(self, evaluation: _Record) -> _Record | None:
        """The answer that an evaluation is of."""
        if evaluation.response_id:
            return self.by_response.get(evaluation.response_id)
        return self.by_span.get((evaluation.trace_id, evaluation.span_id)) if evaluation.span_id else None


def _evaluation(record: _Record, said: _Record, reading: Reading) -> None:
    name = text_at(record.attributes, "gen_ai.evaluation.name", record.where, needed=True)
    label = label_of(record.attributes.get("gen_ai.evaluation.score.label"))
    if label is None and not record.attributes.get("gen_ai.evaluation.score.label"):
        label = label_of(record.attributes.get("gen_ai.evaluation.score.value"))
    if label is None:
        reading.no_row(record.where, f"the evaluation {name!r} says neither good nor bad")
        return
    messages = _outputs(said)
    if len(messages) != 1:
        reading.no_row(
            record.where, "the operation has several answers, and the evaluation does not tell which it is of"
        )
        return
    reading.take(
        Opinion(
            where=record.where, answers=[_answer(messages[0], said)], **thumbs(label), record={**said.everything, **record.everything},
            user=record.user or said.user, said_by=name, comment=text_at(record.attributes, "gen_ai.evaluation.explanation", record.where),
            made_at=moment(record.at, record.where, "the time", unit="ns"), **_asked(said),
        )
    )  # fmt: skip


def _unjudged(said: _Record, reading: Reading) -> None:
    answers = [_answer(messages, said) for messages in _outputs(said)]
    kinds = {1: TaskKind.BINARY, 2: TaskKind.PAIRWISE}
    if not answers or len(answers) not in kinds:
        reading.no_row(
            said.where, "no output message" if not answers else "more than two answers, and nobody said which is better"
        )
        return
    reading.take(
        Opinion(
            where=said.where, answers=answers, kind=kinds[len(answers)], value=None, record=said.everything, user=said.user,
            made_at=moment(said.at, said.where, "the time", unit="ns"), **_asked(said),
        )
    )  # fmt: skip


def _asked(said: _Record) -> dict[str, Any]:
    """What stood before the answer, and where it came from."""
    attributes, where = said.attributes, said.where
    prompt: Messages = []
    instructions = from_json(attributes.get("gen_ai.system_instructions"))
    if instructions:
        text = "\n\n".join(part["content"] for part in instructions if part.get("type") == "text")
        prompt += [turn("system", text)] if text else []
    for message in _listed(attributes.get(INPUT), INPUT, where):
        prompt += _turns(message, INPUT, where)
    trace = {
        "trace_id": said.trace_id or said.response_id, "span_id": said.span_id, "message_id": said.response_id or said.span_id,
        "conversation_id": text_at(attributes, "gen_ai.conversation.id", where),
    }  # fmt: skip
    tools = from_json(attributes.get(TOOLS))
    return {
        "prompt": checked(prompt, where, INPUT) if prompt else [], "trace": {name: value for name, value in trace.items() if value},
        "columns": {"tools": tools} if tools else {},
    }  # fmt: skip


def _outputs(said: _Record) -> list[Messages]:
    """What the model said; each message is an answer of its own."""
    messages = _listed(said.attributes[OUTPUT], OUTPUT, said.where)
    return [checked(_turns({"role": "assistant", **one}, OUTPUT, said.where), said.where, OUTPUT) for one in messages]


def _answer(messages: Messages, said: _Record) -> Answer:
    names = ("gen_ai.response.model", "gen_ai.request.model")
    model = next((name for key in names if (name := text_at(said.attributes, key, said.where))), None)
    return Answer(messages=messages, model=model)


def _listed(value: Any, name: str, where: str) -> list[Mapping[str, Any]]:
    messages = from_json(value)
    if messages is None:
        return []
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        raise RowError(where, f"{name} is {describe(messages)}; wanted a list of messages.")
    return messages


def _turns(message: Mapping[str, Any], name: str, where: str) -> Messages:
    """One message with parts as turns: each tool's response is a turn of its own."""
    parts = message.get("parts")
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise RowError(where, f"a message of {name} has the parts {describe(parts)}; wanted a list of objects.")
    texts: list[Any] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: Messages = []
    for part in parts:
        match part.get("type"):
            case "text":
                texts.append(part["content"])
            case conversations.THOUGHTS:
                thoughts.append(part["content"])
            case "tool_call":
                calls.append(tool_call(part["name"], part.get("arguments"), part.get("id")))
            case "tool_call_response":
                # the schema says `response`; examples in the text of the conventions say `result`
                results.append(
                    turn("tool", as_text(part.get("response", part.get("result"))), tool_call_id=part.get("id"))
                )
            case kind:
                raise RowError(
                    where, f"a message of {name} has a part of type {describe(kind)}, which no row of text can hold."
                )
    own = turn(message.get("role"), "\n\n".join(texts), reasoning_content="\n\n".join(thoughts), tool_calls=calls)
    has_own = bool(texts or thoughts or calls) or not results
    return ([own] if has_own else []) + results


def _records(line: Line) -> Iterator[_Record]:
    """Spans, their events and log records of a line, whichever way they are written."""
    cells, where = line.cells, line.where
    envelope = next((names for names in ENVELOPES if names[0] in cells), None)
    if envelope is None:
        attributes = cells.get("attributes")
        if not isinstance(attributes, Mapping | list):
            raise line.bad(
                f"'attributes' is {describe(attributes)}; wanted an object, or OTLP JSON with resourceSpans or resourceLogs."
            )
        yield from _one(cells, _resource(cells), where)
        return
    outer, scope, inner = envelope
    for resource in cells[outer]:
        for group in resource.get(scope) or ():
            for record in group.get(inner) or ():
                yield from _one(record, _resource(resource), where)


def _resource(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return _attributes((record.get("resource") or {}).get("attributes"))


def _one(record: Mapping[str, Any], resource: Mapping[str, Any], where: str) -> Iterator[_Record]:
    attributes = _attributes(record.get("attributes"))
    body = _plain(record.get("body")) if isinstance(record.get("body"), Mapping) else None
    if isinstance(body, Mapping):  # events of earlier versions keep their content in the body
        attributes = {**body, **attributes}
    ids = [
        text_at(record, snake if snake in record else camel, where)
        for snake, camel in (("trace_id", "traceId"), ("span_id", "spanId"))
    ]
    name = (
        record.get("eventName") or record.get("event_name") or attributes.get("event.name") or record.get("name") or ""
    )
    time = next(
        (
            record[key]
            for key in ("timeUnixNano", "time_unix_nano", "endTimeUnixNano", "timestamp", "end_time")
            if record.get(key)
        ),
        None,
    )
    yield _Record(where, str(name), attributes, resource, ids[0], ids[1], time)
    for event in record.get("events") or ():
        own = _attributes(event.get("attributes"))
        at = event.get("timeUnixNano") or event.get("timestamp") or time
        yield _Record(where, str(event.get("name") or ""), own, {**resource, **_users(attributes)}, ids[0], ids[1], at)


def _users(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in USERS if name in attributes}


def _attributes(given: Any) -> dict[str, Any]:
    """Attributes as an object: OTLP writes a list of keys and typed values."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    return {one["key"]: _plain(one.get("value")) for one in given}


def _plain(value: Any) -> Any:
    """OTLP's AnyValue as JSON has it; 64-bit numbers are texts there."""
    if not isinstance(value, Mapping):
        return value
    match next(iter(value.items()), None):
        case ("intValue", number):
            return int(number)
        case ("stringValue" | "boolValue" | "doubleValue" | "bytesValue", plain):
            return plain
        case ("arrayValue", inner):
            return [_plain(one) for one in inner.get("values") or ()]
        case ("kvlistValue", inner):
            return {one["key"]: _plain(one.get("value")) for one in inner.get("values") or ()}
    return dict(value)
