"""MT-Bench's style: two turns of conversation, a policy against a baseline, by a judge of pairs.

It is the pairwise mode of MT-Bench ("pairwise-baseline"): the judge sees both conversations, asked in both orders, and both turns of a
question are one unit. Grades from 1 to 10 of single answers are not given: our judges compare. Reference answers, where a file has them, are
put into what the judge reads.

Source: Zheng et al. 2023, "Judging LLM-as-a-judge with MT-Bench and Chatbot Arena", arXiv:2306.05685; lm-sys/FastChat, ``llm_judge``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.config.policy import SamplingConfig
from rlhf.data.datasets import GRPODataset
from rlhf.data.json_rows import read_jsonl
from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.benchmarks.results import BenchmarkResult
from rlhf.evaluation.comparison import compare_completions
from rlhf.evaluation.intervals import Estimate, share_interval
from rlhf.evaluation.sampled_completions import sample_completions
from rlhf.files import sha256
from rlhf.models.policy import PolicyModel
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rollout.local import LocalEngine

NAME = "mt-bench"
TURNS = 2


def read_mt_bench(path: Path | str, references: Path | str | None = None) -> list[dict[str, Any]]:
    """Questions as published: ``question_id``, ``category``, two ``turns``; with ``reference``, two texts, where the other file has them.

    Args:
        path: ``question.jsonl``.
        references: ``reference_answer/MODEL.jsonl``: ``question_id`` and ``choices[0].turns``.

    Raises:
        DataError: A row is none; names the line.
    """
    found: list[dict[str, Any]] = []
    for raw in read_jsonl(Path(path), 0):
        row = raw.value
        turns = row.get("turns") if isinstance(row, Mapping) else None
        if not isinstance(turns, list) or len(turns) != TURNS or "question_id" not in row:
            raise DataError(
                f"{path}:{raw.place}: no question of MT-Bench; wanted `question_id`, `category` and two `turns`."
            )
        found.append({"id": str(row["question_id"]), "category": str(row.get("category", "")), "turns": turns})
    if references is not None:
        known = {}
        for raw in read_jsonl(Path(references), 0):
            try:
                known[str(raw.value["question_id"])] = list(raw.value["choices"][0]["turns"])
            except (KeyError, IndexError, TypeError):
                raise DataError(
                    f"{references}:{raw.place}: no reference answer; wanted `question_id` and `choices` with `turns`."
                ) from None
        for row in found:
            row["reference"] = known.get(row["id"])
    if not found:
        raise DataError(f"{path} holds no question.")
    return found


def run_mt_bench(
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
    both = [_conversations(model, rows, settings, seed + place) for place, model in enumerate((policy, other))]
    prompts, ours, theirs, clusters = [], [], [], []
    for number, row in enumerate(rows):
        for turn in range(TURNS):
            prompts.append(_question(row, turn))
            ours.append(_transcript(row, both[0][number], turn))
            theirs.append(_transcript(row, both[1][number], turn))
            clusters.append(number * TURNS + turn)
    found = compare_completions(prompts, ours, theirs, build_judge(judge), clusters=clusters)
    outcomes: list[float | None] = list(found.per_prompt.values())
    by_question = [_mean(outcomes[n * TURNS : (n + 1) * TURNS]) for n in range(len(rows))]
    scores = {"win_rate": _rate(by_question)}
    scores |= {f"win_rate/turn_{turn + 1}": _rate(outcomes[turn::TURNS]) for turn in range(TURNS)}
    for category in dict.fromkeys(row["category"] for row in rows):
        own = [value for row, value in zip(rows, by_question, strict=True) if row["category"] == category]
        scores[f"win_rate/{category}"] = _rate(own)
    return BenchmarkResult(
        name=NAME,
        scores=scores,
        settings={
            "questions": str(questions), "sha256": sha256(questions), "judge": dict(found.judge), "unparsed": found.unparsed,
            "references": None if references is None else sha256(references), "seed": seed, "sampling": settings.model_dump(),
        },
        items=[
            {"id": row["id"], "score": value, "answers": mine, "baseline_answers": yours}
            for row, value, mine, yours in zip(rows, by_question, *both, strict=True)
        ],
        notes=[
            "Pairwise against the baseline, not grades from 1 to 10.",
            *(["Math, reasoning and coding were judged without reference answers."] if references is None else []),
            *found.notes(),
        ],
        missing={row["id"]: "no verdict on one turn or both" for row, v in zip(rows, by_question, strict=True) if v is None},
    )  # fmt: skip


def _conversations(
    policy: PolicyModel, rows: Sequence[Mapping[str, Any]], sampling: SamplingConfig, seed: int
) -> list[list[str]]:
    """[Q] the answers to both turns; the second is asked with the first answer before it."""
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


def _question(row: Mapping[str, Any], turn: int) -> str:
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


def _transcript(row: Mapping[str, Any], answers: Sequence[str], turn: int) -> str:
    if turn == 0:
        return answers[0]
    return f"Answer to the first question: {answers[0]}\n\nAnswer to the second question: {answers[1]}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _rate(values: Sequence[float | None]) -> Estimate:
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    return share_interval(known) if known.size else Estimate.missing("no question has a verdict")
