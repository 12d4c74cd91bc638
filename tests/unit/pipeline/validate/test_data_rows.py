"""Rows that are bad, too long, too few or of another kind."""

from __future__ import annotations

import pytest

from rlhf.errors import DataError, ModelError
from tests.unit.pipeline.validate.helpers import (
    WORDS,
    WORLD,
    changed,
    only_problem,
    problems_of,
    write,
)


def test_bad_rows_are_told_by_number_unless_they_are_skipped(tree, tmp_path):
    good = [{"prompt": f"q{n}", "completion": "a b c"} for n in range(30)]
    path = write(tmp_path / "rows.jsonl", [*good[:3], {"prompt": "q"}, *good[3:], {"completion": 7}])
    problem = only_problem(changed(tree, "sft", data=str(path)), deep=True)
    assert (problem.key, problem.kind) == ("data", DataError)
    assert problem.message.startswith(f"2 of 32 rows are bad: {path}:4: ")
    assert f"{path}:32" in problem.message
    assert "on_bad_row: skip" in problem.message
    assert problems_of(changed(tree, "sft", data=str(path), on_bad_row="skip")) == []


def test_rows_of_another_kind_are_refused(tree):
    problem = only_problem(changed(tree, "reward", data="demos.jsonl"), deep=True)
    assert (problem.key, problem.exit_code) == ("data", DataError.exit_code)
    assert "chosen" in problem.message


def test_columns_are_renamed_before_rows_are_looked_at(tree, tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"q": f"q{n}", "a": "a b c"} for n in range(10)])
    assert only_problem(changed(tree, "sft", data=str(path)), deep=True).level == "error"
    assert problems_of(changed(tree, "sft", data=str(path), columns={"q": "prompt", "a": "completion"})) == []


def test_an_empty_file_and_a_damaged_one_are_told(tree, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    assert "empty.jsonl is empty" in only_problem(changed(tree, "sft", data=str(tmp_path / "empty.jsonl"))).message
    (tmp_path / "rows.jsonl.gz").write_bytes(b"\x1f\x8b\x08nonsense")
    problem = only_problem(changed(tree, "sft", data=str(tmp_path / "rows.jsonl.gz")), deep=True)
    assert "damaged or was cut short" in problem.message


def test_a_large_file_is_read_in_part_and_that_is_said(tree, tmp_path, monkeypatch):
    from rlhf.pipeline.validate import row_cache

    monkeypatch.setattr(row_cache, "MAX_ROWS", 5)
    path = write(
        tmp_path / "rows.jsonl", [{"prompt": "q"}] + [{"prompt": f"q{n}", "completion": "a"} for n in range(30)]
    )
    problem = only_problem(changed(tree, "sft", data=str(path)), deep=True)
    assert problem.message.startswith(f"1 of the first 5 rows is bad: {path}:1")


LONG = [{"prompt": "q", "completion": " ".join(WORDS * 3)} for _ in range(6)]
SHORT = [{"prompt": f"q{n}", "completion": "a"} for n in range(4)]


@pytest.mark.parametrize(
    ("rows", "settings", "level", "says"),
    [
        (LONG + SHORT, {"truncation": "error"}, "error", ("6 of 10 rows", "rows.jsonl:1", "truncation is `error`")),
        (LONG + SHORT, {"truncation": "drop"}, "warning", ("6 of 10 rows", "will be left out")),
        (LONG + SHORT, {"truncation": "keep_end"}, "warning", ("will be cut",)),
        (LONG, {"truncation": "drop"}, "error", ("6 of 6 rows", "none would be left")),
    ],
)
def test_rows_that_are_too_long_are_counted(tree, tmp_path, rows, settings, level, says):
    path = write(tmp_path / "rows.jsonl", rows)
    problem = only_problem(changed(tree, "sft", data=str(path), max_length=20, batch_size=4, **settings), deep=True)
    assert (problem.key, problem.level) == ("max_length", level)
    for words in says:
        assert words in problem.message


def test_rows_longer_than_the_context_are_told(tree, tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"prompt": "q", "completion": " ".join(WORDS * 40)}] + SHORT * 3)
    problem = only_problem(changed(tree, "sft", data=str(path)), deep=True)
    assert (problem.key, problem.level) == ("max_length", "error")
    assert "the model was made for 512; set max_length: 512" in problem.message


def test_a_row_larger_than_a_microbatch_is_told(tree):
    problem = only_problem(changed(tree, "sft", microbatch_tokens=4), deep=True)
    assert (problem.key, problem.level) == ("microbatch_tokens", "warning")
    assert "23 tokens, more than the 4" in problem.message


def test_prompt_and_completion_must_fit_into_the_context(tree, tmp_path):
    problem = only_problem(changed(tree, "grpo", sampling={"max_new_tokens": 512}), deep=True)
    assert (problem.key, problem.level) == ("sampling.max_new_tokens", "error")
    assert "no room for a prompt" in problem.message
    problem = only_problem(changed(tree, "grpo", sampling={"max_new_tokens": 510}), deep=True)
    assert (problem.key, problem.level) == ("prompts", "error")
    assert "may grow by 510" in problem.message
    assert "set max_prompt_length: 2" in problem.message


def test_few_rows_and_few_prompts_are_told(tree):
    problem = only_problem(changed(tree, "sft", batch_size=64), deep=True)
    assert (problem.key, problem.level) == ("batch_size", "warning")
    assert "A step takes 64 rows, more than the 40 here" in problem.message
    problem = only_problem(changed(tree, "grpo", prompts_per_rollout=64), deep=True)
    assert (problem.key, problem.level) == ("prompts_per_rollout", "warning")
    assert "12 prompts, fewer than the 64 of a rollout" in problem.message


