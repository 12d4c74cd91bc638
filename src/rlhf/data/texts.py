"""What a row is as text: the prompt, the whole, and which characters are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from rlhf.data.chat import Dialogue, check_fields, check_has_template, prompt_dialogue, render_dialogue
from rlhf.data.contracts import (
    CompletionRow,
    Messages,
    MessagesRow,
    PreferenceRow,
    PreferenceSample,
    PromptRow,
    RankingSample,
    RatingSample,
    Row,
    RowError,
    StepwiseRow,
    Text,
    TextRow,
    UnpairedRow,
)
from rlhf.data.prefixes import shared_length
from rlhf.data.tokenization import Tokenization


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One sequence as text, before tokenization."""

    prompt: str
    """Begins ``text``."""
    text: str
    spans: Sequence[tuple[int, int]] | None = None
    """Characters to score; None for everything behind the prompt."""
    ends: Sequence[int] | None = None
    """In place of ``spans``: characters behind which a step ends; its last token alone is marked."""
    chat: bool = False
    """Special tokens are written out in the text: the template put them there."""
    question_differs: bool = False
    """The template asks with something that the text does not hold: a rollout's prompt is longer than this one."""
    loses: bool = False
    """The chat template leaves out a field of the row, which is allowed."""
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
    if how.train_on == "completion":
        return [_completion(row.prompt, completion, row, how)]
    if isinstance(row.prompt, list):
        assert isinstance(completion, list)
        return [_dialogue(row.prompt + completion, 0, row, how, whole=True)]
    _refuse_assistant_score(row, how)
    assert isinstance(completion, str)
    return [Rendered(prompt="", text=row.prompt + completion, whole=True)]


def preference_texts(row: Row, how: Tokenization) -> list[Rendered]:
    """Chosen, then rejected, with one prompt; of a tie both, in the order they were shown."""
    if isinstance(row, PreferenceSample):
        return _siblings(row.prompt, (row.completion_a, row.completion_b), row, how)
    assert isinstance(row, PreferenceRow), row.kind
    return _siblings(row.prompt, (row.chosen, row.rejected), row, how)


def ranking_texts(row: Row, how: Tokenization) -> list[Rendered]:
    """All completions of a ranking, with one prompt."""
    assert isinstance(row, RankingSample), row.kind
    return _siblings(row.prompt, row.completions, row, how)


def single_texts(row: Row, how: Tokenization) -> list[Rendered]:
    """One completion, with a verdict or a rating."""
    assert isinstance(row, (UnpairedRow, RatingSample)), row.kind
    return [_completion(row.prompt, row.completion, row, how)]


def stepwise_texts(row: Row, how: Tokenization) -> list[Rendered]:
    """One solution, and where its steps end."""
    assert isinstance(row, StepwiseRow), row.kind
    chat = isinstance(row.prompt, list)
    asked = _prompt(row.prompt, row, how)
    prompt = asked.text
    if not prompt:
        raise RowError(row.where, "the prompt is empty; a solution needs its problem.")
    for number, step in enumerate(row.completions):
        if not step.strip():
            raise RowError(
                row.where, f"step {number + 1} of {len(row.completions)} is empty; leave it and its label out."
            )
    ends = list(accumulate((len(step) for step in row.completions), initial=len(prompt)))[1:]
    return [Rendered(prompt=prompt, text=prompt + "".join(row.completions), ends=ends, chat=chat, loses=asked.loses)]


def prompt_text(row: Row, how: Tokenization) -> Dialogue:
    """What the model is asked with."""
    assert isinstance(row, PromptRow), row.kind
    return _prompt(row.prompt, row, how)


def _prompt(prompt: Text, row: Row, how: Tokenization) -> Dialogue:
    if isinstance(prompt, str):
        return Dialogue(prompt, [])
    return prompt_dialogue(how.chat, prompt, columns=row.columns, where=row.where)


def _siblings(prompt: Text, completions: Sequence[Text], row: Row, how: Tokenization) -> list[Rendered]:
    """Completions of one prompt."""
    sides = [_completion(prompt, text, row, how) for text in completions]
    if all(side.prompt == sides[0].prompt for side in sides):
        return sides
    # The dialogues part before the assistant speaks: what they share is the prefix, and only the assistant is scored.
    shared = sides[0].prompt[: min(shared_length(sides[0].prompt, side.prompt) for side in sides)]
    return [
        Rendered(
            prompt=shared,
            text=side.text,
            spans=side.spans or [(len(side.prompt), len(side.text))],
            chat=True,
            loses=side.loses,
        )
        for side in sides
    ]


def _refuse_assistant_score(row: Row, how: Tokenization) -> None:
    if how.train_on == "assistant":
        raise RowError(row.where, "train_on='assistant' needs messages with roles, and this row is plain text.")


def _completion(prompt: Text, completion: Text, row: Row, how: Tokenization) -> Rendered:
    if isinstance(prompt, str):
        assert isinstance(completion, str)
        return Rendered(prompt=prompt, text=prompt + completion)
    assert isinstance(completion, list)
    if prompt[-1]["role"] == completion[0]["role"] == "assistant":
        raise RowError(row.where, "the prompt ends with the assistant's turn; wanted the user's (or a tool's) last.")
    return _dialogue(prompt + completion, len(prompt), row, how, whole=False)


def _dialogue(messages: Messages, first: int, row: Row, how: Tokenization, *, whole: bool) -> Rendered:
    if how.train_on == "all":
        check_has_template(how.chat, row.where)
        messages, loses = check_fields(how.chat, messages, row.columns, row.where)
        text = how.chat.render(messages, row.columns, row.where)
        return Rendered(prompt="", text=text, chat=True, whole=True, loses=loses)
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
        loses=dialogue.loses,
        whole=whole,
    )
