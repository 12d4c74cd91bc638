"""Open WebUI's feedback export (Admin Settings, Evaluations, Feedbacks): thumbs, arena votes and edited answers.

    id, user_id, version, type, created_at, updated_at     of the feedback; times are seconds
    data      rating (1 or -1), model_id, sibling_model_ids, reason, comment, tags, details{rating: 1 to 10}
    meta      arena, chat_id, message_id, message_index, tags
    snapshot  chat{chat{history{messages{id: {id, parentId, childrenIds, role, content, model, modelIdx, originalContent,
              annotation{rating}}}}, messages[...], params{system}}}

A rating is a thumb. With ``sibling_model_ids`` it also says which of the answers to that turn is better: Open WebUI's own
leaderboard counts 1 as a win over every sibling and -1 as a loss (backend/open_webui/routers/evaluations.py). An answer that
the user edited (``originalContent`` is what the model wrote) is worse than the edit.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlhf.data.contracts import Messages, RowError
from rlhf.data.message_text import describe
from rlhf.feedback.exchange.conversations import (
    FIRST_IS_BETTER,
    THOUGHTS,
    Answer,
    Opinion,
    Reading,
    checked,
    from_json,
    label_of,
    moment,
    object_at,
    text_at,
    thumbs,
    tool_call,
    turn,
)
from rlhf.feedback.exchange.lines import Line

DETAILS = re.compile(r"<details\s+type=\"(reasoning|tool_calls)\"([^>]*)>(.*?)</details>\s*", re.DOTALL)
"""How Open WebUI keeps reasoning and tool calls inside the text of an answer."""
ATTRIBUTE = re.compile(r"(\w+)=\"([^\"]*)\"")
SUMMARY = re.compile(r"<summary>.*?</summary>", re.DOTALL)


def is_open_webui(row: Mapping[str, Any]) -> bool:
    """Whether a row with its columns is a feedback and not another tool's."""
    return isinstance(row.get("data"), Mapping) and "user_id" in row


def from_open_webui(lines: Sequence[Line | RowError], reading: Reading) -> None:
    """Read all lines of such a file."""
    for line in reading.sound(lines):
        with reading.one(line.where, "Open WebUI's feedback"):
            _feedback(line, reading)


def _feedback(line: Line, reading: Reading) -> None:
    row, where = line.cells, line.where
    data, meta = object_at(row, "data", where), object_at(row, "meta", where)
    name = text_at(row, "id", where, needed=True)
    outer = object_at(object_at(row, "snapshot", where), "chat", where)
    if not outer:
        reading.no_row(where, "it has no snapshot of the chat, so its texts are not known")
        return
    chat = object_at(outer, "chat", where) or outer
    messages = _messages_of(chat, where)
    message_id = text_at(meta, "message_id", where)
    if message_id not in messages:
        reading.no_row(where, "the rated message is not in the snapshot of its chat")
        return
    shared: dict[str, Any] = {
        "where": where, "record": row, "user": text_at(row, "user_id", where),
        "made_at": moment(row.get("updated_at") or row.get("created_at"), where, "updated_at"),
        "comment": text_at(data, "comment", where),
    }  # fmt: skip
    trace = {
        "trace_id": text_at(meta, "chat_id", where) or text_at(outer, "id", where), "message_id": message_id, "feedback_id": name,
        "reason": text_at(data, "reason", where), "details_rating": object_at(data, "details", where).get("rating"),
    }  # fmt: skip
    trace = {key: value for key, value in trace.items() if value not in (None, "")}
    system = object_at(chat, "params", where).get("system")
    _edits(messages, system, trace, shared, reading)
    label = label_of(data.get("rating")) if str(data.get("rating")).strip() in ("1", "-1") else None
    if label is None:
        reading.no_row(where, "the rating is neither 1 nor -1")
        return
    rated = _Rated(messages, message_id, system, where)
    own = rated.answer(message_id, text_at(data, "model_id", where))
    reading.take(Opinion(prompt=rated.prompt, answers=[own], **thumbs(label), trace=trace, **shared))
    siblings = data.get("sibling_model_ids")
    if not siblings:
        return
    if not isinstance(siblings, list):
        raise RowError(where, f"'sibling_model_ids' is {describe(siblings)}; wanted a list of models.")
    others = list(rated.siblings(siblings))
    if not others:
        reading.no_row(where, "its sibling_model_ids have no answer in the snapshot, so it becomes no pair")
    for other in others:
        sides = [message_id, other] if label else [other, message_id]
        answers = [own if side == message_id else rated.answer(side) for side in sides]
        pair_trace = {**trace, "sibling_id": other, **({"arena": True} if meta.get("arena") is True else {})}
        reading.take(
            Opinion(
                prompt=rated.prompt,
                answers=answers,
                **FIRST_IS_BETTER,
                trace=pair_trace,
                order=rated.order(sides),
                **shared,
            )
        )


