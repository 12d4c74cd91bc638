"""What a row of data is, whatever file it came from.

A row belongs to one of ten kinds. Its texts are either *standard* (plain strings) or *conversational* (lists of
``{"role": ..., "content": ...}`` messages):

    text         text                                        language modeling
    messages     messages                                    a dialogue
    completion   prompt, completion                          a demonstration
    preference   prompt, chosen, rejected                    a pair, best first
    comparison   prompt, completion_a, completion_b, ...     a pair as it was shown to an annotator, with the verdict
    ranking      prompt, completions, ranks | ratings        several completions in order
    rating       prompt, completion, rating                  one completion from 1 to 5
    unpaired     prompt, completion, label                   one completion, good or bad
    stepwise     prompt, completions, labels                 the steps of one completion, each right or wrong
    prompt       prompt                                      something to sample from

Columns that a kind does not know travel with the row in ``columns`` and come out at the trainer, at the reward function
and in saved files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import combinations
from typing import Any, ClassVar, TypeVar

from rlhf.data.message_text import shown
from rlhf.errors import DataError

Message = dict[str, Any]
Messages = list[Message]
Text = str | Messages

EnumT = TypeVar("EnumT", bound=StrEnum)

OLD_LABEL_PROBABILITY = "confidence"
"""The column that was ``2 * label_probability - 1``; a row that has it where the probability is read is refused."""
RENAMED_LABEL_PROBABILITY = (
    "the column `confidence` is now `label_probability`, the probability that the label is right: (1 + confidence) / 2"
)


class Kind(StrEnum):
    """See the table at the top of this file."""

    TEXT = "text"
    MESSAGES = "messages"
    COMPLETION = "completion"
    PREFERENCE = "preference"
    COMPARISON = "comparison"
    RANKING = "ranking"
    RATING = "rating"
    UNPAIRED = "unpaired"
    STEPWISE = "stepwise"
    PROMPT = "prompt"


UNKNOWN = "unknown"
"""What reports hold in place of a kind where a row has none."""


class ComparisonType(StrEnum):
    """How a person was asked for a judgment."""

    PAIRWISE = "pairwise"
    """A, B or tie, with or without how clearly."""
    RANKING = "ranking"
    """All completions in order, 1 = best, equal ranks allowed."""
    RATING = "rating"
    """Each completion alone, from 1 to 5."""
    BINARY = "binary"
    """Each completion alone, good or bad."""


class Preference(StrEnum):
    """Which of two completions is better."""

    A = "a"
    B = "b"
    TIE = "tie"


class Strength(StrEnum):
    """How clearly. With the tie this makes the five-step scale."""

    SIGNIFICANTLY = "significantly"
    SLIGHTLY = "slightly"


class RowError(DataError):
    """One row is wrong; ``on_bad_row="skip"`` turns it into a ``BadRow`` in the report."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.where = where
        self.reason = reason


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was skipped, and why."""

    where: str
    """File and line, such as ``data/pairs.jsonl:12``."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What every kind has."""

    kind: ClassVar[Kind]

    id: str = ""
    """The row's own ``id`` column, or else the file's name and the line."""
    where: str = ""
    """Path and line, for messages."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Every column that is not one of the kind's own, ``id`` included where the row had one."""

    def to_dict(self) -> dict[str, Any]:
        """The row as it is written to a file: its own columns, then the others. Unset optional ones are left out."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("id", "where", "columns")}
        own = {name: value for name, value in own.items() if value is not None and value != {}}
        return {**own, **{name: value for name, value in self.columns.items() if name not in own}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow(Row):
    kind: ClassVar[Kind] = Kind.TEXT
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRow(Row):
    kind: ClassVar[Kind] = Kind.MESSAGES
    messages: Messages


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRow(Row):
    kind: ClassVar[Kind] = Kind.COMPLETION
    prompt: Text
    completion: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRow(Row):
    kind: ClassVar[Kind] = Kind.PREFERENCE
    prompt: Text
    chosen: Text
    rejected: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpairedRow(Row):
    kind: ClassVar[Kind] = Kind.UNPAIRED
    prompt: Text
    completion: Text
    label: bool
    """True = desirable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepwiseRow(Row):
    kind: ClassVar[Kind] = Kind.STEPWISE
    prompt: Text
    completions: Sequence[str]
    """The steps, in order."""
    labels: Sequence[bool]
    """One for each step: is it right?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow(Row):
    kind: ClassVar[Kind] = Kind.PROMPT
    prompt: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment(Row):
    """What is kept of every human judgment."""

    annotator_id: str | None = None
    label_probability: float | None = None
    """That the judgment is right, as its annotator sees it: 0.5 for a guess between two, 1 for certainty."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Anything else worth keeping: time taken, model names, guideline version."""

    def __post_init__(self) -> None:
        if self.label_probability is not None and not 0 <= self.label_probability <= 1:
            raise RowError(
                self.where, f"label_probability is {shown(self.label_probability)}; wanted a number from 0 to 1."
            )

    def provenance(self) -> dict[str, Any]:
        """The columns that a row made of this judgment carries on."""
        kept = dict(self.columns)
        if self.annotator_id is not None:
            kept["annotator_id"] = self.annotator_id
        if self.label_probability is not None:
            kept["label_probability"] = self.label_probability
        if self.metadata:
            kept["metadata"] = dict(self.metadata)
        return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceSample(Judgment):
    """Two completions as they were shown, and which was preferred."""

    kind: ClassVar[Kind] = Kind.COMPARISON
    comparison: ClassVar[ComparisonType] = ComparisonType.PAIRWISE

    prompt: Text
    completion_a: Text
    completion_b: Text
    preference: Preference
    strength: Strength | None = None

    def __post_init__(self) -> None:
        Judgment.__post_init__(self)
        # StrEnum members are strings: coercing here lets callers write preference="a".
        object.__setattr__(self, "preference", _member(Preference, self.preference, self.where, "preference"))
        if self.strength is not None:
            object.__setattr__(self, "strength", _member(Strength, self.strength, self.where, "strength"))
        if self.preference is Preference.TIE and self.strength is not None:
            raise RowError(self.where, f"a tie can't be {self.strength} better; leave strength out.")

    def pair(self) -> PreferenceRow | None:
        """The same judgment as a training pair; None for a tie, which prefers nothing."""
        if self.preference is Preference.TIE:
            return None
        chosen, rejected = self.completion_a, self.completion_b
        if self.preference is Preference.B:
            chosen, rejected = rejected, chosen
        columns = self.provenance()
        if self.strength is not None:
            columns["strength"] = self.strength.value
        return PreferenceRow(
            id=self.id, where=self.where, columns=columns, prompt=self.prompt, chosen=chosen, rejected=rejected
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSample(Judgment):
    """Several completions of one prompt, ranked (1 = best) or rated (1 to 5, 5 = best)."""

    kind: ClassVar[Kind] = Kind.RANKING

    prompt: Text
    completions: Sequence[Text]
    ranks: Sequence[float] | None = None
    ratings: Sequence[float] | None = None

    def __post_init__(self) -> None:
        Judgment.__post_init__(self)
        if (self.ranks is None) == (self.ratings is None):
            raise RowError(self.where, "a ranking needs either ranks (1 = best) or ratings (5 = best), and not both.")
        name, numbers = ("ranks", self.ranks) if self.ranks is not None else ("ratings", self.ratings)
        assert numbers is not None
        if len(numbers) != len(self.completions):
            raise RowError(
                self.where,
                f"there are {len(numbers)} {name} for {len(self.completions)} completions; give one for each.",
            )
        if len(numbers) < 2:
            raise RowError(self.where, f"a ranking of {len(numbers)} completion orders nothing; give at least two.")
        check = check_rank if name == "ranks" else check_rating
        for number in numbers:
            check(number, self.where)

    @property
    def comparison(self) -> ComparisonType:
        """Whether the annotator ordered the completions or rated each."""
        return ComparisonType.RANKING if self.ranks is not None else ComparisonType.RATING

    def pairs(self) -> list[PreferenceRow]:
        """Every two completions of which one is better, as training pairs; ties are left out.

        The better one's number comes first in the pair's id: ``id#1-0`` says that the second completion beat the first.
        """
        if self.ranks is not None:
            worth, name = [-rank for rank in self.ranks], "rank"
        else:
            assert self.ratings is not None
            worth, name = list(self.ratings), "rating"
        rows = []
        for first, second in combinations(range(len(worth)), 2):
            if worth[first] == worth[second]:
                continue
            best, worst = (first, second) if worth[first] > worth[second] else (second, first)
            columns = self.provenance() | {f"chosen_{name}": abs(worth[best]), f"rejected_{name}": abs(worth[worst])}
            if "id" in columns:
                columns["id"] = f"{columns['id']}#{best}-{worst}"
            rows.append(
                PreferenceRow(
                    id=f"{self.id}#{best}-{worst}",
                    where=self.where,
                    columns=columns,
                    prompt=self.prompt,
                    chosen=self.completions[best],
                    rejected=self.completions[worst],
                )
            )
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingSample(Judgment):
    """One completion, rated from 1 to 5."""

    kind: ClassVar[Kind] = Kind.RATING
    comparison: ClassVar[ComparisonType] = ComparisonType.RATING

    prompt: Text
    completion: Text
    rating: float

    def __post_init__(self) -> None:
        Judgment.__post_init__(self)
        check_rating(self.rating, self.where)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Something to sample from, as token ids: what a rollout engine takes."""

    id: str
    ids: list[int]
    """Token ids, at least one; ends where the completion is to begin."""
    text: str
    """What the ids say, chat template included."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the row carried; reward functions get these as keyword lists."""
    messages: Messages | None = None
    """The prompt as messages, where the row had it so."""


def check_rank(number: float, where: str) -> None:
    """Refuse a rank that is not 1 or more."""
    if not math.isfinite(number) or number < 1:
        raise RowError(where, f"rank {shown(number)} is not 1 (best) or more.")


def check_rating(number: float, where: str) -> None:
    """Refuse a rating outside 1 to 5."""
    if not 1 <= number <= 5:
        raise RowError(where, f"rating {shown(number)} is not a number from 1 (worst) to 5 (best).")


def _member(enum: type[EnumT], value: Any, where: str, column: str) -> EnumT:
    try:
        return enum(value)
    except ValueError:
        raise RowError(where, f"{column} is {shown(value)}; wanted one of {', '.join(enum)}.") from None
