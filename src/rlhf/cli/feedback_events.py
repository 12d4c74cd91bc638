"""What users of a served model did, as files for training: `rlhf feedback export --events`. Heavy imports happen inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.errors import ConfigError

if TYPE_CHECKING:
    from rlhf.store import PreferenceStore

EventsOption = Annotated[
    bool,
    typer.Option(
        "--events", help="What users of a served model did (thumbs, ratings, edits, votes) instead of judgments."
    ),
]
RegenerateOption = Annotated[
    float | None,
    typer.Option(help="With --events: also take regenerations, as preferences with this probability.", min=0.5, max=1),
]
DifferenceOption = Annotated[
    float | None,
    typer.Option(
        "--min-rating-difference",
        help="With --events: two ratings of one prompt by one user are a pair from this difference on.",
    ),
]
ThresholdsOption = Annotated[
    tuple[float, float] | None,
    typer.Option(
        "--rating-thresholds",
        help="With --events: a rating up to the first number is bad, from the second on good.",
        metavar="BAD GOOD",
    ),
]
ScaleOption = Annotated[
    tuple[float, float] | None,
    typer.Option("--rating-scale", help="With --events: only ratings on this scale.", metavar="LOWEST HIGHEST"),
]
ConsentOption = Annotated[
    bool, typer.Option("--consent", help="With --events: only what users consented to (`consent: true`).")
]
NotInOption = Annotated[
    list[str] | None,
    typer.Option(
        "--not-in",
        help="With --events: leave out rows whose prompt and completions are in this file; may be repeated.",
        metavar="FILE",
    ),
]


def _no_source(value: str | None) -> None:
    if value is not None:
        raise ConfigError(
            f"--source {value} is not an option of this command; --events takes what users of a served model did, from `rlhf serve` and "
            "from programs of yours alike."
        )


SourceOption = Annotated[str | None, typer.Option("--source", hidden=True, callback=_no_source)]


SinceOption = Annotated[
    str | None,
    typer.Option(
        help="Only judgments that were made, or with --events feedback that arrived, since then: 2026-11-27, or 2026-11-27T14:30+01:00."
    ),
]


def moment(text: str) -> datetime:
    """A date, or a time, of this machine's zone where it names none.

    Raises:
        ConfigError: It is neither.
    """
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ConfigError(
            f"--since {text}: wanted a date such as 2026-11-27, or a time such as 2026-11-27T14:30+01:00."
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsWanted:
    """Which events are taken, and as what."""

    kind: str | None
    qualified: bool
    min_items: int | None
    regenerate_probability: float | None
    min_rating_difference: float | None
    rating_thresholds: tuple[float, float] | None
    rating_scale: tuple[float, float] | None
    consent: bool
    not_in: Sequence[str]
    since: datetime | None = None


def event_rows(store: PreferenceStore, wanted: EventsWanted) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows, and what is said of them and of what was left out.

    Raises:
        ConfigError: An option does not fit the events.
        DataError: A file of ``not_in`` can't be read.
    """
    from rlhf.data.message_text import counted
    from rlhf.feedback.production import rows_of_events
    from rlhf.feedback.rating_rows import RatingRules
    from rlhf.feedback.training_overlap import known_completions, without_known

    ratings = RatingRules(
        min_difference=wanted.min_rating_difference, thresholds=wanted.rating_thresholds, scale=wanted.rating_scale
    )
    made = rows_of_events(
        store.events(), regenerate_probability=wanted.regenerate_probability, ratings=ratings, only_consented=wanted.consent,
        since=wanted.since,
    )  # fmt: skip
    notes = [f"left out: {counted(number, 'event')}: {reason}" for reason, number in made.left_out.items()]
    rows, said = _without_careless(made.rows, wanted)
    notes += said
    if wanted.not_in:
        rows, number = without_known(rows, known_completions(*wanted.not_in))
        notes.append(f"left out: {counted(number, 'row')} that {' or '.join(wanted.not_in)} holds already.")
    if made.num_without_consent:
        notes.append(
            f"! Whether the users of {counted(made.num_without_consent, 'row')} agreed that these are kept and trained on is not known "
            "(--consent leaves them out)."
        )
    return rows, notes


def _without_careless(rows: list[dict[str, Any]], wanted: EventsWanted) -> tuple[list[dict[str, Any]], list[str]]:
    from rlhf.data.message_text import counted, printable
    from rlhf.feedback.careless_users import MIN_VERDICTS, careless_users

    careless = careless_users(rows, min_verdicts=MIN_VERDICTS if wanted.min_items is None else wanted.min_items)
    if not careless:
        return rows, []
    if not wanted.qualified:
        named = [f"! {printable(user)} may not read what they judge: {why}" for user, why in careless.items()]
        return rows, [*named, "--qualified leaves them out."]
    kept = [row for row in rows if row.get("annotator_id") not in careless]
    named = [f"left out: {printable(user)}: {why}" for user, why in careless.items()]
    return kept, [*named, f"left out: {counted(len(rows) - len(kept), 'row')} of theirs."]