def _messages_of(chat: Mapping[str, Any], where: str) -> dict[str, Mapping[str, Any]]:
    """All messages by id: of the tree, or of the list that has only the branch that was open."""
    tree = object_at(object_at(chat, "history", where), "messages", where)
    listed = chat.get("messages")
    by_id = dict(tree) if tree else {}
    if not by_id and isinstance(listed, list):
        before = None
        for one in listed:
            message = {"parentId": before, **one}
            by_id[str(message["id"])] = message
            before = message["id"]
    for one in by_id.values():
        if not isinstance(one, Mapping):
            raise RowError(where, f"a message of the chat is {describe(one)}; wanted an object.")
    return by_id


class _Rated:
    """The turn that was rated.

    Args:
        messages: Of the chat, by id.
        message_id: The rated one.
        system: The chat's own instructions, or None.
        where: For errors.
    """

    def __init__(self, messages: Mapping[str, Mapping[str, Any]], message_id: str, system: Any, where: str) -> None:
        self.messages, self.message_id, self.where = messages, message_id, where
        self.parent = messages[message_id].get("parentId")
        turns: Messages = [] if not isinstance(system, str) or not system else [turn("system", system)]
        for one in self._path():
            turns += turns_of(one)
        self.prompt = checked(turns, where, "the chat before the rated message") if turns else []

    def _path(self) -> list[Mapping[str, Any]]:
        path: list[Mapping[str, Any]] = []
        at, seen = self.parent, {self.message_id}
        while at is not None:
            if at in seen or at not in self.messages:
                why = "leads in a circle" if at in seen else "names a message that is not in the chat"
                raise RowError(self.where, f"parentId {describe(at)} {why}; export the feedback again.")
            seen.add(at)
            path.append(self.messages[at])
            at = self.messages[at].get("parentId")
        return path[::-1]

    def answer(self, message_id: str, model: str = "") -> Answer:
        """What a model answered here."""
        one = self.messages[message_id]
        model = model or text_at(one, "model", self.where)
        return Answer(messages=checked(turns_of(one), self.where, f"the message {message_id!r}"), model=model or None)

    def siblings(self, models: Sequence[Any]) -> Iterator[str]:
        """Other answers of these models to the same turn."""
        for name, one in self.messages.items():
            is_other = name != self.message_id and one.get("parentId") == self.parent and one.get("role") == "assistant"
            if is_other and one.get("model") in models:
                yield name

    def order(self, sides: Sequence[str]) -> Sequence[int] | None:
        """Places of two answers from left to right, where they stood side by side."""
        first, second = (self.messages[side].get("modelIdx") for side in sides)
        if not isinstance(first, int) or not isinstance(second, int) or first == second:
            return None
        return (0, 1) if first < second else (1, 0)


def _edits(
    messages: Mapping[str, Mapping[str, Any]],
    system: Any,
    trace: Mapping[str, Any],
    shared: Mapping[str, Any],
    reading: Reading,
) -> None:
    """Answers that the user rewrote: the new text is better than the old one."""
    for name, one in messages.items():
        old = one.get("originalContent")
        if one.get("role") != "assistant" or not isinstance(old, str) or old == one.get("content"):
            continue
        at = _Rated(messages, name, system, shared["where"])
        before = Answer(
            messages=checked(turns_of({**one, "content": old}), shared["where"], "originalContent"),
            model=at.answer(name).model,
        )
        answers = [Answer(messages=at.answer(name).messages), before]
        edited = {**trace, "message_id": name, "edited": True}
        reading.take(
            Opinion(prompt=at.prompt, answers=answers, **FIRST_IS_BETTER, trace=edited, **{**shared, "comment": ""})
        )


def turns_of(message: Mapping[str, Any]) -> Messages:
    """One message of a chat as turns: reasoning and tool calls are inside the text of an answer, and are taken out of it."""
    role, content = message.get("role"), message.get("content")
    if role != "assistant" or not isinstance(content, str) or "<details" not in content:
        return [turn(role, content)]
    turns: Messages = []
    thought, at = "", 0
    for block in DETAILS.finditer(content):
        said, at = content[at : block.start()].strip(), block.end()
        if block[1] == THOUGHTS:
            if said:
                turns.append(turn(role, said, reasoning_content=thought))
                thought = ""
            thought = "\n\n".join(part for part in (thought, _unquoted(SUMMARY.sub("", block[3]))) if part)
            continue
        given = {key: html.unescape(value) for key, value in ATTRIBUTE.findall(block[2])}
        call = tool_call(given.get("name", ""), from_json(given.get("arguments", "{}")), given.get("id"))
        turns.append(turn(role, said, reasoning_content=thought, tool_calls=[call]))
        turns.append(
            turn("tool", _result(given.get("result", "")), tool_call_id=given.get("id"), name=given.get("name"))
        )
        thought = ""
    rest = content[at:].strip()
    return [*turns, turn(role, rest, reasoning_content=thought)] if rest or thought or not turns else turns


def _unquoted(text: str) -> str:
    """Reasoning without the marks of a quotation, which it is shown as."""
    return "\n".join(re.sub(r"^(&gt;|>) ?", "", line) for line in html.unescape(text).strip().splitlines())


def _result(text: str) -> str:
    """A tool's result, which is kept as JSON text."""
    value = from_json(f"[{text}]") if text.startswith('"') else text
    return str(value[0]) if isinstance(value, list) and len(value) == 1 else text
