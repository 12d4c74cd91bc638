"""The world's files: the same from the same seed, exactly labeled, balanced, and nothing held out leaks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter

import pytest

from rlhf.data.reasoning import build_reasoning, parse_problem, split_problems
from rlhf.data.reasoning.build import MAX_PROBLEMS
from rlhf.errors import ConfigError
from rlhf.files import sha256

SIZES = {"num_demonstrations": 2100, "num_prompts": 700, "num_test_prompts": 140}
FILES = (
    "sft.jsonl",
    "prompts.jsonl",
    "stepwise.jsonl",
    "outcome.jsonl",
    "test_prompts.jsonl",
    "test_stepwise.jsonl",
)


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def answer_by_eval(prompt):
    value = prompt[0]
    for operation in re.findall(r"[-+*][0-9]", prompt):
        value = str(eval(value + operation) % 10)
    return value


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reasoning")
    build_reasoning(51, folder, **SIZES)
    return folder


def test_the_same_seed_gives_the_same_bytes_in_another_process(world, tmp_path):
    code = f"from rlhf.data.reasoning import build_reasoning; build_reasoning(51, {str(tmp_path)!r}, **{SIZES!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    for name in (*FILES, "reasoning.json"):
        assert (tmp_path / name).read_bytes() == (world / name).read_bytes(), name


def test_another_seed_gives_other_files(world, tmp_path):
    build_reasoning(52, tmp_path, **SIZES)
    for name in FILES:
        assert (tmp_path / name).read_bytes() != (world / name).read_bytes(), name


def test_worlds_of_several_seeds_can_share_their_test_problems(tmp_path):
    first, second = (split_problems(seed, split_seed=9, **SIZES) for seed in (1, 2))
    assert first.test == second.test
    assert first.train != second.train
    for split in (first, second):
        assert not set(split.test) & {*split.train, *split.demonstrated}


def test_the_test_problems_do_not_hang_on_how_much_is_trained():
    assert split_problems(3, **SIZES).test == split_problems(3, **{**SIZES, "num_demonstrations": 70}).test


def test_no_problem_is_in_two_parts_or_twice_in_one(world):
    parts = [
        [row["prompt"] for row in rows(world / name)] for name in ("sft.jsonl", "prompts.jsonl", "test_prompts.jsonl")
    ]
    together = [prompt for part in parts for prompt in part]
    assert len(together) == len(set(together)) == sum(SIZES.values())


def test_reward_models_see_the_demonstrated_problems_and_no_test_problem(world):
    demonstrated = [row["prompt"] for row in rows(world / "sft.jsonl")]
    assert [row["prompt"] for row in rows(world / "stepwise.jsonl")] == demonstrated
    assert [row["prompt"] for row in rows(world / "outcome.jsonl")] == demonstrated
    tested = [row["prompt"] for row in rows(world / "test_prompts.jsonl")]
    assert [row["prompt"] for row in rows(world / "test_stepwise.jsonl")] == [p for p in tested for _ in range(2)]


@pytest.mark.parametrize("name", ["sft.jsonl", "prompts.jsonl", "test_prompts.jsonl"])
def test_every_number_of_steps_is_there_equally_often(world, name):
    problems = [parse_problem(row["prompt"]) for row in rows(world / name)]
    counts = Counter(problem.num_steps for problem in problems)
    assert counts == dict.fromkeys(range(2, 9), len(problems) // 7)
    assert [row["level"] for row in rows(world / name)] == [problem.level for problem in problems]
    first = {problem.num_steps for problem in problems[:7]}
    assert len(first) == 7, "any part of the file must be as hard as the whole"


@pytest.mark.parametrize(("name", "skipped"), [("sft.jsonl", 0.04), ("outcome.jsonl", 0.08)])
def test_every_solution_has_mistakes_of_its_own(world, name, skipped):
    actual = [(parse_problem(row["prompt"]).num_steps, row["completion"].count(";")) for row in rows(world / name)]
    assert sum(done < asked for asked, done in actual) / len(actual) == pytest.approx(skipped, abs=0.02)


@pytest.mark.parametrize("name", ["prompts.jsonl", "test_prompts.jsonl"])
def test_the_answer_of_every_prompt_is_what_python_finds(world, name):
    for row in rows(world / name):
        assert row["answer"] == answer_by_eval(row["prompt"])


@pytest.mark.parametrize("name", ["stepwise.jsonl", "test_stepwise.jsonl"])
def test_every_step_label_is_what_python_finds(world, name):
    for row in rows(world / name):
        value, operations = row["prompt"][0], re.findall(r"([a-h])([-+*][0-9])", row["prompt"])
        for number, (step, label) in enumerate(zip(row["completions"], row["labels"], strict=True)):
            if step.startswith("A"):
                assert label == (number == len(operations) and step == f"A{value}.")
                assert number == len(row["labels"]) - 1
            else:
                letter, operation = operations[number]
                assert label == (step == f"{letter}{value}{operation}={eval(value + operation) % 10};")
                value = step[-2]


def test_every_outcome_label_is_what_python_finds_for_the_same_solutions(world):
    for row, steps in zip(rows(world / "outcome.jsonl"), rows(world / "stepwise.jsonl"), strict=True):
        assert row["completion"] == "".join(steps["completions"])
        assert row["label"] == (row["completion"][-2] == answer_by_eval(row["prompt"]))


def test_training_has_enough_of_every_label(world):
    steps = [label for row in rows(world / "stepwise.jsonl") for label in row["labels"]]
    assert 0.25 < steps.count(False) / len(steps) < 0.45
    outcomes = [row["label"] for row in rows(world / "outcome.jsonl")]
    assert 0.15 < sum(outcomes) / len(outcomes) < 0.35
    sound = [all(row["labels"]) for row in rows(world / "test_stepwise.jsonl")]
    assert 0.15 < sum(sound) / len(sound) < 0.40, "the test file must hold sound solutions and others"


def test_demonstrations_do_not_tell_whether_they_are_sound(world):
    assert {key for row in rows(world / "sft.jsonl") for key in row} == {"prompt", "completion", "level"}


def test_a_demonstration_hangs_on_its_problem_and_the_seed_alone(world, tmp_path):
    build_reasoning(51, tmp_path, **{**SIZES, "num_prompts": 7, "num_test_prompts": 1})
    before = {row["prompt"]: row["completion"] for row in rows(world / "sft.jsonl")}
    after = {row["prompt"]: row["completion"] for row in rows(tmp_path / "sft.jsonl")}
    common = before.keys() & after.keys()
    assert len(common) > 1000
    assert all(before[prompt] == after[prompt] for prompt in common)


def test_reasoning_json_tells_counts_and_hashes(world):
    told = json.loads((world / "reasoning.json").read_text())
    assert (told["seed"], told["split_seed"]) == (51, 51)
    assert told["specification"]["demonstrator"]["slip"] == 0.08
    for name in FILES:
        assert told["rows"][name] == len(rows(world / name))
        assert told["sha256"][name] == sha256(world / name)


@pytest.mark.parametrize("name", SIZES)
def test_an_empty_part_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        build_reasoning(1, tmp_path, **{**SIZES, name: 0})
    assert not any(tmp_path.iterdir())


def test_more_problems_than_there_are_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=f"at most {MAX_PROBLEMS}") as caught:
        build_reasoning(1, tmp_path, num_demonstrations=50_000)
    message = str(caught.value)
    assert "asked for 52300" in message
    assert "num_demonstrations = 50000" in message
    assert "Lower one of them" in message


def test_the_largest_world_can_be_drawn():
    split = split_problems(1, num_demonstrations=MAX_PROBLEMS - 2, num_prompts=1, num_test_prompts=1)
    assert len(set(split.demonstrated)) == MAX_PROBLEMS - 2


def test_the_world_needs_no_torch():
    code = "import sys, rlhf.data.reasoning; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
