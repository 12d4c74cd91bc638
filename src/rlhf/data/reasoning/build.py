"""Builds the reasoning world's data files from a seed.

reasoning    sft.jsonl              prompt, completion, level             demonstrations; four in ten are sound
             prompts.jsonl          prompt, answer, level                 for RL, and to sample reward-model data from
             stepwise.jsonl         prompt, completions, labels, level    for process reward models
             outcome.jsonl          prompt, completion, label, level      the same solutions, for outcome reward models
             test_prompts.jsonl     prompt, answer, level                 problems no training stage sees
             test_stepwise.jsonl    prompt, completions, labels, level    solutions of the test problems
             reasoning.json         specification, counts, sha256 of each file
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf.data.reasoning import problems, traces
from rlhf.data.reasoning.problems import MAX_STEPS, MIN_STEPS, Problem, draw_problem
from rlhf.data.reasoning.solution_rows import outcome_row, stepwise_row
from rlhf.data.reasoning.traces import CORRUPTED, DEMONSTRATOR, Mistakes, write_trace
from rlhf.errors import ConfigError
from rlhf.files import sha256, write_json, write_jsonl
from rlhf.seeds import derive_seed

NUM_DEMONSTRATIONS = 12_000
NUM_PROMPTS = 2000
NUM_TEST_PROMPTS = 300
MAX_PROBLEMS = 30_000
"""In one world. There are 9,000 problems of two steps, some drawn rarely; beyond about half of them, drawing new ones
takes ever longer."""


@dataclass(frozen=True, slots=True)
class Split:
    """Which problems each stage may see. No problem is in two of these, or twice in one."""

    demonstrated: tuple[Problem, ...]
    """For SFT and for the reward models."""
    train: tuple[Problem, ...]
    """For RL."""
    test: tuple[Problem, ...]
    """For measuring."""


def split_problems(
    seed: int,
    *,
    split_seed: int | None = None,
    num_demonstrations: int = NUM_DEMONSTRATIONS,
    num_prompts: int = NUM_PROMPTS,
    num_test_prompts: int = NUM_TEST_PROMPTS,
) -> Split:
    """Draw the problems; in each part, every number of steps has its turn.

    The test problems depend on ``split_seed`` and their number alone, so worlds of several seeds can be measured on the
    same ones.

    Args:
        seed: Of the problems to train on.
        split_seed: Of the test problems; by default ``seed`` too.
        num_demonstrations: At least 1, like the next two; all three together at most ``MAX_PROBLEMS``.
        num_prompts: For RL.
        num_test_prompts: For measuring.
    """
    counts = {
        "num_demonstrations": num_demonstrations,
        "num_prompts": num_prompts,
        "num_test_prompts": num_test_prompts,
    }
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name} is {count}; wanted at least 1.")
    if sum(counts.values()) > MAX_PROBLEMS:
        sizes = ", ".join(f"{name} = {count}" for name, count in counts.items())
        raise ConfigError(
            f"A reasoning world has at most {MAX_PROBLEMS} problems and was asked for {sum(counts.values())} ({sizes}). "
            "Lower one of them; other seeds make further worlds."
        )
    test_seed = seed if split_seed is None else split_seed
    test = _distinct_problems(num_test_prompts, derive_seed(test_seed, "reasoning", "test problems"))
    demonstrated = _distinct_problems(
        num_demonstrations, derive_seed(seed, "reasoning", "demonstrated problems"), without=test
    )
    train = _distinct_problems(
        num_prompts, derive_seed(seed, "reasoning", "training problems"), without=(*test, *demonstrated)
    )
    return Split(demonstrated=demonstrated, train=train, test=test)


def build_reasoning(
    seed: int,
    out_dir: Path | str,
    *,
    split_seed: int | None = None,
    num_demonstrations: int = NUM_DEMONSTRATIONS,
    num_prompts: int = NUM_PROMPTS,
    num_test_prompts: int = NUM_TEST_PROMPTS,
) -> dict[str, Any]:
    """Write all files of the world; the same seeds and numbers give the same bytes.

    Args:
        seed: The run's seed: problems, demonstrations, solutions.
        out_dir: Folder to write to; made where it does not exist.
        split_seed: Which problems are held out; by default ``seed`` too.
        num_demonstrations: Rows of sft.jsonl, and of stepwise.jsonl and outcome.jsonl, which solve the same problems.
        num_prompts: Rows of prompts.jsonl.
        num_test_prompts: Rows of test_prompts.jsonl; test_stepwise.jsonl has two solutions of each.

    Returns:
        What is in reasoning.json, which is written last: where it exists, all files are complete.
    """
    out_dir = Path(out_dir)
    split = split_problems(
        seed,
        split_seed=split_seed,
        num_demonstrations=num_demonstrations,
        num_prompts=num_prompts,
        num_test_prompts=num_test_prompts,
    )
    corrupted = _solutions(split.demonstrated, CORRUPTED, derive_seed(seed, "reasoning", "corrupted"))
    tables: dict[str, list[Any]] = {
        "sft.jsonl": demonstration_rows(split.demonstrated, seed),
        "prompts.jsonl": prompt_rows(split.train),
        "stepwise.jsonl": [stepwise_row(problem, steps) for problem, steps in corrupted],
        "outcome.jsonl": [outcome_row(problem, steps) for problem, steps in corrupted],
        "test_prompts.jsonl": prompt_rows(split.test),
        "test_stepwise.jsonl": heldout_solution_rows(split.test, seed),
    }
    for name, rows in tables.items():
        write_jsonl(out_dir / name, rows)
    world = {
        "seed": seed,
        "split_seed": seed if split_seed is None else split_seed,
        "specification": _specification(),
        "rows": {name: len(rows) for name, rows in tables.items()},
        "sha256": {name: sha256(out_dir / name) for name in tables},
    }
    write_json(out_dir / "reasoning.json", world)
    return world


def demonstration_rows(asked: Sequence[Problem], seed: int) -> list[dict[str, Any]]:
    """One demonstration for each problem, in the order given; nothing in a row tells whether it is sound."""
    return [
        {"prompt": problem.prompt, "completion": "".join(steps), "level": problem.level}
        for problem, steps in _solutions(asked, DEMONSTRATOR, derive_seed(seed, "reasoning", "demonstrations"))
    ]


def prompt_rows(asked: Sequence[Problem]) -> list[dict[str, Any]]:
    """Problems with their answers, in the column that ``rewards.outcome_reward`` reads."""
    return [{"prompt": problem.prompt, "answer": str(problem.answer), "level": problem.level} for problem in asked]


def heldout_solution_rows(asked: Sequence[Problem], seed: int) -> list[Any]:
    """Two solutions of each problem: as the demonstrator writes them, many of them sound, and corrupted."""
    drawn = derive_seed(seed, "reasoning", "test solutions")
    usual, corrupted = _solutions(asked, DEMONSTRATOR, drawn), _solutions(asked, CORRUPTED, derive_seed(drawn, "worse"))
    pairs = zip(usual, corrupted, strict=True)
    return [stepwise_row(problem, steps) for both in pairs for problem, steps in both]


def _solutions(asked: Sequence[Problem], mistakes: Mistakes, seed: int) -> list[tuple[Problem, tuple[str, ...]]]:
    """Each problem with a solution that depends on the problem and the seed alone."""
    return [
        (problem, write_trace(problem, mistakes, random.Random(derive_seed(seed, problem.prompt)))) for problem in asked
    ]


def _distinct_problems(count: int, seed: int, *, without: Collection[Problem] = ()) -> tuple[Problem, ...]:
    """New problems of 2, 3 ... 8 steps in turn, so that any part of a file is as hard as the whole."""
    draw = random.Random(seed)
    known = set(without)
    distinct = []
    for number in range(count):
        num_steps = MIN_STEPS + number % (MAX_STEPS - MIN_STEPS + 1)
        while (problem := draw_problem(num_steps, draw)) in known:
            pass
        known.add(problem)
        distinct.append(problem)
    return tuple(distinct)


def _specification() -> dict[str, Any]:
    return {
        "steps": [MIN_STEPS, MAX_STEPS],
        "operations": dict(problems.OPERATION_FRACS),
        "mask_frac": problems.MASK_FRAC,
        "popular_errors": {"minus": traces.POPULAR_MINUS, "times": traces.POPULAR_TIMES, "large": traces.LARGE},
        "demonstrator": asdict(DEMONSTRATOR),
        "corrupted": asdict(CORRUPTED),
    }
