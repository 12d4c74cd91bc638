"""From the columns of a raw row to one of the kinds in ``contracts``.

Names are first made canonical (``instruction``/``response``, ``input``/``output``, ``conversations`` ...), then the
most specific kind whose columns are all there is taken, then every value is checked. TRL's types are read unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.data.cells import Cells
from rlhf.data.contracts import (
    CompletionRow,
    Kind,
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
    Strength,
    Text,
    TextRow,
    UnpairedRow,
)
from rlhf.data.message_text import describe, listed
from rlhf.data.prefixes import shared_length
from rlhf.data.renaming import RENAME, meant_columns, rename_hint
from rlhf.errors import did_you_mean

ALIASES: Mapping[str, tuple[str, ...]] = {
    "prompt": ("instruction", "input"),
    "completion": ("response", "output"),
    "completion_a": ("response_a",),
    "completion_b": ("response_b",),
    "messages": ("conversations",),
}
"""Canonical name -> others that are read as it where the canonical one is absent, the first found."""

JOINED = ("input", "context")
"""Columns whose text stands behind an ``instruction`` in the prompt: Alpaca's and Dolly's; the first that is there."""

SHAPES: Mapping[Kind, tuple[str, ...]] = {
    Kind.PREFERENCE: ("chosen", "rejected"),
    Kind.COMPARISON: ("prompt", "completion_a", "completion_b", "preference"),
    Kind.STEPWISE: ("prompt", "completions", "labels"),
    Kind.RANKING: ("prompt", "completions", "ranks|ratings"),
    Kind.UNPAIRED: ("prompt", "completion", "label"),
    Kind.RATING: ("prompt", "completion", "rating"),
    Kind.COMPLETION: ("prompt", "completion"),
    Kind.MESSAGES: ("messages",),
    Kind.TEXT: ("text",),
    Kind.PROMPT: ("prompt",),
}
"""Columns each kind must have, most specific kind first; ``a|b`` is one or the other."""

COLUMNS = tuple(dict.fromkeys(name for columns in SHAPES.values() for column in columns for name in column.split("|")))
"""Every column that some kind must have."""

COMMONEST = (
    Kind.COMPLETION, Kind.PREFERENCE, Kind.PROMPT, Kind.MESSAGES, Kind.TEXT, Kind.UNPAIRED, Kind.COMPARISON, Kind.RANKING,
    Kind.RATING, Kind.STEPWISE,
)  # fmt: skip
"""All kinds, the ones that most people have first."""

MOST_KINDS = 5
"""Kinds whose columns a message spells out."""

HALVES = (("chosen", "rejected"), ("completion_a", "completion_b"))
"""Columns that mean nothing without each other."""

LONGEST_ID = 1000
"""Characters of a row's id: it is in every report, seed and file name made of the row."""

LONGEST_WORD = 40
"""Characters a word is at most believed to have."""

HH_TURN = "\n\nAssistant:"
"""Where a completion begins in the dialogues of HH-RLHF (Bai et al. 2022, arXiv:2204.05862)."""


def parse_row(
    raw: Any,
    *,
    where: str = "",
    row_id: str = "",
    accepts: Sequence[Kind] | None = None,
    strings_are: Kind = Kind.TEXT,
    cells_are_text: bool = False,
) -> Row:
    """Make a checked row of a raw one.

    Args:
        raw: A mapping of column name to value, or a bare string.
        where: Path and line, for messages.
        row_id: The id of a row that brings none.
        accepts: Kinds that are wanted; None for any.
        strings_are: What a bare string is, ``text`` or ``prompt``.
        cells_are_text: The file knows only text (CSV): numbers, lists and messages are read from it.

    Raises:
        RowError: Saying what is wrong with which column.
    """
    if isinstance(raw, str):
        raw = {str(strings_are): raw}
    if not isinstance(raw, Mapping):
        raise RowError(
            where, f'the row is {describe(raw)}; wanted an object such as {{"prompt": ..., "completion": ...}}.'
        )
    odd = next((name for name in raw if not isinstance(name, str)), None)
    if odd is not None:
        raise RowError(where, f"a column is called {describe(odd)}; wanted a string.")
    cells = canonical_columns(raw, where)
    kind = detect_kind(cells, where=where, accepts=accepts, header=cells_are_text)
    reader = Cells(cells, where, cells_are_text)
    row = BUILDERS[kind](reader)
    given = cells.get("id")
    name = row_id if given is None or given == "" else str(given)
    if len(name) > LONGEST_ID:
        raise RowError(where, f"column 'id' has {len(name):,} characters; wanted at most {LONGEST_ID}.")
    object.__setattr__(row, "id", name)  # the row is ours until it is returned
    return row


