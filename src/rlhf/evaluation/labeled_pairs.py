"""Pairs of completions with what each person said of them, from a file of votes or a preference store."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.data.contracts import Kind, PreferenceRow, PreferenceSample, Row, RowError, Text
from rlhf.data.expand import text_key
from rlhf.data.read import read_rows
from rlhf.errors import DataError
from rlhf.rewards.pairwise.human_votes import PREFERENCES, STORE_READER
from rlhf.rewards.pairwise.votes import Pair
from rlhf.seeds import derive_seed

OF_SIDES = {"preference": ("chosen", "rejected"), "comparison": ("completion_a", "completion_b")}
"""Columns of the two completions, first the one that counts as first."""
OF_ROW = ("id", "annotator_id", "label_probability", "metadata", "strength", "flipped", "gold_margin", "votes")
"""Columns that are about the judgment and not about the prompt; they are not shown to the judge."""


@dataclass(slots=True, kw_only=True)
class LabeledPair:
    """Two completions of a prompt and who preferred which."""

    pair: Pair
    votes: dict[str, float] = field(default_factory=dict)
    """Person -> 1 where the first was preferred, 0 where the second was, 1/2 for a tie; the last of a person counts."""
    models: tuple[str | None, str | None] = (None, None)
    """What wrote each, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabeledPairs:
    """All of a source."""

    pairs: list[LabeledPair]
    num_equal: int
    """Votes on completions that are the same text, which are left out: they say nothing."""
    unnamed: int
    """Votes without a name, each taken for another person's."""

    def sampled(self, num_prompts: int | None, *, seed: int) -> list[LabeledPair]:
        """Those of so many prompts, drawn at random; all where that is None or there are no more."""
        prompts = list(dict.fromkeys(text_key(one.pair.prompt) for one in self.pairs))
        if num_prompts is None or num_prompts >= len(prompts):
            return self.pairs
        chosen = set(random.Random(derive_seed(seed, "labeled pairs")).sample(prompts, num_prompts))
        return [one for one in self.pairs if text_key(one.pair.prompt) in chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vote:
    pair: Pair
    outcome: float
    person: str | None
    models: tuple[str | None, str | None]


def read_labeled_pairs(path: Path | str) -> LabeledPairs:
    """From a file of rows with ``completion_a``, ``completion_b`` and ``preference``, or with ``chosen`` and ``rejected``.

    Also read: ``annotator_id``, ``model_a`` and ``model_b`` (``chosen_model`` and ``rejected_model``), and whether a completion came to its
    own end (``chosen_ended``, ``completion_a_ended`` ...). Other columns are the prompt's, for a template that has places for them.

    Raises:
        DataError: The file can't be read, a row is no vote, or no vote says anything.
    """
    rows = read_rows(path, accepts=(Kind.COMPARISON, Kind.PREFERENCE))
    return _collected((_of_row(row) for row in rows), str(path))


def labeled_pairs_of_store(place: str) -> LabeledPairs:
    """From a preference store: judgments of pairs, also by degrees, as they count now.

    Raises:
        ConfigError: There is no such store.
        DataError: It holds none.
    """
    judgments = importlib.import_module(STORE_READER).pair_judgments(place)
    return _collected(
        (
            _Vote(
                pair=Pair(prompt=one.prompt, first=one.first, second=one.second, columns=_of_prompt(one.columns)),
                outcome=one.outcome,
                person=one.annotator,
                models=one.models,
            )
            for one in judgments
        ),
        place,
    )


def _of_row(row: Row) -> _Vote:
    if isinstance(row, PreferenceSample):
        outcome, person, names = PREFERENCES[row.preference.value], row.annotator_id, OF_SIDES["comparison"]
        models = ("model_a", "model_b")
    elif isinstance(row, PreferenceRow):
        outcome, person, names = 1.0, row.columns.get("annotator_id"), OF_SIDES["preference"]
        models = ("chosen_model", "rejected_model")
    else:
        raise RowError(
            row.where, f"a row of kind {row.kind}; wanted `completion_a`, `completion_b` and `preference`, or a pair."
        )
    first, second = (_plain(getattr(row, name)) for name in names)
    ended = [row.columns.get(f"{name}_ended", True) is not False for name in names]
    mine = {*(f"{name}_ended" for name in names), *(f"{name}_ids" for name in names), *models, "prompt_ids"}
    return _Vote(
        pair=Pair(
            prompt=row.prompt, first=first, second=second, ended=(ended[0], ended[1]),
            columns={name: value for name, value in _of_prompt(row.columns).items() if name not in mine},
        ),
        outcome=outcome,
        person=None if person is None else str(person),
        models=(_name(row.columns.get(models[0])), _name(row.columns.get(models[1]))),
    )  # fmt: skip


def _of_prompt(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if name not in OF_ROW}


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _collected(votes: Iterable[_Vote], source: str) -> LabeledPairs:
    """Votes on one pair together, whatever order it was shown in."""
    by_key: dict[tuple[str, ...], LabeledPair] = {}
    equal = unnamed = 0
    for number, vote in enumerate(votes):
        pair, outcome, models = vote.pair, vote.outcome, vote.models
        if pair.first == pair.second:
            equal += 1
            continue
        key = (text_key(pair.prompt), *sorted((pair.first, pair.second)))
        if (known := by_key.get(key)) is None:
            known = by_key[key] = LabeledPair(pair=pair, models=models)
        elif known.pair.first != pair.first:
            outcome, models = 1 - outcome, (models[1], models[0])
        known.models = (known.models[0] or models[0], known.models[1] or models[1])
        unnamed += vote.person is None
        known.votes[f"vote {number}" if vote.person is None else vote.person] = outcome
    if not by_key:
        raise DataError(
            f"{source} holds no votes of people on two different completions: wanted rows with `completion_a`, `completion_b` and "
            "`preference`, or `chosen` and `rejected`."
        )
    return LabeledPairs(pairs=list(by_key.values()), num_equal=equal, unnamed=unnamed)


def _plain(text: Text) -> str:
    return text if isinstance(text, str) else str(text[-1]["content"])


def own_side(models: Sequence[str | None], own: Iterable[str]) -> int | None:
    """Which of two completions a judge's own model wrote, 0 or 1; None where neither or both, or that is not known."""
    mine = [model is not None and model in own for model in models]
    if None in models or mine[0] == mine[1]:
        return None
    return 0 if mine[0] else 1
