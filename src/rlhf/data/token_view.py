"""Rows of a file as a trainer will see them: the exact tokens, which of them are trained, and what became of each field.

The tokens come from the same functions as those of a data set, and what is trained is read from the packed batch that a trainer would
score: nothing is tokenized here in another way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

from rlhf.config.lost_fields import LOST_FIELDS
from rlhf.data.chat import special_tokens
from rlhf.data.contracts import UNKNOWN, Kind, Prompt, Row, RowError
from rlhf.data.dataset_options import DatasetOptions, opened_with
from rlhf.data.expand import row_texts
from rlhf.data.field_table import FieldFate, field_table
from rlhf.data.message_text import counted
from rlhf.data.pack import Group, PackedBatch, pack
from rlhf.data.plans import PLANS, Plan
from rlhf.data.raw import RawRow, Unreadable
from rlhf.data.read import RowStream
from rlhf.data.row_report import TokenizationReport
from rlhf.data.sources import Part, Source, open_source, source_name
from rlhf.data.tokenization import Tokenization
from rlhf.errors import DataError, RLHFError, look_up

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAN_OF_KIND: Mapping[Kind, str] = {
    Kind.TEXT: "sft",
    Kind.MESSAGES: "sft",
    Kind.COMPLETION: "sft",
    Kind.PREFERENCE: "preference",
    Kind.COMPARISON: "comparison",
    Kind.RANKING: "ranking",
    Kind.RATING: "rating",
    Kind.UNPAIRED: "kto",
    Kind.STEPWISE: "stepwise",
    Kind.PROMPT: "grpo",
}
"""The data set that a row of each kind is made for, where nobody asks for another one."""
MOST_SEQUENCES = 20
"""Of one row: a ranking of many completions is many pairs."""


@dataclass(frozen=True, slots=True)
class TokenView:
    """One token."""

    id: int
    text: str
    """What it stands for; of a token that is part of a character, its name in the vocabulary."""
    is_trained: bool
    is_special: bool


@dataclass(frozen=True, slots=True)
class SequenceView:
    """One sequence of a packed batch: prefix and branch."""

    name: str
    """``completion``, ``chosen``, ``rejected`` ..."""
    tokens: tuple[TokenView, ...]

    @property
    def num_trained(self) -> int:
        """Tokens that a loss sees."""
        return sum(token.is_trained for token in self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """One row."""

    where: str
    kind: str
    made_for: str
    """The data set, as in ``rlhf.data.plans.PLANS``; empty where the row can't be read."""
    sequences: tuple[SequenceView, ...] = ()
    fields: tuple[FieldFate, ...] = ()
    error: str = ""
    """Why a run would refuse the row."""
    notes: tuple[str, ...] = field(default=())
    """What was done to it, such as a cut."""

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def view_rows(
    source: Source,
    tokenizer: PreTrainedTokenizerBase,
    *,
    numbers: Iterable[int] = (1,),
    made_for: str | None = None,
    **options: Unpack[DatasetOptions],
) -> list[RowView]:
    """Rows of a source, by their numbers.

    Args:
        source: See ``rlhf.data.read.open_rows``.
        tokenizer: Its ids are what the model knows.
        numbers: Which rows, from 1, bad ones counted.
        made_for: A key of ``PLANS``; None for what suits the kind of each row.
        options: As a data set takes them; those that a row's kind does not take are left out.

    Raises:
        DataError: There is no row of a number, or the source can't be opened.
    """
    trial = RowTrial(tokenizer, made_for, options)
    return [_view(part, raw, trial, made_for, options) for part, raw in _raw_rows(source, sorted(set(numbers)))]


