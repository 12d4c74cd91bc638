"""Which fields of a dialogue arrive in the text that a chat template makes of it: measured, never read off the template.

A template is a program, and what it leaves out depends on the dialogue: many drop what the assistant thought as soon as the user
speaks again. So a unique word is written into every field that says something (the content of each message, its reasoning, its tool
calls, the column ``tools``), the dialogue is rendered, and the words that are not in the text are of fields that are lost. Templates
look at the layout of a dialogue (roles, keys, tags at the ends of a content) and not at its words, so one rendering answers for all
dialogues of a layout.

What the assistant thought has four names in published data, and arguments of a call are an object or JSON text of one. Which of them
a template reads is found in the same way, and a dialogue is handed over accordingly. One without such fields is handed over as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlhf.config.lost_fields import LostField
from rlhf.data.contracts import Message, Messages, RowError
from rlhf.data.strict_json import RefusedJsonError, decode

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "reasoningContent")
"""Keys of a message for what the assistant thought: Qwen and DeepSeek, vLLM and OpenRouter, Harmony in TRL, session traces of the Hub."""

TAGS = "think|thinking|thought|reasoning"
THOUGHT = re.compile(rf"<({TAGS})>(.*?)</\1>\s*", re.DOTALL)
"""Thoughts inside a content."""
THOUGHT_OPENED_BEFORE = re.compile(rf"\A(.*?)</(?:{TAGS})>\s*", re.DOTALL)
"""The same where the prompt opened the tag."""
THOUGHT_TAG = re.compile(rf"<(/?)(?:{TAGS})>")
TAG_BEFORE = re.compile(r"\s*<[^<>\s]{1,40}>")
TAG_BEHIND = re.compile(r"</[^<>\s]{1,40}>\s*$")
"""Templates look at these (``<tool_response>``), so a word is written between them."""
PROBED_KEY = "city"
"""Of the argument of a call that never was."""

Render = Callable[[Messages, Mapping[str, Any]], str]
"""Text of messages with a row's other columns; raises where the template refuses them."""
ArgumentsForm = Literal["object", "text"]


def word(number: int) -> str:
    """One that is in no dialogue: letters and digits, so that no template escapes or splits it."""
    return f"zq{number}vxw"


@dataclass(frozen=True, slots=True)
class FieldMark:
    """A field, or a part of one, and the word that stands for it."""

    message: int | None
    """Number of the message, from 0; None for a column."""
    key: str
    """As the data call it, such as ``reasoning`` or ``tool_calls[0].function.arguments``."""
    field: LostField
    word: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """Whether a field arrives."""

    mark: FieldMark
    arrives: bool
    is_trained: bool = True
    """Of a field of the assistant that arrives, where a template marks what is trained: whether it is inside."""


