"""Rows to token ids, once, with the exact boundary between prompt and completion.

A completion is tokenized together with its prompt, for that is the text the model will see; the prompt is tokenized
alone, for that is what it is asked with. The ids of the prompt should begin the ids of the whole. Where the tokenizer
merges across the boundary they do not: then the boundary moves left to the last token that both share, the row is
counted, and not one token is lost.

    prompt "ab", completion "cd"      alone  [ab]        whole  [a bc d]     ->  prefix [], moved
    prompt "ab ", completion "cd"     alone  [ab _]      whole  [ab _ cd]    ->  prefix [ab _]

The branches of a preference pair share the ids that both tokenizations and the prompt's own have in common.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlhf.data.contracts import (
    BadRow,
    CompletionRow,
    PreferenceRow,
    PreferenceSample,
    Prompt,
    PromptRow,
    RankingSample,
    RatingSample,
    Row,
    RowError,
    StepwiseRow,
    UnpairedRow,
)
from rlhf.data.pack import Branch, Group
from rlhf.data.prefixes import shared_length
from rlhf.data.row_report import TokenizationReport
from rlhf.data.texts import Rendered, prompt_text
from rlhf.data.tokenization import Tokenization
from rlhf.data.truncate import Ids, truncate
from rlhf.errors import ModelError


@dataclass(frozen=True, slots=True)
class TokenizedRow:
    """A ``Group`` in a fifth of the memory: lists of Python ints would cost up to 36 bytes for each token."""

    prefix: array[int]
    branches: tuple[tuple[array[int], bytes | None], ...]
    truncated: bool

    def item(self, row: Row) -> Group:
        """The group; its columns are the row's, with ``id``, ``truncated`` and what its kind says of its completions.

        ``label`` of an unpaired row, ``rating``, ``ranks`` (smaller is better), ``tied`` of a comparison without a
        winner. Of a solution in steps ``step_ends``, for each branch the places of its steps' last tokens, and
        ``labels``; every token of its branch is scored.
        """
        columns = {**row.columns, "id": row.id, "truncated": self.truncated}
        if isinstance(row, StepwiseRow):
            ((tokens, marks),) = self.branches
            ends = [place for place, mark in enumerate(marks or b"") if mark]
            # A solution that was cut to length lacks its last steps.
            columns |= {"step_ends": [ends], "labels": list(row.labels)[: len(ends)]}
            return Group(self.prefix.tolist(), [Branch(tokens.tolist())], columns)
        branches = [
            Branch(tokens.tolist(), None if scored is None else [bool(mark) for mark in scored])
            for tokens, scored in self.branches
        ]
        if isinstance(row, UnpairedRow):
            columns["label"] = row.label
        elif isinstance(row, RatingSample):
            columns["rating"] = row.rating
        elif isinstance(row, RankingSample):
            columns["ranks"] = [float(rank) for rank in row.ranks or [-rating for rating in row.ratings or ()]]
        elif isinstance(row, PreferenceSample):
            columns["tied"] = True  # one that has a winner is a preference row by now
        return Group(self.prefix.tolist(), branches, columns)

    @property
    def num_tokens(self) -> int:
        """Distinct tokens."""
        return len(self.prefix) + sum(len(tokens) for tokens, _ in self.branches)

    @property
    def num_scored(self) -> int:
        """Tokens that a loss sees."""
        return sum(len(tokens) if scored is None else sum(scored) for tokens, scored in self.branches)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return len(self.prefix) + max(len(tokens) for tokens, _ in self.branches)


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """A ``Prompt``, its ids stored as in ``TokenizedRow``."""

    text: str
    ids: array[int]
    truncated: bool

    def item(self, row: Row) -> Prompt:
        """The prompt; its columns are the row's, with ``truncated``."""
        assert isinstance(row, PromptRow)
        columns = {**row.columns, "truncated": self.truncated}
        messages = row.prompt if isinstance(row.prompt, list) else None
        return Prompt(row.id, self.ids.tolist(), self.text, columns, messages)

    @property
    def num_tokens(self) -> int:
        """Tokens."""
        return len(self.ids)

    @property
    def num_scored(self) -> int:
        """None: nothing is learned from a prompt itself."""
        return 0

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.ids)


