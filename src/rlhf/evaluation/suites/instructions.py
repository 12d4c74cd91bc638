"""Whether a completion follows instructions that a program can check: a reward function for suites, and for training.

Each row has a column ``checks``, a mapping of names of ``CHECKS`` to what is wanted:

    {"prompt": "Name three colors, one to a line.", "checks": {"lines": 3}}

Source of the idea: Zhou et al. 2023, "Instruction-following evaluation for large language models" (IFEval), arXiv:2311.07911.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.errors import RewardError, look_up

_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+\S", re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")


def _json_value(text: str) -> Any:
    """The JSON of a text, alone or in a fenced block; ``...`` where it is none."""
    fenced = re.search(r"```(?:json)?\s*\n(.*?)```", text, re.DOTALL)
    try:
        return json.loads(fenced[1] if fenced else text)
    except ValueError:
        return ...


def _has_keys(text: str, keys: Sequence[str]) -> bool:
    value = _json_value(text)
    return isinstance(value, dict) and set(value) == set(keys)


CHECKS: Mapping[str, Callable[[str, Any], bool]] = {
    "json_keys": _has_keys,
    "json_items": lambda text, n: isinstance(value := _json_value(text), list) and len(value) == n,
    "words": lambda text, n: len(text.split()) == n,
    "max_words": lambda text, n: 0 < len(text.split()) <= n,
    "min_words": lambda text, n: len(text.split()) >= n,
    "lines": lambda text, n: len([line for line in text.splitlines() if line.strip()]) == n,
    "bullets": lambda text, n: len(_BULLET.findall(text)) == n,
    "sentences": lambda text, n: len(_SENTENCE_END.findall(text)) == n,
    "starts_with": lambda text, start: text.lstrip().startswith(start),
    "ends_with": lambda text, end: text.rstrip().endswith(end),
    "contains": lambda text, wanted: all(
        part.lower() in text.lower() for part in ([wanted] if isinstance(wanted, str) else wanted)
    ),
    "excludes": lambda text, banned: (
        not any(
            re.search(rf"\b{re.escape(part)}\b", text, re.IGNORECASE)
            for part in ([banned] if isinstance(banned, str) else banned)
        )
    ),
    "uppercase": lambda text, wanted: (text.isupper()) is bool(wanted),
    "lowercase": lambda text, wanted: (text.islower()) is bool(wanted),
    "one_of": lambda text, options: text.strip().strip(".!\"'").lower() in [str(option).lower() for option in options],
}
"""Name -> check(text, what is wanted). An empty completion follows nothing."""


def follows(
    prompts: Sequence[Any], completions: Sequence[Any], *, checks: Sequence[Mapping[str, Any]], **columns: Any
) -> list[float]:
    """Share of its row's instructions that each completion follows, 0 to 1.

    Args:
        prompts: [n], not looked at.
        completions: [n] texts, or messages of which the last counts.
        checks: [n] see the top of this file.
        columns: Not looked at.

    Raises:
        RewardError: A row has no checks.
        UnknownNameError: No check has that name.
    """
    scores = []
    for number, (completion, wanted) in enumerate(zip(completions, checks, strict=True)):
        if not isinstance(wanted, Mapping) or not any(value is not None for value in wanted.values()):
            raise RewardError(f"Row {number} has the checks {wanted!r}; give a mapping such as {{'words': 3}}.")
        text = completion if isinstance(completion, str) else str(completion[-1]["content"])
        asked = {name: value for name, value in wanted.items() if value is not None}
        kept = [
            bool(text.strip()) and look_up(CHECKS, name, kind="check")(text, value) for name, value in asked.items()
        ]
        scores.append(sum(kept) / len(kept))
    return scores
