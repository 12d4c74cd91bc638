"""Strategies of search, and their settings. A text stands for a strategy without required settings, or for a function of yours,
``package.module:name``."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rlhf.config.base import FUNCTION, BaseConfig, FunctionName, Kind, Names
from rlhf.config.search_revision import PAIR_GAIN, RevisionConfig


class StrategyConfig(Kind):
    """What every strategy has: a name for tables, and what the library has to know of the kind.

    A new kind is a class below this one and its line in ``STRATEGY_KINDS``.
    """

    runs: ClassVar[str] = ""
    """``package.module:function``: a strategy, see ``rlhf.search.contract``; empty where a setting names it."""
    scores: ClassVar[bool] = False
    """Whether it needs a reward."""
    by_step: ClassVar[bool] = False
    """Whether it searches step by step, and so needs a separator and a reward that judges beginnings."""
    wants_probabilities: ClassVar[bool] = False
    """Whether it compares scores with 0 and 1."""
    criticizes: ClassVar[bool] = False
    """Whether it needs a critic."""
    judges_revisions: ClassVar[bool] = False
    """Whether its reward decides about what a critic asked for, and so must be somebody else."""
    single_draw: ClassVar[bool] = False
    """Whether it samples one completion and looks for no better one."""
    name: str | None = None
    """What tables call it; by default its kind with its main numbers."""

    @property
    def title(self) -> str:
        """What tables call it."""
        return self.name or self.kind

    @property
    def file_name(self) -> str:
        """The title in lower case, with nothing but letters, digits and underscores: for files and metrics."""
        return re.sub(r"[^a-z0-9]+", "_", self.title.lower()).strip("_")

    @property
    def module(self) -> str:
        """That of ``runs``."""
        return self.runs.partition(":")[0]

    @property
    def needs_reward(self) -> bool:
        """Whether these settings need one."""
        return self.scores

    @property
    def needs_answer(self) -> bool:
        """Whether these settings compare answers."""
        return "answer" in type(self).model_fields

    def keywords(self) -> dict[str, Any]:
        """Settings that the strategy's function takes by keyword."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in ("kind", "name", "answer")}


class AnswerConfig(BaseConfig):
    """Where a completion's answer stands: two completions vote together when theirs are equal."""

    pattern: str | None = None
    """A regular expression; the answer is the first group of its last match, or the whole match. null for `where`."""
    where: list[Literal["hashes", "boxed", "phrase", "last_number", "whole"]] = Field(
        ["hashes", "boxed", "phrase", "last_number"], min_length=1
    )
    """Places tried in order: behind `####`, in `\\boxed{}`, behind `the answer is`, the last number, or the whole text."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as err:
            raise ValueError(f"not a regular expression: {err}") from None
        return pattern


class GreedyConfig(StrategyConfig):
    """The likeliest token each time."""

    single_draw = True
    runs = "rlhf.search.strategies.single_sample:greedy"
    kind: Literal["greedy"] = "greedy"


class SampleConfig(StrategyConfig):
    """One draw."""

    single_draw = True
    runs = "rlhf.search.strategies.single_sample:single_sample"
    kind: Literal["sample"] = "sample"


class BestOfNSearchConfig(StrategyConfig):
    """The highest-scored of N samples."""

    runs = "rlhf.search.strategies.highest_score:best_of_n"
    scores = True
    kind: Literal["best_of_n"] = "best_of_n"
    num_samples: int = Field(8, ge=1)
    """N."""

    @property
    def title(self) -> str:
        """With N."""
        return self.name or f"best of {self.num_samples}"


class MajorityVoteConfig(StrategyConfig):
    """The answer that most samples give."""

    runs = "rlhf.search.strategies.votes_on_answers:majority_vote"
    kind: Literal["majority_vote"] = "majority_vote"
    num_samples: int = Field(8, ge=1)
    """How many vote."""
    answer: AnswerConfig | None = None
    """Where the answer stands; the search's by default."""

    @property
    def title(self) -> str:
        """With the number of votes."""
        return self.name or f"majority vote of {self.num_samples}"


class WeightedVoteConfig(MajorityVoteConfig):
    """The answer whose samples' scores sum highest."""

    runs = "rlhf.search.strategies.votes_on_answers:weighted_vote"
    scores = True
    kind: Literal["weighted_vote"] = "weighted_vote"  # type: ignore[assignment]

    @property
    def title(self) -> str:
        """With the number of votes."""
        return self.name or f"weighted vote of {self.num_samples}"


class BeamConfig(StrategyConfig):
    """Several next steps of each beam, of which the best-scored go on."""

    runs = "rlhf.search.strategies.step_beam:beam"
    scores = True
    by_step = True
    kind: Literal["beam"] = "beam"
    width: int = Field(1, ge=1)
    """Beams that go on."""
    samples: int = Field(4, ge=1)
    """Next steps drawn of each."""
    distinct: bool = True
    """Equal beginnings hold one place among the beams."""
    max_steps: int = Field(64, ge=1)
    """The most steps of a completion."""

    @property
    def title(self) -> str:
        """With its size."""
        return self.name or f"beam {self.width}x{self.samples}"