@dataclass(frozen=True, slots=True)
class TemplateFields:
    """What is known of one chat template; asked again only for a layout that was not there before."""

    known: dict[Any, Any] = field(default_factory=dict)

    def handed_over(self, messages: Messages, columns: Mapping[str, Any], where: str, render: Render) -> Messages:
        """The dialogue with reasoning under the key, and arguments in the form, that the template reads; itself where nothing changes.

        Args:
            messages: As in the row.
            columns: Other columns of the row.
            where: The row, for messages.
            render: By this template.

        Raises:
            RowError: A message thinks two different things.
        """
        if not any("tool_calls" in message or _reasoning_of(message) for message in messages):
            return messages
        return [
            self._message_handed_over(message, number, columns, where, render)
            for number, message in enumerate(messages, start=1)
        ]

    def reasoning_key(self, own: str, columns: Mapping[str, Any], render: Render) -> str | None:
        """The key of a message under which the template reads what the assistant thought; ``own`` if it reads that, None if none."""

        def measured() -> str | None:
            # All at once: transformers fills in the names that are missing from those that are there (5.23).
            thoughts = {key: f"So {word(place)}." for place, key in enumerate(REASONING_KEYS)}
            said = {"role": "assistant", "content": "Done.", **thoughts}
            call = {**said, "content": "", "tool_calls": [_probe_call({PROBED_KEY: "Rome"})]}
            texts = [_text_or_nothing(render, [_ASKED, turn], columns) for turn in (said, call)]
            read = [key for place, key in enumerate(REASONING_KEYS) if any(word(place) in text for text in texts)]
            return own if own in read else next(iter(read), None)

        return self._once(("reasoning", own, _setting(columns)), measured)

    def arguments_form(self, own: ArgumentsForm, columns: Mapping[str, Any], render: Render) -> ArgumentsForm:
        """Whether the template takes arguments of a call as an object or as JSON text of one; ``own`` where both come out alike."""

        def measured() -> ArgumentsForm:
            arguments = {PROBED_KEY: word(0)}
            given: dict[ArgumentsForm, Any] = {"object": arguments, "text": json.dumps(arguments)}

            def rank(form: ArgumentsForm) -> int:
                call = {"role": "assistant", "content": "", "tool_calls": [_probe_call(given[form])]}
                text = _text_or_nothing(render, [_ASKED, call], columns)
                text = text or _text_or_nothing(render, [_ASKED, {**call, "content": None}], columns)
                return _how_well(text)

            other: ArgumentsForm = "text" if own == "object" else "object"
            return other if rank(other) > rank(own) else own

        return self._once(("arguments", own, _setting(columns)), measured)

    def arrivals(
        self,
        messages: Messages,
        columns: Mapping[str, Any],
        render: Callable[[Messages, Mapping[str, Any]], tuple[str, Sequence[tuple[int, int]] | None]],
        *,
        manner: Any = None,
    ) -> list[Arrival]:
        """Every field of a dialogue that says something, and whether it arrives.

        Args:
            messages: As ``handed_over`` gives them.
            columns: Other columns of the row.
            render: By this template, in the manner in which the row will be; with the characters that a template marks as the assistant's.
            manner: Tells apart renderings with other settings.
        """

        def measured() -> list[Arrival]:
            marked, with_tools, marks = _marked(messages, columns)
            try:
                text, spans = render(marked, with_tools)
            except RowError:  # it looks at what it was given, and minds the words
                return [_alone(mark, messages, columns, render) for mark in marks]
            return [_arrival(mark, messages, text, spans) for mark in marks]

        return self._once(("arrivals", _layout(messages), _setting(columns), manner), measured)

    def _message_handed_over(
        self, message: Message, number: int, columns: Mapping[str, Any], where: str, render: Render
    ) -> Message:
        thoughts = _reasoning_of(message)
        if len(set(thoughts.values())) > 1:
            names = " and ".join(map(repr, thoughts))
            raise RowError(where, f"message {number} has {names}, which differ; keep the one that is meant.")
        if thoughts:
            own, thought = next(iter(thoughts.items()))
            key = self.reasoning_key(own, columns, render)
            if key is not None and (key != own or len(thoughts) > 1):
                message = {name: value for name, value in message.items() if name not in REASONING_KEYS} | {
                    key: thought
                }
        calls = message.get("tool_calls")
        if not isinstance(calls, list | tuple):
            return message
        taken = [self._call_handed_over(call, columns, render) for call in calls]
        return (
            message
            if all(new is old for new, old in zip(taken, calls, strict=True))
            else {**message, "tool_calls": taken}
        )

    def _call_handed_over(self, call: Any, columns: Mapping[str, Any], render: Render) -> Any:
        inner = called_function(call)
        if inner is None or "arguments" not in inner:
            return call
        given = inner["arguments"]
        arguments = _decoded(given) if isinstance(given, str) else given
        if not isinstance(arguments, Mapping):
            return call
        own: ArgumentsForm = "text" if isinstance(given, str) else "object"
        form = self.arguments_form(own, columns, render)
        if form == own:
            return call
        taken = {**inner, "arguments": arguments if form == "object" else json.dumps(arguments, ensure_ascii=False)}
        return {**call, "function": taken} if "function" in call else taken

    def _once(self, place: Any, measured: Callable[[], Any]) -> Any:
        if place not in self.known:
            self.known[place] = measured()
        return self.known[place]


_ASKED: Message = {"role": "user", "content": "Well?"}


def called_function(call: Any) -> Mapping[str, Any] | None:
    """Name and arguments of a tool call, which is either an object with a ``function`` or the function itself."""
    if not isinstance(call, Mapping):
        return None
    inner = call.get("function", call)
    return inner if isinstance(inner, Mapping) else None


