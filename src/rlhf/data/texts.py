"""What a row is as text: the prompt, the whole, and which characters are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf.data.chat import render_dialogue, render_prompt
from rlhf.data.contracts import (
    CompletionRow,
    Messages,
    MessagesRow,
    PreferenceRow,
    PromptRow,
    Row,
    RowError,
    Text,
    TextRow,
    UnpairedRow,
)
from rlhf.data.prefixes import shared_length
from rlhf.data.tokenization import Tokenization


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One sequence as text, before tokenisation."""

    prompt: str
    """Begins ``text``."""
    text: str
    spans: Sequence[tuple[int, int]] | None = None
    """Characters to score; None for everything behind the prompt."""
    chat: bool = False
    """Special tokens are written out in the text: the template put them there."""
    question_differs: bool = False
    """The template asks with something that the text does not hold: a rollout's prompt is longer than this one."""
    whole: bool = False
    """There is no completion that must be kept in one piece: the left side may be cut anywhere."""


def sft_texts(row: Row, how: Tokenization) -> list[Rendered]:
    """What to train on of a text, a dialogue or a demonstration; of a preference pair the chosen side."""
    if isinstance(row, TextRow):
        _refuse_assistant_score(row, how)
        return [Rendered(prompt="", text=row.text, whole=True)]
    if isinstance(row, MessagesRow):
        return [_dialogue(row.messages, 0, row, how, whole=True)]
    assert isinstance(row, (CompletionRow, PreferenceRow)), row.kind
    completion = row.completion if isinstance(row, CompletionRow) else row.chosen
    if how.score == "completion":
        return [_completion(row.prompt, completion, row, how)]
    if isinstance(row.prompt, list):
        assert isinstance(completion, list)
        return [_dialogue(row.prompt + completion, 0, row, how, whole=True)]
    _refuse_assistant_score(row, how)
    assert isinstance(completion, str)
    return [Rendered(prompt="", text=row.prompt + completion, whole=True)]


def preference_texts(row: Row, how: Tokenization) -> list[Rendered]:
    """Chosen, then rejected, with one prompt."""
    assert isinstance(row, PreferenceRow), row.kind
    chosen, rejected = (_completion(row.prompt, text, row, how) for text in (row.chosen, row.rejected))
    if chosen.prompt == rejected.prompt:
        return [chosen, rejected]
    # The dialogues part before the assistant speaks: what they share is the prefix, and only the assistant is scored.
    shared = chosen.prompt[: shared_length(chosen.prompt, rejected.prompt)]
    return [
        Rendered(prompt=shared, text=side.text, spans=side.spans or [(len(side.prompt), len(side.text))], chat=True)
        for side in (chosen, rejected)
    ]


def unpaired_texts(row: Row, how: Tokenization) -> list[Rendered]:
    """One completion."""
    assert isinstance(row, UnpairedRow), row.kind
    return [_completion(row.prompt, row.completion, row, how)]


def prompt_text(row: Row, how: Tokenization) -> str:
    """What the model is asked with."""
    assert isinstance(row, PromptRow), row.kind
    if isinstance(row.prompt, str):
        return row.prompt
    return render_prompt(how.chat, row.prompt, columns=row.columns, where=row.where)


def _refuse_assistant_score(row: Row, how: Tokenization) -> None:
    if how.score == "assistant":
        raise RowError(row.where, "score='assistant' needs messages with roles, and this row is plain text.")


def _completion(prompt: Text, completion: Text, row: Row, how: Tokenization) -> Rendered:
    if isinstance(prompt, str):
        assert isinstance(completion, str)
        return Rendered(prompt=prompt, text=prompt + completion)
    assert isinstance(completion, list)
    if prompt[-1]["role"] == completion[0]["role"] == "assistant":
        raise RowError(row.where, "the prompt ends with the assistant's turn; wanted the user's (or a tool's) last.")
    return _dialogue(prompt + completion, len(prompt), row, how, whole=False)


def _dialogue(messages: Messages, first: int, row: Row, how: Tokenization, *, whole: bool) -> Rendered:
    if how.score == "all":
        text = how.chat.render(messages, row.columns, row.where)
        return Rendered(prompt="", text=text, chat=True, whole=True)
    dialogue = render_dialogue(how.chat, messages, columns=row.columns, where=row.where, first=first)
    start, end = dialogue.spans[0][0], dialogue.spans[-1][1]
    # What stands behind the last scored token changes no loss, and a reward is read at the end of the last turn.
    spans = None if len(dialogue.spans) == 1 else dialogue.spans
    return Rendered(
        prompt=dialogue.text[:start],
        text=dialogue.text[:end],
        spans=spans,
        chat=True,
        question_differs=dialogue.question_differs,
        whole=whole,
    )
