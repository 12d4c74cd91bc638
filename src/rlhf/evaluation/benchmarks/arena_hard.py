"""Arena-Hard's judgment files: win rates over its baseline, raw and at equal style.

Judgments, one JSON object a line: ``uid``, ``model``, ``category`` and two ``games``, the first with the baseline as assistant A, the second
with the model as A, each with a ``score`` such as ``A>>B``. Answers: ``uid``, ``model`` and ``metadata``, ``token_len`` and counts of
Markdown by kind. A strong verdict counts three times.

Source: lmarena/arena-hard-auto, ``show_result.py`` (``load_judgments``, ``print_leaderboard_with_style_features``), read in November 2026.
Its bootstrap draws single verdicts; intervals here are over questions, which are what was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from rlhf.data.json_rows import read_jsonl
from rlhf.errors import DataError
from rlhf.evaluation.intervals import CONFIDENCE, Array, Estimate, share_interval, unit_means
from rlhf.evaluation.ratings.bradley_terry import fit_matches
from rlhf.evaluation.ratings.matches import Matches

STRONG = 3
"""How often a verdict with two signs counts."""
VERDICTS: Mapping[str, tuple[float, int]] = {
    "A>>B": (1.0, STRONG), "A>B": (1.0, 1), "A=B": (0.5, 1), "A<B": (0.0, 1), "A<<B": (0.0, STRONG),
    "B>>A": (0.0, STRONG), "B>A": (0.0, 1), "B=A": (0.5, 1), "B<A": (1.0, 1), "B<<A": (1.0, STRONG),
}  # fmt: skip
"""Label -> outcome of A, and how often it counts."""
MARKDOWN = ("header_count", "list_count", "bold_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaHardScore:
    """One model against the baseline."""

    win_rate: Estimate
    """Mean over questions of the weighted verdicts."""
    style_controlled: Estimate
    """Where both answers are of average difference in length and Markdown, as Arena-Hard prints it; missing without ``answers``."""
    coefficients: Mapping[str, float]
    """Style -> log-odds to a standard deviation of its difference."""
    num_unparsed: int
    """Questions left out, for one game or both have no verdict."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "win_rate": self.win_rate.to_dict(), "style_controlled": self.style_controlled.to_dict(),
            "coefficients": dict(self.coefficients), "num_unparsed": self.num_unparsed,
        }  # fmt: skip


def arena_hard_scores(
    judgments: Sequence[Path | str],
    *,
    baseline: str,
    answers: Mapping[str, Path | str] | None = None,
    category: str | None = None,
    confidence: float = CONFIDENCE,
) -> dict[str, ArenaHardScore]:
    """Read judgment files, and score every model in them.

    Args:
        judgments: Files of one judge.
        baseline: Name of the model that all were compared with.
        answers: Model -> its file of answers, the baseline's included, for style control.
        category: Use only these questions.
        confidence: Of the intervals.

    Returns:
        Model -> score, the best first.

    Raises:
        DataError: A line is no judgment, a model has no answers to a question, or there is nothing to read.
    """
    verdicts: dict[str, dict[str, list[float]]] = {}
    unparsed: dict[str, int] = {}
    for path in judgments:
        for raw in read_jsonl(Path(path), 0):
            where = f"{path}:{raw.place}"
            row = _checked(raw.value, where)
            if category is not None and row.get("category") != category:
                continue
            own = verdicts.setdefault(row["model"], {})
            unparsed.setdefault(row["model"], 0)
            outcomes = _outcomes(row["games"], where)
            if outcomes is None:
                unparsed[row["model"]] += 1
            else:
                own[str(row["uid"])] = outcomes
    if not any(verdicts.values()):
        raise DataError(
            f"{', '.join(map(str, judgments))}: there is no judgment{f' of {category}' if category else ''}."
        )
    controlled = {} if answers is None else _controlled(verdicts, answers, baseline, confidence)
    by_model = {
        model: ArenaHardScore(
            win_rate=share_interval(
                unit_means(np.array([v for each in own.values() for v in each]), [uid for uid, each in own.items() for _ in each]),
                confidence=confidence,
            )
            if own
            else Estimate.missing("no question has both verdicts"),
            style_controlled=controlled[model][0] if model in controlled else Estimate.missing("no answers were given"),
            coefficients=controlled[model][1] if model in controlled else {},
            num_unparsed=unparsed[model],
        )
        for model, own in verdicts.items()
    }  # fmt: skip
    return dict(
        sorted(by_model.items(), key=lambda item: -item[1].win_rate.value if item[1].win_rate.measured else math.inf)
    )


