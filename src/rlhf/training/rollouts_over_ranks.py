"""Rollouts of several ranks: each samples and judges its share of the prompts, and all of them know the whole.

What ranks exchange are ids and numbers, so everything behind it (advantages, penalties, curricula, the cut into steps) is computed by
every rank from the same values and needs no collective.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from rlhf.data.contracts import Prompt
from rlhf.distributed.ranks import current_ranks
from rlhf.errors import InterruptedRun
from rlhf.rewards.model_reward import ModelReward
from rlhf.rewards.types import Abstaining, CompletionLike, Scorer, ScoreResult, ask_scorer, parts_of

ResultT = TypeVar("ResultT")


def places_of_rank(ids: Sequence[str], *, rank: int, size: int) -> list[int]:
    """Which places of a rollout are a rank's: the prompts in turn, and all places of a prompt together.

    Samples of one prompt stay on one rank, because rewards may compare them; so do repeats of a prompt, whose samples are numbered on.

    Args:
        ids: Of the prompt at each place.
        rank: From 0 to ``size - 1``.
        size: Ranks.
    """
    number = {prompt: turn for turn, prompt in enumerate(dict.fromkeys(ids))}
    return [place for place, prompt in enumerate(ids) if number[prompt] % size == rank]


def ask_over_ranks(ids: Sequence[str], ask: Callable[[Sequence[int]], Sequence[ResultT]]) -> list[ResultT]:
    """What ``ask`` gives for each place, whichever rank was asked.

    Args:
        ids: Of the prompt at each place.
        ask: Places -> one value for each; not called where a rank has none.
    """
    ranks = current_ranks()
    own = places_of_rank(ids, rank=ranks.rank, size=ranks.size)
    given = dict(zip(own, ask(own), strict=True)) if own else {}
    known = {place: value for part in ranks.gather(given) for place, value in part.items()}
    return [known[place] for place in range(len(ids))]


def score_over_ranks(scorer: Scorer, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
    """Ask a scorer; each rank about the completions of its prompts, or rank 0 about all where a scorer keeps files.

    A reward that is made of others puts their scores together on every rank, since what it does (``normalize``, ``length_debias``) may
    depend on all completions.

    Raises:
        RewardError: See ``ask_scorer``.
        InterruptedRun: A scorer asked to stop on any rank; all of them do.
    """
    if current_ranks().size > 1:
        scorer = _over_ranks(scorer)
    return ask_scorer(scorer, prompts, completions)


def _over_ranks(scorer: Any) -> Any:
    """The same reward, of whose parts each rank asks its share."""
    if not parts_of(scorer):
        kind = _SharedAbstaining if isinstance(scorer, Abstaining) else _Shared
        return kind(scorer)
    shared = copy.copy(scorer)
    shared.components = [replace(part, scorer=_over_ranks(part.scorer)) for part in scorer.components]
    return shared


class _Shared:
    """A scorer that is asked on every rank about the same completions, and asked there about the rank's own."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.name = scorer.name

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Those of all ranks.

        Raises:
            RewardError: See ``ask_scorer``.
            InterruptedRun: A scorer asked to stop on any rank.
        """
        return _joined(len(prompts), self._asked(partial(ask_scorer, self.scorer), prompts, completions))

    def _asked(
        self,
        ask: Callable[[Sequence[Prompt], Sequence[CompletionLike]], ResultT],
        prompts: Sequence[Prompt],
        completions: Sequence[CompletionLike],
    ) -> list[tuple[Sequence[int], ResultT]]:
        """What ``ask`` gives on each rank that has completions, and their places."""
        ranks = current_ranks()
        if keeps_files(self.scorer):
            own = list(range(len(prompts))) if ranks.is_main else []
        else:
            own = places_of_rank([prompt.id for prompt in prompts], rank=ranks.rank, size=ranks.size)
        result: ResultT | None = None
        stop: str | None = None
        try:
            if own:
                result = ask([prompts[place] for place in own], [completions[place] for place in own])
            elif isinstance(self.scorer, ModelReward):
                self.scorer.outputs([])  # the other ranks' passes through its shards are this one's, too
        except InterruptedRun as err:
            stop = str(err)
        gathered = ranks.gather((own, result, stop))
        for _, _, reason in gathered:
            if reason is not None:
                raise InterruptedRun(reason)
        return [(places, result) for places, result, _ in gathered if result is not None]


class _SharedAbstaining(_Shared):
    """The same of one that may return None."""

    scorer: Any

    def checked_verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, str]]:
        """Verdicts of all ranks [n], None where it does not apply or failed, and why it failed on which sample."""
        verdicts: list[float | None] = [None] * len(prompts)
        errors: dict[int, str] = {}
        for places, (said, wrong) in self._asked(self.scorer.checked_verdicts, prompts, completions):
            errors |= {places[place]: reason for place, reason in wrong.items()}
            for place, verdict in zip(places, said, strict=True):
                verdicts[place] = verdict
        return verdicts, dict(sorted(errors.items()))


def keeps_files(scorer: Any) -> bool:
    """Whether a scorer, or a part of it, keeps files of the requests it had, so that only one process may call it."""
    return getattr(scorer, "keeps_files", False) or any(map(keeps_files, parts_of(scorer)))


def _joined(count: int, parts: Sequence[tuple[Sequence[int], ScoreResult]]) -> ScoreResult:
    """Verdicts on parts of ``count`` completions as one."""
    scores = [math.nan] * count
    per_component: dict[str, list[float | None]] = {}
    errors: dict[int, str] = {}
    for places, result in parts:
        errors |= {places[place]: reason for place, reason in result.errors.items()}
        for place, score in zip(places, result.scores, strict=True):
            scores[place] = score
        for name, verdicts in result.per_component.items():
            column = per_component.setdefault(name, [None] * count)
            for place, verdict in zip(places, verdicts, strict=True):
                column[place] = verdict
    return ScoreResult(scores, per_component, dict(sorted(errors.items())))
