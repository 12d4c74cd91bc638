"""The judge of a stage that measures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.markup import escape

from rlhf.config.function_reward import FunctionRewardConfig
from rlhf.config.rewards import RewardSpec
from rlhf.data.contracts import Prompt
from rlhf.evaluation.judges import Judge, judge_completions, judge_name, load_judge
from rlhf.pipeline.stages.context import StageContext, resolved_reward
from rlhf.rewards.composite import Component
from rlhf.rewards.factory import build_reward
from rlhf.rewards.lengths import cut_too_long, cuts_told
from rlhf.rewards.types import CompletionLike, OnError, Scorer, ScoreResult, ask_scorer, listen


class HeldOutJudge:
    """The judge of a stage that measures, as a scorer: what a policy's training asks and never learns from.

    Args:
        judge: As ``open_judge`` gives it.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.components = [Component(scorer=judge)] if isinstance(judge, Scorer) else []

    @property
    def name(self) -> str:
        """What messages call it."""
        return judge_name(self.judge)

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion; a scorer that was built to report a sample without a score does so here, too."""
        if (
            self.components
        ):  # over ranks its scorer is one that shares the asking, see rlhf.training.rollouts_over_ranks
            return ask_scorer(self.components[0].scorer, prompts, completions)
        return ScoreResult(judge_completions(self.judge, prompts, completions).scores)


def open_judge(spec: RewardSpec, at: StageContext, *, on_error: OnError = "raise") -> Judge:
    """A function as it is, for it may say more than a score; any other kind of reward as the scorer that it is in training."""
    spec = resolved_reward(spec, at)
    if isinstance(spec, FunctionRewardConfig):
        judge = functools.partial(load_judge(spec.function), **spec.arguments)
        return judge if spec.weight == 1 else weighted(judge, spec.weight)
    scorer = build_reward(spec, on_error=on_error, folder=at.folder)
    listen(scorer, at.log.alarm)
    cut_too_long(scorer)
    return scorer


def tell_cuts(judge: Judge, at: StageContext, *others: str) -> None:
    """Say how many samples were too long for a judge, where any was, and what ``others`` there is to say of that."""
    for line in (*(cuts_told(judge, whom="the judge") if isinstance(judge, Scorer) else ()), *others):
        at.log.write("note", message=line)
        at.log.say(f"  {escape(line)}")


def weighted(judge: Callable[..., Sequence[Any]], weight: float) -> Callable[..., Sequence[Any]]:
    """The same judge with its score times a weight, and its other numbers as they are."""

    @functools.wraps(judge.func if isinstance(judge, functools.partial) else judge)
    def times(*args: Any, **columns: Any) -> Sequence[Any]:
        return [_times(verdict, weight) for verdict in judge(*args, **columns)]

    return times


def _times(verdict: Any, weight: float) -> Any:
    if isinstance(verdict, Mapping):
        return {**verdict, "score": _times(verdict["score"], weight)} if "score" in verdict else verdict
    return verdict if verdict is None or isinstance(verdict, str) else verdict * weight
