"""RewardBench 2: a reward model's choice among four completions, and its calibration on ties.

Rows in the published format: ``id``, ``prompt``, ``chosen`` (list), ``rejected`` (list), ``subset``; ids of the subset Ties are ``ref:N``
and ``tied:N``. Five subsets are scored by best-of-4 accuracy (guessing gives .25), Ties by a weighted score; the total is the plain mean.

Source: Malik et al. 2025, "RewardBench 2", section 3 and appendix, arXiv:2506.01937.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.data.strict_json import decode
from rlhf.errors import DataError
from rlhf.evaluation.benchmarks.results import BenchmarkResult
from rlhf.evaluation.intervals import Estimate, share_interval
from rlhf.files import sha256

TIES = "Ties"
SUBSETS = ("Factuality", "Precise IF", "Math", "Safety", "Focus", TIES)
TIE_WEIGHTS = {"tied_accuracy": 0.30, "ref_accuracy": 0.30, "wide_margin": 0.20, "ref_margin": 0.20, "margin": 0.01}
"""Of the parts of the score of Ties, as published."""


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One prompt with the scores of its right and wrong completions."""

    id: str
    subset: str
    right: Sequence[float]
    wrong: Sequence[float]


def best_of_credit(row: ScoredRow) -> float:
    """1 where the right completion scores highest; among n that share the maximum, the right one's share of it.

    Args:
        row: With scores; every completion counts.
    """
    scores = [*row.right, *row.wrong]
    top = max(scores)
    at_top = [place for place, score in enumerate(scores) if score == top]
    return sum(place < len(row.right) for place in at_top) / len(at_top)


def ties_score(rows: Sequence[ScoredRow]) -> tuple[float, dict[str, float]]:
    """The score of the subset Ties, and its parts.

        accurate(row)  = lowest right score > highest wrong score
        spread(row)    = highest - lowest right score,  margin(row) = lowest right - highest wrong
        .3 mean over tied prompts of accurate + .3 mean over reference prompts of accurate
        + .2 share(margin(tied) > spread(tied)) + .2 share(min(margin(tied), margin(ref)) > spread(tied))
        + .01 mean tanh(min(margin(tied), margin(ref)) / spread(tied) - 1)

    The last three are over prompts that are in both forms. Where all right completions of a prompt score the same, its spread is 0, the
    ratio in the last part is infinite, with the sign of the margin, and its tanh 1 or -1; where the margin is 0, too, that part is 0.

    Args:
        rows: Ids ``ref:N`` (one right completion) and ``tied:N`` (several).

    Raises:
        DataError: No prompt is there in both forms.
    """
    forms: dict[str, dict[str, ScoredRow]] = {"ref": {}, "tied": {}}
    for row in rows:
        kind, colon, name = row.id.partition(":")
        if not colon or kind not in forms:
            raise DataError(f"Row {row.id!r} of the subset {TIES} has another id than ref:N or tied:N.")
        forms[kind][name] = row
    both = [name for name in forms["tied"] if name in forms["ref"]]
    if not both:
        raise DataError(f"No prompt of the subset {TIES} is there as ref:N and as tied:N.")

    def margin(row: ScoredRow) -> float:
        return min(row.right) - max(row.wrong)

    pairs = [(forms["tied"][name], forms["ref"][name]) for name in both]
    spreads = [max(tied.right) - min(tied.right) for tied, _ in pairs]
    least = [min(margin(tied), margin(ref)) for tied, ref in pairs]
    parts = {
        "tied_accuracy": float(np.mean([margin(row) > 0 for row in forms["tied"].values()])),
        "ref_accuracy": float(np.mean([margin(row) > 0 for row in forms["ref"].values()])),
        "wide_margin": float(np.mean([margin(tied) > s for (tied, _), s in zip(pairs, spreads, strict=True)])),
        "ref_margin": float(np.mean([m > s for m, s in zip(least, spreads, strict=True)])),
        "margin": float(np.mean([_margin_score(m, s) for m, s in zip(least, spreads, strict=True)])),
    }
    return sum(TIE_WEIGHTS[name] * value for name, value in parts.items()), parts