def tokenize_rows(
    rows: Sequence[Row],
    how: Tokenization,
    texts_of: Callable[[Row, Tokenization], list[Rendered]],
    report: TokenizationReport,
    *,
    skip_bad_rows: bool = False,
) -> list[tuple[Row, TokenizedRow]]:
    """Tokenize a batch of rows; the ones that are dropped are counted in ``report``.

    Args:
        rows: All of a kind that ``texts_of`` knows.
        how: The settings.
        texts_of: The sequences of a row, sharing their prompt.
        report: Counts go here.
        skip_bad_rows: List a row that the chat template refuses instead of raising.

    Raises:
        RowError: A row can't be rendered or holds nothing to learn from.
        DataError: A row is too long under ``truncation="error"``.
    """
    rendered: list[tuple[Row, list[Rendered]]] = []
    given: dict[int, Ids] = {}
    for row in rows:
        with listing_bad_rows(report, skip_bad_rows):
            own = given_ids(row, how)
            if own is not None:
                given[len(rendered)] = own
            rendered.append((row, [] if own is not None else texts_of(row, how)))
    ids = _encode_all([text for _, texts in rendered for text in texts], how)
    tokenized = []
    for number, (row, texts) in enumerate(rendered):
        with listing_bad_rows(report, skip_bad_rows):
            if number in given:
                made = _keep_to_length(row, given[number], how, report, bos=how.default_bos, cut_anywhere=False)
            else:
                made = _assemble(row, texts, ids, how, report)
            if made is not None:
                report.num_usable += 1
                report.num_tokens += made.num_tokens
                report.num_scored += made.num_scored
                tokenized.append((row, made))
    return tokenized


def tokenize_prompts(
    rows: Sequence[Row], how: Tokenization, report: TokenizationReport, *, skip_bad_rows: bool = False
) -> list[tuple[Row, StoredPrompt]]:
    """Tokenize a batch of prompts; like ``tokenize_rows``."""
    rendered: list[tuple[Row, str]] = []
    for row in rows:
        with listing_bad_rows(report, skip_bad_rows):
            asked = prompt_text(row, how)
            report.lost_fields += asked.loses
            rendered.append((row, asked.text))
    all_ids, _ = how.ids([text for _, text in rendered])
    made: list[tuple[Row, StoredPrompt]] = []
    for (row, text), own in zip(rendered, all_ids, strict=True):
        assert isinstance(row, PromptRow)
        bos = how.default_bos if isinstance(row.prompt, str) else None
        ids = own if bos is None or own[:1] == [bos] else [bos, *own]
        kept = truncate(Ids(ids, []), how.truncation, how.max_length, how.max_prompt_length, row.where, bos=bos)
        if kept is None:
            report.dropped_too_long += 1
            continue
        cut = len(kept.prefix) < len(ids)
        report.truncated += cut
        report.num_usable += 1
        report.num_tokens += len(kept.prefix)
        made.append((row, StoredPrompt(text, array("i", kept.prefix), cut)))
    return made


