"""Functions that a recipe names: their file, their signature, their columns."""

from __future__ import annotations

import pytest

from rlhf.errors import ConfigError, RewardError
from tests.unit.pipeline.validate.helpers import (
    changed,
    only_problem,
    problems_of,
)


def test_a_reward_function_that_wants_a_column_is_told_which_there_are(tree):
    problem = only_problem(changed(tree, "grpo", reward="functions.py:wants_answer"), deep=True)
    assert (problem.key, problem.kind) == ("reward", RewardError)
    assert "wants answer, which the prompt rows don't have (they have fact)" in problem.message
    given = {"kind": "function", "function": "functions.py:wants_answer", "arguments": {"answer": "42"}}
    assert problems_of(changed(tree, "grpo", reward=given)) == []


def test_a_schema_whose_reference_leads_nowhere_is_told_before_the_run(tree):
    pytest.importorskip("jsonschema")
    wrong = {"kind": "json", "json_schema": {"$ref": "#/$defs/answer"}}
    problem = only_problem(changed(tree, "grpo", reward=[{"kind": "rules"}, wrong]), deep=True)
    assert (problem.key, problem.kind) == ("reward.1.json_schema", ConfigError)
    assert "$ref '#/$defs/answer' leads nowhere" in problem.message
    right = {"kind": "json", "json_schema": {"$defs": {"answer": {}}, "$ref": "#/$defs/answer"}}
    assert problems_of(changed(tree, "grpo", reward=right)) == []


def test_arguments_that_a_function_does_not_take_are_told(tree):
    given = {"kind": "function", "function": "functions.py:wants_answer", "arguments": {"answer": "42", "hnt": 1}}
    problem = only_problem(changed(tree, "grpo", reward=given), deep=True)
    assert (problem.key, problem.level) == ("reward.arguments", "warning")
    assert "no parameter 'hnt'" in problem.message


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import no_such_package\ndef f(prompts, completions): ...", "no_such_package"),
        ("import os\ndef f(prompts, completions): ...\nos._exit(3)", "exit code 3"),
    ],
)
def test_a_module_that_does_not_import_is_told(tree, tmp_path, code, says):
    path = tmp_path / "mine.py"
    path.write_text(code, encoding="utf-8")
    problem = only_problem(changed(tree, "grpo", reward=f"{path}:f"), deep=True)
    assert (problem.key, problem.level) == ("reward", "error")
    assert says in problem.message


def test_a_file_that_is_not_python_is_told_with_its_line(tree, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("x = 1\ndef f(:\n", encoding="utf-8")
    problem = only_problem(changed(tree, "grpo", reward=f"{path}:f"))
    assert f"{path}, line 2 is not valid Python" in problem.message


def test_an_annotator_must_take_what_it_is_given(tree):
    preferences = {
        "kind": "preferences",
        "model": "stage:sft",
        "prompts": "prompts.jsonl",
        "sampling": {"max_new_tokens": 8},
    }
    assert problems_of(changed(tree, "pairs", **preferences, annotator="functions.py:annotate")) == []
    problem = only_problem(changed(tree, "pairs", **preferences, annotator="functions.py:wants_answer"), deep=True)
    assert (problem.stage, problem.key) == ("pairs", "annotator")
    assert "no parameter ended, noise, seed" in problem.message
