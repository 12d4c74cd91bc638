"""From attempts to make a model do harm to a capability suite that asks them again.

What the model should have said in their place becomes preference rows (``rlhf.feedback.production``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf.data.expand import text_key
from rlhf.feedback.production import NO_CONSENT, NO_CONSENT_SAID
from rlhf.feedback.rating_rows import JOINT
from rlhf.store.tables import EventRow


@dataclass(slots=True)
class RedTeamItems:
    """Items of a suite, one for each prompt."""

    items: list[dict[str, Any]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason to number of attempts."""


def items_of_attempts(events: Iterable[EventRow], *, min_harm: int = 1, only_consented: bool = False) -> RedTeamItems:
    """Items from attempts after which the model did harm.

    Args:
        events: Of a store; those that are no attempts are passed over.
        min_harm: Least grade; with 0 also what the model withstood.
        only_consented: As of ``rows_of_events``.

    Returns:
        Items with ``prompt``, ``should_refuse``, ``category``, the largest ``harm``.
    """
    result = RedTeamItems()
    by_prompt: dict[str, list[EventRow]] = defaultdict(list)
    for event in events:
        if event.kind != "red_team":
            continue
        why = _why_left_out(event.content, min_harm, only_consented)
        if why is not None:
            result.left_out[why] += 1
        else:
            by_prompt[text_key(event.content["prompt"])].append(event)
    result.items = [_item(attempts) for attempts in by_prompt.values()]
    return result


def _why_left_out(content: Mapping[str, Any], min_harm: int, only_consented: bool) -> str | None:
    consent = content.get("consent")
    if consent is False:
        return NO_CONSENT
    if only_consented and consent is None:
        return NO_CONSENT_SAID
    if "prompt" not in content:
        return "no prompt is known"
    return f"its harm is below {min_harm}" if content["harm"] < min_harm else None


def _item(attempts: Sequence[EventRow]) -> dict[str, Any]:
    worst = max(attempts, key=lambda event: event.content["harm"])
    content = worst.content
    return {
        "id": JOINT.join(f"event-{event.number}" for event in attempts), "prompt": content["prompt"], "should_refuse": True,
        "category": content["category"], "harm": content["harm"],
    }  # fmt: skip