def without_lost_reasoning(messages: Messages, arrivals: Sequence[Arrival]) -> Messages:
    """The dialogue without thoughts that the template drops, so that a part of it is rendered as it is in the whole."""
    lost = [a.mark for a in arrivals if not a.arrives and a.mark.field == "reasoning" and a.mark.message is not None]
    if not lost:
        return messages
    kept = list(messages)
    for mark in lost:
        assert mark.message is not None
        message = kept[mark.message]
        if mark.key in REASONING_KEYS:
            kept[mark.message] = {name: value for name, value in message.items() if name != mark.key}
        elif isinstance(message.get("content"), str):
            kept[mark.message] = {**message, "content": _without_thoughts(message["content"])}
    return kept


def _probe_call(arguments: Any) -> dict[str, Any]:
    # Nine letters and digits: Mistral's templates refuse any other id.
    return {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def _reasoning_of(message: Message) -> dict[str, str]:
    """Keys under which a message says what the assistant thought."""
    return {key: v for key in REASONING_KEYS if isinstance(v := message.get(key), str) and v.strip()}


def _text_or_nothing(render: Render, messages: Messages, columns: Mapping[str, Any]) -> str:
    try:
        return render(messages, columns)
    except RowError:
        return ""


def _how_well(text: str) -> int:
    """How arguments came out: as JSON, as something else, as text inside a text or as Python writes it, not at all."""
    if re.search(rf'(?<!\\)"{PROBED_KEY}"\s*:\s*"{word(0)}"', text):
        return 3
    if word(0) not in text:
        return 0
    return 1 if re.search(rf"""(\\["']|')\s*{word(0)}""", text) else 2


def _decoded(text: str) -> Any:
    try:
        return decode(text)
    except (json.JSONDecodeError, RefusedJsonError):
        return None


def _setting(columns: Mapping[str, Any]) -> str:
    """What of a row's other columns a template may look at."""
    more = columns.get("chat_template_kwargs")
    return f"{bool(columns.get('tools'))} {json.dumps(more, sort_keys=True, default=repr) if more else ''}"


def _layout(messages: Messages) -> tuple[Any, ...]:
    """What of a dialogue a template may look at, its words aside."""
    return tuple(tuple((key, _value_layout(key, value)) for key, value in message.items()) for message in messages)


def _value_layout(key: str, value: Any) -> Any:
    if key == "role":
        return value
    if isinstance(value, str):
        before, behind = TAG_BEFORE.match(value), TAG_BEHIND.search(value)
        inside = tuple((_says_something(part), is_thought) for part, is_thought in _segments(value))
        return bool(value.strip()), before and before[0].strip(), behind and behind[0].strip(), inside
    if isinstance(value, Mapping):
        return tuple((name, _value_layout(name, item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_value_layout("", item) for item in value)
    return type(value).__name__, bool(value)


def _segments(text: str) -> Iterator[tuple[str, bool]]:
    """A content in parts, each with whether it is a thought; joined they are the text."""
    end = 0
    first = THOUGHT_TAG.search(text)
    if first is not None and first[1]:  # closed before any is opened
        yield text[: first.start()], True
        end = first.start()
    for match in THOUGHT.finditer(text, end):
        yield text[end : match.start(2)], False
        yield match[2], True
        end = match.end(2)
    yield text[end:], False


def _without_thoughts(content: str) -> str:
    first = THOUGHT_TAG.search(content)
    if first is not None and first[1]:
        content = THOUGHT_OPENED_BEFORE.sub("", content)
    return THOUGHT.sub("", content)


class _Marker:
    """Writes words into fields, and remembers which."""

    def __init__(self) -> None:
        self.marks: list[FieldMark] = []

    def mark(self, text: str, message: int | None, key: str, field: LostField) -> str:
        """The text with a word in its middle, between tags at its ends."""
        made = word(len(self.marks) + 1)
        self.marks.append(FieldMark(message, key, field, made))
        before, behind = TAG_BEFORE.match(text), TAG_BEHIND.search(text)
        first, last = before.end() if before else 0, behind.start() if behind else len(text)
        middle = (first + last) // 2 if last >= first else len(text) // 2
        return text[:middle] + made + text[middle:]

    def content(self, text: str, message: int, key: str) -> str:
        """A content, its thoughts apart."""
        return "".join(
            self.mark(part, message, key, "reasoning" if is_thought else "content") if _says_something(part) else part
            for part, is_thought in _segments(text)
        )

    def message(self, message: Message, number: int) -> Message:
        made = dict(message)
        content = message.get("content")
        if isinstance(content, str):
            made["content"] = self.content(content, number, "content")
        elif isinstance(content, list | tuple):
            made["content"] = [self._part(part, number, place) for place, part in enumerate(content)]
        for key, thought in _reasoning_of(message).items():
            made[key] = self.mark(thought, number, key, "reasoning")
        calls = message.get("tool_calls")
        if isinstance(calls, list | tuple):
            made["tool_calls"] = [self._call(call, number, place) for place, call in enumerate(calls)]
        return made

    def _part(self, part: Any, message: int, place: int) -> Any:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            return {**part, "text": self.content(part["text"], message, f"content[{place}].text")}
        return part

    def _call(self, call: Any, message: int, place: int) -> Any:
        inner = called_function(call)
        if inner is None:
            return call
        key = f"tool_calls[{place}]{'.function' if inner is not call else ''}"
        made = dict(inner)
        if isinstance(inner.get("name"), str):
            made["name"] = inner["name"] + self.mark("", message, f"{key}.name", "tool_calls")
        if (given := inner.get("arguments")) and (isinstance(given, Mapping) or isinstance(_decoded(given), Mapping)):
            own = given if isinstance(given, Mapping) else _decoded(given)
            marked = {**own, PROBED_KEY: self.mark("", message, f"{key}.arguments", "tool_calls")}
            made["arguments"] = marked if isinstance(given, Mapping) else json.dumps(marked, ensure_ascii=False)
        return {**call, "function": made} if inner is not call else made

    def tool(self, tool: Any) -> Any:
        """A tool's schema with a word in its name."""
        inner = called_function(tool)
        if inner is None or not isinstance(inner.get("name"), str):
            return tool
        made = {**inner, "name": inner["name"] + self.mark("", None, "tools", "tools")}
        return {**tool, "function": made} if inner is not tool else made


def _says_something(text: str) -> bool:
    """Whether there is anything in a part of a content but tags of thoughts and white space."""
    return bool(THOUGHT_TAG.sub("", text).strip())


def _marked(messages: Messages, columns: Mapping[str, Any]) -> tuple[Messages, dict[str, Any], list[FieldMark]]:
    """Dialogue and columns with a word in every field that says something."""
    marker = _Marker()
    marked = [marker.message(message, number) for number, message in enumerate(messages)]
    columns = dict(columns)
    tools = columns.get("tools")
    if isinstance(tools, str):
        tools = _decoded(tools)
    if isinstance(tools, list | tuple):
        columns["tools"] = [marker.tool(tool) for tool in tools]
    return marked, columns, marker.marks


def _alone(mark: FieldMark, messages: Messages, columns: Mapping[str, Any], render: Any) -> Arrival:
    """A field measured with no other word in the dialogue; one that the template minds is one that it reads."""
    marked, with_tools, _ = _marked(messages, columns)
    if mark.message is None:
        only = messages, {**columns, "tools": with_tools["tools"]}
    else:
        one = marked[mark.message]
        key = re.split(r"[.\[]", mark.key)[0]
        only = [m if n != mark.message else {**m, key: one[key]} for n, m in enumerate(messages)], dict(columns)
    try:
        text, spans = render(*only)
    except RowError:
        return Arrival(mark, arrives=True)
    return _arrival(mark, messages, text, spans)


def _arrival(mark: FieldMark, messages: Messages, text: str, spans: Sequence[tuple[int, int]] | None) -> Arrival:
    place = text.find(mark.word)
    if place < 0:
        return Arrival(mark, arrives=False)
    of_assistant = mark.message is not None and messages[mark.message]["role"] == "assistant"
    inside = spans is None or not of_assistant or any(start <= text.find(mark.word, start, end) for start, end in spans)
    return Arrival(mark, arrives=True, is_trained=inside)
