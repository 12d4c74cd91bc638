"""Preference pairs as a judge's prompts, with the verdict that people gave."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.config.judge_rows import JudgeRowsStage
from rlhf.data.accepted import ACCEPTED
from rlhf.data.contracts import PreferenceRow, PreferenceSample, Text
from rlhf.data.expand import comparisons_of
from rlhf.data.message_text import counted
from rlhf.data.read import read_rows
from rlhf.errors import DataError
from rlhf.files import write_jsonl
from rlhf.formatting import percentage
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.rewards.functions import load_function
from rlhf.rewards.pairwise.templates import JudgeTemplate, load_template
from rlhf.rewards.pairwise.votes import Pair
from rlhf.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class _Question:
    """A pair in one order, with the verdict that is right."""

    id: str
    where: str
    pair: Pair
    verdict: str
    letters: Mapping[str, str]
    """Side of the row -> the letter that it has here."""


def run_judge_rows(stage: JudgeRowsStage, at: StageContext) -> StageOutcome:
    """Demonstrations for SFT and prompts for GRPO, in the order of the pairs.

    Raises:
        DataError: The rows hold no comparison of two different texts, or one has no rationale where there must be one.
        ConfigError: There is no such template, or a row lacks a column that it has a place for.
    """
    template = load_template(at.path(stage.template))
    rows = [
        row for row in read_rows(at.paths(stage.pairs), accepts=ACCEPTED["comparison"]) for row in comparisons_of(row)
    ]
    questions = [each for row in rows[: stage.limit] for each in _questions(row, stage)]
    if not questions:
        raise DataError(f"{stage.pairs} holds no comparison of two different texts, so there is nothing to judge.")
    thoughts = _thoughts(questions, stage)
    demonstrations = [
        {**_prompt(each, template, stage), "completion": _said(f"{thought}\n[[{each.verdict}]]".lstrip("\n"), stage)}
        for each, thought in zip(questions, thoughts, strict=True)
    ]
    write_jsonl(at.folder / "demonstrations.jsonl", demonstrations)
    write_jsonl(
        at.folder / "prompts.jsonl", [{**_prompt(each, template, stage), "verdict": each.verdict} for each in questions]
    )
    ties = sum(each.verdict == "C" for each in questions)
    first = sum(each.verdict == "A" for each in questions)
    thinking = "with" if any(thoughts) else "without"
    return StageOutcome(
        f"{counted(len(questions), 'question')} {thinking} thoughts, the first is better in {percentage(first / len(questions), 0)}, "
        f"{counted(ties, 'tie')}",
        {"questions": len(questions), "ties": ties, "first_frac": first / len(questions)},
    )


def _questions(row: PreferenceRow | PreferenceSample, stage: JudgeRowsStage) -> list[_Question]:
    if isinstance(row, PreferenceRow):
        names, tie = ("chosen", "rejected"), False
    else:
        names, tie = ("completion_a", "completion_b"), True
    better, worse = (_plain(getattr(row, name)) for name in names)
    if better == worse:
        return []
    ended = tuple(row.columns.get(f"{name}_ended", True) is not False for name in names)
    pair = Pair(prompt=row.prompt, first=better, second=worse, ended=(ended[0], ended[1]), columns=row.columns)
    questions = [
        _Question(f"{row.id}#ab", row.where, pair, "C" if tie else "A", {"chosen": "A", "rejected": "B"}),
        _Question(f"{row.id}#ba", row.where, pair.swapped(), "C" if tie else "B", {"chosen": "B", "rejected": "A"}),
    ]
    if stage.orders == "both":
        return questions
    return [random.Random(derive_seed(seed_of(stage.seed), "judge rows", row.id)).choice(questions)]


def _thoughts(questions: Sequence[_Question], stage: JudgeRowsStage) -> list[str]:
    if stage.rationale_column is not None:
        return [_of_column(each, stage.rationale_column) for each in questions]
    if stage.rationale is None:
        return [""] * len(questions)
    names = dict.fromkeys(name for each in questions for name in each.pair.columns)
    own = ("prompts", "first", "second", "verdicts")
    columns = {name: [each.pair.columns.get(name) for each in questions] for name in names if name not in own}
    said = load_function(stage.rationale)(
        prompts=[each.pair.prompt for each in questions],
        first=[each.pair.first for each in questions],
        second=[each.pair.second for each in questions],
        verdicts=[each.verdict for each in questions],
        **columns,
    )
    thoughts = list(said)
    if len(thoughts) != len(questions) or not all(isinstance(text, str) for text in thoughts):
        raise DataError(
            f"{stage.rationale} returned {len(thoughts)} rationales for {len(questions)} questions; it must return a text for each."
        )
    return thoughts


def _of_column(each: _Question, column: str) -> str:
    thought = each.pair.columns.get(column)
    if not isinstance(thought, str) or not thought.strip():
        raise DataError(
            f"{each.where}: the column {column!r} holds {thought!r}; rationale_column wants the reasons for the verdict, as a text."
        )
    for side, letter in each.letters.items():
        thought = thought.replace(f"{{{side}}}", letter)
    return thought.strip()


def _prompt(each: _Question, template: JudgeTemplate, stage: JudgeRowsStage) -> dict[str, Any]:
    text = template.filled(each.pair)
    return {"id": each.id, "prompt": [{"role": "user", "content": text}] if stage.chat else text}


def _said(text: str, stage: JudgeRowsStage) -> Any:
    return [{"role": "assistant", "content": text}] if stage.chat else text


def _plain(text: Text) -> str:
    return text if isinstance(text, str) else str(text[-1]["content"])