@contextlib.contextmanager
def listing_bad_rows(report: TokenizationReport, skip: bool) -> Iterator[None]:
    """Turn a ``RowError`` inside the block into an entry of the report."""
    try:
        yield
    except RowError as err:
        if not skip:
            raise
        report.bad_rows.append(BadRow(err.where, err.reason))


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Ids of every text of a batch, each tokenized once."""

    plain: Mapping[str, list[int]]
    offsets: Mapping[str, list[tuple[int, int]]]


def _encode_all(texts: Sequence[Rendered], how: Tokenization) -> _Encoded:
    placed = [text for text in texts if text.spans is not None or text.ends is not None]
    with_spans = list(dict.fromkeys(text.text for text in placed))
    if with_spans and not how.tokenizer.is_fast:
        what = "Scoring several turns of a dialogue" if placed[0].ends is None else "Finding where a step ends"
        raise ModelError(
            f"{what} needs to know which characters a token stands for, and this tokenizer "
            f"({type(how.tokenizer).__name__}) can't say; use its fast version."
        )
    span_ids, offsets = how.ids(with_spans, offsets=True)
    known = dict(zip(with_spans, span_ids, strict=True))
    others = dict.fromkeys(part for text in texts for part in (text.prompt, text.text) if part and part not in known)
    other_ids, _ = how.ids(list(others))
    return _Encoded(
        plain={"": [], **known, **dict(zip(others, other_ids, strict=True))},
        offsets=dict(zip(with_spans, offsets, strict=True)),
    )


def _assemble(
    row: Row, texts: Sequence[Rendered], encoded: _Encoded, how: Tokenization, report: TokenizationReport
) -> TokenizedRow | None:
    """Ids of one row: find the boundary, close the completions, keep to the length."""
    bos = _bos(texts, encoded, how)
    prompt = bos + encoded.plain[texts[0].prompt]
    wholes = [bos + encoded.plain[text.text] for text in texts]
    boundary = min(shared_length(prompt, whole) for whole in wholes)
    moved = boundary < len(prompt)
    report.boundary_moved += moved
    report.question_differs += any(text.question_differs for text in texts)
    report.lost_fields += any(text.loses for text in texts)
    report.empty_completions += sum(text.text == text.prompt for text in texts)

    branches = []
    for text, whole in zip(texts, wholes, strict=True):
        tokens = _close(whole, boundary, text, how)
        scored = None
        if text.spans is not None:
            marks = _marks(encoded.offsets[text.text], text.spans, boundary - len(bos))
            if moved and text.spans[0][0] == len(text.prompt):
                # Tokens between the moved boundary and the first span hold the completion's beginning.
                first = marks.index(True) if True in marks else 0
                marks[:first] = [True] * first
            scored = marks + [True] * (len(tokens) - len(marks))
        elif text.ends is not None:
            scored = _step_marks(row, encoded.offsets[text.text], text.ends, boundary - len(bos))
        branches.append((tokens, scored))
        report.eos_inside += not text.chat and how.tokenizer.eos_token_id in tokens[:-1]

    whole_ids = _give_prefix(
        row, Ids(prompt[:boundary], branches), how, plain=not texts[0].chat, prompt=texts[0].prompt
    )
    return _keep_to_length(row, whole_ids, how, report, bos=bos[0] if bos else None, cut_anywhere=texts[0].whole)


def _keep_to_length(
    row: Row, whole: Ids, how: Tokenization, report: TokenizationReport, *, bos: int | None, cut_anywhere: bool
) -> TokenizedRow | None:
    """Cut or drop what is too long, count it, and store the rest."""
    kept = truncate(
        whole, how.truncation, how.max_length, how.max_prompt_length, row.where, bos=bos, cut_anywhere=cut_anywhere
    )
    if kept is None:
        report.dropped_too_long += 1
        return None
    cut = kept.num_tokens < whole.num_tokens
    report.truncated += cut
    report.no_eos += sum(tokens[-1] not in how.ends for tokens, _ in kept.branches)
    return TokenizedRow(
        prefix=array("i", kept.prefix),
        branches=tuple(
            (array("i", tokens), None if marks is None else bytes(marks)) for tokens, marks in kept.branches
        ),
        truncated=cut,
    )


ID_COLUMNS: Mapping[type[Row], tuple[str, ...]] = {
    PreferenceRow: ("chosen_ids", "rejected_ids"),
    CompletionRow: ("completion_ids",),
    UnpairedRow: ("completion_ids",),
}
"""Columns in addition to ``prompt_ids`` that make a row a tokenized one."""


def given_ids(row: Row, how: Tokenization) -> Ids | None:
    """Token ids that the row brings along (sampled completions do), as they are: no EOS is added, nothing is merged.

    A column ``completion_scored`` (``chosen_scored``, ``rejected_scored``) says which tokens of a completion are trained on, where
    these are not all: what an environment said between the policy's turns is not.

    Raises:
        RowError: Ids that are not a list of numbers, an empty one, or one that the tokenizer does not know; marks that are not one
            true or false for each id, or none of them true.
    """
    names = ID_COLUMNS.get(type(row))
    if names is None or not all(name in row.columns for name in ("prompt_ids", *names)):
        return None
    size = len(how.tokenizer)
    lists = []
    for name in ("prompt_ids", *names):
        ids = row.columns[name]
        if not isinstance(ids, list) or not ids or not all(isinstance(i, int) and 0 <= i < size for i in ids):
            raise RowError(
                row.where, f"column {name} should hold token ids below {size}, at least one; drop the column otherwise."
            )
        lists.append(ids)
    return Ids(lists[0], [(ids, _given_marks(row, name, len(ids))) for name, ids in zip(names, lists[1:], strict=True)])


def _given_marks(row: Row, ids: str, count: int) -> list[bool] | None:
    """Which of a completion's tokens are scored, where the row says so."""
    name = ids.removesuffix("_ids") + "_scored"
    marks = row.columns.get(name)
    if marks is None:
        return None
    if not isinstance(marks, list) or len(marks) != count or not all(isinstance(mark, bool) for mark in marks):
        raise RowError(row.where, f"column {name} should hold true or false for each of the {count} ids of {ids}.")
    if True not in marks:
        raise RowError(
            row.where, f"column {name} holds no true, so nothing would be learned from the row; leave it out."
        )
    return None if all(marks) else marks


