"""Judgments of a preference store on pairs of completions, for those who compare models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.data.contracts import Text
from rlhf.errors import ConfigError
from rlhf.feedback.simulated import simulated_annotators, simulated_words
from rlhf.feedback.store_guidelines import guidelines_of
from rlhf.rewards.pairwise.votes import digest
from rlhf.store.store import PreferenceStore
from rlhf.store.values import TaskKind

PAIRWISE = {"a": 1.0, "b": 0.0, "tie": 0.5}
GRADED = (TaskKind.GRADED5, TaskKind.GRADED7)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairJudgment:
    """What somebody said of a pair of completions, as it counts now."""

    prompt: Text
    first: str
    second: str
    outcome: float
    """1 where the first was preferred, 0 where the second was, 1/2 for a tie."""
    annotator: str
    models: tuple[str | None, str | None]
    columns: Mapping[str, Any]
    """Of the task."""


def pair_judgments(place: str) -> Iterator[PairJudgment]:
    """Every judgment of a pair; annotators are not weighed.

    Args:
        place: As of ``PreferenceStore``.

    Raises:
        ConfigError: There is no such store.
    """
    with _opened(place) as store:
        for judgment in store.judgments():
            task = judgment.task
            if task.kind is TaskKind.PAIRWISE:
                outcome = PAIRWISE[judgment.value["preference"]]
            elif task.kind in GRADED:
                grade = judgment.value["grade"]
                outcome = 0.5 if grade == 0 else float(grade > 0)
            else:
                continue
            first, second = task.responses
            yield PairJudgment(
                prompt=task.prompt, first=_plain(first.text), second=_plain(second.text), outcome=outcome,
                annotator=judgment.annotator, models=(first.model, second.model), columns=task.columns,
            )  # fmt: skip


def pair_votes(place: str) -> Iterator[tuple[Text, str, str, float]]:
    """(prompt, first, second, outcome) of every judgment of a pair; see ``pair_judgments``.

    Raises:
        ConfigError: There is no such store.
    """
    for one in pair_judgments(place):
        yield one.prompt, one.first, one.second, one.outcome


def simulated_note(place: str) -> str:
    """How many of a store's judgments are simulated and nobody's opinion; empty where none is."""
    with _opened(place) as store:
        return simulated_words((one.annotator for one in store.judgments()), simulated_annotators(store))


def labels_hash(place: str) -> str:
    """16 hex digits that depend only on the judgments of pairs, by any annotator."""
    said = [
        [one.annotator, one.prompt, one.first, one.second, one.outcome, list(one.models)]
        for one in pair_judgments(place)
    ]
    return digest(sorted(said, key=repr))


def guidelines_hash(place: str) -> str:
    """16 hex digits that change with what annotators of a store are asked to look at."""
    with _opened(place) as store:
        return digest([guideline.model_dump(mode="json") for guideline in guidelines_of(store)])


def _opened(place: str) -> PreferenceStore:
    if "://" not in place and not Path(place).exists():
        raise ConfigError(f"store: there is no preference store {place}.")
    return PreferenceStore(place)


def _plain(text: Text) -> str:
    return text if isinstance(text, str) else str(text[-1]["content"])