def test_hundreds_of_passes_are_asked_about(tree):
    problem = only_problem(changed(tree, "sft", max_steps=5000), deep=True)
    assert (problem.key, problem.level) == ("max_steps", "warning")
    assert "1,000 passes over 40 rows" in problem.message


def test_margins_must_be_there_where_they_are_used(tree):
    problem = only_problem(changed(tree, "reward", margin="column"), deep=True)
    assert (problem.key, problem.level) == ("margin", "error")
    assert "40 of 40 rows have none, such as pairs.jsonl:1" in problem.message


def test_dialogues_want_a_chat_template(tree, tmp_path, own_model):
    (own_model / "chat_template.jinja").unlink()
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}]
    path = write(tmp_path / "rows.jsonl", [{"messages": turns}] * 9)
    problem = only_problem(changed(tree, "sft", model=str(own_model), data=str(path)), deep=True)
    assert (problem.key, problem.kind) == ("model.chat_template", ModelError)
    assert "`plain`" in problem.message
    with_one = {"path": str(own_model), "chat_template": "plain"}
    assert problems_of(changed(tree, "sft", model=with_one, data=str(path))) == []


def test_held_out_prompts_that_are_learned_from_are_counted(tree, tmp_path):
    rows = [{"prompt": "Say 1"}, {"prompt": "Question 3"}, {"prompt": "New"}, {"prompt": "New"}]
    path = write(tmp_path / "test.jsonl", rows)
    told = problems_of(changed(tree, "evaluate", prompts=str(path)))
    assert {(problem.stage, problem.key) for problem in told} == {("evaluate", "prompts")}
    seen, repeated = (problem.message for problem in told)
    assert seen.startswith("2 of 4 prompts were trained on, by stages grpo and sft")
    assert repeated.startswith("1 of 4 prompts repeats")
    problem = only_problem(changed(tree, "grpo", eval_prompts=str(path)), deep=True)
    assert (problem.key, problem.level) == ("eval_prompts", "warning")


def test_evaluating_on_the_file_that_was_trained_on_is_told_before_it_exists(tree):
    stages = {
        "world": WORLD,
        **tree["stages"],
        "grpo": {**tree["stages"]["grpo"], "prompts": "stage:world/prompts.jsonl"},
        "evaluate": {**tree["stages"]["evaluate"], "prompts": "stage:world/prompts.jsonl"},
    }
    problem = only_problem({**tree, "stages": stages}, deep=True)
    assert (problem.stage, problem.key) == ("evaluate", "prompts")
    assert "The prompts are those that stage grpo learned from" in problem.message


def test_evaluating_on_the_prompts_that_pairs_were_sampled_from_is_told(tree):
    def complaints(prompts):
        pairs = {
            "kind": "preferences",
            "model": "stage:sft",
            "prompts": "prompts.jsonl",
            "num_pairs": 12,
            "sampling": {"max_new_tokens": 8},
        }
        dpo = {"kind": "dpo", "model": "stage:sft", "data": "stage:pairs/pairs.jsonl", "learning_rate": 2e-4}
        evaluate = {**tree["stages"]["evaluate"], "policy": "stage:dpo", "prompts": prompts}
        stages = {
            "sft": tree["stages"]["sft"],
            "reward": tree["stages"]["reward"],
            "pairs": pairs,
            "dpo": dpo,
            "evaluate": evaluate,
        }
        return [problem.message for problem in problems_of({**tree, "stages": stages}) if problem.key == "prompts"]

    (told,) = complaints("prompts.jsonl")
    assert "All 12 prompts were trained on, by stage dpo" in told
    assert complaints("test_prompts.jsonl") == []


def test_a_judge_of_steps_is_told_from_one_of_completions(tree, tmp_path):
    rows = [{"prompt": f"Ask {n}", "completions": ["a", "b"], "labels": [True, False]} for n in range(40)]
    steps = str(write(tmp_path / "steps.jsonl", rows))
    prm = {"kind": "prm", "model": "stage:sft", "data": steps, "learning_rate": 1e-3}
    tree["stages"] = {"sft": tree["stages"]["sft"], "prm": prm, **tree["stages"]}
    good = changed(tree, "grpo", reward={"kind": "process", "source": "stage:prm"})
    assert [p for p in problems_of(good) if p.level == "error"] == []
    for reward, said in (
        ("stage:prm", "trains a process reward model, which judges steps; write {kind: process, source: stage:prm}"),
        ({"kind": "process", "source": "stage:reward"}, "wants a judge of steps ("),
        ({"kind": "ensemble", "sources": ["stage:reward", "stage:prm"]}, "trains a process reward model"),
    ):
        assert any(said in problem.message for problem in problems_of(changed(tree, "grpo", reward=reward))), said
    assert any("scores, not text" in p.message for p in problems_of(changed(tree, "grpo", model="stage:prm")))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss": "graded"}, "needs significantly or slightly in the column `strength`, and 40 of"),
        ({"use_label_probability": True}, "in the column `label_probability`, and 40 of"),
        ({"loss": "rating"}, "rating"),
    ],
)
def test_rows_lack_what_the_loss_of_a_reward_model_needs(tree, settings, said):
    assert any(
        said in problem.message
        for problem in problems_of(changed(tree, "reward", **settings))
        if problem.level == "error"
    )
