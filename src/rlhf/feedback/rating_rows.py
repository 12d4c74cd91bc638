"""From ratings of single completions to rows for training: pairs of one user's ratings of one prompt, or good and bad by thresholds.

Two people use a scale in two ways, so numbers are compared within one user only.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rlhf.data.expand import text_key
from rlhf.data.message_text import counted
from rlhf.errors import ConfigError
from rlhf.store.tables import EventRow

SHARED = frozenset({"event", "program", "annotator_id", "made_at", "chat_template_kwargs", "consent"})
"""Columns of a pair that are those of its later rating."""
JOINT = "+"
"""Between the ids of the events of one row."""
Rated = tuple[EventRow, Mapping[str, Any]]
"""An event and its content, with its texts."""
Scale = tuple[float, float]
NO_RULE = "a rating alone is no row (give a least difference or thresholds to use it)"
BETWEEN = "the rating is between the thresholds"
NO_PAIR = "no other rating of the same prompt by the same user differs by that much"


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingRules:
    """What ratings become. Numbers are points of the scale."""

    min_difference: float | None = None
    """Two ratings of one user that differ by at least so much are a pair; None makes no pairs."""
    thresholds: Scale | None = None
    """A completion is bad up to the first number, and good from the second on; None makes no such rows."""
    scale: Scale | None = None
    """Only ratings on this scale; None where all are on one."""

    def __post_init__(self) -> None:
        if self.min_difference is not None and not (math.isfinite(self.min_difference) and self.min_difference > 0):
            raise ConfigError(
                f"The least difference of two ratings is {self.min_difference:g}; wanted a number above 0."
            )
        if self.thresholds is not None and not self.thresholds[0] < self.thresholds[1]:
            low, high = self.thresholds
            raise ConfigError(
                f"The thresholds are {low:g} and {high:g}; the first, for bad, is below the second, for good."
            )


def rows_of_ratings(
    rated: Sequence[Rated], rules: RatingRules, *, left_out: Counter[str], provenance: Callable[..., dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Rows by thresholds in the order of the ratings, then pairs.

    Args:
        rated: One for each user and completion.
        rules: What they become.
        left_out: Counts those of which nothing becomes a row, by reason.
        provenance: Of an event and its content: the columns that tell where it came from.

    Raises:
        ConfigError: Ratings are on several scales and none is named, or the rules do not fit the scale.
    """
    rated = _on_one_scale(rated, rules, left_out)
    used: set[int] = set()
    for event, content in rated:
        label = _label(content["rating"], rules.thresholds)
        if label is not None:
            used.add(event.number)
            own = {
                "prompt": content["prompt"],
                "completion": content["completion"],
                "label": label,
                "rating": content["rating"],
            }
            yield {**own, **provenance(event, content)}
    for better, worse in _pairs(rated, rules.min_difference):
        used |= {better[0].number, worse[0].number}
        yield _pair_row(better, worse, provenance)
    why = (
        NO_RULE
        if rules.min_difference is None and rules.thresholds is None
        else NO_PAIR
        if rules.thresholds is None
        else BETWEEN
    )
    if unused := sum(event.number not in used for event, _ in rated):
        left_out[why] += unused


def _on_one_scale(rated: Sequence[Rated], rules: RatingRules, left_out: Counter[str]) -> list[Rated]:
    if rules.min_difference is None and rules.thresholds is None:
        return list(rated)
    scales = Counter(_scale(content) for _, content in rated)
    if rules.scale is not None:
        if other := sum(number for scale, number in scales.items() if scale != rules.scale):
            left_out["the rating is on another scale"] += other
    elif len(scales) > 1:
        listed = ", ".join(f"{_words(scale)} ({counted(number, 'rating')})" for scale, number in scales.most_common())
        raise ConfigError(
            f"The ratings are on several scales: {listed}. Name the one that is meant (--rating-scale LOWEST HIGHEST)."
        )
    scale = rules.scale or next(iter(scales), None)
    if scale is not None:
        _check_fits(scale, rules)
    return [(event, content) for event, content in rated if _scale(content) == scale]


def _check_fits(scale: Scale, rules: RatingRules) -> None:
    low, high = scale
    if rules.min_difference is not None and rules.min_difference > high - low:
        raise ConfigError(f"No two ratings on the scale {_words(scale)} differ by {rules.min_difference:g}.")
    if rules.thresholds is not None and not (low <= rules.thresholds[0] and rules.thresholds[1] <= high):
        bad, good = rules.thresholds
        raise ConfigError(f"The thresholds {bad:g} and {good:g} are not on the scale of the ratings, {_words(scale)}.")


def _scale(content: Mapping[str, Any]) -> Scale:
    low, high = content["scale"]
    return float(low), float(high)


def _words(scale: Scale) -> str:
    return f"{scale[0]:g} to {scale[1]:g}"


def _label(rating: float, thresholds: Scale | None) -> bool | None:
    if thresholds is None or thresholds[0] < rating < thresholds[1]:
        return None
    return rating >= thresholds[1]


def _pairs(rated: Sequence[Rated], min_difference: float | None) -> Iterator[tuple[Rated, Rated]]:
    """(better, worse) of one user, one prompt and two texts."""
    if min_difference is None:
        return
    groups: dict[Any, list[Rated]] = defaultdict(list)
    for event, content in rated:
        if content.get("user"):
            key = (
                event.program,
                content["user"],
                text_key(content["prompt"]),
                text_key(content.get("chat_template_kwargs") or ""),
            )
            groups[key].append((event, content))
    for group in groups.values():
        for first, second in combinations(group, 2):
            lead = first[1]["rating"] - second[1]["rating"]
            if abs(lead) >= min_difference and first[1]["completion"] != second[1]["completion"]:
                yield (first, second) if lead > 0 else (second, first)


def _pair_row(better: Rated, worse: Rated, provenance: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    later = max(better, worse, key=lambda one: one[0].number)
    shared = {name: value for name, value in provenance(*later).items() if name in SHARED}
    row = {
        "prompt": better[1]["prompt"],
        "chosen": better[1]["completion"],
        "rejected": worse[1]["completion"],
        **shared,
    }
    row["id"] = JOINT.join(
        f"event-{event.number}" for event, _ in sorted((better, worse), key=lambda one: one[0].number)
    )
    for side, (event, content) in (("chosen", better), ("rejected", worse)):
        told = {
            "rating": content["rating"],
            "model": event.model,
            **{name: content.get(name) for name in ("weights", "version", "answered_at")},
        }
        row |= {f"{side}_{name}": value for name, value in told.items() if value is not None}
    return row
