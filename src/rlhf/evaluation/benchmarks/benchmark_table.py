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
    "mt-bench": Benchmark(
        runs="mt_bench:run_mt_bench",
        needs=("questions", "judge"),
        file="mt_bench/question.jsonl",
        about="80 questions of two turns, graded from 1 to 10 by a judge",
    ),
    "mt-bench-pairs": Benchmark(
        runs="mt_bench_pairs:run_mt_bench_pairs",
        needs=("questions", "judge", "baseline"),
        file="mt_bench/question.jsonl",
        about="the same questions, against a baseline, by a judge of pairs",
    ),
    "alpaca-eval": Benchmark(
        runs="alpaca_eval:run_alpaca_eval",
        needs=("questions", "judge"),
        file="alpaca_eval/alpaca_eval.json",
        about="answers against reference answers, by a judge, raw and at equal length",
    ),
    **{
        f"llmbar-{part.rpartition('/')[2].lower()}": Benchmark(
            runs="judge_agreement:run_llmbar",
            measures="judge",
            file=f"llmbar/LLMBar/{part}/dataset.json",
            about="whether a judge prefers what follows the instruction to what looks better",
        )
        for part in (
            "Natural",
            "Adversarial/Neighbor",
            "Adversarial/GPTInst",
            "Adversarial/GPTOut",
            "Adversarial/Manual",
        )
    },
    "pandalm": Benchmark(
        runs="judge_agreement:run_pandalm",
        measures="judge",
        file="pandalm/testset-v1.json.gz",
        about="a judge's agreement with the majority of three people on 999 pairs, next to that of two people",
    ),
}
"""Name -> benchmark. ``lm-eval:TASK`` is any task of lm-evaluation-harness."""
