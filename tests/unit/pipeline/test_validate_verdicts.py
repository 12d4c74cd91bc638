"""Rows that exist and can't be judged, or have nothing to teach, told before anything runs."""

from __future__ import annotations

import json

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError
from rlhf.pipeline.validate import find_problems
from rlhf.pipeline.validate.problems import Review
from rlhf.pipeline.validate.references import check_references

PAIR = {"completion_a": "a cow", "completion_b": "a fox"}


def told(tmp_path, rows, key, **stage):
    """Level and message of what is said about one key of a stage."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    name = "prompts" if "prompts" in stage.pop("reads", "data") else "data"
    tree = {"name": "r", "output_dir": str(tmp_path), "stages": {"z": {"model": "embedded", name: str(path), **stage}}}
    return [(p.level, p.message) for p in find_problems(RecipeConfig.of(tree), deep=True) if p.key == key]


def prompts(*, with_answer):
    return [{"prompt": f"Say {n}", **({"answer": str(n)} if n < with_answer else {})} for n in range(8)]


@pytest.mark.parametrize(
    ("with_answer", "column", "level", "said"),
    [
        (8, "anser", "error", "No row has the column 'anser', which holds the reference (they have answer). Did you mean 'answer'?"),
        (0, "answer", "error", "No row has the column 'answer', which holds the reference (they have no other columns)."),
        (6, "answer", "warning", "2 of 8 rows have no column 'answer', such as "),
        (8, "answer", None, ""),
    ],
)  # fmt: skip
def test_prompts_without_a_verifiers_column(tmp_path, with_answer, column, level, said):
    reward = [{"kind": "numeric", "column": column}, "rules"]
    stage = {"kind": "best_of_n", "reads": "prompts", "reward": reward}
    found = told(tmp_path, prompts(with_answer=with_answer), "reward.0.column", **stage)
    assert [each[0] for each in found] == ([level] if level else [])
    assert all(said in message for _, message in found)


@pytest.mark.parametrize(
    ("models", "reward", "warned"),
    [
        ({}, {"kind": "learned", "source": "stage:rm", "combine": "min"}, "reward.0.combine"),
        ({"num_heads": 2}, {"kind": "learned", "source": "stage:rm", "combine": "min"}, None),
        ({}, {"kind": "learned", "source": "stage:rm"}, None),
        ({}, {"kind": "ensemble", "sources": ["stage:rm", "stage:rm"]}, "reward.0.sources"),
    ],
)
def test_an_ensemble_of_one_is_told(models, reward, warned):
    stages = {
        "rm": {"kind": "reward", "model": "embedded", "data": "pairs.jsonl", **models},
        "z": {"kind": "best_of_n", "model": "embedded", "prompts": "p.jsonl", "reward": reward},
    }
    review = Review(RecipeConfig.of({"name": "r", "stages": stages}))
    check_references(review)
    assert [problem.key for problem in review.problems if problem.level == "warning"] == ([warned] if warned else [])


@pytest.mark.parametrize(
    ("stage", "rows", "said"),
    [
        ({"kind": "kto"}, [{"completion": "a cow", "label": True}] * 2, "every completion is good"),
        ({"kind": "kto"}, [{"completion": "a cow", "label": n == 0} for n in range(2)], None),
        ({"kind": "kto"}, [{"chosen": "a cow", "rejected": "a fox"}] * 2, None),
        ({"kind": "reward", "loss": "binary"}, [{"completion": "a cow", "label": False}] * 2, "every completion is bad"),
        ({"kind": "prm"}, [{"completions": ["The cow.", "The fox."], "labels": [True, True]}] * 2, "every step is right"),
        ({"kind": "prm"}, [{"completions": ["The cow.", "The fox."], "labels": [True, False]}] * 2, None),
        ({"kind": "reward", "loss": "davidson"}, [{**PAIR, "preference": "tie"}] * 2, "every row is a tie"),
        ({"kind": "reward", "loss": "rao_kupper"}, [{**PAIR, "preference": "a"}] * 2, "there is no tie"),
        ({"kind": "reward", "loss": "davidson"}, [{**PAIR, "preference": p} for p in ("a", "tie")], None),
        ({"kind": "reward", "loss": "davidson"}, [{"completions": ["a", "b", "c"], "ranks": [1, 2, 2]}] * 2, None),
    ],
)  # fmt: skip
def test_rows_that_all_say_the_same_are_told(tmp_path, stage, rows, said):
    rows = [{"prompt": f"q{n}", **row} for n, row in enumerate(rows)]
    found = [message for level, message in told(tmp_path, rows, "data", **stage) if level == "warning"]
    assert [said in message for message in found] == ([] if said is None else [True])


def test_noise_at_which_labels_say_nothing_is_refused_before_it_runs():
    stage = {"kind": "preferences", "model": "embedded", "prompts": "p.jsonl", "num_pairs": 4, "noise": 0.5}
    with pytest.raises(ConfigError, match=r"noise: should be less than 0\.5"):
        RecipeConfig.of({"name": "r", "stages": {"z": stage}})
