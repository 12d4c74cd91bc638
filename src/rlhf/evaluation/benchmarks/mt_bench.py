"""MT-Bench's single-answer grading: two turns of conversation, each graded from 1 to 10 by a judge.

Both turns of a question are one unit: it has a grade, their mean, where both could be read. Published grades are of their own judge and its
prompts; here both are yours, so figures are comparable with figures of the same judge and template only.

Source: Zheng et al. 2023, "Judging LLM-as-a-judge with MT-Bench and Chatbot Arena", arXiv:2306.05685; lm-sys/FastChat, ``llm_judge``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.config.policy import SamplingConfig
from rlhf.data.datasets import GRPODataset
from rlhf.data.json_rows import read_jsonl
from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.benchmarks.results import BenchmarkResult, not_decided
from rlhf.evaluation.comparison import too_few_read
from rlhf.evaluation.intervals import Estimate, share_interval
from rlhf.evaluation.sampled_completions import sample_completions
from rlhf.files import sha256
from rlhf.models.policy import PolicyModel
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.grades import grades_of, grading_judge
from rlhf.rewards.pairwise.templates import HIGHEST_GRADE, LOWEST_GRADE
from rlhf.rewards.pairwise.votes import judge_hash
from rlhf.rollout.local import LocalEngine

NAME = "mt-bench"
TURNS = 2
NO_REFERENCES = "Math, reasoning and coding were judged without reference answers."


def read_mt_bench(path: Path | str, references: Path | str | None = None) -> list[dict[str, Any]]:
    """Questions as published: ``question_id``, ``category``, two ``turns``; with ``reference``, two texts, where the other file has them.

    Args:
        path: ``question.jsonl``.
        references: ``reference_answer/MODEL.jsonl``: ``question_id`` and ``choices[0].turns``.

    Raises:
        DataError: A row is none; names the line.
    """
    dialogues: list[dict[str, Any]] = []
    for raw in read_jsonl(Path(path), 0):
        row = raw.value
        turns = row.get("turns") if isinstance(row, Mapping) else None
        if not isinstance(turns, list) or len(turns) != TURNS or "question_id" not in row:
            raise DataError(
                f"{path}:{raw.place}: no question of MT-Bench; wanted `question_id`, `category` and two `turns`."
            )
        dialogues.append({"id": str(row["question_id"]), "category": str(row.get("category", "")), "turns": turns})
    if references is not None:
        known = {}
        for raw in read_jsonl(Path(references), 0):
            try:
                known[str(raw.value["question_id"])] = list(raw.value["choices"][0]["turns"])
            except (KeyError, IndexError, TypeError):
                raise DataError(
                    f"{references}:{raw.place}: no reference answer; wanted `question_id` and `choices` with `turns`."
                ) from None
        for row in dialogues:
            row["reference"] = known.get(row["id"])
    if not dialogues:
        raise DataError(f"{path} holds no question.")
    return dialogues


def run_mt_bench(
    policy: PolicyModel,
    *,
    questions: Path | str,
    judge: Any,
    references: Path | str | None = None,
    sampling: SamplingConfig | None = None,
    limit: int | None = None,
    seed: int = 0,
    **unused: Any,
) -> BenchmarkResult:
    """Mean grade, in all, by turn and by category.

    Args:
        policy: Who answers.
        questions: ``question.jsonl``.
        judge: Settings of a judge, or a judge, that can grade (``grading_judge``).
        references: See ``read_mt_bench``.
        sampling: How answers are drawn.
        limit: Use only this many questions, the first ones.
        seed: Of the answers.
        unused: What other benchmarks want.

    Raises:
        ConfigError: The model has no chat template, or the judge can only compare.
        DataError: A file can't be read.
        RewardError: The judge does not answer.
    """
    rows = read_mt_bench(questions, references)[:limit]
    grader = grading_judge(build_judge(judge))
    settings = sampling or SamplingConfig()
    answers = conversations(policy, rows, settings, seed)
    votes = grades_of(
        grader,
        [question_text(row, turn) for row in rows for turn in range(TURNS)],
        [transcript(own, turn) for own in answers for turn in range(TURNS)],
    )
    grades = [vote.first for vote in votes]
    unread = Counter(vote.reason for vote in votes if vote.first is None)
    undecided = too_few_read(len(votes), unread.total())
    by_question = by_both_turns(grades)
    scores = {"grade": mean_grade(by_question)}
    scores |= {f"grade/turn_{turn + 1}": mean_grade(grades[turn::TURNS]) for turn in range(TURNS)}
    for category in dict.fromkeys(row["category"] for row in rows):
        own = [grade for row, grade in zip(rows, by_question, strict=True) if row["category"] == category]
        scores[f"grade/{category}"] = mean_grade(own)
    notes = [NO_REFERENCES] if references is None else []
    if unread:
        notes.append(
            f"{unread.total():,} of {len(votes):,} grades could not be read ({unread.most_common(1)[0][0]}); they are left out, with the "
            "other turn of their question."
        )
    return BenchmarkResult(
        name=NAME,
        undecided=undecided,
        scores=not_decided(scores, undecided),
        settings={
            "questions": str(questions), "sha256": sha256(questions), "references": None if references is None else sha256(references),
            "judge": {"name": grader.name, "identity": dict(grader.identity), "hash": judge_hash(grader)},
            "asked": len(votes), "unparsed": unread.total(), "unparsed_reasons": dict(unread), "cost": sum(vote.cost for vote in votes),
            "seed": seed, "sampling": settings.model_dump(),
        },
        items=[
            {"id": row["id"], "category": row["category"], "score": grade, "grades": grades[n * TURNS : (n + 1) * TURNS], "answers": own}
            for n, (row, grade, own) in enumerate(zip(rows, by_question, answers, strict=True))
        ],
        notes=notes,
        missing={
            row["id"]: "no grade on one turn or both" for row, grade in zip(rows, by_question, strict=True) if grade is None
        },
    )  # fmt: skip


def mean_grade(grades: Sequence[float | None]) -> Estimate:
    """Mean of the grades that there are, each of another question.

    The interval is ``share_interval``'s on the scale from the lowest to the highest grade, so that it stays on the scale, and ten equal
    grades don't make it a point.
    """
    known = np.array([grade for grade in grades if grade is not None], dtype=np.float64)
    if not known.size:
        return Estimate.missing("no question has a grade")
    span = HIGHEST_GRADE - LOWEST_GRADE
    share = share_interval((known - LOWEST_GRADE) / span)
    return replace(
        share, value=float(known.mean()), low=LOWEST_GRADE + span * share.low, high=LOWEST_GRADE + span * share.high
    )


def by_both_turns(values: Sequence[float | None]) -> list[float | None]:
    """[Q] mean over the turns of each question; None where one of them has no value, for the turns differ in difficulty."""
    parts = [values[at : at + TURNS] for at in range(0, len(values), TURNS)]
    known = [[value for value in part if value is not None] for part in parts]
    return [sum(part) / TURNS if len(part) == TURNS else None for part in known]


def conversations(
    policy: PolicyModel, rows: Sequence[Mapping[str, Any]], sampling: SamplingConfig, seed: int
) -> list[list[str]]:
    """[Q] the answers to both turns; the second is asked with the first answer before it.

    Raises:
        ConfigError: The model has no chat template.
    """
    if not getattr(policy.tokenizer, "chat_template", None):
        raise ConfigError("MT-Bench is a conversation of two turns, and the model's tokenizer has no chat template.")
    dialogues: list[list[dict[str, str]]] = [[] for _ in rows]
    for turn in range(TURNS):
        for dialogue, row in zip(dialogues, rows, strict=True):
            dialogue.append({"role": "user", "content": row["turns"][turn]})
        asked: list[Any] = [{"id": f"{row['id']}/{turn}", "prompt": d} for row, d in zip(rows, dialogues, strict=True)]
        prompts = list(GRPODataset(asked, policy.tokenizer))
        groups = sample_completions(
            LocalEngine(policy), prompts, num_samples=1, sampling=sampling, seed=seed, name=NAME
        )
        for dialogue, group in zip(dialogues, groups, strict=True):
            dialogue.append({"role": "assistant", "content": group[0].text})
    return [[message["content"] for message in dialogue if message["role"] == "assistant"] for dialogue in dialogues]


def question_text(row: Mapping[str, Any], turn: int) -> str:
    """What a judge reads as the request of a turn: the question, or both, and the reference answer where there is one."""
    lines = (
        [row["turns"][0]]
        if turn == 0
        else [f"First question: {row['turns'][0]}", f"Second question: {row['turns'][1]}"]
    )
    if turn == 1:
        lines.append("Judge the answer to the second question.")
    if (reference := row.get("reference")) and len(reference) > turn:
        lines.append(f"Reference answer: {reference[turn]}")
    return "\n\n".join(lines)


def transcript(answers: Sequence[str], turn: int) -> str:
    """What it reads as the answer."""
    if turn == 0:
        return answers[0]
    return f"Answer to the first question: {answers[0]}\n\nAnswer to the second question: {answers[1]}"
