"""Strategies of search on the same held-out problems: accuracy against tokens, and which to take."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rlhf.config.search import SearchSettings
from rlhf.config.search_stages import SearchCompareStage
from rlhf.config.search_strategies import StrategyConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import DataError, RewardError
from rlhf.evaluation.intervals import paired_difference, share_interval
from rlhf.evaluation.judges import Judge, Judged, judge_completions, judge_name
from rlhf.evaluation.pass_at_k import pass_at_k
from rlhf.evaluation.records import SCHEMA
from rlhf.files import write_json
from rlhf.pipeline.report.search_view import write_picture
from rlhf.pipeline.stages.context import StageContext, StageOutcome, resolved, seed_of
from rlhf.pipeline.stages.inputs import load_policy, read_prompts
from rlhf.pipeline.stages.judging import open_judge, tell_cuts
from rlhf.rewards.best_of_n_statistics import best_of_n_means
from rlhf.rewards.types import TextCompletion
from rlhf.rollout.engines import build_engine, close_engine
from rlhf.search.configured_search import build_search, reader_of, search_with
from rlhf.search.contract import SearchResult
from rlhf.search.strategy_comparison import Pool, StrategyOutcome, advise, outcome_of, pool_of, vote_curve

SEARCHES = "searches"
"""Folder of the stage with each strategy's answers and traces; a rerun after a kill goes on from them."""
_share = share_interval
_difference = functools.partial(paired_difference, shares=True)


def run_search_compare(stage: SearchCompareStage, at: StageContext) -> StageOutcome:
    """Every strategy on every problem, judged by what none of them sees."""
    seed = seed_of(stage.seed)
    policy = load_policy(stage.policy, at, seed=seed)
    prompts = read_prompts(
        stage.prompts, policy, at, row_filter=stage.row_filter, workers=stage.data_workers,
        limit=stage.limit, max_prompt_length=stage.max_prompt_length, truncation="drop",
    )  # fmt: skip
    if not prompts:
        raise DataError(f"stages.{at.name}.prompts holds no problem to compare strategies on.")
    judge, engine = open_judge(stage.judge, at), build_engine(policy, stage.engine)
    settings = SearchSettings(**{name: resolved(getattr(stage, name), at) for name in SearchSettings.model_fields})
    scorer, helpers = build_search(settings, stage.strategies, policy, engine, notify=at.log.alarm)
    outcomes: list[StrategyOutcome] = []
    pass_curve: Mapping[int, float] = {}
    whose = at.naming("judge", RewardError, what="The judge is")
    with whose, at.log.progress(at.name, len(prompts) * len(stage.strategies)) as bar:
        for strategy in stage.strategies:
            run = search_with(
                stage, strategy, prompts,
                engine=engine, scorer=scorer, helpers=helpers, sampling=stage.sampling, seed=seed,
                file=at.folder / SEARCHES / f"{strategy.file_name}.jsonl", progress=lambda done: bar.advance(by=done),
            )  # fmt: skip
            outcome, pools = _judged(stage, strategy, prompts, run.results, judge, seed)
            outcomes.append(outcome)
            if len(pools) > len(pass_curve):
                pass_curve = pools
            at.log.say(
                f"  {outcome.title}: {outcome.accuracy.value:.3f} solved, {outcome.total_tokens:,.0f} tokens a problem"
            )
    close_engine(engine)
    tell_cuts(judge, at)
    advice = advise(outcomes, _difference, tolerance=stage.tolerance)
    part = {
        "settings": {
            "policy": stage.policy.path,
            "judge": judge_name(judge),
            "reward": None if scorer is None else scorer.name,
            "num_problems": len(prompts),
            "solved_at": stage.solved_at,
            "tolerance": stage.tolerance,
            "seed": seed,
            "sampling": stage.sampling.model_dump(),
            "budget": stage.budget.model_dump(exclude_none=True),
        },
        "strategies": [outcome.to_dict() for outcome in outcomes],
        "within_k_tries": {str(k): value for k, value in pass_curve.items()},
        "advice": asdict(advice),
    }
    write_json(at.folder / "evaluation.json", {"schema": SCHEMA, "search": part})
    write_picture(at.folder / "search.png", part)
    metrics: dict[str, float] = {"num_problems": len(prompts), "num_strategies": len(outcomes)}
    for strategy, outcome in zip(stage.strategies, outcomes, strict=True):
        name = strategy.file_name
        metrics |= {f"{name}/accuracy": outcome.accuracy.value, f"{name}/total_tokens": outcome.total_tokens}
    return StageOutcome(" ".join(advice.sentences[:2]), metrics)


