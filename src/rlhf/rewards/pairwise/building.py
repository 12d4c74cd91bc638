"""From settings to a judge."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf.config.judge_base import JudgeBase, PromptedJudgeConfig
from rlhf.config.judge_types.jury import JuryJudgeConfig
from rlhf.config.judges import read_judge
from rlhf.rewards.pairwise.function_judge import function_judge
from rlhf.rewards.pairwise.scores import ScoreJudge
from rlhf.rewards.pairwise.verdict_cache import CachedJudge
from rlhf.rewards.pairwise.votes import PairwiseJudge
from rlhf.rewards.types import Scorer


def build_judge(
    config: Any, *, cache: Path | str | None = None, max_verdicts: int | None = None, keeps_refusals: bool = False
) -> PairwiseJudge:
    """A judge of whatever means one.

    Args:
        config: A ``JudgeConfig``, a mapping or text that stands for one (``judge.yaml``, ``longer``, a reward model's folder), a judge, a
            scorer, or a function (see ``FunctionJudgeConfig``).
        cache: File in which verdicts of language models are kept where their settings name none; None for none.
        max_verdicts: How many the file may hold of each judge; None for no limit.
        keeps_refusals: As of ``CachedJudge``.

    Raises:
        ConfigError: The settings are wrong.
    """
    if isinstance(config, PairwiseJudge):
        return config
    if isinstance(config, Scorer) and not isinstance(config, type):
        return ScoreJudge(config, identity={"type": "scorer", "name": config.name})
    if callable(config) and not isinstance(config, JudgeBase):
        return function_judge(config, name=getattr(config, "__name__", type(config).__name__))
    settings = read_judge(config)
    build = _builder(settings)
    if isinstance(settings, JuryJudgeConfig):
        pairwise_judge: PairwiseJudge = build(
            settings,
            [
                build_judge(member, cache=cache, max_verdicts=max_verdicts, keeps_refusals=keeps_refusals)
                for member in settings.members
            ],
        )
        return pairwise_judge
    judge: PairwiseJudge = build(settings)
    if isinstance(settings, PromptedJudgeConfig) and (path := settings.cache or cache) is not None:
        return CachedJudge(judge, path, max_verdicts=max_verdicts, keeps_refusals=keeps_refusals)
    return judge


def _builder(settings: JudgeBase) -> Callable[..., Any]:
    module, _, name = settings.builds.partition(":")
    builder: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return builder