class RowTrial:
    """Tokenizes rows one by one, to see what a run would refuse."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, made_for: str | None, options: DatasetOptions) -> None:
        """What ``view_rows`` is called with."""
        self._tokenizer = tokenizer
        self._made_for = made_for
        self._options = options
        self._opened: dict[str, tuple[Plan, Tokenization]] = {}

    def why_refused(self, row: Row) -> str:
        """The reason to refuse a row; the empty text where there is none."""
        plan, how = self.opened(row.kind)
        if row.kind not in plan.accepts:
            return f"a row of kind {row.kind}; wanted {' or '.join(plan.accepts)}."
        try:
            plan.items([row], how, TokenizationReport(), skip_bad_rows=False)
        except RowError as err:
            return err.reason
        except DataError as err:
            return str(err).removeprefix(f"{row.where}: ")
        return ""

    def allowing_losses(self, how: Tokenization) -> Tokenization:
        """The same where the chat template may leave out anything."""
        return replace(how, chat=replace(how.chat, allow_lost_fields=frozenset(LOST_FIELDS)))

    def opened(self, kind: Kind) -> tuple[Plan, Tokenization]:
        """What rows of a kind are made into, and how; options that it does not take are left out."""
        name = self._made_for if self._made_for is not None else PLAN_OF_KIND[kind]
        if name not in self._opened:
            known = look_up(PLANS, name, kind="data set").options
            taken: Any = {key: value for key, value in self._options.items() if key in known}
            plan, how, _ = opened_with(PLANS[name], self._tokenizer, taken, name=f"A data set for {name}")
            self._opened[name] = plan, how
        return self._opened[name]


def _raw_rows(source: Source, numbers: list[int]) -> Iterator[tuple[Part, RawRow]]:
    rows = ((part, raw) for part in open_source(source) for raw in part.read(0))
    seen = 0
    for number in numbers:
        following = next(islice(rows, number - seen - 1, None), None) if number > seen else None
        if following is None:
            raise DataError(f"{source_name(source)} has no row {number}; give the number of a row, from 1.")
        seen = number
        yield following


def _view(part: Part, raw: RawRow, trial: RowTrial, made_for: str | None, options: DatasetOptions) -> RowView:
    where = part.name(raw.place)
    columns = options.get("columns")
    plan = look_up(PLANS, made_for, kind="data set") if made_for is not None else None
    stream = RowStream(
        parts=[part],
        columns=columns,
        accepts=plan.accepts if plan else None,
        strings_are=plan.strings_are if plan else Kind.TEXT,
    )
    try:
        row = stream.parse(part, raw)
        plan, how = trial.opened(row.kind)
    except RowError as err:
        return RowView(
            where=where,
            kind="unreadable" if isinstance(raw.value, Unreadable) else UNKNOWN,
            made_for="",
            error=err.reason,
        )
    name = made_for if made_for is not None else PLAN_OF_KIND[row.kind]
    sequences: tuple[SequenceView, ...] = ()
    report = TokenizationReport()
    if error := trial.why_refused(row):
        how = trial.allowing_losses(how)  # what is left is shown all the same
    with contextlib.suppress(DataError):
        sequences = tuple(islice(_sequences(row, plan, how, report), MOST_SEQUENCES))
    fates: tuple[FieldFate, ...] = ()
    try:
        fates = tuple(field_table(raw.value, row, how.chat, columns, unread=_unread(row, plan, how)))
    except RLHFError as err:
        error = error or str(err)
    return RowView(
        where=where,
        kind=str(row.kind),
        made_for=name,
        sequences=sequences,
        fields=fates,
        error=error,
        notes=_notes(report),
    )


def _sequences(row: Row, plan: Plan, how: Tokenization, report: TokenizationReport) -> Iterator[SequenceView]:
    special_ids: Any = how.tokenizer.convert_tokens_to_ids(list(special_tokens(how.tokenizer)))
    special = frozenset(special_ids)
    for training_row, stored in plan.items([row], how, report, skip_bad_rows=False):
        item = stored.item(training_row)
        if isinstance(item, Prompt):
            yield SequenceView("prompt", tuple(_tokens(item.ids, [False] * len(item.ids), special, how)))
            continue
        names = _names_of_branches(training_row, item)
        batch = pack([_without_other_columns(item)])
        for number, (ids, trained) in enumerate(sequences_of(batch)):
            if ends := item.columns.get("step_ends"):
                trained = [place in {len(item.prefix) + end for end in ends[number]} for place in range(len(ids))]
            yield SequenceView(names[number], tuple(_tokens(ids, trained, special, how)))


def _unread(row: Row, plan: Plan, how: Tokenization) -> frozenset[str]:
    """Texts of a row that a stage does not look at: the tokens stay the same whatever they say."""

    def tokens(of_row: Row) -> list[Any]:
        return [stored for _, stored in plan.items([of_row], how, TokenizationReport(), skip_bad_rows=False)]

    unread = set()
    with contextlib.suppress(DataError):
        before = tokens(row)
        for name in row_texts(row):
            text = getattr(row, name, None)
            if isinstance(text, str) and text:
                changed: Any = f"{text} {text}"
            elif isinstance(text, list) and text and isinstance(text[-1].get("content"), str):
                changed = [*text[:-1], {**text[-1], "content": f"{text[-1]['content']} unread"}]
            else:
                continue
            with contextlib.suppress(DataError):
                if tokens(replace(row, **{name: changed})) == before:
                    unread.add(name)
    return frozenset(unread)


def sequences_of(batch: PackedBatch) -> Iterator[tuple[list[int], list[bool]]]:
    """Each sequence of a packed batch: its tokens, and which of them are scored."""
    for number in range(batch.num_sequences):
        first, size = int(batch.prefix_start[number]), int(batch.prefix_len[number])
        start, length = int(batch.start[number]), int(batch.length[number])
        tokens = batch.tokens.tolist()
        ids = tokens[first : first + size] + tokens[start : start + length]
        scored = [False] * len(ids)
        of_sequence = batch.score_seq == number
        pairs = zip(batch.score_at[of_sequence].tolist(), batch.score_token[of_sequence].tolist(), strict=True)
        for row, token in pairs:
            place = size if row < start else size + row - start + 1  # the row before a token predicts it
            assert ids[place] == token
            scored[place] = True
        yield ids, scored


def _without_other_columns(group: Group) -> Group:
    return Group(group.prefix, group.branches, {"id": group.columns.get("id", "")})


def _names_of_branches(row: Row, group: Group) -> list[str]:
    if row.kind is Kind.PREFERENCE and len(group.branches) == 2:
        return ["chosen", "rejected"]
    if row.kind is Kind.COMPARISON:
        return ["completion_a", "completion_b"]
    if row.kind is Kind.RANKING:
        return [f"completions[{number}]" for number in range(len(group.branches))]
    return [str(row.kind) if row.kind in (Kind.TEXT, Kind.MESSAGES) else "completion"] * len(group.branches)


def _tokens(ids: list[int], trained: list[bool], special: frozenset[int], how: Tokenization) -> Iterator[TokenView]:
    for number, is_trained in zip(ids, trained, strict=True):
        yield TokenView(number, token_text(how.tokenizer, number), is_trained, number in special)


def token_text(tokenizer: PreTrainedTokenizerBase, number: int) -> str:
    """The text of one token, white space at its beginning included; its name where it is a part of a character."""
    name = str(tokenizer.convert_ids_to_tokens(number))
    text = str(tokenizer.decode([number], skip_special_tokens=False, clean_up_tokenization_spaces=False))
    if "\ufffd" in text and "\ufffd" not in name:
        return name
    return f" {text}" if name.startswith("\u2581") and not text.startswith(" ") else text


def _notes(report: TokenizationReport) -> tuple[str, ...]:
    """What happened on the way to tokens, in words."""
    counts = (
        (report.lost_fields, "the chat template leaves out a field"),
        (
            report.boundary_moved,
            "the tokenizer merges across the end of the prompt; the boundary went left to the last common token",
        ),
        (report.question_differs, "the template asks with something that the answered dialogue lacks"),
        (report.truncated, "cut to the length"),
        (report.dropped_too_long, "left out: too long"),
        (report.ties, "left out: nothing is better (a tie)"),
        (report.identical, "left out: two equal texts"),
        (report.no_eos, "a completion ends without EOS or another end-of-turn token"),
        (report.eos_inside, "a completion has EOS before its end"),
    )
    notes = tuple(text for count, text in counts if count)
    if report.num_usable > MOST_SEQUENCES:
        notes += (f"{counted(report.num_usable, 'training row')} in all; the first {MOST_SEQUENCES} are shown",)
    return notes