def _judged(
    stage: SearchCompareStage,
    strategy: StrategyConfig,
    prompts: Sequence[Prompt],
    results: Sequence[SearchResult],
    judge: Judge,
    seed: int,
) -> tuple[StrategyOutcome, Mapping[int, float]]:
    """The strategy's answers and, where it drew a pool of whole completions, those of its samples."""
    verdicts = _ask(judge, prompts, [result.completion for result in results])
    solved = [float(score >= stage.solved_at) for score in verdicts.scores]
    pools = [pool_of(result) for result in results]
    sizes = {len(pool.texts) for pool in pools if pool is not None}
    curve: list[dict[str, float]] = []
    within: Mapping[int, float] = {}
    size = getattr(strategy, "num_samples", None)
    if size is not None and size > 1 and sizes == {size} and None not in pools:
        whole = [pool for pool in pools if pool is not None]
        curve, within = _curves(stage, strategy, prompts, whole, results, judge, seed)
    known = {name: [value for value in values if value is not None] for name, values in verdicts.metrics.items()}
    metrics = {name: float(np.mean(values)) for name, values in known.items() if values}
    return outcome_of(
        strategy.title, strategy.kind, results, solved, share=_share, metrics=metrics, curve=curve
    ), within


def _curves(
    stage: SearchCompareStage,
    strategy: StrategyConfig,
    prompts: Sequence[Prompt],
    pools: Sequence[Pool],
    results: Sequence[SearchResult],
    judge: Judge,
    seed: int,
) -> tuple[list[dict[str, float]], Mapping[int, float]]:
    """Accuracy with 1, 2, 4 ... of the pool's samples, exact over the sets of them (votes: over random sets), and pass@k."""
    size = len(pools[0].texts)
    ks = sorted({*(2**power for power in range(size.bit_length())), size})
    said = [
        TextCompletion(text, truncated=cut)
        for pool in pools
        for text, cut in zip(pool.texts, pool.truncated, strict=True)
    ]
    asked = [prompt for prompt in prompts for _ in range(size)]
    flat = [float(score >= stage.solved_at) for score in judge_completions(judge, asked, said).scores]
    correct = [flat[place : place + size] for place in range(0, len(flat), size)]
    within = {k: float(np.mean(pass_at_k([int(sum(row)) for row in correct], size, k))) for k in ks}
    if strategy.kind == "best_of_n":
        proxies = [
            [score if not cut else float("-inf") for score, cut in zip(pool.scores, pool.truncated, strict=True)]
            for pool in pools
        ]
        values = {
            k: float(np.mean([best_of_n_means(p, c, k) for p, c in zip(proxies, correct, strict=True)])) for k in ks
        }
    elif strategy.kind in ("majority_vote", "weighted_vote"):
        read = reader_of(strategy, stage.answer)
        answers = [[read(text) for text in pool.texts] for pool in pools]
        weights = [pool.scores for pool in pools] if strategy.kind == "weighted_vote" else None
        values = vote_curve(answers, correct, weights, ks, seed=seed)
    else:
        return [], within
    prefill = sum(result.cost.prefill_tokens for result in results) / len(results)
    rest = sum(result.cost.total_tokens for result in results) / len(results) - prefill
    return [{"k": k, "accuracy": values[k], "total_tokens": prefill + rest * k / size} for k in ks], within


def _ask(judge: Judge, prompts: Sequence[Prompt], completions: Sequence[Any]) -> Judged:
    """Verdicts on answers; a problem without one gets an empty text, which solves nothing."""
    return judge_completions(judge, prompts, [TextCompletion("") if each is None else each for each in completions])
