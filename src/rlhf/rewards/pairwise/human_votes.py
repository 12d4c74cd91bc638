"""Votes of people on pairs of completions, found again by the texts."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlhf.data.contracts import Kind, PreferenceRow, PreferenceSample, RowError, Text
from rlhf.data.expand import text_key
from rlhf.data.read import read_rows
from rlhf.errors import DataError
from rlhf.files import sha256

PREFERENCES = {"a": 1.0, "b": 0.0, "tie": 0.5}
STORE_READER = "rlhf.feedback.pair_votes"
"""By name: the store is floors above."""


@dataclass(slots=True)
class HumanVotes:
    """Who preferred what."""

    outcomes: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    """Prompt, first and second completion -> an outcome for the first from each vote; each pair in both orders."""
    content: str = ""
    """Hash of where they come from."""

    def add(self, prompt: Text, first: str, second: str, outcome: float) -> None:
        """Count a vote; the same pair in the other order is the same pair."""
        key = text_key(prompt)
        self.outcomes.setdefault((key, first, second), []).append(outcome)
        if first != second:
            self.outcomes.setdefault((key, second, first), []).append(1 - outcome)

    def of(self, prompt: Text, first: str, second: str) -> float | None:
        """Mean outcome for the first; None where nobody voted on this pair."""
        votes = self.outcomes.get((text_key(prompt), first, second))
        return sum(votes) / len(votes) if votes else None

    def prompts(self) -> set[str]:
        """``text_key`` of each prompt that has a vote."""
        return {prompt for prompt, _, _ in self.outcomes}

    def __len__(self) -> int:
        return len({(prompt, *sorted(texts)) for prompt, *texts in self.outcomes})


def read_votes(path: str | Path) -> HumanVotes:
    """Votes from a file of rows with ``completion_a``, ``completion_b`` and ``preference``, or ``chosen`` and ``rejected``.

    Raises:
        DataError: The file can't be read, or a row is no vote.
    """
    votes = HumanVotes(content=sha256(path)[:16] if Path(path).is_file() else str(path))
    for row in read_rows(path, accepts=(Kind.COMPARISON, Kind.PREFERENCE)):
        if isinstance(row, PreferenceSample):
            texts, outcome = (row.completion_a, row.completion_b), PREFERENCES[row.preference.value]
        elif isinstance(row, PreferenceRow):
            texts, outcome = (row.chosen, row.rejected), 1.0
        else:
            raise RowError(
                row.where, f"a row of kind {row.kind}; wanted `completion_a`, `completion_b` and `preference`."
            )
        votes.add(row.prompt, _plain(texts[0]), _plain(texts[1]), outcome)
    if not votes.outcomes:
        raise DataError(f"{path} holds no votes: wanted rows with `completion_a`, `completion_b` and `preference`.")
    return votes


def votes_of_store(place: str) -> HumanVotes:
    """Votes of a preference store.

    Raises:
        DataError: It holds none on pairs of completions.
    """
    rows: Iterator[tuple[Text, str, str, float]] = importlib.import_module(STORE_READER).pair_votes(place)
    return collected(rows, place)


def collected(rows: Iterable[tuple[Text, str, str, float]], source: str) -> HumanVotes:
    """Votes of (prompt, first, second, outcome)."""
    votes = HumanVotes()
    for prompt, first, second, outcome in rows:
        votes.add(prompt, first, second, outcome)
    if not votes.outcomes:
        raise DataError(f"{source} holds no judgments of pairs; people compare two completions with `rlhf annotate`.")
    from rlhf.rewards.pairwise.votes import digest

    votes.content = digest([[*key, values] for key, values in sorted(votes.outcomes.items())])
    return votes


def _plain(text: Text) -> str:
    if isinstance(text, str):
        return text
    last: Mapping[str, object] = text[-1]
    return str(last["content"])
