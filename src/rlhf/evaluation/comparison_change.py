"""What changed since an earlier comparison, and whether the two can be set against each other at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.errors import DataError
from rlhf.evaluation.intervals import Estimate, mean_interval

FIXED = (
    ("prompts_hash", "the prompts are others"),
    ("b", "it is compared with something else (b)"),
    ("sampling", "completions are drawn in another way"),
    ("samples_per_prompt", "another number of samples is drawn of each prompt"),
)
"""Key of a record -> what it means where it differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSince:
    """A win rate less an earlier one, prompt by prompt."""

    difference: Estimate
    """Missing where the earlier one is void."""
    void: tuple[str, ...]
    """Why it is; empty where it is not."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"difference": self.difference.to_dict(), "void": list(self.void)}


def read_comparison(path: str | Path) -> dict[str, Any]:
    """A ``comparison.json``.

    Raises:
        DataError: It can't be read, or is none.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise DataError(f"{path} can't be read as a comparison: {type(err).__name__}: {err}.") from None
    if not isinstance(record, dict) or not isinstance(record.get("per_prompt"), dict) or "judge" not in record:
        raise DataError(f"{path} is no record of a comparison; wanted the comparison.json that `rlhf compare` writes.")
    return record


def change_since(earlier: Mapping[str, Any], now: Mapping[str, Any], *, confidence: float) -> ChangeSince:
    """The difference of two win rates over the same opponent, paired by prompt.

    Another judge, another wording of its prompt, other prompts, another opponent or another way of sampling make two numbers that differ for
    those reasons; then there is no difference, only the reasons.

    Args:
        earlier: A record.
        now: Another one.
        confidence: Of the interval.
    """
    void = _judge_changes(earlier["judge"], now["judge"])
    void += [why for key, why in FIXED if _content(earlier.get(key)) != _content(now.get(key))]
    if void:
        return ChangeSince(
            difference=Estimate.missing("the earlier comparison is void: " + "; ".join(void)), void=tuple(void)
        )
    before, after = (record["per_prompt"].get("win_rate", {}) for record in (earlier, now))
    differences = [
        after[name] - before[name] for name in after if after[name] is not None and before.get(name) is not None
    ]
    if not differences:
        return ChangeSince(difference=Estimate.missing("no prompt has an outcome in both"), void=())
    return ChangeSince(difference=mean_interval(differences, confidence=confidence), void=())


def _judge_changes(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if earlier.get("hash") == now.get("hash"):
        return []
    old, new = (judge.get("identity") or {} for judge in (earlier, now))
    keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    if keys == ["template"]:
        return ["the judge is asked by another prompt template"]
    return [f"the judge is another ({', '.join(keys) or 'its hash differs'})"]


def _content(value: Any) -> Any:
    """A model by its content, whatever it is called."""
    return value.get("content", value) if isinstance(value, Mapping) else value
