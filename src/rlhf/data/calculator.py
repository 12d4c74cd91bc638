"""Problems for a policy with a calculator, and demonstrations of uneven quality: most people guess.

calculator   sft.jsonl            prompt, completion, answer    demonstrations; some use the calculator, the others guess
             prompts.jsonl        prompt, answer                problems for RL
             test_prompts.jsonl   prompt, answer                problems that no stage trains on
             tokenizer/                                         one token for each byte

A problem is `37*45+12? `. Its demonstration is `calc(37*45)=1665 calc(1665+12)=1677 answer 1677`, or a guess that has the
right number of digits and is rarely right.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from rlhf.data.world.tokenizer import MIN_VOCAB_SIZE, train_tokenizer
from rlhf.errors import ConfigError
from rlhf.files import write_jsonl
from rlhf.seeds import derive_seed

OPERATORS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b}
Problem = tuple[int, int, str, int]
"""a, b, operator, c of `a*b+c`."""
NUM_PROBLEMS = 90 * 90 * len(OPERATORS) * 90


def build_calculator(
    seed: int, out_dir: Path | str, *, demonstrations: int, prompts: int, test_prompts: int, tool_frac: float
) -> dict[str, int]:
    """Write all files; the same seed gives the same bytes. No problem is in two files.

    Args:
        seed: The run's.
        out_dir: Folder to write to; made where it does not exist.
        demonstrations: Rows of sft.jsonl.
        prompts: Rows of prompts.jsonl.
        test_prompts: Rows of test_prompts.jsonl.
        tool_frac: Share of the demonstrations that use the calculator.

    Returns:
        Rows of each file.
    """
    wanted = demonstrations + prompts + test_prompts
    if wanted > NUM_PROBLEMS:
        raise ConfigError(f"{wanted:,} problems are wanted, and there are {NUM_PROBLEMS:,}; ask for fewer.")
    rng = random.Random(derive_seed(seed, "calculator"))
    problems = [_problem(number) for number in rng.sample(range(NUM_PROBLEMS), wanted)]
    tables = {
        "sft.jsonl": [_row(p) | {"completion": _demonstration(p, rng, tool_frac)} for p in problems[:demonstrations]],
        "prompts.jsonl": [_row(p) for p in problems[demonstrations : demonstrations + prompts]],
        "test_prompts.jsonl": [_row(p) for p in problems[demonstrations + prompts :]],
    }
    out_dir = Path(out_dir)
    for name, rows in tables.items():
        write_jsonl(out_dir / name, rows)
    train_tokenizer([], MIN_VOCAB_SIZE).save_pretrained(out_dir / "tokenizer")
    return {name: len(rows) for name, rows in tables.items()}


def _problem(number: int) -> Problem:
    number, a = divmod(number, 90)
    number, b = divmod(number, 90)
    sign, c = divmod(number, 90)
    return a + 10, b + 10, list(OPERATORS)[sign], c + 10


def _row(problem: Problem) -> dict[str, Any]:
    a, b, sign, c = problem
    return {"prompt": f"{a}*{b}{sign}{c}? ", "answer": OPERATORS[sign](a * b, c)}


def _demonstration(problem: Problem, rng: random.Random, tool_frac: float) -> str:
    a, b, sign, c = problem
    answer = OPERATORS[sign](a * b, c)
    if rng.random() >= tool_frac:
        digits = len(str(answer))
        return f"answer {rng.randrange(10 ** (digits - 1), 10**digits)}"
    return f"calc({a}*{b})={a * b} calc({a * b}{sign}{c})={answer} answer {answer}"