class DiverseBeamConfig(StrategyConfig):
    """Groups of beams, each kept away from the steps that groups before it took; with `diversity_penalty: 0`, independent ones (DVTS)."""

    runs = "rlhf.search.strategies.diverse_beam:diverse_beam"
    scores = True
    by_step = True
    kind: Literal["diverse_beam"] = "diverse_beam"
    groups: int = Field(4, ge=1)
    """Beam searches side by side, of which the best answer counts; DVTS calls them subtrees."""
    width: int = Field(1, ge=1)
    """Beams of a group that go on."""
    samples: int = Field(4, ge=1)
    """Next steps drawn of each beam."""
    diversity_penalty: float = Field(0.0, ge=0)
    """Taken off a next step's score for each beam of an earlier group that has just taken the same step, in the reward's units."""
    max_steps: int = Field(64, ge=1)
    """The most steps of a completion."""

    @property
    def title(self) -> str:
        """With its size, and its penalty where there is one."""
        penalty = f", penalty {self.diversity_penalty:g}" if self.diversity_penalty else ""
        return self.name or f"diverse beam {self.groups}x{self.width}x{self.samples}{penalty}"


class MCTSConfig(StrategyConfig):
    """Monte Carlo tree search over steps: PUCT, with a node sampled again while its best child is far below it."""

    runs = "rlhf.search.strategies.tree_search:mcts"
    scores = True
    by_step = True
    wants_probabilities = True
    kind: Literal["mcts"] = "mcts"
    samples: int = Field(2, ge=1)
    """Next steps sampled in one expansion."""
    max_children: int = Field(16, ge=1)
    """Most steps sampled of one node."""
    widen_below: float = Field(0.5, ge=0, le=1)
    """A node is expanded again while its best child's score is below this share of its own; 0 to expand each once."""
    exploration: float = Field(0.5, ge=0)
    """Weight of the prior, which is a step's share of its siblings."""
    max_expansions: int = Field(128, ge=1)
    """The most expansions of a tree."""
    leaves_at_once: int = Field(1, ge=1)
    """Leaves expanded in one call, kept apart by a virtual loss."""
    commit_after: int | None = Field(None, ge=1)
    """After so many expansions the root moves to its most visited child, whose subtree stays; null to search from the prompt
    throughout."""
    stop_at: float | None = 0.9
    """A completion with this score ends the search; null to use every expansion."""
    value_weight: float = Field(0.0, ge=0, le=1)
    """Share of the search's `value_model` in the value of a leaf that is not complete; the rest is its score."""

    @property
    def title(self) -> str:
        """With its cap."""
        return self.name or f"MCTS, cap {self.max_children}"


DEFAULT_THRESHOLDS = {"score": 0.5, "vote": 0.95}
"""Rule of ``confidence_stopping`` -> its threshold; one agreeing sample makes a vote sure to 0.75, so 0.5 would never sample twice."""


class ConfidenceStoppingConfig(StrategyConfig):
    """Sample until a score, or a vote, is sure enough."""

    runs = "rlhf.search.strategies.confidence_stopping:confidence_stopping"
    kind: Literal["confidence_stopping"] = "confidence_stopping"
    rule: Literal["score", "vote"] = "score"
    """`score`: stop at a completion whose score reaches the threshold, and answer with it; `vote`: stop when the commonest answer is
    surely that (Aggarwal et al. 2023, arXiv:2305.11860)."""
    threshold: float | None = None
    """Of the score, 0.5 by default; or of the probability that the vote stays, 0.95 by default."""
    max_samples: int = Field(16, ge=1)
    """The cap."""
    min_samples: int = Field(1, ge=1)
    """Never stop before."""
    samples_at_once: int = Field(1, ge=1)
    """Sampled between two looks."""
    answer: AnswerConfig | None = None
    """Where the answer stands; the search's by default."""

    @model_validator(mode="after")
    def _can_be_sure(self) -> Self:
        if self.rule == "vote" and not 0.5 <= self.limit < 1:
            raise ValueError(f"threshold is {self.threshold}; a vote is sure with a probability from 0.5 to below 1")
        if self.min_samples > self.max_samples:
            raise ValueError(
                f"min_samples is {self.min_samples} and max_samples {self.max_samples}, so nothing could stop it; lower min_samples"
            )
        return self

    @property
    def limit(self) -> float:
        """The threshold, or that of the rule."""
        return self.threshold if self.threshold is not None else DEFAULT_THRESHOLDS[self.rule]

    def keywords(self) -> dict[str, Any]:
        """With the rule's threshold."""
        return {**super().keywords(), "threshold": self.limit}

    @property
    def needs_reward(self) -> bool:
        """For scores."""
        return self.rule == "score"

    @property
    def needs_answer(self) -> bool:
        """For votes."""
        return self.rule == "vote"

    @property
    def title(self) -> str:
        """With rule and cap."""
        return self.name or f"stop by {self.rule} > {self.limit:g}, cap {self.max_samples}"


