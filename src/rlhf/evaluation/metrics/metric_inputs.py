"""What a metric is given: one model's completions, and whatever else it declared to need. What several metrics use is computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import PreferenceRow, Prompt
from rlhf.data.message_text import counted
from rlhf.data.sources import Source
from rlhf.evaluation.intervals import Array
from rlhf.evaluation.judges import Judge, Judged, judge_completions
from rlhf.evaluation.metrics.text_likelihood import TextLikelihood, text_likelihood
from rlhf.evaluation.metrics.unit_statistics import MeanStatistic
from rlhf.evaluation.sampled_completions import sample_completions
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.pairwise.votes import PairwiseJudge
from rlhf.rewards.types import Scorer, ScoreResult, ask_scorer
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion, RolloutEngine
from rlhf.seeds import derive_seed

POLICY_SIDE, BASELINE_SIDE = 1, 0
"""In the seeds of samples: the two models never share their luck."""
SCORES_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class MetricNeeds:
    """What was given for metrics beyond the model and the prompts."""

    ref_model: PolicyModel | None = None
    reward: Scorer | None = None
    reward_model: RewardModel | None = None
    """Behind ``reward``, where that is a learned one: its scale turns score differences into probabilities."""
    judge: Judge | None = None
    pairwise_judge: PairwiseJudge | None = None
    """Who compares two completions and gives no scores."""
    pairs: Sequence[PreferenceRow] = ()
    texts: Source | None = None
    toxicity_classifier: str | None = None
    refusal_patterns: str | None = None
    """A file; None for the bundled one."""
    solved_at: float = 1.0
    """The judge's score from which on a completion solves its prompt."""
    tie_band: float = 0.0
    limit: int | None = None
    """Use only this many rows of ``texts``."""


@dataclass(frozen=True, kw_only=True)
class MetricInputs:
    """One model and its completions of the prompts, sampled when the first metric asks for them."""

    model: PolicyModel
    prompts: Sequence[Prompt]
    needs: MetricNeeds = field(default_factory=MetricNeeds)
    baseline: MetricInputs | None = None
    """The same for the model that this one is compared with."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    samples_per_prompt: int = 1
    seed: int = 0
    side: int = POLICY_SIDE
    build_engine: Callable[[PolicyModel], RolloutEngine] = LocalEngine
    given: Sequence[Sequence[Completion]] | None = None
    """Completions that were sampled already."""
    name: str = "the model"
    progress: Callable[..., None] | None = None

    @cached_property
    def completions(self) -> list[list[Completion]]:
        """[P] those of each prompt."""
        if self.given is not None:
            return [list(group) for group in self.given]
        return sample_completions(
            self.build_engine(self.model), self.prompts, num_samples=self.samples_per_prompt, sampling=self.sampling,
            seed=derive_seed(self.seed, "evaluation", self.side), name=self.name, progress=self.progress,
        )  # fmt: skip

    @cached_property
    def flat(self) -> list[Completion]:
        """[S] all completions, those of a prompt together."""
        return [completion for group in self.completions for completion in group]

    @cached_property
    def texts(self) -> list[list[str]]:
        """[P] the texts of each prompt's completions."""
        return [[completion.text for completion in group] for group in self.completions]

    @cached_property
    def asked(self) -> list[Prompt]:
        """[S] the prompt of each completion."""
        return [prompt for prompt, group in zip(self.prompts, self.completions, strict=True) for _ in group]

    @cached_property
    def judged(self) -> Judged:
        """The judge's verdicts on ``flat``."""
        assert self.needs.judge is not None
        return judge_completions(self.needs.judge, self.asked, self.flat)

    @cached_property
    def scored(self) -> ScoreResult:
        """The reward's scores of ``flat``; NaN with a reason where one failed."""
        assert self.needs.reward is not None
        return score_all(self.needs.reward, self.asked, self.flat)

    @cached_property
    def likelihood(self) -> TextLikelihood:
        """Of the texts that were given."""
        assert self.needs.texts is not None
        return text_likelihood(self.model, self.needs.texts, limit=self.needs.limit)

    def column(self, name: str) -> list[Any]:
        """[P] a column of the prompts; None where a row has none."""
        return [prompt.columns.get(name) for prompt in self.prompts]

    def mean(self, values: Sequence[float | None], *, share: bool = False, reason: str = "") -> MeanStatistic:
        """The mean over prompts of the mean over a prompt's completions that have a value.

        Args:
            values: [S] as ``flat``; None or NaN where a completion has none.
            share: Values lie between 0 and 1.
            reason: Why one has none.
        """
        return MeanStatistic(self.per_prompt(values), share, reason or "no completion has a value")

    def per_prompt(self, values: Sequence[float | None]) -> Array:
        """[P] mean over each prompt's completions that have a value; NaN where none has."""
        means, place = [], 0
        for group in self.completions:
            known = [v for v in values[place : place + len(group)] if v is not None and math.isfinite(v)]
            means.append(math.fsum(known) / len(known) if known else math.nan)
            place += len(group)
        return np.array(means, dtype=np.float64)


def score_all(scorer: Scorer, prompts: Sequence[Prompt], completions: Sequence[Any]) -> ScoreResult:
    """A scorer's verdicts in batches; its failures are kept by place."""
    scores: list[float] = []
    parts: dict[str, list[float | None]] = {}
    errors: dict[int, str] = {}
    for start in range(0, len(completions), SCORES_AT_ONCE):
        chosen = slice(start, start + SCORES_AT_ONCE)
        part = ask_scorer(scorer, prompts[chosen], completions[chosen])
        errors |= {start + place: reason for place, reason in part.errors.items()}
        for name, values in part.per_component.items():
            parts.setdefault(name, [None] * start).extend(values)
        scores += part.scores
        for values in parts.values():
            values += [None] * (len(scores) - len(values))
    return ScoreResult(scores, parts, errors)


def about_missing(errors: Mapping[int, str], total: int) -> dict[str, Any]:
    """What ``Measured.about`` says of samples without a value."""
    if not errors:
        return {}
    _, why = min(errors.items())
    return {
        "num_missing": len(errors),
        "why_missing": f"{len(errors):,} of {counted(total, 'sample')} have no value: {why}",
    }