def canonical_columns(raw: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Rename known aliases; join Alpaca's ``instruction`` and ``input``, Dolly's and ``context``; drop columns that are null."""
    cells = {name: value for name, value in raw.items() if value is not None}
    nulls = [name for name in raw if raw[name] is None]
    joined = next((name for name in JOINED if isinstance(cells.get(name), str)), None)
    if "prompt" not in cells and "instruction" in cells and joined is not None:
        context = cells.pop(joined)
        if context and isinstance(cells["instruction"], str):
            cells["instruction"] = f"{cells['instruction']}\n\n{context}"
    for name, others in ALIASES.items():
        if name not in cells:
            other_name = next((other for other in others if other in cells), None)
            if other_name is not None:
                cells = {name if key == other_name else key: value for key, value in cells.items()}
    if nulls:
        _check_nulls(cells, nulls, where)
    return cells


def _check_nulls(cells: Mapping[str, Any], nulls: Sequence[str], where: str) -> None:
    """Refuse a row that would be of a more specific kind if a column were not null: a label must not vanish."""
    filled = {**dict.fromkeys(nulls), **cells}
    for columns in SHAPES.values():
        if not _missing(filled, columns):
            for name in _missing(cells, columns):
                raise RowError(where, f"column {name!r} is null.")
            return


def detect_kind(
    cells: Mapping[str, Any], *, where: str = "", accepts: Sequence[Kind] | None = None, header: bool = False
) -> Kind:
    """The most specific kind whose columns are all there.

    Args:
        cells: Columns by canonical name.
        where: Path and line, for messages.
        accepts: Kinds that are wanted; None for any.
        header: The names come from a line of their own, which may have been forgotten.

    Raises:
        RowError: Half a pair, no kind fits, or the kind is not one of ``accepts``.
    """
    for first, second in HALVES:
        if (first in cells) != (second in cells):
            there, lacking = (first, second) if first in cells else (second, first)
            hint = rename_hint([name for name in cells if name not in COLUMNS], [lacking])
            raise RowError(where, f"column {lacking!r} is missing; there is only {there!r}.{hint}")
    kind = next((kind for kind, columns in SHAPES.items() if not _missing(cells, columns)), None)
    if kind is not None and (accepts is None or kind in accepts):
        return kind
    wanted = tuple(accepts or COMMONEST)
    nearest = max(wanted, key=lambda kind: _nearness(cells, SHAPES[kind]))
    missing = _missing(cells, SHAPES[nearest])
    columns_text = f"columns found: {listed(cells) or 'none'}"
    theirs = [name for name in cells if name not in COLUMNS]
    if kind is None and _nearness(cells, SHAPES[nearest]) > (0, 0):
        hint = did_you_mean(missing[0], [name for name in cells if name not in SHAPES[nearest]])
        raise RowError(where, f"{_are_missing(missing)} for the kind {nearest}; {columns_text}.{hint}")
    if kind is None:
        renaming = rename_hint(theirs, COLUMNS) if _leads_on(cells, meant_columns(theirs, COLUMNS), accepts) else ""
        forgotten = " Is the header line missing?" if header and not renaming else ""
        shapes = "; ".join(f"{k} ({', '.join(SHAPES[k])})" for k in wanted[:MOST_KINDS])
        others = f"; or {', '.join(wanted[MOST_KINDS:])}" if wanted[MOST_KINDS:] else ""
        raise RowError(
            where,
            f"no known kind of row has these columns; {columns_text}; wanted {shapes}{others}.{renaming or RENAME}{forgotten}",
        )
    others = f" (or {', '.join(k for k in wanted if k is not nearest)})" if len(wanted) > 1 else ""
    lacking = f"{_are_missing(missing)}: " if missing else ""
    raise RowError(
        where,
        f"{lacking}this is a row of kind {kind} ({columns_text}), and rows of kind {nearest}{others} are wanted."
        f"{rename_hint(theirs, missing) or ' Give other rows, or rename or drop columns with `columns`.'}",
    )


def _leads_on(cells: Mapping[str, Any], renamed: Mapping[str, str], accepts: Sequence[Kind] | None) -> bool:
    """Whether a row with renamed columns is not of a kind that is refused next."""
    names = {renamed.get(name, name): value for name, value in cells.items()}
    kind = next((kind for kind, columns in SHAPES.items() if not _missing(names, columns)), None)
    return kind is None or accepts is None or kind in accepts


def _are_missing(columns: Sequence[str]) -> str:
    names = " and ".join(" or ".join(map(repr, column.split("|"))) for column in columns)
    return f"column {names} is missing" if len(columns) == 1 else f"columns {names} are missing"


def _nearness(cells: Mapping[str, Any], columns: Sequence[str]) -> tuple[float, int]:
    """Which share of a kind's own columns is there, and how many it has. A prompt, which most kinds have, tells nothing."""
    own = [column for column in columns if column != "prompt"]
    there = len(own) - len(_missing(cells, own))
    return (there / len(own), len(own)) if there else (0, 0)


def split_implicit_prompt(chosen: Text, rejected: Text) -> tuple[Text, Text, Text]:
    """Part the shared beginning of two whole texts from what differs.

    Strings are cut at the last ``"\\n\\nAssistant:"`` that both share (HH-RLHF), or else at the longest shared prefix,
    moved left to the beginning of the word in which the texts part. Dialogues are cut between messages; each side keeps
    at least one.

    Returns:
        Prompt, rest of chosen, rest of rejected.
    """
    if isinstance(chosen, str) and isinstance(rejected, str):
        shared = shared_length(chosen, rejected)
        marker = chosen.rfind(HH_TURN, 0, shared)
        if marker >= 0:
            shared = marker + len(HH_TURN)
        elif chosen == rejected:
            shared = 0
        else:
            shared = _word_start(chosen, rejected, shared)
        return chosen[:shared], chosen[shared:], rejected[shared:]
    assert isinstance(chosen, list)
    assert isinstance(rejected, list)
    most = min(len(chosen), len(rejected)) - 1
    shared = next((i for i in range(most) if chosen[i] != rejected[i]), most)
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _word_start(chosen: str, rejected: str, shared: int) -> int:
    """Where the word in which two texts part begins, the space before it included."""
    ends = [text[shared : shared + 1] for text in (chosen, rejected)]
    if not any(end and not end.isspace() for end in ends):
        return shared
    start = shared
    while start > 0 and not chosen[start - 1].isspace():
        start -= 1
    while start > 0 and chosen[start - 1].isspace():
        start -= 1
    # Scripts that put no space between words would lose the whole prompt.
    return start if start > 0 and shared - start <= LONGEST_WORD else shared


def _missing(cells: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    return [column for column in columns if not any(name in cells for name in column.split("|"))]


def _same_format(cells: Cells, prompt: Text, *completions: Text) -> list[Any]:
    """Where one side is messages and the other a string, make the string a message too."""
    values: list[Text] = [prompt, *completions]
    if not any(isinstance(value, list) for value in values):
        return values
    roles = ["user"] + ["assistant"] * len(completions)
    dialogue = [
        value if isinstance(value, list) else [{"role": role, "content": value}]
        for role, value in zip(roles, values, strict=True)
    ]
    if prompt == "":
        raise cells.bad("prompt", "is empty, and the completion is messages; leave the prompt out or give messages.")
    return dialogue


def _build_preference(cells: Cells) -> Row:
    chosen, rejected = cells.either("chosen"), cells.either("rejected")
    if isinstance(chosen, list) != isinstance(rejected, list):
        raise cells.bad("rejected", "and 'chosen' differ: one is a string, the other a list of messages.")
    # Some published sets (UltraFeedback) give the prompt as a string and repeat it inside both dialogues.
    whole = (
        isinstance(chosen, list) and chosen[0]["role"] != "assistant" and isinstance(cells.cells.get("prompt", ""), str)
    )
    if "prompt" in cells.cells and not whole:
        prompt, chosen, rejected = _same_format(cells, cells.either("prompt"), chosen, rejected)
    else:
        cells.cells.pop("prompt", None)
        prompt, chosen, rejected = split_implicit_prompt(chosen, rejected)
        if prompt == []:
            raise cells.bad("chosen", "and 'rejected' share no message, so there is no prompt.")
    return PreferenceRow(prompt=prompt, chosen=chosen, rejected=rejected, **cells.others())


def _build_comparison(cells: Cells) -> Row:
    prompt, first, second = _same_format(
        cells, cells.either("prompt"), cells.either("completion_a"), cells.either("completion_b")
    )
    preference, strength = _preference(cells)
    return PreferenceSample(
        prompt=prompt,
        completion_a=first,
        completion_b=second,
        preference=preference,
        strength=strength,
        **cells.judgment(),
    )


def _preference(cells: Cells) -> tuple[Preference, Strength | None]:
    """Read ``a``, ``b``, ``tie``, ``same``, and phrases such as ``a-is-slightly-better`` or ``b_significantly``."""
    value = cells.cells.pop("preference")
    words = re.findall(r"[a-z]+", value.lower()) if isinstance(value, str) else []
    given = cells.cells.pop("strength", None) or None
    strengths = [word for word in words if word in set(Strength)]
    sides = [word for word in words if word in ("a", "b", "tie", "same")]
    rest = set(words) - set(strengths) - set(sides) - {"is", "better"}
    if len(sides) != 1 or len(strengths) > 1 or rest:
        raise cells.bad(
            "preference", f"is {describe(value)}; wanted a, b or tie, or a phrase such as 'a-is-slightly-better'."
        )
    side = Preference.TIE if sides[0] in ("tie", "same") else Preference(sides[0])
    strength = strengths[0] if strengths else given
    if strength is not None and not (isinstance(strength, str) and strength in set(Strength)):
        raise cells.bad("strength", f"is {describe(strength)}; wanted {' or '.join(Strength)}.")
    return side, Strength(strength) if strength is not None else None


def _build_ranking(cells: Cells) -> Row:
    prompt = cells.either("prompt")
    completions = cells.list_of("completions", cells.one_either)
    prompt, *completions = _same_format(cells, prompt, *completions)
    ranks = cells.list_of("ranks", cells.one_number) if "ranks" in cells.cells else None
    ratings = cells.list_of("ratings", cells.one_number) if "ratings" in cells.cells else None
    return RankingSample(prompt=prompt, completions=completions, ranks=ranks, ratings=ratings, **cells.judgment())


def _build_rating(cells: Cells) -> Row:
    prompt, completion = _same_format(cells, cells.either("prompt"), cells.either("completion"))
    rating = cells.number("rating")
    return RatingSample(prompt=prompt, completion=completion, rating=rating, **cells.judgment())


def _build_unpaired(cells: Cells) -> Row:
    prompt, completion = _same_format(cells, cells.either("prompt"), cells.either("completion"))
    label = cells.one_label(cells.cells.pop("label"), "label")
    return UnpairedRow(prompt=prompt, completion=completion, label=label, **cells.others())


def _build_stepwise(cells: Cells) -> Row:
    prompt = cells.either("prompt")
    steps = cells.list_of("completions", cells.one_text)
    labels = cells.list_of("labels", cells.one_label)
    if len(steps) != len(labels):
        raise cells.bad("labels", f"has {len(labels)} labels for {len(steps)} steps; give one for each.")
    if not steps:
        raise cells.bad("completions", "is an empty list; wanted at least one step.")
    return StepwiseRow(prompt=prompt, completions=steps, labels=labels, **cells.others())


def _build_completion(cells: Cells) -> Row:
    prompt, completion = _same_format(cells, cells.either("prompt"), cells.either("completion"))
    return CompletionRow(prompt=prompt, completion=completion, **cells.others())


def _build_messages(cells: Cells) -> Row:
    return MessagesRow(messages=cells.messages("messages"), **cells.others())


def _build_text(cells: Cells) -> Row:
    text = cells.text("text")
    if not text:
        raise cells.bad("text", "is empty.")
    return TextRow(text=text, **cells.others())


def _build_prompt(cells: Cells) -> Row:
    prompt = cells.either("prompt")
    if not prompt:
        raise cells.bad("prompt", "is empty.")
    return PromptRow(prompt=prompt, **cells.others())


BUILDERS: Mapping[Kind, Callable[[Cells], Row]] = {
    Kind.PREFERENCE: _build_preference,
    Kind.COMPARISON: _build_comparison,
    Kind.STEPWISE: _build_stepwise,
    Kind.RANKING: _build_ranking,
    Kind.UNPAIRED: _build_unpaired,
    Kind.RATING: _build_rating,
    Kind.COMPLETION: _build_completion,
    Kind.MESSAGES: _build_messages,
    Kind.TEXT: _build_text,
    Kind.PROMPT: _build_prompt,
}
