"""How often a judge prefers the completion that people prefer: LLMBar and PandaLM's test set, in their published formats.

LLMBar's adversarial sets hold worse completions that look better, such as longer ones; a rule that prefers the longer one is right on .565 of
Natural and on .119 of Neighbor. A judge is asked in both orders, as in ``rlhf compare``.

Sources: Zeng et al. 2024, "Evaluating Large Language Models at Evaluating Instruction Following", arXiv:2310.07641; Wang et al. 2024,
"PandaLM", arXiv:2306.05087.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.errors import DataError, with_article
from rlhf.evaluation.benchmarks.results import BenchmarkResult, not_decided
from rlhf.evaluation.comparison import Comparison, compare_completions, too_few_read
from rlhf.evaluation.intervals import Estimate, share_interval
from rlhf.files import sha256
from rlhf.rewards.pairwise.votes import PairwiseJudge

LABELERS = ("annotator1", "annotator2", "annotator3")
TIE, FIRST, SECOND = 0, 1, 2
"""PandaLM's labels."""


def run_llmbar(
    judge: PairwiseJudge, *, questions: Path | str, limit: int | None = None, **unused: Any
) -> BenchmarkResult:
    """Share of items on which a judge prefers the better completion; a tie, or two verdicts that contradict each other, counts half.

    Args:
        judge: Of pairs.
        questions: A ``dataset.json``: rows with ``input``, ``output_1``, ``output_2`` and ``label``, 1 or 2.
        limit: Use only this many items, the first ones.
        unused: What other benchmarks want.

    Raises:
        DataError: The file can't be read, or a row is none.
    """
    rows = read_json_rows(questions, ("input", "output_1", "output_2", "label"))[:limit]
    for number, row in enumerate(rows):
        if row["label"] not in (1, 2):
            raise DataError(f"{questions}: row {number} has the label {row['label']!r}; wanted 1 or 2.")
    sides = [(row["output_1"], row["output_2"]) for row in rows]
    better = [pair[row["label"] - 1] for pair, row in zip(sides, rows, strict=True)]
    worse = [pair[2 - row["label"]] for pair, row in zip(sides, rows, strict=True)]
    comparison = compare_completions(
        [row["input"] for row in rows], better, worse, judge, clusters=list(range(len(rows))), length_control=False
    )
    return _result(
        "llmbar", questions, comparison, {"accuracy": comparison.win_rate}, list(comparison.per_prompt.values())
    )


def run_pandalm(
    judge: PairwiseJudge, *, questions: Path | str, limit: int | None = None, **unused: Any
) -> BenchmarkResult:
    """Agreement with the majority of three people: over all items with ties as a class of their own, and where people prefer one.

    Args:
        judge: Of pairs.
        questions: ``testset-v1.json``, perhaps with ``.gz``: rows with ``instruction``, ``input``, ``response1``, ``response2`` and a
            label of each annotator (0 a tie, 1, 2).
        limit: Use only this many items, the first ones.
        unused: What other benchmarks want.

    Raises:
        DataError: The file can't be read, or a row is none.
    """
    rows = read_json_rows(questions, ("instruction", "input", "response1", "response2", *LABELERS))[:limit]
    prompts = [f"{row['instruction']}\n\n{row['input']}".strip() for row in rows]
    comparison = compare_completions(
        prompts, [str(row["response1"]) for row in rows], [str(row["response2"]) for row in rows], judge,
        clusters=list(range(len(rows))), length_control=False,
    )  # fmt: skip
    outcomes = list(comparison.per_prompt.values())
    people = [[int(row[name]) for name in LABELERS] for row in rows]
    majority = [Counter(labels).most_common(1)[0][0] for labels in people]
    right: list[float | None] = [
        None if y is None else float((FIRST if y > 0.5 else SECOND if y < 0.5 else TIE) == label)
        for y, label in zip(outcomes, majority, strict=True)
    ]
    decided = [hit for hit, label in zip(right, majority, strict=True) if label != TIE and hit is not None]
    alike = [float(np.mean([one == other for one, other in combinations(labels, 2)])) for labels in people]
    scores = {
        "accuracy": _share([hit for hit in right if hit is not None]),
        "accuracy_where_people_prefer_one": _share(decided),
    }
    return _result("pandalm", questions, comparison, scores, right, people={"agreement_of_two_people": _share(alike)})


def _share(values: Sequence[float]) -> Estimate:
    return share_interval(values) if values else Estimate.missing("no item has a verdict")


def _result(
    name: str,
    path: Path | str,
    comparison: Comparison,
    scores: Mapping[str, Estimate],
    items: Sequence[float | None],
    *,
    people: Mapping[str, Estimate] | None = None,
) -> BenchmarkResult:
    """With what is of people and needs no verdict; only the judge's own numbers wait for enough of them."""
    undecided = too_few_read(comparison.asked, comparison.unparsed)
    own = dict(scores)
    if comparison.position is not None:
        own["first_place_won"] = comparison.position.first_rate
    own |= {f"first_place_won/{member}": each.first_rate for member, each in comparison.member_positions.items()}
    return BenchmarkResult(
        name=name,
        undecided=undecided,
        scores={**not_decided(own, undecided), **(people or {})},
        settings={
            "questions": str(path), "sha256": sha256(path), "judge": dict(comparison.judge), "asked": comparison.asked,
            "unparsed": comparison.unparsed,
        },
        items=[{"id": str(number), "score": value} for number, value in enumerate(items)],
        notes=comparison.notes(),
        missing={str(number): "no verdict that can be read" for number, value in enumerate(items) if value is None},
    )  # fmt: skip


def read_json_rows(path: Path | str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """A JSON list of objects, perhaps compressed by gzip.

    Raises:
        DataError: The file can't be read, or an object lacks a column.
    """
    try:
        content = Path(path).read_bytes()
        rows = json.loads(gzip.decompress(content) if str(path).endswith(".gz") else content)
    except (OSError, ValueError, EOFError) as err:
        raise DataError(f"{path} can't be read as JSON: {type(err).__name__}: {err}.") from None
    if not isinstance(rows, list):
        raise DataError(
            f"{path} holds {with_article(type(rows).__name__)}; wanted a list of rows with {', '.join(columns)}."
        )
    for number, row in enumerate(rows):
        if lacking := [name for name in columns if not isinstance(row, dict) or name not in row]:
            raise DataError(f"{path}: row {number} has no {lacking[0]}; wanted {', '.join(columns)}.")
    return rows
