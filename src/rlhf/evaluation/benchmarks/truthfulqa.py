"""TruthfulQA by likelihood: which of a question's right and wrong answers a model believes.

MC1 asks for the best answer among one right and all wrong ones; MC2 is the probability on all right answers (Lin et al. 2022,
arXiv:2109.07958). Read from the published ``TruthfulQA.csv``. The published figures ask six fixed questions first; here the question comes
alone unless ``prefix`` is given, so a figure is comparable with figures of the same prefix only.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.errors import DataError
from rlhf.evaluation.benchmarks.results import BenchmarkResult
from rlhf.evaluation.intervals import mean_interval, share_interval
from rlhf.evaluation.suites.scorers import score_choices
from rlhf.evaluation.suites.suite import load_suite
from rlhf.files import sha256
from rlhf.models.policy import PolicyModel

COLUMNS = ("Question", "Best Answer", "Correct Answers", "Incorrect Answers", "Category")
TEMPLATE = "Q: {prompt}\nA:"


def read_truthfulqa(path: Path | str) -> list[dict[str, Any]]:
    """Questions with ``best``, ``right`` and ``wrong`` answers and their ``category``, in the order of the file.

    Raises:
        DataError: The file can't be read, or a column or an answer is missing; names the line.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if lacking := [column for column in COLUMNS if column not in (reader.fieldnames or [])]:
                raise DataError(
                    f"{path} has no column {lacking[0]!r}; expected TruthfulQA.csv with {', '.join(COLUMNS)}."
                )
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path} can't be read as TruthfulQA.csv: {err}.") from err
    questions = []
    for number, (line, row) in enumerate(rows, 1):
        best = row["Best Answer"].strip()
        right, wrong = _answers(row["Correct Answers"]), _answers(row["Incorrect Answers"])
        if not row["Question"].strip() or not best or not wrong:
            raise DataError(f"{path}:{line}: a question needs a text, a best answer and wrong answers.")
        right = [best, *(answer for answer in right if answer != best)]
        questions.append({
            "id": str(number), "question": row["Question"].strip(), "best": best, "right": right, "wrong": wrong,
            "category": row["Category"], "adversarial": row.get("Type") == "Adversarial",
        })  # fmt: skip
    return questions


def _answers(text: str) -> list[str]:
    return [answer.strip() for answer in text.split(";") if answer.strip()]


def run_truthfulqa(
    policy: PolicyModel, *, questions: Path | str, prefix: str = "", limit: int | None = None, **unused: Any
) -> BenchmarkResult:
    """MC1 and MC2.

    Args:
        policy: Whose likelihood is asked.
        questions: ``TruthfulQA.csv``.
        prefix: Text before every question, such as solved examples.
        limit: Use only this many questions, the first ones.
        unused: What other benchmarks want.
    """
    rows = read_truthfulqa(questions)[:limit]
    template = prefix + TEMPLATE

    def scores(measure: str, right_of: Any) -> list[float]:
        items = []
        for row in rows:
            right = right_of(row)
            choices = [f" {answer}" for answer in (*right, *row["wrong"])]
            items.append(
                {"id": row["id"], "prompt": row["question"], "choices": choices, "answer": list(range(len(right)))}
            )
        suite = {
            "name": "truthfulqa",
            "template": template,
            "scorer": {"kind": "choices", "measure": measure},
            "items": items,
        }
        return score_choices(policy, load_suite(suite))

    mc1 = scores("accuracy", lambda row: [row["best"]])
    mc2 = scores("mass", lambda row: row["right"])
    chance = float(np.mean([1 / (1 + len(row["wrong"])) for row in rows]))
    return BenchmarkResult(
        name="truthfulqa",
        scores={"mc1": share_interval(mc1), "mc2": mean_interval(mc2)},
        settings={
            "questions": str(questions),
            "sha256": sha256(questions),
            "prefix": prefix,
            "num_questions": len(rows),
        },
        items=[
            {"id": row["id"], "category": row["category"], "mc1": one, "mc2": two}
            for row, one, two in zip(rows, mc1, mc2, strict=True)
        ],
        notes=[
            f"Guessing scores {chance:.3f} on MC1.",
            "Without the six examples of the published setting; compare only figures with the same prefix."
            if not prefix
            else "",
        ][: 1 if prefix else 2],
    )