def _bos(texts: Sequence[Rendered], encoded: _Encoded, how: Tokenization) -> list[int]:
    """What goes in front: nothing where a template or the text itself put BOS there already."""
    if how.default_bos is None or texts[0].chat:
        return []
    written_out = all(encoded.plain[text.text][:1] == [how.default_bos] for text in texts)
    return [] if written_out else [how.default_bos]


def _close(whole: list[int], boundary: int, text: Rendered, how: Tokenization) -> list[int]:
    """A completion's ids, ended once: a template that ends turns its own way is left alone."""
    tokens = whole[boundary:]
    if how.add_eos:
        eos = how.tokenizer.eos_token_id
        ended = bool(tokens) and (tokens[-1] in how.ends if text.chat else tokens[-1] == eos)
        if not ended:
            assert isinstance(eos, int)
            tokens.append(eos)
    return tokens


def _marks(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]], boundary: int) -> list[bool]:
    """Which tokens behind the boundary touch a span."""
    marks = []
    reach = offsets[boundary - 1][1] if boundary else 0
    number = 0
    for start, end in offsets[boundary:]:
        # Some tokenizers leave the space before a word out of the word's offsets; tokens tile the text nevertheless.
        begin = min(start, reach)
        reach = max(reach, end)
        while number < len(spans) and spans[number][1] <= begin:
            number += 1
        marks.append(number < len(spans) and max(end, begin + 1) > spans[number][0])
    return marks


def _step_marks(row: Row, offsets: Sequence[tuple[int, int]], ends: Sequence[int], boundary: int) -> list[bool]:
    """Which tokens behind the boundary hold the last character of a step; of several that share it, the last."""
    starts = [start for start, _ in offsets]
    marks = [False] * (len(offsets) - boundary)
    for number, end in enumerate(ends):
        place = bisect_left(starts, end) - 1 - boundary
        if place < 0 or marks[place]:
            other = f"step {number}" if number else "the prompt"
            raise RowError(
                row.where,
                f"step {number + 1} ends in the same token as {other}; each step needs a last token of its own.",
            )
        marks[place] = True
    return marks


APART = "end the prompt with a space or a line break"
"""Keeps most tokenizers from making one token of a prompt's end and a completion's beginning."""


def _give_prefix(row: Row, ids: Ids, how: Tokenization, *, plain: bool, prompt: str) -> Ids:
    """Where no id is shared, begin with BOS, or else with the first token of the text, which then is not scored."""
    if ids.prefix:
        made = ids
    elif plain and how.tokenizer.bos_token_id is not None:
        made = Ids([how.tokenizer.bos_token_id], ids.branches)
    else:
        firsts = {tokens[0] for tokens, _ in ids.branches if tokens}
        if len(firsts) != 1 or not all(tokens for tokens, _ in ids.branches):
            why, way_out = "the prompt is empty", "give a prompt"
            if prompt:
                why = f"the tokenizer makes one token of the prompt {prompt[-20:]!r} and the beginning of a completion"
                way_out = APART
            raise RowError(
                row.where,
                f"{why}, the tokenizer has no BOS token, and the completions share no first token, so nothing predicts their "
                f"beginning; {way_out}, or set tokenizer.bos_token.",
            )
        branches = [(tokens[1:], None if marks is None else marks[1:]) for tokens, marks in ids.branches]
        made = Ids([firsts.pop()], branches)
    if not all(tokens for tokens, _ in made.branches):
        why, way_out = "a completion is empty", "give it text"
        if prompt and not ids.prefix:
            why = f"the tokenizer makes one token of the prompt {prompt[-20:]!r} and a whole completion, so none of it can be scored"
            way_out = APART
        raise RowError(row.where, f"{why}; {way_out}, or leave add_eos=True so that the completion can hold EOS.")
    return made
