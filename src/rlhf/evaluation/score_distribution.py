"""Scores of completions looked at as a whole: how they are spread, what they follow, and which prompts would teach nothing."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.data.expand import text_key
from rlhf.data.message_text import counted
from rlhf.errors import DataError, did_you_mean, kind_of
from rlhf.evaluation.intervals import Array, Estimate, finite_or_none
from rlhf.evaluation.reward_quality import pair_accuracy, spearman

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
SCORE_COLUMNS = ("score", "reward", "rewards", "scores")
SOURCE_COLUMNS = ("source", "dataset", "domain", "category", "topic", "task")
LENGTH_BINS = 4
BINS = 10
"""Of the histogram."""
MAX_GROUPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRows:
    """Scores, and what is known of the completion behind each."""

    scores: Array
    """[n] NaN where a row has none."""
    prompts: Sequence[str] | None = None
    """[n] what tells prompts apart, with the rollout's step where rows have one."""
    plain_prompts: Sequence[str] | None = None
    """[n] the prompts as texts."""
    completions: Sequence[str] | None = None
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    raw_prompts: Sequence[Any] | None = None
    """[n] the prompts as they are written, texts or messages."""
    is_chosen: Sequence[bool] | None = None
    """[n] of rows of pairs, each of which is two completions one after the other: whether it is the chosen one."""
    trial: RewardTrial | None = None
    """What scored them, where they were scored now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTrial:
    """What a reward gave besides scores, and what that took."""

    parts: Mapping[str, Sequence[float | None]]
    """Name of a component or a criterion -> [n]."""
    reasons: Mapping[str, int]
    """Why rows have no score -> how many of them."""
    seconds: float
    """By the clock, for all rows."""
    questions: int | None = None
    """Answers of judges that were read, kept ones included; None where no judge is asked."""
    cost: float | None = None
    """Dollars of these; None where a price is not known."""

    def to_dict(self, num_rows: int) -> dict[str, Any]:
        """For JSON."""
        thousands = num_rows / 1000
        return {
            "parts": {name: _described(values) for name, values in self.parts.items()},
            "reasons": dict(self.reasons),
            "seconds": self.seconds,
            "seconds_per_thousand": self.seconds / thousands,
            "questions": self.questions,
            "cost": self.cost,
            "cost_per_thousand": None if self.cost is None else self.cost / thousands,
        }


def _described(values: Sequence[float | None]) -> dict[str, Any]:
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(known):
        return {"n": 0, "mean": None, "std": None, "low": None, "high": None}
    return {
        "n": len(known), "mean": float(known.mean()), "std": finite_or_none(float(known.std(ddof=1)) if len(known) > 1 else math.nan),
        "low": float(known.min()), "high": float(known.max()),
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreReport:
    """What was found; ``to_dict`` is what `rlhf debug rewards --json` prints."""

    num_rows: int
    num_missing: int
    mean: float
    std: float
    quantiles: Mapping[str, float]
    tied_frac: float
    """Share of scores that another row has, too."""
    num_values: int
    """Different scores."""
    length_correlation: Estimate
    """Spearman's, of score and characters, over all rows."""
    length_correlation_within: float
    """Of score and characters, each minus its prompt's mean: what is left when the mix of prompts is taken out; NaN without siblings."""
    by_length: Sequence[tuple[str, int, float]] = ()
    """Range of characters, rows, mean score."""
    by_source: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """Value of the source column -> rows, mean score."""
    source_column: str = ""
    num_groups: int = 0
    """Prompts with several scores."""
    equal_groups_frac: float = math.nan
    """Share of them whose scores are all equal: their advantages are 0, so they teach nothing."""
    unscored_groups_frac: float = math.nan
    """Share of the prompts with several completions of which one has no score: training leaves such a prompt out."""
    within_std: float = math.nan
    """Mean over those prompts of the deviation between their completions."""
    best: Sequence[tuple[float, str, str]] = ()
    """Score, prompt, completion."""
    worst: Sequence[tuple[float, str, str]] = ()
    histogram: Sequence[tuple[float, float, int]] = ()
    """From, to, rows; the last interval holds its end."""
    pairs_agree: Estimate | None = None
    """Of rows that are pairs: how often the chosen completion scores higher, ties counted half."""
    trial: RewardTrial | None = None
    """What scored the rows, where they were scored now."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "num_rows": self.num_rows,
            "num_missing": self.num_missing,
            "mean": finite_or_none(self.mean),
            "std": finite_or_none(self.std),
            "quantiles": dict(self.quantiles),
            "tied_frac": finite_or_none(self.tied_frac),
            "num_values": self.num_values,
            "length_correlation": self.length_correlation.to_dict(),
            "length_correlation_within_prompts": finite_or_none(self.length_correlation_within),
            "by_length": [{"characters": c, "rows": n, "mean": m} for c, n, m in self.by_length],
            "source_column": self.source_column,
            "by_source": {name: {"rows": n, "mean": m} for name, (n, m) in self.by_source.items()},
            "num_groups": self.num_groups,
            "equal_groups_frac": finite_or_none(self.equal_groups_frac),
            "unscored_groups_frac": finite_or_none(self.unscored_groups_frac),
            "within_std": finite_or_none(self.within_std),
            "best": [{"score": s, "prompt": p, "completion": c} for s, p, c in self.best],
            "worst": [{"score": s, "prompt": p, "completion": c} for s, p, c in self.worst],
            "histogram": [{"from": low, "to": high, "rows": n} for low, high, n in self.histogram],
            "pairs_agree": None if self.pairs_agree is None else self.pairs_agree.to_dict(),
            "reward": None if self.trial is None else self.trial.to_dict(self.num_rows),
        }


def score_report(rows: ScoredRows, *, source: str | None = None, num_shown: int = 3) -> ScoreReport:
    """Describe scores.

    Args:
        rows: At least one with a score.
        source: Column to group by; by default the first of ``SOURCE_COLUMNS`` that there is.
        num_shown: Best and worst completions.

    Raises:
        DataError: No row has a score, or none has the column.
    """
    known = np.flatnonzero(np.isfinite(rows.scores)).tolist()
    scores = rows.scores[known]
    if not len(scores):
        reasons = {} if rows.trial is None else rows.trial.reasons
        why = f" The reason is most often: {max(reasons, key=lambda reason: reasons[reason])}." if reasons else ""
        raise DataError(f"None of {counted(len(rows.scores), 'row')} has a score that is a finite number.{why}")
    if source is not None and source not in rows.columns:
        there = ", ".join(rows.columns) or "none"
        raise DataError(
            f"No row has a column {source!r}.{did_you_mean(source, rows.columns)} Columns to group by: {there}."
        )
    column = source or next((name for name in SOURCE_COLUMNS if name in rows.columns), "")
    _, counts = np.unique(scores, return_counts=True)
    texts = None if rows.completions is None else [rows.completions[i] for i in known]
    prompts = None if rows.prompts is None else [rows.prompts[i] for i in known]
    lengths = None if texts is None else np.array([float(len(text)) for text in texts])
    groups = [] if prompts is None else [each for each in _grouped(prompts) if len(each) > 1]
    every = [] if rows.prompts is None else [each for each in _grouped(rows.prompts) if len(each) > 1]
    incomplete = [bool(np.isnan(rows.scores[each]).any()) for each in every]
    deviations = [float(scores[each].std()) for each in groups]
    order = np.argsort(scores, kind="stable").tolist()
    shown = (
        [] if texts is None else [(float(scores[i]), "" if prompts is None else prompts[i], texts[i]) for i in order]
    )
    missing = Estimate.missing("the rows have no completions")
    return ScoreReport(
        num_rows=len(rows.scores),
        num_missing=len(rows.scores) - len(scores),
        mean=float(scores.mean()),
        std=float(scores.std(ddof=1)) if len(scores) > 1 else math.nan,
        quantiles={f"{share:g}": float(np.quantile(scores, share)) for share in QUANTILES},
        tied_frac=float(counts[counts > 1].sum() / len(scores)),
        num_values=len(counts),
        length_correlation=missing if lengths is None else spearman(lengths, scores),
        length_correlation_within=math.nan if lengths is None else _within(lengths, scores, groups),
        by_length=() if lengths is None else _by_length(lengths, scores),
        by_source=_by_source(column, [rows.columns[column][i] for i in known], scores) if column else {},
        source_column=column,
        num_groups=len(groups),
        equal_groups_frac=float(np.mean([d == 0 for d in deviations])) if deviations else math.nan,
        unscored_groups_frac=float(np.mean(incomplete)) if incomplete else math.nan,
        within_std=float(np.mean(deviations)) if deviations else math.nan,
        best=shown[::-1][:num_shown],
        worst=shown[:num_shown],
        histogram=_histogram(scores),
        pairs_agree=None if rows.is_chosen is None else pair_accuracy(rows.scores[0::2] - rows.scores[1::2]),
        trial=rows.trial,
    )


def read_scores(path: Path | str, *, needs_scores: bool = True) -> ScoredRows:
    """Scores of a file: ``.jsonl`` with a score column (a run's ``rollouts.jsonl``), ``.npy``, or ``.pt`` with weights only.

    Args:
        path: The file.
        needs_scores: Refuse rows without a score column.

    Raises:
        DataError: It can't be read, or holds no scores.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    if path.suffix in (".npy", ".pt"):
        return ScoredRows(scores=_array(path))
    if path.suffix not in (".jsonl", ".ndjson"):
        raise DataError(f"{path} is neither .jsonl, .npy nor .pt; scores are read from those.")
    rows = _json_rows(path)
    is_chosen = None
    if not needs_scores and all("chosen" in row and "rejected" in row and "completion" not in row for row in rows):
        rows, is_chosen = _halves(rows), [True, False] * len(rows)
    name = next((name for name in SCORE_COLUMNS if any(_is_number(row.get(name)) for row in rows)), None)
    if name is None and needs_scores:
        raise DataError(
            f"{path} has no column of numbers called {', '.join(SCORE_COLUMNS)}; its columns are {', '.join(rows[0])}. Rename one, or give "
            "reward=SPEC to score the rows."
        )
    values: list[Any] = [row.get(name) if name else None for row in rows]
    has_step = any("step" in row for row in rows)
    prompts = [
        text_key(row["prompt"]) + (f" (step {row.get('step')})" if has_step else "") for row in rows if "prompt" in row
    ]
    completions = [_text(row["completion"]) for row in rows if "completion" in row]
    taken = {"prompt", "completion", "prompt_ids", "completion_ids", "scored", name}
    columns = dict.fromkeys(key for row in rows for key in row if key not in taken)
    return ScoredRows(
        scores=np.array([float(v) if _is_number(v) else math.nan for v in values], dtype=np.float64),
        prompts=prompts if len(prompts) == len(rows) else None,
        plain_prompts=[_text(row["prompt"]) for row in rows] if len(prompts) == len(rows) else None,
        completions=completions if len(completions) == len(rows) else None,
        columns={key: [row.get(key) for row in rows] for key in columns},
        raw_prompts=[row["prompt"] for row in rows] if len(prompts) == len(rows) else None,
        is_chosen=is_chosen,
    )


def _halves(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The two completions of each pair as rows, the chosen one first."""
    halves = []
    for row in rows:
        own = {key: value for key, value in row.items() if key not in ("chosen", "rejected", *SCORE_COLUMNS)}
        halves += [{**own, "completion": row["chosen"]}, {**own, "completion": row["rejected"]}]
    return halves


def _array(path: Path) -> Array:
    try:
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
        else:
            import torch

            loaded = torch.load(path, map_location="cpu", weights_only=True)
            if isinstance(loaded, Mapping):
                name = next((name for name in SCORE_COLUMNS if name in loaded), None)
                if name is None:
                    raise DataError(
                        f"{path} holds {', '.join(map(str, loaded))}, and none is called {', '.join(SCORE_COLUMNS)}."
                    )
                loaded = loaded[name]
            array = torch.as_tensor(loaded).double().numpy()
        if np.iscomplexobj(array):
            raise DataError(f"{path} holds complex numbers; wanted one real number a completion.")
        scores: Array = np.asarray(array, dtype=np.float64).reshape(-1)
    except DataError:
        raise
    except pickle.UnpicklingError:
        raise DataError(
            f"{path} holds Python objects, and reading them would run code; save tensors or numbers alone, as torch.save(scores, FILE)."
        ) from None
    except Exception as err:  # numpy and torch raise many kinds for a damaged or foreign file, and pickles are refused
        raise DataError(f"{path} can't be read as numbers: {type(err).__name__}: {str(err).splitlines()[0]}") from None
    return scores


def _json_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(
        path.read_bytes().split(b"\n"), start=1
    ):  # texts may hold what str.splitlines splits at
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as err:
            raise DataError(f"{path}:{number} is not UTF-8: {err.reason} at byte {err.start + 1}.") from None
        except (json.JSONDecodeError, RecursionError) as err:
            raise DataError(f"{path}:{number} is not JSON: {err}.") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number} is {kind_of(row)}; wanted an object with a score.")
        for name in ("prompt", "completion", "chosen", "rejected"):
            if name in row and not _is_text(row[name]):
                raise DataError(
                    f"{path}:{number}: {name} is {kind_of(row[name])}; wanted a text or a list of messages."
                )
        rows.append(row)
    if not rows:
        raise DataError(f"{path} is empty.")
    return rows


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(message, dict) for message in value))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(str(message.get("content", "")) for message in value)


def _grouped(names: Sequence[str]) -> list[list[int]]:
    numbers_of: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        numbers_of.setdefault(name, []).append(number)
    return list(numbers_of.values())


def _within(lengths: Array, scores: Array, groups: Sequence[Sequence[int]]) -> float:
    if not groups:
        return math.nan
    x = np.concatenate([lengths[list(each)] - lengths[list(each)].mean() for each in groups])
    y = np.concatenate([scores[list(each)] - scores[list(each)].mean() for each in groups])
    spread = float(np.square(x).sum() * np.square(y).sum())
    return float((x * y).sum() / math.sqrt(spread)) if spread > 0 else math.nan


def _by_length(lengths: Array, scores: Array) -> list[tuple[str, int, float]]:
    ends = np.unique(np.quantile(lengths, np.linspace(0, 1, LENGTH_BINS + 1)))
    which = np.clip(np.searchsorted(ends, lengths, side="right") - 1, 0, max(0, len(ends) - 2))
    bins = []
    for b in range(max(1, len(ends) - 1)):
        inside = which == b
        if inside.any():
            bins.append(
                (
                    f"{lengths[inside].min():.0f} to {lengths[inside].max():.0f}",
                    int(inside.sum()),
                    float(scores[inside].mean()),
                )
            )
    return bins


def _histogram(scores: Array) -> list[tuple[float, float, int]]:
    """Intervals of one width between the least and the largest score; one where all are equal."""
    if scores.min() == scores.max():
        return [(float(scores.min()), float(scores.max()), len(scores))]
    counts, ends = np.histogram(scores, bins=BINS)
    return [(float(ends[i]), float(ends[i + 1]), int(n)) for i, n in enumerate(counts)]


def _by_source(column: str, values: Sequence[Any], scores: Array) -> dict[str, tuple[int, float]]:
    groups: dict[str, list[int]] = {}
    for number, value in enumerate(values):
        groups.setdefault(str(value), []).append(number)
    most = sorted(groups.items(), key=lambda item: -len(item[1]))[:MAX_GROUPS]
    return {name: (len(numbers), float(scores[numbers].mean())) for name, numbers in most}
