from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from rlhf.data.calculator import build_calculator
from rlhf.errors import ConfigError

SIZES = {"demonstrations": 400, "prompts": 60, "test_prompts": 40, "tool_frac": 0.3}


def rows_of(folder, name):
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calculator")
    assert build_calculator(1, folder, **SIZES) == {"sft.jsonl": 400, "prompts.jsonl": 60, "test_prompts.jsonl": 40}
    return folder


def test_every_answer_is_that_of_its_problem(folder):
    for name in ("sft.jsonl", "prompts.jsonl", "test_prompts.jsonl"):
        for row in rows_of(folder, name):
            assert row["answer"] == eval(row["prompt"].rstrip("? ")), row


def test_no_problem_is_in_two_files_or_twice_in_one(folder):
    problems = [
        row["prompt"] for name in ("sft.jsonl", "prompts.jsonl", "test_prompts.jsonl") for row in rows_of(folder, name)
    ]
    assert len(set(problems)) == len(problems) == 500


def test_who_uses_the_calculator_is_right_and_who_guesses_hardly_ever(folder):
    rows = rows_of(folder, "sft.jsonl")
    used = [row for row in rows if row["completion"].startswith("calc(")]
    guessed = [row for row in rows if row not in used]
    assert 0.2 < len(used) / len(rows) < 0.4
    assert all(row["completion"].endswith(f"answer {row['answer']}") for row in used)
    for row in used:
        for call in row["completion"].split("calc(")[1:]:
            expression, _, rest = call.partition(")=")
            assert eval(expression) == int(rest.split()[0]), row
    assert sum(row["completion"] == f"answer {row['answer']}" for row in guessed) < 0.02 * len(guessed)
    assert all(len(row["completion"].split()[1]) == len(str(row["answer"])) for row in guessed if row["answer"] >= 0)


def test_the_tokenizer_has_a_token_for_each_byte(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    assert len(tokenizer("12*34+5? calc", add_special_tokens=False)["input_ids"]) == 13


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_problems(folder, tmp_path):
    build_calculator(1, tmp_path / "same", **SIZES)
    build_calculator(2, tmp_path / "other", **SIZES)
    for name in ("sft.jsonl", "prompts.jsonl", "test_prompts.jsonl"):
        assert (tmp_path / "same" / name).read_bytes() == (folder / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() != (folder / name).read_bytes()


def test_more_problems_than_there_are_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="1,458,000"):
        build_calculator(1, tmp_path, **{**SIZES, "prompts": 2_000_000})
