"""What each kind of data set takes and how its rows become items: shared by the map-style and the streaming forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlhf.data.accepted import ACCEPTED, STRINGS_ARE
from rlhf.data.contracts import Kind, PreferenceRow, PreferenceSample, Row
from rlhf.data.expand import (
    comparisons_of,
    preferences_of,
    prompt_of,
    ranking_of,
    ratings_of,
    unpaired_of,
    with_separator,
)
from rlhf.data.row_report import TokenizationReport
from rlhf.data.texts import (
    Rendered,
    preference_texts,
    ranking_texts,
    sft_texts,
    single_texts,
    stepwise_texts,
)
from rlhf.data.tokenization import Tokenization
from rlhf.data.tokenize import StoredPrompt, TokenizedRow, listing_bad_rows, tokenize_prompts, tokenize_rows

Stored = TokenizedRow | StoredPrompt
Item = tuple[Row, Stored]


PROMPT_OPTIONS = ("max_prompt_length", "truncation", "chat_template", "allow_lost_fields")
COMPLETION_OPTIONS = ("max_length", *PROMPT_OPTIONS, "add_eos")


@dataclass(frozen=True, slots=True)
class Plan:
    """How one kind of data set is made."""

    accepts: Sequence[Kind]
    expand: Callable[[Row, TokenizationReport], Sequence[Row]]
    """The training rows in a row that was read."""
    texts_of: Callable[[Row, Tokenization], list[Rendered]] | None
    """The sequences of a training row; None for prompts."""
    strings_are: Kind = Kind.TEXT
    options: Sequence[str] = COMPLETION_OPTIONS
    """What its data sets take of ``DatasetOptions``, in addition to how rows are read."""

    def items(
        self, rows: Sequence[Row], how: Tokenization, report: TokenizationReport, *, skip_bad_rows: bool
    ) -> list[Item]:
        """Tokenize a batch of rows as they were read."""
        training_rows: list[Row] = []
        for row in rows:
            report.num_rows += 1
            report.count_columns(row)
            with listing_bad_rows(report, skip_bad_rows):
                training_rows += self.expand(row, report)
        if self.texts_of is None:
            return list(tokenize_prompts(training_rows, how, report, skip_bad_rows=skip_bad_rows))
        return list(tokenize_rows(training_rows, how, self.texts_of, report, skip_bad_rows=skip_bad_rows))


def _as_they_are(row: Row, _report: TokenizationReport) -> Sequence[Row]:
    return [row]


def _pairs(row: Row, report: TokenizationReport) -> Sequence[PreferenceRow]:
    pairs = preferences_of(row)
    report.ties += not pairs
    different = [pair for pair in pairs if pair.chosen != pair.rejected]
    report.identical += len(pairs) - len(different)
    return different


def _comparisons(row: Row, report: TokenizationReport) -> Sequence[Row]:
    comparisons = comparisons_of(row)
    different = [each for each in comparisons if not _is_one_text_twice(each)]
    report.identical += len(comparisons) - len(different)
    return different


def _is_one_text_twice(row: PreferenceRow | PreferenceSample) -> bool:
    if isinstance(row, PreferenceSample):
        return row.completion_a == row.completion_b
    return row.chosen == row.rejected


def _ranking(row: Row, report: TokenizationReport) -> Sequence[Row]:
    ranking = ranking_of(row)
    report.ties += ranking is None
    return [] if ranking is None else [ranking]


def _ratings(row: Row, _report: TokenizationReport) -> Sequence[Row]:
    return ratings_of(row)


def _unpaired(row: Row, report: TokenizationReport) -> Sequence[Row]:
    sides = unpaired_of(row)
    report.ties += not sides
    return sides


def _prompts(row: Row, _report: TokenizationReport) -> Sequence[Row]:
    return [prompt_of(row)]


SFT = Plan(ACCEPTED["sft"], _as_they_are, sft_texts, options=(*COMPLETION_OPTIONS, "train_on"))
PREFERENCE = Plan(ACCEPTED["preference"], _pairs, preference_texts)
COMPARISON = Plan(ACCEPTED["comparison"], _comparisons, preference_texts)
RANKING = Plan(ACCEPTED["ranking"], _ranking, ranking_texts)
RATING = Plan(ACCEPTED["rating"], _ratings, single_texts)
KTO = Plan(ACCEPTED["kto"], _unpaired, single_texts)
PROMPT = Plan(
    ACCEPTED["grpo"], _prompts, None, strings_are=STRINGS_ARE["grpo"],
    options=PROMPT_OPTIONS,
)  # fmt: skip


def stepwise(separator: str) -> Plan:
    """Solutions in steps, each of which ends with a separator: it is written behind those that do not end with it."""
    return Plan(
        ACCEPTED["stepwise"], lambda row, _report: [with_separator(row, separator)], stepwise_texts,
        options=("max_length", *PROMPT_OPTIONS, "step_separator"),
    )  # fmt: skip


PLANS: Mapping[str, Plan] = {
    "sft": SFT,
    "preference": PREFERENCE,
    "comparison": COMPARISON,
    "ranking": RANKING,
    "rating": RATING,
    "kto": KTO,
    "stepwise": stepwise(""),
    "grpo": PROMPT,
}
