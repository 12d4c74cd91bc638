"""From one kind of row to another: what a data set does on reading, and what ``rlhf data convert`` does to a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from itertools import combinations, product
from typing import Any

from rlhf.data.chat import ChatFormat, check_fields, render_prompt
from rlhf.data.contracts import (
    CompletionRow,
    Messages,
    MessagesRow,
    Preference,
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

HH_SPEAKERS = (("\n\nHuman:", "user"), ("\n\nAssistant:", "assistant"))


def preferences_of(row: Row) -> list[PreferenceRow]:
    """The pairs in a preference, comparison or ranking row; none where everything is tied."""
    if isinstance(row, PreferenceRow):
        return [row]
    if isinstance(row, PreferenceSample):
        pair = row.pair()
        return [] if pair is None else [pair]
    assert isinstance(row, RankingSample), row.kind
    return row.pairs()


def comparisons_of(row: Row) -> list[PreferenceRow | PreferenceSample]:
    """The same pairs, and next to them those without a winner, as the samples that they are: ties teach too."""
    if isinstance(row, RankingSample):
        return [*row.pairs(), *_ties_of(row)]
    if isinstance(row, PreferenceSample) and row.preference is Preference.TIE:
        return [row]
    return list(preferences_of(row))


def ranking_of(row: Row) -> RankingSample | None:
    """A ranking itself, or a pair as one of two; None where all are equal, which orders nothing."""
    if isinstance(row, RankingSample):
        worth = row.ranks if row.ranks is not None else row.ratings
        return row if len(set(worth or ())) > 1 else None
    pairs = preferences_of(row)
    if not pairs:
        return None
    (pair,) = pairs
    return RankingSample(
        id=pair.id,
        where=pair.where,
        columns=pair.columns,
        prompt=pair.prompt,
        completions=[pair.chosen, pair.rejected],
        ranks=[1, 2],
    )


def ratings_of(row: Row) -> list[RatingSample]:
    """A rated completion itself, or those of a ranking that was made by rating each.

    Raises:
        RowError: A ranking says an order and no ratings.
    """
    if isinstance(row, RatingSample):
        return [row]
    assert isinstance(row, RankingSample), row.kind
    if row.ratings is None:
        raise RowError(row.where, "the ranking has ranks, which say an order and no worth; wanted ratings from 1 to 5.")
    return [
        RatingSample(
            id=f"{row.id}#{number}",
            where=row.where,
            columns=_numbered(row.provenance(), number),
            prompt=row.prompt,
            completion=completion,
            rating=rating,
        )
        for number, (completion, rating) in enumerate(zip(row.completions, row.ratings, strict=True))
    ]


def with_separator(row: Row, separator: str) -> StepwiseRow:
    """A solution whose steps all end with the separator, and have no other: else judging would cut them elsewhere.

    Raises:
        RowError: A step has text, a separator, and more behind it.
    """
    assert isinstance(row, StepwiseRow), row.kind
    steps = [step if step.endswith(separator) else step + separator for step in row.completions]
    for number, step in enumerate(steps, 1):
        if separator and _first_end(step, separator) != len(step):
            raise RowError(
                row.where,
                f"step {number} of {len(steps)} has the step_separator {separator!r} inside, where a completion that is judged would "
                "be cut in two; make two steps of it, or take a step_separator that no step has inside.",
            )
    return row if steps == list(row.completions) else replace(row, completions=steps)


def _first_end(step: str, separator: str) -> int:
    """Where ``rlhf.data.steps.StepCutter`` ends a step: behind the first separator that text stands before."""
    end = 0
    while not step[:end].replace(separator, "").strip() and (place := step.find(separator, end)) >= 0:
        end = place + len(separator)
    return end


def unpaired_of(row: Row) -> list[UnpairedRow]:
    """An unpaired row itself, or both sides of a pair: chosen is desirable, rejected is not."""
    if isinstance(row, UnpairedRow):
        return [row]
    made = []
    for pair in preferences_of(row):
        for side, completion, label in (("chosen", pair.chosen, True), ("rejected", pair.rejected, False)):
            columns = dict(pair.columns)
            if "id" in columns:
                columns["id"] = f"{columns['id']}#{side}"
            made.append(
                UnpairedRow(
                    id=f"{pair.id}#{side}",
                    where=pair.where,
                    columns=columns,
                    prompt=pair.prompt,
                    completion=completion,
                    label=label,
                )
            )
    return made


def prompt_of(row: Row) -> PromptRow:
    """The prompt of any row that has one; what else it holds (chosen, label, reference completion) becomes columns."""
    if isinstance(row, PromptRow):
        return row
    own = row.to_dict()
    if isinstance(row, MessagesRow):
        if row.messages[-1]["role"] == "assistant":
            raise RowError(row.where, "the dialogue ends with the assistant's turn; a prompt ends with the user's.")
        prompt: Text = own.pop("messages")
    else:
        prompt = own.pop("prompt")
    own.pop("completions", None)  # reward functions get the policy's completions under this name
    if not prompt:
        raise RowError(row.where, "the prompt is empty.")
    return PromptRow(id=row.id, where=row.where, columns=own, prompt=prompt)


def completion_of(row: Row) -> CompletionRow:
    """A demonstration: the chosen side of a pair, or the completion of a row that is not labeled bad."""
    if isinstance(row, CompletionRow):
        return row
    assert isinstance(row, PreferenceRow), row.kind
    return CompletionRow(id=row.id, where=row.where, columns=row.columns, prompt=row.prompt, completion=row.chosen)


def pair_up(rows: Iterable[Row]) -> list[PreferenceRow]:
    """Pairs from ratings or labels: within each prompt, every completion with every worse one.

    Rows with equal prompts may stand anywhere in the file.
    """
    by_prompt: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        if isinstance(row, RatingSample):
            worth = row.rating
        elif isinstance(row, UnpairedRow):
            worth = float(row.label)
        else:
            raise RowError(
                row.where,
                f"a row of kind {row.kind} has nothing to compare; only rating and unpaired rows can be paired up.",
            )
        by_prompt.setdefault(text_key(row.prompt), []).append((worth, row))
    pairs = []
    for group in by_prompt.values():
        for (worth, row), (other_worth, other) in product(group, group):
            if worth > other_worth:
                assert isinstance(row, (RatingSample, UnpairedRow))
                assert isinstance(other, (RatingSample, UnpairedRow))
                columns: dict[str, Any] = {"id": f"{row.id}>{other.id}"}
                if isinstance(row, RatingSample):
                    columns |= {"chosen_rating": worth, "rejected_rating": other_worth}
                pairs.append(
                    PreferenceRow(
                        id=columns["id"],
                        where=row.where,
                        columns=columns,
                        prompt=row.prompt,
                        chosen=row.completion,
                        rejected=other.completion,
                    )
                )
    return pairs


def text_key(text: Text) -> str:
    """A string that is equal for equal texts; messages compare by role and content."""
    return text if isinstance(text, str) else json.dumps(text, sort_keys=True, ensure_ascii=False, default=str)


def prompt_names(prompts: Iterable[Text]) -> list[str]:
    """A name for each prompt that its text gives: the same wherever it is in whichever file; a text that comes again is
    numbered."""
    names: list[str] = []
    times: dict[str, int] = {}
    for prompt in prompts:
        name = blake2b(json.dumps([text_key(prompt)]).encode(), digest_size=8).hexdigest()
        times[name] = times.get(name, 0) + 1
        names.append(name if times[name] == 1 else f"{name}-{times[name]}")
    return names


def prompt_key(row: Row) -> str:
    """What tells the prompts of rows apart; of a text or a dialogue, all of it."""
    return text_key(next(iter(row_texts(row).values())))


def row_texts(row: Row) -> dict[str, Text]:
    """The texts of a row by column, in the order of its kind; a list of completions gives one entry each."""
    texts: dict[str, Text] = {}
    own = row.to_dict()
    for name in ("prompt", "text", "messages", "completion", "chosen", "rejected", "completion_a", "completion_b"):
        if name in own and name not in row.columns:
            texts[name] = own[name]
    if isinstance(row, (RankingSample, StepwiseRow)):
        texts |= {f"completions[{number}]": text for number, text in enumerate(row.completions)}
    return texts


def to_conversational(row: Row) -> Row:
    """Strings become messages: a prompt the user's, a completion the assistant's; HH-RLHF transcripts become turns."""
    if isinstance(row, TextRow):
        turns = _hh_turns(row.text)
        if turns is None:
            raise RowError(row.where, "a text row has no roles, so it can't become messages.")
        return MessagesRow(id=row.id, where=row.where, columns=row.columns, messages=turns)
    return _map_texts(row, _as_prompt_messages, _as_completion_messages)


def to_standard(row: Row, chat: ChatFormat) -> Row:
    """Messages become strings by a chat template; the end of a turn is whatever the template writes."""
    if isinstance(row, MessagesRow):
        check_fields(chat, row.messages, row.columns, row.where)
        text = chat.render(row.messages, row.columns, row.where)
        return TextRow(id=row.id, where=row.where, columns=row.columns, text=text)
    if not isinstance(getattr(row, "prompt", None), list):
        return row
    messages: Messages = row.prompt  # type: ignore[attr-defined]
    prompt = render_prompt(chat, messages, columns=row.columns, where=row.where)

    def rest(completion: Text) -> Text:
        assert isinstance(completion, list)
        check_fields(chat, messages + completion, row.columns, row.where)
        whole = chat.render(messages + completion, row.columns, row.where)
        if not whole.startswith(prompt):
            raise RowError(row.where, "the chat template renders the prompt differently once the completion is there.")
        return whole[len(prompt) :]

    return _map_texts(row, lambda _: prompt, rest)


def _ties_of(row: RankingSample) -> list[PreferenceSample]:
    """Every two completions of equal rank or rating."""
    worth = row.ranks if row.ranks is not None else row.ratings
    assert worth is not None
    return [
        PreferenceSample(
            id=f"{row.id}#{first}={second}",
            where=row.where,
            columns=_numbered(row.provenance(), f"{first}={second}"),
            prompt=row.prompt,
            completion_a=row.completions[first],
            completion_b=row.completions[second],
            preference=Preference.TIE,
        )
        for first, second in combinations(range(len(worth)), 2)
        if worth[first] == worth[second]
    ]


def _numbered(columns: dict[str, Any], which: int | str) -> dict[str, Any]:
    """The columns of a part of a row, whose id names the part."""
    return columns | {"id": f"{columns['id']}#{which}"} if "id" in columns else columns


def _map_texts(row: Row, prompt: Any, completion: Any) -> Row:
    """A copy with its prompt and its completions changed."""
    changes: dict[str, Any] = {}
    for name, text in row_texts(row).items():
        if "[" not in name:
            changes[name] = prompt(text) if name == "prompt" else completion(text)
    if isinstance(row, RankingSample):
        changes["completions"] = [completion(text) for text in row.completions]
    return replace(row, **changes)


def _as_prompt_messages(text: Text) -> Messages:
    if isinstance(text, list):
        return text
    turns = _hh_turns(text.removesuffix("\n\nAssistant:"))
    return turns if turns is not None else [{"role": "user", "content": text}]


def _as_completion_messages(text: Text) -> Messages:
    if isinstance(text, list):
        return text
    turns = _hh_turns("\n\nAssistant:" + text) if "\n\nHuman:" in text else None
    return turns if turns is not None else [{"role": "assistant", "content": text.strip()}]


def _hh_turns(text: str) -> Messages | None:
    """Turns of a ``\\n\\nHuman: ...\\n\\nAssistant: ...`` transcript; None where the text is not one."""
    if not text.startswith(tuple(mark for mark, _ in HH_SPEAKERS)):
        return None
    turns: Messages = []
    while text:
        mark, role = next((mark, role) for mark, role in HH_SPEAKERS if text.startswith(mark))
        rest = text[len(mark) :]
        ends = [place for place in (rest.find(other) for other, _ in HH_SPEAKERS) if place >= 0]
        end = min(ends, default=len(rest))
        turns.append({"role": role, "content": rest[:end].strip()})
        text = rest[end:]
    return turns
