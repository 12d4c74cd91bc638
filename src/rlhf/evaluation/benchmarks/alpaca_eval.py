"""AlpacaEval's style: a policy's answers against reference answers, by a judge, raw and at equal length; and its annotation files.

Published figures are of their own judge and its prompt (a verdict's probability in one order); here the judge is yours and is asked in both
orders, so figures are comparable with figures of the same judge and template only. The length-controlled rate leaves out the difficulty of
instructions, which AlpacaEval fits on its own leaderboard.

Source: Dubois et al. 2024, arXiv:2404.04475; tatsu-lab/alpaca_eval.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf.config.policy import SamplingConfig
from rlhf.data.datasets import GRPODataset
from rlhf.errors import DataError
from rlhf.evaluation.benchmarks.judge_agreement import read_json_rows
from rlhf.evaluation.benchmarks.results import BenchmarkResult, not_decided
from rlhf.evaluation.comparison import compare_completions, too_few_read
from rlhf.evaluation.ratings.style_control import LengthControlled, length_controlled_win_rate
from rlhf.evaluation.sampled_completions import sample_completions
from rlhf.files import sha256
from rlhf.models.policy import PolicyModel
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rollout.local import LocalEngine

NAME = "alpaca-eval"
DRAW = 0.5


def run_alpaca_eval(
    policy: PolicyModel,
    *,
    questions: Path | str,
    judge: Any,
    sampling: SamplingConfig | None = None,
    limit: int | None = None,
    seed: int = 0,
    **unused: Any,
) -> BenchmarkResult:
    """Win rate over the reference answers of a question file.

    Args:
        policy: Who answers.
        questions: ``alpaca_eval.json``: rows with ``instruction`` and ``output``, the reference answer.
        judge: Settings of a judge, or a judge of pairs.
        sampling: How answers are drawn.
        limit: Use only this many instructions, the first ones.
        seed: Of the answers.
        unused: What other benchmarks want.

    Raises:
        DataError: The file can't be read, or a row is none.
    """
    rows = read_json_rows(questions, ("instruction", "output"))[:limit]
    chat = bool(getattr(policy.tokenizer, "chat_template", None))
    texts: list[Any] = [
        [{"role": "user", "content": row["instruction"]}] if chat else row["instruction"] for row in rows
    ]
    prompts = list(
        GRPODataset([{"id": str(number), "prompt": text} for number, text in enumerate(texts)], policy.tokenizer)
    )
    groups = sample_completions(
        LocalEngine(policy), prompts, num_samples=1, sampling=sampling or SamplingConfig(), seed=seed, name=NAME
    )
    answers = [group[0] for group in groups]
    comparison = compare_completions(
        [row["instruction"] for row in rows], [answer.text for answer in answers], [row["output"] for row in rows], build_judge(judge),
        ended_a=[not answer.truncated for answer in answers], clusters=list(range(len(rows))),
    )  # fmt: skip
    assert comparison.length is not None
    undecided = too_few_read(comparison.asked, comparison.unparsed)
    scores = {"win_rate": comparison.win_rate, "length_controlled_win_rate": comparison.length.rate}
    return BenchmarkResult(
        name=NAME,
        undecided=undecided,
        scores=not_decided(scores, undecided),
        settings={
            "questions": str(questions), "sha256": sha256(questions), "judge": dict(comparison.judge), "asked": comparison.asked,
            "unparsed": comparison.unparsed, "seed": seed, "sampling": (sampling or SamplingConfig()).model_dump(),
        },
        items=[
            {"id": str(number), "score": value, "answer": answer.text}
            for number, (value, answer) in enumerate(zip(comparison.per_prompt.values(), answers, strict=True))
        ],
        notes=[comparison.sentence("the policy", "the reference"), *comparison.notes()],
        missing={
            str(number): "no verdict that can be read"
            for number, value in enumerate(comparison.per_prompt.values())
            if value is None
        },
    )  # fmt: skip


def annotated_win_rate(path: Path | str, *, seed: int = 0) -> LengthControlled:
    """Raw and length-controlled win rate of a file of annotations as AlpacaEval publishes them.

    Args:
        path: ``annotations.json``: rows with ``output_1`` (the baseline), ``output_2`` (the model) and ``preference``, from 1 (the
            baseline) to 2 (the model), 1.5 or 0 for a draw; rows without one are left out.
        seed: Of the bootstrap.

    Raises:
        DataError: The file can't be read, or a preference is none.
    """
    rows = [
        row for row in read_json_rows(path, ("output_1", "output_2", "preference")) if row["preference"] is not None
    ]
    for row in rows:
        value = row["preference"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not (value == 0 or 1 <= value <= 2):
            raise DataError(f"{path} has the preference {value!r}; wanted a number from 1 to 2, 0 for a draw, or null.")
    outcomes = [row["preference"] - 1 if row["preference"] else DRAW for row in rows]
    lengths, baseline_lengths = ([len(row[name]) for row in rows] for name in ("output_2", "output_1"))
    return length_controlled_win_rate(outcomes, lengths, baseline_lengths, seed=seed)
