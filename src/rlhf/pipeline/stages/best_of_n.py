"""Best-of-N: ask a policy several times, judge, and keep the best as demonstrations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlhf.config.file_stages import BestOfNStage
from rlhf.config.search import SearchConfig
from rlhf.data.contracts import Prompt
from rlhf.data.message_text import counted
from rlhf.errors import RewardError
from rlhf.files import write_jsonl
from rlhf.formatting import rounded
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.stages.context import StageContext, StageOutcome, resolved, resolved_reward, seed_of
from rlhf.pipeline.stages.inputs import load_policy, read_prompts
from rlhf.rewards.best_of_n_statistics import best_of_n_kl
from rlhf.rewards.factory import build_reward
from rlhf.rewards.types import Scorer, ask_scorer, listen, sample_name
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion, RolloutEngine

if TYPE_CHECKING:
    from rlhf.search.search_engine import SearchEngine

SAMPLES_AT_ONCE = 2048
"""Completions asked for and judged in one call."""
ROWS = "demonstrations.jsonl"
PAIRS = "refined_pairs.jsonl"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A completion and what the judge says of it."""

    completion: Completion
    score: float
    """NaN where there is none."""

    @property
    def is_scored(self) -> bool:
        """Whether the judge had a number for it."""
        return math.isfinite(self.score)


def run_best_of_n(stage: BestOfNStage, at: StageContext) -> StageOutcome:
    """Demonstrations: what a reward likes best of a policy's own samples."""
    seed = seed_of(stage.seed)
    policy = load_policy(stage.model, at, seed=seed)
    prompts = read_prompts(
        stage.prompts, policy, at, row_filter=stage.row_filter, workers=stage.data_workers,
        limit=stage.limit, max_prompt_length=stage.max_prompt_length, truncation="drop",
    )  # fmt: skip
    scorer = build_reward(
        [resolved_reward(spec, at) for spec in stage.reward],
        tokenizer=policy.tokenizer, on_error="report", folder=at.folder,
    )  # fmt: skip
    listen(scorer, at.log.alarm)
    engine: RolloutEngine = LocalEngine(policy)
    search = None
    if stage.search is not None:
        engine = search = _searching(stage.search, engine, policy, at)
    rows: list[dict[str, Any]] = []
    asked: list[Candidate] = []
    best: list[Candidate] = []
    unscored: list[str] = []
    at_once = max(1, SAMPLES_AT_ONCE // stage.num_samples)
    with at.log.progress(at.name, len(prompts)) as bar:
        for first in range(0, len(prompts), at_once):
            part = prompts[first : first + at_once]
            groups = engine.generate(
                part, num_samples=stage.num_samples, sampling=stage.sampling, seed=seed, rollout_index=0
            )
            for prompt, group in zip(part, _judged(part, groups, scorer, unscored), strict=True):
                kept = chosen(group, keep=stage.keep, min_score=stage.min_score, keep_cut=stage.keep_cut)
                rows += [_row(prompt, candidate) for candidate in kept]
                asked += group
                best += kept
            bar.advance(by=len(part))
    _tell_unscored(unscored, asked, scorer, at)
    write_jsonl(at.folder / ROWS, rows)
    outcome = _outcome(stage, at, len(prompts), asked, best)
    if search is None:
        return outcome
    if PAIRS in stage.files_written():
        write_jsonl(at.folder / PAIRS, search.refined_pairs(seed=seed))
    return replace(
        outcome,
        headline=f"{outcome.headline}; {search.cost_sentence()}",
        metrics={
            **outcome.metrics,
            **{f"search/{name}": value for name, value in search.cost_per_completion().items()},
        },
    )


def _searching(search: SearchConfig, engine: RolloutEngine, policy: PolicyModel, at: StageContext) -> SearchEngine:
    """An engine whose completions are found, not drawn."""
    from rlhf.search.search_engine import searching_engine  # here: few recipes search

    return searching_engine(resolved(search, at), engine, policy, notify=at.log.alarm)


def chosen(
    group: Sequence[Candidate], *, keep: int, min_score: float | None = None, keep_cut: bool = False
) -> list[Candidate]:
    """The best of one prompt's candidates, best first; the earlier sample wins a tie, and equal texts count once.

    Args:
        group: All of them.
        keep: At most so many.
        min_score: None below this; None for no bound.
        keep_cut: Also those that the length limit cut, which have no end that could be learned.
    """
    able = [c for c in group if c.is_scored and (keep_cut or not c.completion.truncated)]
    if min_score is not None:
        able = [c for c in able if c.score >= min_score]
    by_text: dict[str, Candidate] = {}
    for candidate in sorted(able, key=lambda c: (-c.score, c.completion.sample)):
        by_text.setdefault(candidate.completion.text, candidate)
    return list(by_text.values())[:keep]


def _judged(
    prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]], scorer: Scorer, unscored: list[str]
) -> Iterable[list[Candidate]]:
    """Each group with its scores; what had none is noted in ``unscored``, in the words of the judge."""
    asked = [(prompt, completion) for prompt, group in zip(prompts, groups, strict=True) for completion in group]
    result = ask_scorer(scorer, [prompt for prompt, _ in asked], [completion for _, completion in asked])
    unscored += [f"{sample_name(*asked[place])}: {reason}" for place, reason in sorted(result.errors.items())]
    scores = iter(result.scores)
    return [[Candidate(completion, next(scores)) for completion in group] for group in groups]


