"""Dialogues to text, with the exact places that the assistant wrote.

A template that marks the assistant's words with ``{% generation %}`` says itself where they are. For the others the
dialogue is rendered up to each of the assistant's turns, once as a question and once answered; what is between is the
turn. That is only right when later renderings begin with the earlier ones, so this is checked, and a template that
rewrites earlier turns is refused by name of the row instead of giving a wrong mask.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.config.lost_fields import LostField
from rlhf.data.contracts import Message, Messages, RowError
from rlhf.data.field_losses import check_arrivals
from rlhf.data.message_text import describe, listed, one_line, short
from rlhf.data.prefixes import shared_length
from rlhf.data.strict_json import RefusedJsonError, decode
from rlhf.data.template_fields import Arrival, TemplateFields, without_lost_reasoning
from rlhf.errors import ConfigError, ModelError, did_you_mean, look_up

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN_TEMPLATE = (
    "{{ bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' %}"
    "{{ '\n\nAssistant:' }}{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}"
    "{%- else %}"
    "{{ '\n\n' + {'user': 'Human', 'system': 'System', 'tool': 'Tool'}[message['role']] + ': ' + message['content'] }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '\n\nAssistant:' }}{% endif %}"
)
"""Dialogue in words, in the manner of HH-RLHF: needs no token that a tokenizer may lack but EOS."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
"""Roles that every template may be given; others must stand in the template."""

CHAT_TEMPLATES: Mapping[str, str] = {"plain": PLAIN_TEMPLATE}
"""Built-in templates, used only when asked for by name: a silent stand-in would train on the wrong format."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A rendered dialogue."""

    text: str
    spans: list[tuple[int, int]]
    """Characters ``text[start:end]`` that the assistant wrote, end-of-turn mark included; in order, not overlapping."""
    question_differs: bool = False
    """The template asks with something that the answered dialogue does not hold, such as an opened ``<think>``."""
    loses: bool = False
    """The template leaves out a field, which is allowed."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A tokenizer's chat template, found once and used for every row."""

    tokenizer: PreTrainedTokenizerBase
    template: str | None
    """Jinja text; None for the tokenizer's own."""
    allow_lost_fields: frozenset[LostField] = frozenset()
    """What the template may leave out."""
    fields: TemplateFields = field(default_factory=TemplateFields, compare=False, repr=False)
    """What was measured of the template."""

    def render(self, messages: Messages, columns: Mapping[str, Any], where: str, **how: bool) -> str:
        """Text of a dialogue.

        Args:
            messages: At least one. Reasoning is handed over under the key, and arguments of calls in the form, that the template reads.
            columns: The row's other columns; ``tools`` and ``chat_template_kwargs`` go to the template.
            where: The row, for messages.
            how: ``add_generation_prompt`` or ``continue_final_message``.

        Raises:
            RowError: The template refuses the dialogue.
        """
        return self._render_as_given(self.handed_over(messages, columns, where), columns, where, **how)

    def handed_over(self, messages: Messages, columns: Mapping[str, Any], where: str) -> Messages:
        """The dialogue as the template reads it; see ``TemplateFields.handed_over``."""
        return self.fields.handed_over(messages, columns, where, lambda m, c: self._render_as_given(m, c, where))

    def arrivals(self, messages: Messages, columns: Mapping[str, Any], where: str, **how: bool) -> list[Arrival]:
        """Every field of the dialogue that says something, and whether it is in what ``render`` makes of it."""

        def render(marked: Messages, others: Mapping[str, Any]) -> tuple[str, Sequence[tuple[int, int]] | None]:
            dialogue = None if how else self._marked_as_given(marked, others, where)
            if dialogue is not None:
                return dialogue.text, dialogue.spans
            return self._render_as_given(marked, others, where, **how), None

        return self.fields.arrivals(
            self.handed_over(messages, columns, where), columns, render, manner=tuple(sorted(how))
        )

    def _render_as_given(self, messages: Messages, columns: Mapping[str, Any], where: str, **how: bool) -> str:
        tools, more = _template_arguments(columns, where)
        try:
            apply: Any = self.tokenizer.apply_chat_template  # its annotations know neither **kwargs nor plain dicts
            text = apply(messages, tools=tools, chat_template=self.template, tokenize=False, **how, **more)
        except Exception as err:  # a template raises whatever its author or Jinja chose
            raise _refused(messages, where, err) from err
        if not isinstance(text, str):  # chat_template_kwargs may ask for anything
            raise RowError(
                where, f"the chat template gives {describe(text)}; wanted text. Look at chat_template_kwargs."
            )
        return text

    def marked_spans(self, messages: Messages, columns: Mapping[str, Any], where: str) -> Dialogue | None:
        """The dialogue by the template's own ``{% generation %}`` marks; None for a template without them."""
        return self._marked_as_given(self.handed_over(messages, columns, where), columns, where)

    def _marked_as_given(self, messages: Messages, columns: Mapping[str, Any], where: str) -> Dialogue | None:
        tools, more = _template_arguments(columns, where)
        template = self.tokenizer.get_chat_template(self.template, tools)
        if not has_generation_marks(template):
            return None
        from transformers.utils import chat_template_utils

        render: Any = chat_template_utils.render_jinja_template  # annotated as if it gave one string
        try:
            texts, spans = render(
                conversations=[[{k: v for k, v in message.items() if v is not None} for message in messages]],
                tools=tools,
                chat_template=template,
                return_assistant_tokens_mask=True,
                **{**self.tokenizer.special_tokens_map, **more},
            )
        except Exception as err:
            raise _refused(messages, where, err) from err
        return Dialogue(texts[0], [(start, end) for start, end in spans[0] if end > start])


