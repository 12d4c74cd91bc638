"""Judgments of a preference store on pairs of completions, for those who compare models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlhf.data.contracts import Text
from rlhf.errors import ConfigError
from rlhf.store.store import PreferenceStore
from rlhf.store.values import TaskKind

PAIRWISE = {"a": 1.0, "b": 0.0, "tie": 0.5}
GRADED = (TaskKind.GRADED5, TaskKind.GRADED7)


def pair_votes(place: str) -> Iterator[tuple[Text, str, str, float]]:
    """(prompt, first, second, outcome): 1 where the first was preferred, 0 where the second was, 1/2 for a tie.

    A judgment counts as it stands now; annotators are not weighed.

    Args:
        place: As of ``PreferenceStore``.

    Raises:
        ConfigError: There is no such store.
    """
    if "://" not in place and not Path(place).exists():
        raise ConfigError(f"store: there is no preference store {place}.")
    with PreferenceStore(place) as store:
        for judgment in store.judgments():
            task = judgment.task
            if task.kind is TaskKind.PAIRWISE:
                outcome = PAIRWISE[judgment.value["preference"]]
            elif task.kind in GRADED:
                grade = judgment.value["grade"]
                outcome = 0.5 if grade == 0 else float(grade > 0)
            else:
                continue
            first, second = (_plain(response.text) for response in task.responses)
            yield task.prompt, first, second, outcome


def _plain(text: Text) -> str:
    return text if isinstance(text, str) else str(text[-1]["content"])
