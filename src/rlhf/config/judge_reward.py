"""A judge as a reward: a language model, or another judge of completions, whose verdicts a policy learns from."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, FiniteFloat, model_validator

from rlhf.config.base import BaseConfig
from rlhf.config.reward_base import RewardBase
from rlhf.config.yaml_text import read_yaml
from rlhf.errors import ConfigError

Mode = Literal["points", "pairwise", "group_ranks"]
"""What the judge is asked."""
RELATIVE = ("pairwise", "group_ranks")
"""Modes that compare completions."""
LOWEST, HIGHEST = 1.0, 10.0
FARTHEST = 999_999_999.0
"""Grade that an answer can hold, see ``rlhf.rewards.pairwise.rubric_templates.NUMBER``."""
FREE_OF_JUDGES: Mapping[str, bool] = dict.fromkeys(
    (
        "cache",
        "certificate",
        "api_key_variable",
        "max_cost",
        "input_price",
        "output_price",
        "requests_per_minute",
        "concurrency",
        "timeout_seconds",
        "deadline_seconds",
        "retries",
        "backoff_seconds",
    ),
    True,
)
"""Settings of a judge that decide when it is asked and what that may cost, and no verdict."""


class CriterionConfig(BaseConfig):
    """One thing that is asked about every completion."""

    name: str = Field(pattern=r"^\w+$")
    """What prompts and metrics call it: `reward/judge/NAME`."""
    text: str = Field(pattern=r"\S")
    """What is asked, in words; `{column}` is that column of the prompt's row."""
    weight: FiniteFloat = Field(1.0, gt=0)
    """Its share in the weighted mean, relative to the others'."""
    scale: tuple[FiniteFloat, FiniteFloat] = (LOWEST, HIGHEST)
    """Lowest and highest grade."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.scale[0] >= self.scale[1]:
            raise ValueError(f"scale goes from the lowest grade to the highest; got {list(self.scale)}")
        if max(map(abs, self.scale)) > FARTHEST:
            raise ValueError(f"grades have at most 9 digits before the point; got the scale {list(self.scale)}")
        return self


class RubricConfig(BaseConfig):
    """What completions are judged by."""

    criteria: list[CriterionConfig] = Field(min_length=1)
    """At least one."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [criterion.name for criterion in self.criteria]
        if len(set(names)) < len(names):
            raise ValueError(f"each criterion needs a name of its own; got {', '.join(names)}")
        if taken := [name for name in names if name in RESERVED]:
            raise ValueError(f"no criterion can be called {taken[0]}, which is a metric of the reward itself")
        if not math.isfinite(sum(criterion.weight for criterion in self.criteria)):
            raise ValueError(
                "the sum of the weights is too large for a float; only their ratios count, so give smaller ones"
            )
        return self


RESERVED = ("unparsed", "first_preferred")
"""Metrics of the reward itself, beside its criteria."""


def _rubric(value: Any) -> Any:
    """A rubric's settings; a text names their file, with which all that is wrong is said, and a list is one of criteria."""
    if isinstance(value, str | Path):
        tree: Any = read_yaml(Path(value))
        tree = {"criteria": tree} if isinstance(tree, list) else tree
        if not isinstance(tree, Mapping):
            return tree
        try:
            return RubricConfig.of(tree, source=str(value))
        except ConfigError as err:
            raise ValueError(" ".join(str(err).split())) from None
    return {"criteria": value} if isinstance(value, list) else value


def _judge(value: Any) -> Any:
    """Settings of a judge, of whatever means them; named by text, because judges know the kinds of reward."""
    return importlib.import_module("rlhf.config.judges").validated_judge(value)