def _checked(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, Mapping) or not {"uid", "model", "games"} <= row.keys() or len(row["games"] or ()) != 2:
        raise DataError(f"{where}: no judgment of Arena-Hard; wanted `uid`, `model` and two `games`.")
    return row


def _outcomes(games: Sequence[Any], where: str) -> list[float] | None:
    """Of the model, both games; None where one has no verdict."""
    outcomes: list[float] = []
    for place, game in enumerate(games):
        label = game.get("score") if isinstance(game, Mapping) else None
        if label is None:
            return None
        if label not in VERDICTS:
            raise DataError(
                f"{where}: games[{place}].score is {label!r}; wanted one of {', '.join(VERDICTS)}, or null."
            )
        value, count = VERDICTS[label]
        outcomes += [value if place == 1 else 1 - value] * count
    return outcomes


def _controlled(
    verdicts: Mapping[str, Mapping[str, Sequence[float]]],
    answers: Mapping[str, Path | str],
    baseline: str,
    confidence: float,
) -> dict[str, tuple[Estimate, dict[str, float]]]:
    styles = {model: _styles(answers, model) for model in (*verdicts, baseline)}
    matches, ours, theirs = [], [], []
    for model, own in verdicts.items():
        for uid, outcomes in own.items():
            for side in (model, baseline):
                if uid not in styles[side]:
                    raise DataError(f"{answers[side]} has no answer of {side} to the question {uid}.")
            matches += [(model, baseline, outcome, uid) for outcome in outcomes]
            ours += [styles[model][uid]] * len(outcomes)
            theirs += [styles[baseline][uid]] * len(outcomes)
    features = _differences(np.array(ours), np.array(theirs))
    ratings = fit_matches(Matches.of(matches), style=features, confidence=confidence)
    rates = {}
    for model in verdicts:
        gap = ratings.difference(model, baseline)
        rate = Estimate(
            value=float(expit(gap.value)), low=float(expit(gap.low)), high=float(expit(gap.high)), n=gap.n,
            confidence=confidence, reason=gap.reason,
        )  # fmt: skip
        rates[model] = (rate, dict(ratings.style))
    return rates


def _styles(answers: Mapping[str, Path | str], model: str) -> dict[str, list[float]]:
    """Question -> tokens and counts of Markdown."""
    if model not in answers:
        raise DataError(f"answers has no file of {model}; give the answers of every judged model and of the baseline.")
    styles = {}
    for raw in read_jsonl(Path(answers[model]), 0):
        row = raw.value
        metadata = row.get("metadata") if isinstance(row, Mapping) else None
        if not isinstance(metadata, Mapping) or "uid" not in row or "token_len" not in metadata:
            raise DataError(
                f"{answers[model]}:{raw.place}: no answer of Arena-Hard; wanted `uid` and `metadata` with `token_len`."
            )
        counts = [metadata.get(name, 0) for name in MARKDOWN]
        styles[str(row["uid"])] = [
            float(metadata["token_len"]), *(float(sum(c.values()) if isinstance(c, Mapping) else c) for c in counts)
        ]  # fmt: skip
    return styles


def _differences(ours: Array, theirs: Array) -> dict[str, Array]:
    """Length: (a - b) / (a + b); Markdown: the same of counts by token, with 1 below; both centered, in standard deviations."""
    length = (ours[:, 0] - theirs[:, 0]) / np.maximum(ours[:, 0] + theirs[:, 0], 1)
    mine, other = (side[:, 1:] / (side[:, :1] + 1) for side in (ours, theirs))
    markdown = (mine - other) / (mine + other + 1)
    differences = {}
    for name, values in zip(("length", "headers", "lists", "bold"), (length, *markdown.T), strict=True):
        if np.ptp(values) > 0:
            differences[name] = (values - values.mean()) / values.std(ddof=1)
    return differences
