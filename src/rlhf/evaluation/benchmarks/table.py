"""The benchmarks by name: a new one is one file and one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One benchmark."""

    runs: str
    """``module:function`` below ``rlhf.evaluation.benchmarks``; takes what it ``measures`` and, by keyword, what it needs, and gives a
    ``BenchmarkResult``."""
    measures: str = "policy"
    """``policy``, ``reward`` (a reward model or any other reward) or ``judge``."""
    needs: tuple[str, ...] = ("questions",)
    """Of ``questions`` (its file), ``judge``, ``baseline``."""
    file: str = ""
    """Its question file as published, looked for in the folder of benchmarks."""
    about: str = ""
    """One line."""


BENCHMARKS: Mapping[str, Benchmark] = {
    "truthfulqa": Benchmark(
        runs="truthfulqa:run_truthfulqa",
        file="truthfulqa/TruthfulQA.csv",
        about="817 questions that people answer wrongly: likelihood of right and wrong answers (MC1, MC2)",
    ),
    "reward-bench-2": Benchmark(
        runs="reward_bench:run_reward_bench",
        measures="reward",
        file="reward_bench_2/data.jsonl",
        about="a reward model's choice among four completions, and ties",
    ),
}
"""Name -> benchmark. ``lm-eval:TASK`` is any task of lm-evaluation-harness."""
