"""MT-Bench's pairwise style ("pairwise-baseline"): two turns of conversation, a policy against a baseline, by a judge of pairs.

The judge sees both conversations, asked in both orders, and both turns of a question are one unit. Reference answers, where a file has them,
are put into what the judge reads.

Source: as of ``mt_bench``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.config.policy import SamplingConfig
from rlhf.evaluation.benchmarks.mt_bench import (
    NO_REFERENCES,
    TURNS,
    by_both_turns,
    conversations,
    question_text,
    read_mt_bench,
    transcript,
)
from rlhf.evaluation.benchmarks.results import BenchmarkResult, not_decided
from rlhf.evaluation.comparison import compare_completions, too_few_read
from rlhf.evaluation.intervals import Estimate, share_interval
from rlhf.files import sha256
from rlhf.models.policy import PolicyModel
from rlhf.rewards.pairwise.building import build_judge

NAME = "mt-bench-pairs"


def run_mt_bench_pairs(
    policy: PolicyModel,
    *,
    questions: Path | str,
    judge: Any,
    baseline: PolicyModel | Path | str,
    references: Path | str | None = None,
    sampling: SamplingConfig | None = None,
    limit: int | None = None,
    seed: int = 0,
    **unused: Any,
) -> BenchmarkResult:
    """Win rate over the baseline, in all, by turn and by category.

    Args:
        policy: Who answers.
        questions: ``question.jsonl``.
        judge: Settings of a judge, or a judge of pairs.
        baseline: Who answers the same; a policy, a folder or a hub name.
        references: See ``read_mt_bench``.
        sampling: How answers are drawn.
        limit: Use only this many questions, the first ones.
        seed: Of the answers.
        unused: What other benchmarks want.

    Raises:
        ConfigError: A model has no chat template.
        DataError: A file can't be read.
    """
    rows = read_mt_bench(questions, references)[:limit]
    other = baseline if isinstance(baseline, PolicyModel) else PolicyModel.from_pretrained(str(baseline))
    settings = sampling or SamplingConfig()
    both = [conversations(model, rows, settings, seed + place) for place, model in enumerate((policy, other))]
    prompts, ours, theirs, clusters = [], [], [], []
    for number, row in enumerate(rows):
        for turn in range(TURNS):
            prompts.append(question_text(row, turn))
            ours.append(transcript(both[0][number], turn))
            theirs.append(transcript(both[1][number], turn))
            clusters.append(number * TURNS + turn)
    comparison = compare_completions(prompts, ours, theirs, build_judge(judge), clusters=clusters)
    outcomes: list[float | None] = list(comparison.per_prompt.values())
    by_question = by_both_turns(outcomes)
    undecided = too_few_read(comparison.asked, comparison.unparsed)
    scores = {"win_rate": _rate(by_question)}
    scores |= {f"win_rate/turn_{turn + 1}": _rate(outcomes[turn::TURNS]) for turn in range(TURNS)}
    for category in dict.fromkeys(row["category"] for row in rows):
        own = [value for row, value in zip(rows, by_question, strict=True) if row["category"] == category]
        scores[f"win_rate/{category}"] = _rate(own)
    return BenchmarkResult(
        name=NAME,
        undecided=undecided,
        scores=not_decided(scores, undecided),
        settings={
            "questions": str(questions), "sha256": sha256(questions), "judge": dict(comparison.judge), "asked": comparison.asked,
            "unparsed": comparison.unparsed,
            "references": None if references is None else sha256(references), "seed": seed, "sampling": settings.model_dump(),
        },
        items=[
            {"id": row["id"], "score": value, "answers": mine, "baseline_answers": yours}
            for row, value, mine, yours in zip(rows, by_question, *both, strict=True)
        ],
        notes=[
            *([NO_REFERENCES] if references is None else []),
            *comparison.notes(),
        ],
        missing={row["id"]: "no verdict on one turn or both" for row, v in zip(rows, by_question, strict=True) if v is None},
    )  # fmt: skip


def _rate(values: Sequence[float | None]) -> Estimate:
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    return share_interval(known) if known.size else Estimate.missing("no question has a verdict")