class JudgeRewardConfig(RewardBase):
    """A judge: a language model behind an endpoint or run here, a jury, or a judge that compares; each verdict is kept on disk."""

    builds = "rlhf.rewards.judge_reward:build_judge_reward"
    text_key = "judge"
    free_to_change: ClassVar[Mapping[str, Any]] = {
        "max_requests": True,
        "judge": {**FREE_OF_JUDGES, "members": {"__all__": FREE_OF_JUDGES}},
    }
    kind: Literal["judge"] = "judge"
    judge: Annotated[Any, BeforeValidator(_judge)]
    """`judge.yaml`, or settings of a judge (docs/judges.md)."""
    rubric: Annotated[RubricConfig | None, BeforeValidator(_rubric)] = None
    """What it judges by: a YAML file, or its `criteria`, each with `name`, `text`, `weight` and `scale`; null leaves that to the judge."""
    mode: Mode = "points"
    """What it is asked. `points`: a grade of each completion, by each criterion. `pairwise`: which of two is better, for the share
    of its comparisons that a completion wins. `group_ranks`: all completions of a prompt in one request, best first."""
    score_range: tuple[FiniteFloat, FiniteFloat] = (0.0, 1.0)
    """Reward of the worst that can be and of the best."""
    opponents: Annotated[int, Field(ge=2)] | Literal["all"] = 2
    """Of `pairwise`: siblings that each completion is compared with, an even number, in a ring in an order that the seed shuffles; `all`
    compares every two."""
    column: str | None = None
    """Of `pairwise`: column of the prompt rows with a completion that each is compared with, in place of siblings."""
    orders: int | None = Field(None, ge=1, le=16)
    """Of `pairwise`: 2 asks about each pair in both orders, which is the default; 1 in one by chance. Of `group_ranks`: shuffled orders in
    which the completions are shown, whose ranks are averaged; 1 by default."""
    seed: int = Field(0, ge=0)
    """Seeds orders and opponents."""
    max_requests: int | None = Field(None, ge=1)
    """Questions that the judge may be asked in a stage, those that its file of verdicts holds included; a question with its retries counts
    once. Before more are asked the run is saved and stops (exit code 75); null for no limit."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.score_range[0] >= self.score_range[1]:
            raise ValueError(f"score_range goes from the worst to the best; got {list(self.score_range)}")
        if not math.isfinite(self.score_range[1] - self.score_range[0]):
            raise ValueError(f"score_range is too wide for a float; got {list(self.score_range)}")
        for name, mode in (("opponents", "pairwise"), ("column", "pairwise")):
            if self.mode != mode and self.differs(name):
                raise ValueError(f"{name} belongs to mode: {mode}; mode is {self.mode!r}")
        if self.column is not None and self.differs("opponents"):
            raise ValueError(
                "opponents counts siblings, and column names what each is compared with; leave one of the two out"
            )
        if self.opponents != "all" and self.opponents % 2:
            raise ValueError(
                f"opponents is {self.opponents}; wanted an even number, for a ring has as many on either side, or `all`"
            )
        if self.orders is not None and self.mode == "points":
            raise ValueError("orders belongs to modes that compare; `points` shows one completion at a time")
        if self.orders is not None and self.orders > 2 and self.mode == "pairwise":
            raise ValueError(f"orders is {self.orders}; two completions have 2 orders")
        self._check_judge()
        return self

    def _check_judge(self) -> None:
        for member in judges_inside(self.judge):
            is_model = member.reads_prompts
            if member.no_reward_because:
                raise ValueError(member.no_reward_because)
            if self.rubric is not None and not is_model:
                raise ValueError(
                    f"rubric is for judges that read it, and a `{member.type}` judge has no prompt; leave it out"
                )
            if self.mode == "group_ranks" and not is_model:
                raise ValueError(
                    f"group_ranks asks for a ranking in words, which a `{member.type}` judge can't give; take mode: pairwise"
                )
            if self.mode == "points" and not member.scores_are_grades:
                raise ValueError(
                    f"the scores of a `{member.type}` judge have no scale to grade on; take kind: learned, or mode: pairwise"
                )
            key = {"pairwise": "template", "points": "grade_template"}.get(self.mode)
            if key is not None and is_model and self.rubric is not None and member.differs(key):
                raise ValueError(
                    f"rubric has a prompt of its own, and judge.{key} names another; leave one of the two out"
                )

    @property
    def needs_siblings(self) -> bool:
        """Whether a completion has a score only next to others of its prompt."""
        return self.mode in RELATIVE and self.column is None

    @property
    def num_orders(self) -> int:
        """``orders``, or what it stands for."""
        return self.orders or (2 if self.mode == "pairwise" else 1)

    def models_asked(self) -> list[tuple[str, str]]:
        """Those that judge."""
        models: list[tuple[str, str]] = [(f"judge.{key}", source) for key, source in self.judge.models_asked()]
        return models

    def language_models(self) -> list[tuple[str, str]]:
        """Those of ``models_asked`` that judge in words."""
        asked = [judge for judge in judges_inside(self.judge) if judge.reads_prompts]
        sources = {source for judge in asked for _, source in judge.models_asked()}
        return [(key, source) for key, source in self.models_asked() if source in sources]

    def questions_about(self, siblings: int) -> int:
        """Questions to each judge about so many completions of a prompt, where their texts differ."""
        if self.mode == "points":
            return siblings
        if self.mode == "group_ranks":
            return self.num_orders if siblings > 1 else 0
        if self.column is not None:
            return siblings * self.num_orders
        return len(ring(siblings, self.opponents)) * self.num_orders


def ring(siblings: int, opponents: int | Literal["all"]) -> list[tuple[int, int]]:
    """Pairs of places, each with as many others: neighbors up to half of ``opponents`` away in a ring; every two where that is all.

    A circulant graph: the design is balanced, and connected, so that win shares of different completions can be compared.
    """
    if opponents == "all" or opponents >= siblings - 1:
        return [(a, b) for a in range(siblings) for b in range(a + 1, siblings)]
    return [(place, (place + away) % siblings) for away in range(1, opponents // 2 + 1) for place in range(siblings)]


def judges_inside(judge: Any) -> Iterator[Any]:
    """A judge's settings, or those of a jury's members."""
    members = getattr(judge, "members", None)
    if members is None:
        yield judge
        return
    for member in members:
        yield from judges_inside(member)


def free_inside(free: Mapping[str, Any]) -> dict[str, Any]:
    """What a resumed run may change of rewards, also where one is a part of another."""
    return {**free, "reward": free, "principles": {"__all__": {"judge": free}}}