def chat_format(
    tokenizer: PreTrainedTokenizerBase,
    chat_template: str | None = None,
    *,
    allow_lost_fields: Collection[LostField] = (),
) -> ChatFormat:
    """Settle which template renders dialogues.

    Args:
        tokenizer: Brings its own template, or not.
        chat_template: None for the tokenizer's own, a name in ``CHAT_TEMPLATES``, a path to a Jinja file, or
            Jinja text.
        allow_lost_fields: What the template may leave out.

    Raises:
        UnknownNameError: The name is neither a built-in template nor a file.
        ConfigError: The tokenizer lacks what the built-in template needs.
    """
    allowed = frozenset(allow_lost_fields)
    if chat_template is None:
        return ChatFormat(tokenizer, None, allowed)
    if "{{" in chat_template or "{%" in chat_template:
        return ChatFormat(tokenizer, chat_template, allowed)
    if chat_template not in CHAT_TEMPLATES and os.path.isfile(chat_template):
        return ChatFormat(tokenizer, Path(chat_template).read_text(encoding="utf-8"), allowed)
    template = look_up(CHAT_TEMPLATES, chat_template, kind="chat template or template file")
    if tokenizer.eos_token is None:
        raise ConfigError(
            f"The chat template {chat_template!r} ends each turn with EOS, and the tokenizer has no EOS token; "
            "set tokenizer.eos_token, or give another template."
        )
    return ChatFormat(tokenizer, template, allowed)


def check_has_template(chat: ChatFormat, where: str) -> None:
    """Refuse a conversational row where nothing says how to render it.

    Raises:
        ModelError: Naming the row and the ways out.
    """
    if chat.template is None and not chat.tokenizer.chat_template:
        raise ModelError(
            f"{where or 'A row'} is a dialogue, and the tokenizer has no chat template; give chat_template= a Jinja "
            f"file, Jinja text, or the name of a built-in one ({', '.join(CHAT_TEMPLATES)})."
        )


def check_roles(chat: ChatFormat, messages: Messages, where: str) -> None:
    """Refuse a role that nobody knows: most templates render ``assitant`` silently, and nothing of it is scored.

    The order of roles is the template's business: many take two messages of one speaker in a row, an assistant who
    speaks first, or a system message in the middle; one that does not refuses the row itself.

    Raises:
        RowError: The role is neither a usual one nor named in the template.
    """
    own = chat.template or chat.tokenizer.chat_template
    for number, message in enumerate(messages):
        role = message["role"]
        if role not in ROLES and not (isinstance(own, str) and (f"'{role}'" in own or f'"{role}"' in own)):
            raise RowError(
                where,
                f"message {number + 1} has the role {short(role)}, which the chat template does not name; wanted one of "
                f"{', '.join(ROLES)}.{did_you_mean(role, ROLES)}",
            )


