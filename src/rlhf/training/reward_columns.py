"""What reward modeling reads in addition to tokens: the columns of judged rows, checked, as numbers for each completion.

Every loss has its rows: pairs (with strength, label probability or margin), pairs and ties, rankings, ratings, verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from rlhf.config.reward_model import RewardModelConfig
from rlhf.data.contracts import OLD_LABEL_PROBABILITY, RENAMED_LABEL_PROBABILITY, Strength
from rlhf.data.pack import Group
from rlhf.errors import DataError

GRADES: Mapping[str, int] = {Strength.SLIGHTLY: 1, Strength.SIGNIFICANTLY: 2}
"""Strength of a preference -> its grade; 0 is a tie."""
SHAPES: Mapping[str, str] = {
    "preference": "pairs",
    "comparison": "pairs and ties",
    "ranking": "rankings",
    "rating": "rated completions",
    "kto": "single completions, good or bad",
}


def judgment_columns(groups: Sequence[Group], config: RewardModelConfig) -> dict[str, Tensor]:
    """The columns that a loss needs, one number for each completion of each row, in order.

    Raises:
        DataError: A row lacks what the loss needs, or is of another kind; names the row.
    """
    needs = _needs(config)
    return {
        name: torch.tensor([number for group in groups for number in read(group, config)])
        for name, read in needs.items()
    }


def check_row(group: Group, config: RewardModelConfig) -> None:
    """Refuse a row that the loss can't learn from.

    Raises:
        DataError: Naming the row and what it lacks.
    """
    wanted = config.judgment_formula.rows
    count = len(group.branches)
    fits = {"ranking": count >= 2, "rating": count == 1, "kto": count == 1}.get(wanted, count == 2)
    if not fits:
        raise _bad(group, f"the loss {config.loss} learns from {SHAPES[wanted]}; this row has {_completions(count)}")
    if wanted == "preference" and group.columns.get("tied"):
        raise _bad(
            group, f"it is a tie, which {config.loss} can't learn from; leave it out, or use rao_kupper or davidson"
        )
    for read in _needs(config).values():
        read(group, config)


def _needs(config: RewardModelConfig) -> dict[str, Callable[[Group, RewardModelConfig], Sequence[float]]]:
    """Name of a column -> what reads it."""
    readers: dict[str, Callable[[Group, RewardModelConfig], Sequence[float]]] = {}
    if config.margin == "column":
        readers["margin"] = _margin
    if config.use_label_probability:
        readers["label_probability"] = _label_probability
    match config.judgment_formula.rows:
        case "comparison":
            readers["grade"] = _grade
        case "ranking":
            readers["rank"] = _ranks
        case "rating":
            readers["rating"] = _rating
        case "kto":
            readers["label"] = _label
    return readers


def _margin(group: Group, config: RewardModelConfig) -> list[float]:
    margin = _number(group, "margin", "margin: column")
    if config.judgment_formula.default_margin is not None and margin <= 0:
        raise _bad(group, f"the loss {config.loss} needs margins above 0; got {margin!r}")
    return [margin] * len(group.branches)


def _label_probability(group: Group, _config: RewardModelConfig) -> list[float]:
    if "label_probability" not in group.columns and OLD_LABEL_PROBABILITY in group.columns:
        raise _bad(group, RENAMED_LABEL_PROBABILITY)
    probability = _number(group, "label_probability", "use_label_probability")
    if not 0.5 <= probability <= 1:
        raise _bad(
            group,
            "use_label_probability needs numbers from 0.5 (a guess) to 1 (certain) in the column `label_probability`; got "
            f"{probability!r}",
        )
    return [probability] * len(group.branches)


def _grade(group: Group, config: RewardModelConfig) -> list[int]:
    """0 for a tie; else 1, or of a loss that needs it that of the row's strength."""
    if group.columns.get("tied"):
        return [0, 0]
    if not config.judgment_formula.needs_strength:
        return [1, 1]
    strength = group.columns.get("strength")
    if not isinstance(strength, str) or strength not in GRADES:
        raise _bad(
            group,
            f"the loss {config.loss} needs {' or '.join(GRADES)} in the column `strength` of a preference; got {strength!r}",
        )
    return [GRADES[strength]] * 2


def _ranks(group: Group, config: RewardModelConfig) -> list[float]:
    """Ranks; those behind the first ``top_ranks`` places are one."""
    ranks: Any = group.columns.get("ranks")
    if not isinstance(ranks, list) or len(ranks) != len(group.branches) or not all(map(_is_number, ranks)):
        raise _bad(group, f"the loss {config.loss} needs a rank for each completion; got {ranks!r}")
    if config.top_ranks is None:
        return [float(rank) for rank in ranks]
    places = [sum(other < rank for other in ranks) for rank in ranks]
    return [float(rank) if place < config.top_ranks else math.inf for rank, place in zip(ranks, places, strict=True)]


def _rating(group: Group, config: RewardModelConfig) -> list[float]:
    return [_number(group, "rating", f"the loss {config.loss}")]


def _label(group: Group, config: RewardModelConfig) -> list[float]:
    label = group.columns.get("label")
    if not isinstance(label, bool):
        raise _bad(group, f"the loss {config.loss} needs true or false in the column `label`; got {label!r}")
    return [float(label)]


def _number(group: Group, column: str, what: str) -> float:
    value: Any = group.columns.get(column)
    if not _is_number(value):
        raise _bad(group, f"{what} needs a number in the column `{column}`; got {value!r}")
    return float(value)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def _completions(count: int) -> str:
    return f"{count} completion{'' if count == 1 else 's'}"


def _bad(group: Group, reason: str) -> DataError:
    return DataError(f"Row {group.columns.get('id')}: {reason}.")