def _row(prompt: Prompt, candidate: Candidate) -> dict[str, Any]:
    """Texts for people, the sampled ids for training (nothing is tokenized again), and the prompt's own columns."""
    own = {
        "id": f"{prompt.id}/{candidate.completion.sample}",
        "prompt": prompt.text,
        "completion": candidate.completion.text,
        "prompt_ids": list(prompt.ids),
        "completion_ids": list(candidate.completion.tokens),
        "score": round(candidate.score, 6),
    }
    return {**own, **{name: value for name, value in prompt.columns.items() if name not in own}}


def _tell_unscored(unscored: Sequence[str], asked: Sequence[Candidate], scorer: Scorer, at: StageContext) -> None:
    """An alarm where some completions had no score.

    Raises:
        RewardError: None had one.
    """
    if not unscored:
        return
    problem = f"the reward {scorer.name} gave no score for {len(unscored)} of {counted(len(asked), 'completion')}"
    if len(unscored) == len(asked):
        raise RewardError(f"{at.name}: {problem}, so there is nothing to choose by; the first, of prompt {unscored[0]}")
    at.log.alarm(f"{at.name}: {problem}, which were left out; the first, of prompt {unscored[0]}")


def _outcome(
    stage: BestOfNStage, at: StageContext, num_prompts: int, asked: Sequence[Candidate], best: Sequence[Candidate]
) -> StageOutcome:
    """Counts and means, with an alarm where nothing was kept of anything."""
    of_prompts = {candidate.completion.prompt_id for candidate in best}
    empty = num_prompts - len(of_prompts)
    cut = sum(candidate.completion.truncated for candidate in asked)
    metrics: dict[str, Any] = {
        "num_prompts": num_prompts,
        "num_completions": len(asked),
        "num_demonstrations": len(best),
        "num_prompts_without": empty,
        "num_cut": cut,
    }
    headline = f"{counted(len(best), 'demonstration')} from {counted(num_prompts, 'prompt')}"
    headline += f" ({empty:,} gave none)" if empty else ""
    scored = [candidate.score for candidate in asked if candidate.is_scored]
    if not best:
        at.log.alarm(
            f"{at.name}: nothing was kept of {counted(len(asked), 'completion')}: {cut} were cut by the length limit, and the best "
            f"score is {max(scored):g}; raise sampling.max_new_tokens, or lower min_score."
        )
        return StageOutcome(headline, metrics)
    metrics |= {
        "score_mean": math.fsum(scored) / len(scored),
        "score_kept_mean": math.fsum(candidate.score for candidate in best) / len(best),
    }
    headline += (
        f", score {rounded(metrics['score_mean'], sign=True)} -> {rounded(metrics['score_kept_mean'], sign=True)}"
    )
    # A bound on the score, leaving out what was cut, or drawing from another distribution than the policy's (a temperature,
    # its likeliest tokens) moves further: by nobody knows how much.
    everything = stage.min_score is None and (stage.keep_cut or not cut) and len(scored) == len(asked)
    if stage.keep == 1 and everything and stage.sampling.is_whole and stage.search is None:
        bound = metrics["kl_bound"] = best_of_n_kl(stage.num_samples)
        at.log.write(
            "note",
            message=f"The best of {stage.num_samples} differs from the policy by a KL of at most {bound:.3f} nats per completion: "
            "log n - (n - 1) / n (Stiennon et al. 2020, arXiv:2009.01325; Beirami et al. 2024, arXiv:2401.01879).",
        )
        headline += f", KL at most {bound:.2f} nats"
    return StageOutcome(headline, metrics)