def is_out_of_turn(messages: Messages) -> bool:
    """Whether a speaker follows himself, the assistant begins, or a system message is not the first."""
    roles = [message["role"] for message in messages]
    repeats = any(role == before and role in ("user", "assistant") for before, role in itertools.pairwise(roles))
    return repeats or roles[0] == "assistant" or "system" in roles[1:]


def has_generation_marks(template: str) -> bool:
    """Whether a template says itself what the assistant wrote."""
    return any(mark in template for mark in ("{% generation", "{%- generation", "{%generation", "{%-generation"))


def render_dialogue(
    chat: ChatFormat, messages: Messages, *, columns: Mapping[str, Any], where: str, first: int = 0
) -> Dialogue:
    """Render a dialogue and find what the assistant wrote.

    Args:
        chat: The template.
        messages: The whole dialogue.
        columns: The row's other columns (``tools``, ``chat_template_kwargs``).
        where: The row, for messages.
        first: Turns before this message are not looked at.

    Raises:
        RowError: No assistant's turn, or the template leaves one or another field out, or rewrites earlier ones once later ones follow.
    """
    check_has_template(chat, where)
    check_roles(chat, messages, where)
    turns = [number for number, message in enumerate(messages) if number >= first and message["role"] == "assistant"]
    if not turns:
        roles = listed(message["role"] for message in messages[first:])
        raise RowError(where, f"no message is the assistant's, so there is nothing to score; the roles are {roles}.")
    messages, loses = check_fields(chat, messages, columns, where, turns=turns)
    dialogue = chat.marked_spans(messages, columns, where)
    if dialogue is not None:
        dialogue = _from_turn(chat, dialogue, messages, turns[0] if first else 0, columns, where)
    else:
        dialogue = _by_rendering(chat, messages, turns, columns, where)
    if not dialogue.spans:
        raise RowError(
            where, "no token of the row would be trained: the chat template writes nothing for what the assistant says."
        )
    return replace(dialogue, loses=loses)


def check_fields(
    chat: ChatFormat,
    messages: Messages,
    columns: Mapping[str, Any],
    where: str,
    *,
    turns: Sequence[int] = (),
    **how: bool,
) -> tuple[Messages, bool]:
    """Refuse a dialogue of which the template leaves a field out, or one of the ``turns`` untrained; see ``check_arrivals``.

    Returns:
        The dialogue without the reasoning that is lost, so that a part of it is rendered as it is in the whole; and whether any field is.

    Raises:
        RowError: By field and message.
    """
    arrivals = chat.arrivals(messages, columns, where, **how)
    loses = check_arrivals(
        arrivals, allowed=chat.allow_lost_fields, num_messages=len(messages), where=where, turns=turns
    )
    return without_lost_reasoning(chat.handed_over(messages, columns, where), arrivals) if loses else messages, loses


def _by_rendering(
    chat: ChatFormat, messages: Messages, turns: Sequence[int], columns: Mapping[str, Any], where: str
) -> Dialogue:
    """Spans by a template without marks: between each question and the same dialogue answered."""
    whole = chat.render(messages, columns, where)
    spans = []
    differs = False
    for number in turns:
        start, other = _question_end(chat, messages, number, whole, columns, where)
        answered = whole if number + 1 == len(messages) else chat.render(messages[: number + 1], columns, where)
        if not whole.startswith(answered) or len(answered) < start:
            raise _rewritten(answered, whole, where, number + 1)
        spans.append((start, _end_of_turn(chat.tokenizer, answered, start)))
        differs |= other
    return Dialogue(whole, [span for span in spans if span[1] > span[0]], differs)


def _from_turn(
    chat: ChatFormat, dialogue: Dialogue, messages: Messages, turn: int, columns: Mapping[str, Any], where: str
) -> Dialogue:
    """Spans by a template's own marks, from one of the assistant's turns on."""
    start, differs = _question_end(chat, messages, turn, dialogue.text, columns, where) if turn else (0, False)
    spans = []
    for begin, end in dialogue.spans:
        if end > start:
            begin = max(begin, start)  # a mark may hold the assistant's header, which is part of the question
            spans.append((begin, _end_of_turn(chat.tokenizer, dialogue.text[:end], begin)))
    if not spans:
        raise RowError(where, "the chat template's generation marks hold nothing of what is to be scored.")
    return Dialogue(dialogue.text, spans, differs)