class AdaptiveComputeConfig(StrategyConfig):
    """Best of N with another N for each prompt: a first look at all says which are difficult."""

    runs = "rlhf.search.strategies.adaptive_compute:adaptive_compute"
    scores = True
    kind: Literal["adaptive_compute"] = "adaptive_compute"
    by: Literal["gap", "disagreement"] = "gap"
    """What makes a prompt difficult: that the best score so far is low (`gap`), or that the answers differ (`disagreement`, which was
    worse than an even division where it was measured: docs/results/search.md)."""
    first: int = Field(2, ge=1)
    """Samples of the first look."""
    average: int = Field(8, ge=1)
    """Of all samples, for each prompt."""
    max_samples: int = Field(32, ge=1)
    """The most for one prompt."""
    answer: AnswerConfig | None = None
    """Where the answer stands; the search's by default."""

    @model_validator(mode="after")
    def _has_some_to_divide(self) -> Self:
        if not self.first <= self.average <= self.max_samples:
            raise ValueError(
                f"first, average and max_samples are {self.first}, {self.average} and {self.max_samples}; wanted them in rising order"
            )
        return self

    @property
    def needs_answer(self) -> bool:
        """For disagreement."""
        return self.by == "disagreement"

    @property
    def title(self) -> str:
        """With what it goes by."""
        return self.name or f"adaptive by {self.by}, average {self.average}"


class RefineConfig(StrategyConfig):
    """Criticize a draft and revise it; a revision is kept only where the reward scores it higher. The reward must not be the critic."""

    runs = "rlhf.search.strategies.refinement:refine"
    scores = True
    criticizes = True
    judges_revisions = True
    kind: Literal["refine"] = "refine"
    rounds: int = Field(3, ge=1)
    """The most critiques."""
    samples: int = Field(1, ge=1)
    """Revisions of each critique, of which the best-scored may be kept."""
    min_gain: float = Field(0.0, ge=0)
    """A revision is kept where its score is higher by more than this."""
    min_pair_gain: float = Field(PAIR_GAIN, ge=0)
    """A kept revision is a preference pair where its score is higher by more than this, in the reward's units: less may be its noise."""
    revision: RevisionConfig = RevisionConfig()
    """How drafts are revised."""

    @property
    def title(self) -> str:
        """With its rounds."""
        return self.name or f"refine, {self.rounds} rounds"


class TPOConfig(StrategyConfig):
    """Test-time preference optimization: best and worst so far are compared in words, and what follows for the best guides new samples."""

    runs = "rlhf.search.strategies.tpo:tpo"
    scores = True
    criticizes = True
    kind: Literal["tpo"] = "tpo"
    samples: int = Field(5, ge=2)
    """Completions drawn at first, and after each comparison."""
    iterations: int = Field(2, ge=1)
    """The most comparisons."""
    revision: RevisionConfig = RevisionConfig()
    """How the best completion is revised."""

    @property
    def title(self) -> str:
        """With its width and depth."""
        return self.name or f"TPO, {self.iterations} x {self.samples}"


class OwnStrategyConfig(StrategyConfig):
    """A strategy of yours: a generator function, see docs/search.md."""

    kind: Literal["function"] = "function"
    function: FunctionName
    """`package.module:function` or `path/to/file.py:function`."""
    arguments: Annotated[dict[str, Any], Names.TEXT_OR_FILE] = Field(default_factory=dict)
    """Given to every call by keyword."""

    @property
    def title(self) -> str:
        """The function's own name."""
        return self.name or self.function.rpartition(":")[2]

    def keywords(self) -> dict[str, Any]:
        """As they are."""
        return dict(self.arguments)


STRATEGY_KINDS: tuple[type[StrategyConfig], ...] = (
    GreedyConfig,
    SampleConfig,
    BestOfNSearchConfig,
    MajorityVoteConfig,
    WeightedVoteConfig,
    BeamConfig,
    DiverseBeamConfig,
    MCTSConfig,
    ConfidenceStoppingConfig,
    AdaptiveComputeConfig,
    RefineConfig,
    TPOConfig,
    OwnStrategyConfig,
)
"""Every kind of strategy; one line more is one kind more."""


def _from_text(value: Any) -> Any:
    """The settings that a plain text stands for."""
    if not isinstance(value, str):
        return value
    return {"kind": "function", "function": value} if FUNCTION.match(value) else {"kind": value}


if TYPE_CHECKING:
    StrategySpec = Any  # any StrategyConfig
else:
    StrategySpec = Annotated[reduce(or_, STRATEGY_KINDS), Field(discriminator="kind"), BeforeValidator(_from_text)]
