"""Which kinds of row each kind of data set accepts. No torch is imported, so that a run can check its files in a moment."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf.data.contracts import Kind

ACCEPTED: Mapping[str, tuple[Kind, ...]] = {
    "sft": (Kind.COMPLETION, Kind.MESSAGES, Kind.TEXT, Kind.PREFERENCE),
    "preference": (Kind.PREFERENCE, Kind.COMPARISON, Kind.RANKING),
    "comparison": (Kind.COMPARISON, Kind.PREFERENCE, Kind.RANKING),
    "ranking": (Kind.RANKING, Kind.PREFERENCE, Kind.COMPARISON),
    "rating": (Kind.RATING, Kind.RANKING),
    "kto": (Kind.UNPAIRED, Kind.PREFERENCE, Kind.COMPARISON),
    "stepwise": (Kind.STEPWISE,),
    "grpo": (
        Kind.PROMPT,
        Kind.COMPLETION,
        Kind.PREFERENCE,
        Kind.COMPARISON,
        Kind.RANKING,
        Kind.RATING,
        Kind.UNPAIRED,
        Kind.STEPWISE,
        Kind.MESSAGES,
    ),
}
"""By the name that ``rlhf.data.plans.PLANS`` has for the data set; the kinds in the order in which messages list them."""

TEACHES = ACCEPTED["sft"]
"""Kinds of rows whose text a model can be trained on, or its likelihood measured."""
STRINGS_ARE: Mapping[str, Kind] = {"grpo": Kind.PROMPT}
"""What a bare string is where it is not a ``Kind.TEXT``."""