def _question_end(
    chat: ChatFormat, messages: Messages, number: int, whole: str, columns: Mapping[str, Any], where: str
) -> tuple[int, bool]:
    """How many characters of the whole are the question that message ``number`` answers.

    Some templates ask with more than the answered dialogue then holds (an opened ``<think>``). The question then ends
    where the two part, and the second value says so; but what was said before must be the same in both.
    """
    if number == 0:  # the assistant speaks first
        return 0, False
    asked = chat.render(messages[:number], columns, where, add_generation_prompt=True)
    if whole.startswith(asked):
        return len(asked), False
    history = chat.render(messages[:number], columns, where)
    shared = shared_length(asked, whole)
    if shared < shared_length(asked, history):
        raise _rewritten(asked, whole, where, number)
    return shared, True


def render_prompt(chat: ChatFormat, messages: Messages, *, columns: Mapping[str, Any], where: str) -> str:
    """The text of ``prompt_dialogue``."""
    return prompt_dialogue(chat, messages, columns=columns, where=where).text


def prompt_dialogue(chat: ChatFormat, messages: Messages, *, columns: Mapping[str, Any], where: str) -> Dialogue:
    """A prompt, up to where the assistant's completion begins; nothing of it is to be scored.

    A prompt that ends in the assistant's own words is to be continued from there.
    """
    check_has_template(chat, where)
    check_roles(chat, messages, where)
    begun = messages[-1]["role"] == "assistant"
    how: dict[str, Any] = {"continue_final_message": True} if begun else {"add_generation_prompt": True}
    messages, loses = check_fields(chat, messages, columns, where, **how)
    return Dialogue(chat.render(messages, columns, where, **how), [], loses=loses)


def _refused(messages: Messages, where: str, err: Exception) -> RowError:
    """What a template's own complaint becomes: it rarely says which dialogue it means, or why."""
    roles = listed(message["role"] for message in messages)
    return RowError(
        where,
        f"the chat template refuses this dialogue (roles: {roles}): {type(err).__name__}: {one_line(err)}. "
        "Mend the row, or give a template that takes it with chat_template=.",
    )


def _rewritten(earlier: str, later: str, where: str, number: int) -> RowError:
    shared = shared_length(earlier, later)
    return RowError(
        where,
        f"the chat template renders the first {number} messages differently once more follow: "
        f"{earlier[shared : shared + 40]!r} becomes {later[shared : shared + 40]!r}. The assistant's tokens can't be "
        "found exactly; use a template with {% generation %} marks, or give prompt + completion.",
    )


def _end_of_turn(tokenizer: PreTrainedTokenizerBase, text: str, start: int) -> int:
    """Where the assistant's turn, which begins at ``start``, ends.

    White space behind an end-of-turn mark is left out: the sampler stops at the mark, and a reward is read there. Where
    no mark ends the turn, the white space does, and stays.
    """
    bare = len(text.rstrip())
    if bare > start and any(text.endswith(mark, start, bare) for mark in special_tokens(tokenizer)):
        return bare
    return len(text)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> Sequence[str]:
    """Texts of all tokens that stand for something other than text."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return sorted({*tokenizer.all_special_tokens, *added}, key=len, reverse=True)


def _template_arguments(columns: Mapping[str, Any], where: str) -> tuple[list[Message] | None, dict[str, Any]]:
    tools = columns.get("tools")
    if isinstance(tools, str) and tools:
        try:
            tools = decode(tools)
        except (json.JSONDecodeError, RefusedJsonError) as err:
            raise RowError(
                where, f"column 'tools' is neither a list of schemas nor JSON text of one ({err})."
            ) from None
    more = columns.get("chat_template_kwargs") or {}
    if not isinstance(more, Mapping):
        raise RowError(where, f"column 'chat_template_kwargs' is {describe(more)}; wanted an object.")
    return tools or None, dict(more)
