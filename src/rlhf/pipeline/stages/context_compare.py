"""Ways to shorten a context on the same questions: accuracy kept against tokens saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlhf.config.context_compression import ContextCompareStage
from rlhf.data.contracts import CompletionRow
from rlhf.data.extractive import extract_context
from rlhf.data.read import open_rows
from rlhf.errors import DataError
from rlhf.evaluation.intervals import paired_difference, share_interval
from rlhf.evaluation.records import SCHEMA
from rlhf.files import write_json, write_jsonl
from rlhf.models.context_compressor import ContextCompressor
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.stages.context import StageContext, StageOutcome
from rlhf.pipeline.stages.inputs import load_policy

WHOLE = "whole context"


@dataclass(frozen=True, slots=True)
class Question:
    """A row."""

    context: str
    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class Answers:
    """What one way led to."""

    title: str
    texts: Sequence[str]
    context_tokens: Sequence[int]
    """Places that the context takes before each question."""
    for_question: bool
    """Whether the context was shortened for its question, so that another question needs another one."""


def run_context_compare(stage: ContextCompareStage, at: StageContext) -> StageOutcome:
    """Every way on every question; right is the completion of the row, up to white space at its ends."""
    policy = load_policy(stage.policy, at, seed=0)
    with at.naming("data"):
        questions = read_questions(at.paths(stage.data), limit=stage.limit)
    compressors = {each: ContextCompressor.from_pretrained(at.path(each), policy) for each in stage.compressors}
    ways = answer_every_way(
        policy,
        questions,
        compressors,
        budgets=stage.extractive_tokens,
        counts=stage.num_vectors,
        max_new_tokens=stage.max_new_tokens,
    )
    right = {
        way.title: [float(t.strip() == q.completion.strip()) for t, q in zip(way.texts, questions, strict=True)]
        for way in ways
    }
    whole = np.mean(ways[0].context_tokens)
    part: list[dict[str, Any]] = []
    for way in ways:
        tokens = float(np.mean(way.context_tokens))
        accuracy = share_interval(right[way.title])
        part.append({
            "title": way.title,
            "for_question": way.for_question,
            "accuracy": asdict(accuracy),
            "difference": asdict(paired_difference(right[WHOLE], right[way.title], shares=True)),
            "context_tokens": tokens,
            "saved_frac": 1 - tokens / whole if whole else 0.0,
        })  # fmt: skip
        at.log.say(f"  {way.title}: {accuracy.value:.3f} right, {tokens:.1f} tokens of context")
    report = {"policy": stage.policy.path, "num_questions": len(questions), "ways": part}
    write_json(at.folder / "evaluation.json", {"schema": SCHEMA, "contexts": report})
    write_jsonl(at.folder / "answers.jsonl", answer_rows(questions, ways))
    metrics: dict[str, float] = {"num_questions": len(questions)}
    for each in part:
        name = each["title"].replace(" ", "_")
        metrics |= {f"{name}/accuracy": each["accuracy"]["value"], f"{name}/context_tokens": each["context_tokens"]}
    return StageOutcome(_headline(part), metrics)


def read_questions(source: str | list[str], *, limit: int | None) -> list[Question]:
    """Rows with `context`, `prompt` and `completion`, all of them texts.

    Raises:
        DataError: A row lacks one.
    """
    questions = []
    for row in open_rows(source, streaming=False, limit=limit):
        context = row.columns.get("context")
        if not (
            isinstance(row, CompletionRow)
            and isinstance(row.prompt, str)
            and isinstance(row.completion, str)
            and isinstance(context, str)
        ):
            raise DataError(f"{row.where}: a question has the texts `context`, `prompt` and `completion`.")
        questions.append(Question(context, row.prompt, row.completion))
    if not questions:
        raise DataError("There is no question to answer.")
    return questions


def answer_every_way(
    policy: PolicyModel,
    questions: Sequence[Question],
    compressors: Mapping[str, ContextCompressor],
    *,
    budgets: Sequence[int],
    counts: Sequence[int] | None,
    max_new_tokens: int,
) -> list[Answers]:
    """Whole contexts first, none, extractive ones by budget, then vectors; greedy decoding each time.

    Args:
        policy: Who answers.
        questions: At least one.
        compressors: By their sources.
        budgets: Of the extractive compressor, in tokens.
        counts: How many of a compressor's vectors to use; those that it does not have are left out. None for all.
        max_new_tokens: Where an answer is cut.
    """

    def count(text: str) -> int:
        return len(policy.tokenizer(text, add_special_tokens=False)["input_ids"])

    def answered(title: str, contexts: Sequence[str], *, for_question: bool) -> Answers:
        prompts = [context + q.prompt for context, q in zip(contexts, questions, strict=True)]
        said = policy.generate(prompts, temperature=0.0, max_new_tokens=max_new_tokens)
        return Answers(title, [each[0].text for each in said], [count(c) for c in contexts], for_question)

    ways = [
        answered(WHOLE, [q.context for q in questions], for_question=False),
        answered("no context", ["" for _ in questions], for_question=False),
    ]
    for budget in budgets:
        shortened = [extract_context(q.context, q.prompt, max_tokens=budget, count_tokens=count) for q in questions]
        ways.append(answered(f"extractive {budget}", shortened, for_question=True))
    for source, compressor in compressors.items():
        own = compressor.num_vectors
        vectors, _ = compressor.compress_prompts([q.context for q in questions])
        for k in [k for k in counts if k <= own] if counts is not None else [own]:
            texts = compressor.generate(vectors[:, :k], [q.prompt for q in questions], max_new_tokens=max_new_tokens)
            title = f"vectors {k}" + (f" ({source})" if len(compressors) > 1 else "")
            ways.append(Answers(title, texts, [k] * len(questions), for_question=False))
    return ways


def answer_rows(questions: Sequence[Question], ways: Sequence[Answers]) -> list[dict[str, Any]]:
    """Each question with what every way said."""
    return [
        {**asdict(question), "answers": {way.title: way.texts[number] for way in ways}}
        for number, question in enumerate(questions)
    ]


def _headline(part: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{each['title']} {each['accuracy']['value']:.3f}" for each in part)
