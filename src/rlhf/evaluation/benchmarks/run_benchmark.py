"""``run_benchmark``: several benchmarks of one model, each result in a file of its own."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, DataError, did_you_mean, look_up
from rlhf.evaluation.benchmarks.benchmark_table import BENCHMARKS, Benchmark
from rlhf.evaluation.benchmarks.harness import PREFIX, run_harness_task
from rlhf.evaluation.benchmarks.results import BenchmarkResult
from rlhf.files import make_folder
from rlhf.models.policy import PolicyModel
from rlhf.rewards.factory import as_scorer, build_reward
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.verdict_cache import FILE as VERDICTS
from rlhf.rewards.pairwise.votes import PairwiseJudge
from rlhf.rewards.types import Scorer, TextCompletion, ask_scorer

FOLDER_VARIABLE = "RLHF_BENCHMARKS"
"""Environment variable: the folder in which question files are looked for."""


def run_benchmark(
    model: Any,
    benchmarks: Sequence[str] | str,
    output_dir: Path | str | None = None,
    *,
    questions: Mapping[str, Path | str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> dict[str, BenchmarkResult]:
    """Run benchmarks on local question files in their published formats.

        run_benchmark("runs/x/ppo/model", ["truthfulqa", "lm-eval:arc_easy"], "out")

    Args:
        model: What is measured: a policy or its folder; for benchmarks of rewards a reward model's folder or any other reward;
            for benchmarks of judges settings of a judge.
        benchmarks: Names of ``BENCHMARKS``, or ``lm-eval:TASK``.
        output_dir: Where each result is written as ``NAME.json``, and verdicts of language models are kept, so that none is asked for
            twice; None to write and keep none.
        questions: Name -> its question file; by default the file's usual name in the folder of the variable RLHF_BENCHMARKS.
        limit: Use only this many items, the first ones.
        seed: The same seed gives the same samples.
        settings: What single benchmarks take, such as ``judge``, ``baseline``, ``prefix`` or ``num_fewshot``.

    Returns:
        Name -> result, in the order asked.

    Raises:
        UnknownNameError: No benchmark has that name.
        DataError: A question file is not there, or wrong; says which and where it was looked for.
        ConfigError: A benchmark needs something that was not given, or none takes something that was.
    """
    names = [benchmarks] if isinstance(benchmarks, str) else list(benchmarks)
    planned = {name: None if name.startswith(PREFIX) else look_up(BENCHMARKS, name, kind="benchmark") for name in names}
    files = {name: _question_file(name, known, questions or {}) for name, known in planned.items() if known is not None}
    for name, known in planned.items():
        for need in known.needs if known is not None else ():
            if need != "questions" and settings.get(need) is None:
                raise ConfigError(f"The benchmark {name} needs {need}=...: {known.about if known else ''}.")
    runs = {name: run_harness_task if known is None else _function(known) for name, known in planned.items()}
    _check_settings(settings, runs.values())
    verdicts = None if output_dir is None else Path(output_dir) / VERDICTS
    if settings.get("judge") is not None:
        settings["judge"] = build_judge(settings["judge"], cache=verdicts)
    given = {"limit": limit, "seed": seed, **settings}
    opened: dict[str, Any] = {}
    results: dict[str, BenchmarkResult] = {}
    if output_dir is not None:
        make_folder(output_dir)
    for name, known in planned.items():
        what = known.measures if known is not None else "policy"
        if what not in opened:
            opened[what] = OPENERS[what](model, verdicts)
        if known is None:
            result = runs[name](opened[what], name.removeprefix(PREFIX), **given)
        else:
            result = replace(runs[name](opened[what], questions=files[name], **given), name=name)
        results[name] = result
        if output_dir is not None:
            result.write(Path(output_dir))
    return results


def _function(known: Benchmark) -> Callable[..., BenchmarkResult]:
    module, _, name = known.runs.partition(":")
    benchmark: Callable[..., BenchmarkResult] = getattr(
        importlib.import_module(f"rlhf.evaluation.benchmarks.{module}"), name
    )
    return benchmark


def _check_settings(settings: Mapping[str, Any], runs: Iterable[Callable[..., Any]]) -> None:
    """Refuse what none of the benchmarks takes."""
    takes = {name for run in runs for name in _taken(run)}
    for name in settings:
        if name not in takes:
            others = [other for other, known in BENCHMARKS.items() if name in _taken(_function(known))]
            raise ConfigError(
                f"None of these benchmarks takes {name}.{did_you_mean(name, takes)} Known: {', '.join(sorted(takes))}."
                + (f" Benchmarks that take {name}: {', '.join(others)}." if others else "")
            )


def _taken(run: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(run).parameters.items()
    return [name for name, parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _question_file(name: str, known: Benchmark, questions: Mapping[str, Path | str]) -> Path:
    if name in questions:
        path = Path(questions[name]).expanduser()
        where = str(path)
    else:
        folder = os.environ.get(FOLDER_VARIABLE)
        path = Path(folder or ".").expanduser() / known.file
        where = f"{path} ({FOLDER_VARIABLE} is {folder or 'not set'})"
    if not path.is_file():
        raise DataError(
            f"The question file of {name} is not at {where}. Give it as questions={{{name!r}: 'FILE'}}; nothing is downloaded."
        )
    return path


def _open_policy(model: Any, verdicts: Path | None) -> PolicyModel:
    return model if isinstance(model, PolicyModel) else PolicyModel.from_pretrained(str(model))


def _open_judge(model: Any, verdicts: Path | None) -> PairwiseJudge:
    return build_judge(model, cache=verdicts)


def _open_reward(model: Any, verdicts: Path | None) -> Callable[[Sequence[Any], Sequence[str]], list[float]]:
    """``(prompts, completions) -> scores``."""
    scorer: Scorer = build_reward(str(model)) if isinstance(model, str | Path) else as_scorer(model)

    def score(prompts: Sequence[Any], completions: Sequence[str]) -> list[float]:
        asked = [
            Prompt(
                str(number), [], text if isinstance(text, str) else "\n".join(str(m["content"]) for m in text),
                messages=None if isinstance(text, str) else list(text),
            )
            for number, text in enumerate(prompts)
        ]  # fmt: skip
        return list(ask_scorer(scorer, asked, [TextCompletion(text) for text in completions]).scores)

    return score


OPENERS: Mapping[str, Callable[[Any, Path | None], Any]] = {
    "policy": _open_policy,
    "reward": _open_reward,
    "judge": _open_judge,
}
"""What a benchmark measures -> what opens it; verdicts of language models are kept in the file."""