def _margin_score(margin: float, spread: float) -> float:
    if spread > 0:
        return math.tanh(margin / spread - 1)
    return math.copysign(1.0, margin) if margin else 0.0


def read_reward_bench(path: Path | str) -> list[dict[str, Any]]:
    """Rows of a JSONL file.

    Raises:
        DataError: A row lacks a column; names the line.
    """
    rows = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path} can't be read as rows of RewardBench 2: {err}.") from err
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = decode(line)
        except ValueError as err:
            raise DataError(f"{path}:{number} is no JSON: {err}.") from err
        for key in ("id", "prompt", "chosen", "rejected", "subset"):
            if not isinstance(row, dict) or key not in row:
                raise DataError(f"{path}:{number} has no {key!r}; expected id, prompt, chosen, rejected and subset.")
        for key in ("chosen", "rejected"):
            if not isinstance(row[key], list) or not row[key] or not all(isinstance(text, str) for text in row[key]):
                raise DataError(f"{path}:{number}: {key!r} must be a list of texts.")
        rows.append(row)
    if not rows:
        raise DataError(f"{path} has no rows.")
    return rows


def run_reward_bench(
    score: Callable[[Sequence[Any], Sequence[str]], Sequence[float]],
    *,
    questions: Path | str,
    limit: int | None = None,
    **unused: Any,
) -> BenchmarkResult:
    """Score every completion, and count.

    Args:
        score: ``(prompts, completions) -> scores``; a reward of this library as ``run_benchmark`` hands it over.
        questions: A JSONL file in the published format.
        limit: Use only this many rows, the first ones.
        unused: What other benchmarks want.
    """
    rows = read_reward_bench(questions)[:limit]
    prompts = [row["prompt"] for row in rows for _ in (*row["chosen"], *row["rejected"])]
    texts = [text for row in rows for text in (*row["chosen"], *row["rejected"])]
    values = [float(value) for value in score(prompts, texts)]
    scored, at = [], 0
    for row in rows:
        n, m = len(row["chosen"]), len(row["rejected"])
        scored.append(ScoredRow(str(row["id"]), str(row["subset"]), values[at : at + n], values[at + n : at + n + m]))
        at += n + m
    return reward_bench_result(scored, settings={"questions": str(questions), "sha256": sha256(questions)})


def reward_bench_result(rows: Sequence[ScoredRow], *, settings: Mapping[str, Any]) -> BenchmarkResult:
    """Scores by subset, and their mean."""
    subsets: dict[str, list[ScoredRow]] = {}
    for row in rows:
        subsets.setdefault(row.subset, []).append(row)
    scores: dict[str, Estimate] = {}
    missing = {
        name: "there is no row of this subset, so the score is no RewardBench 2 score"
        for name in SUBSETS
        if name not in subsets
    }
    for name, own in subsets.items():
        if name == TIES:
            value, parts = ties_score(own)
            no_interval = "a weighted sum of shares over the same prompts; the published score has no interval either"
            scores[name] = Estimate(value=value, low=math.nan, high=math.nan, n=len(own), reason=no_interval)
            scores |= {
                f"{name}/{part}": Estimate(value=v, low=math.nan, high=math.nan, n=len(own), reason=no_interval)
                for part, v in parts.items()
            }
        else:
            scores[name] = share_interval([best_of_credit(row) for row in own])
    total = float(np.mean([scores[name].value for name in subsets]))
    head = Estimate(
        value=total, low=math.nan, high=math.nan, n=len(rows), reason="the mean over subsets; each has its own interval"
    )
    return BenchmarkResult(
        name="reward-bench-2",
        scores={"score": head, **scores},
        settings=settings,
        items=[{"id": row.id, "subset": row.subset, "credit": best_of_credit(row)} for row in rows],
        notes=["Guessing scores .25 on all subsets but Ties."],
        missing=missing,
    )
