"""Capability suites: fixed questions with a scorer, asked before and after training. A YAML file:

    name: arithmetic
    version: 1
    scorer: numeric                   # any kind of reward by its name or settings, `choices` or `refusal`
    margin: 0.05                      # how much of the mean score may be lost
    items:
      - {prompt: "What is 2 + 3?", answer: 5}

or a JSONL file of items, named by a section: ``{name: arithmetic, scorer: numeric, data: items.jsonl}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rlhf.config.base import BaseConfig, InputPath, Kind
from rlhf.config.policy import SamplingConfig
from rlhf.config.reward_base import RewardBase
from rlhf.config.rewards import REWARD_KINDS

BUNDLED = ("format", "general", "name_bias", "over_refusal", "safety")
"""Suites that come with the library."""


class ChoicesScorer(Kind):
    """1 where the policy gives the highest likelihood to a right choice; nothing is sampled.

    Each item has `choices`, a list of texts, and `answer`, the place of the right one or a list of such places, from 0. Choices of
    equal likelihood share the credit, so a model without any preference scores what guessing does.
    """

    kind: Literal["choices"] = "choices"
    normalize: Literal["none", "bytes", "tokens"] = "none"
    """What a choice's summed log-probability is divided by. `bytes` is what lm-evaluation-harness calls acc_norm."""
    measure: Literal["accuracy", "mass"] = "accuracy"
    """`mass`: the share of the choices' probability that is on right ones (TruthfulQA's MC2; needs `normalize: none`)."""

    @model_validator(mode="after")
    def _has_a_mass(self) -> Self:
        if self.measure == "mass" and self.normalize != "none":
            raise ValueError("measure: mass is of probabilities; leave normalize out")
        return self


class RefusalScorer(Kind):
    """1 where a completion refuses what should be refused, or complies with what should be answered.

    Each item has `should_refuse`, true or false. Refusals are found by their usual phrases in English; an empty completion is neither
    a refusal nor help, and scores 0.
    """

    kind: Literal["refusal"] = "refusal"


SCORERS: tuple[type[Kind], ...] = (ChoicesScorer, RefusalScorer, *REWARD_KINDS)
"""What a suite can be scored by: any kind of reward, and what only suites have."""
_NAMES = {scorer.kind_name() for scorer in SCORERS}


def _from_text(value: Any) -> Any:
    """A kind by its name; any other text as a reward reads it."""
    if isinstance(value, str):
        return {"kind": value} if value in _NAMES else {"kind": "function", "function": value}
    return value


if TYPE_CHECKING:
    ScorerSpec = Any
else:
    ScorerSpec = Annotated[reduce(or_, SCORERS), Field(discriminator="kind"), BeforeValidator(_from_text)]


class SuiteConfig(BaseConfig):
    """Questions, how they are asked, and what a loss may be."""

    RESERVED: ClassVar[tuple[str, ...]] = ("id", "prompt", "group")

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """What results and gates call it."""
    version: str | int = 1
    """Raise it when items or wording change; results of different contents are never compared."""
    description: str = ""
    """One line."""
    scorer: ScorerSpec
    """Any kind of reward by its name (`exact`, `numeric`, `pattern`, `math`, `json`, `code` ...) or settings, `package.module:function`,
    `choices`, or `refusal`. Scores are from 0 to 1 unless `margin` is given in other units."""
    margin: float = Field(0.02, gt=0)
    """How much the mean score may fall, in the score's own units: a new model passes when a larger loss is ruled out."""
    samples: int = Field(1, ge=1)
    """Completions of each item; the item stays the unit of all intervals."""
    sampling: SamplingConfig = SamplingConfig(temperature=0.0)
    """How they are drawn; greedily by default."""
    system: str | None = None
    """A system message before each prompt; prompts are messages then, in the model's chat template."""
    template: str = "{prompt}"
    """What is asked of a plain text prompt."""
    items: list[dict[str, Any]] | None = None
    """Each with `prompt` (a text or messages), perhaps `id` and `group` (items of one group are one unit of all intervals), and what
    the scorer reads."""
    data: InputPath | None = None
    """A file of items in place of `items`."""
    limit: int | None = Field(None, ge=1)
    """Use only this many items, the first ones."""
    swaps: dict[str, dict[str, list[str]]] | None = None
    """A test of bias: group -> placeholder -> texts, such as `women: {name: [Emily, Anna]}`. Every item is asked once for each text of
    each group, filled in where it says `{name}`, and the groups' scores are compared, paired by item."""

    @property
    def unbounded(self) -> bool:
        """Whether scores may lie outside of [0, 1] even where none of those seen does, as those of a reward model."""
        return isinstance(self.scorer, RewardBase) and self.scorer.unbounded

    @model_validator(mode="after")
    def _has_items(self) -> Self:
        if (self.items is None) == (self.data is None):
            raise ValueError("give either `items`, written out, or `data`, a file of them")
        if self.swaps is not None:
            _check_swaps(self.swaps)
        if "{prompt}" not in self.template:
            raise ValueError("template must hold {prompt}, where the item's prompt goes")
        if self.samples > 1 and self.sampling.temperature == 0:
            raise ValueError("at sampling.temperature 0 all samples of an item are the same; give a number above 0")
        if isinstance(self.scorer, RewardBase) and self.scorer.normalize:
            raise ValueError("a normalized score has the same mean before and after; leave scorer.normalize out")
        return self


def _check_swaps(swaps: Mapping[str, Mapping[str, list[str]]]) -> None:
    if len(swaps) < 2:
        raise ValueError(f"swaps compares groups; give at least two, got {list(swaps)}")
    placeholders = set(next(iter(swaps.values())))
    for group, texts in swaps.items():
        if not texts or set(texts) != placeholders:
            raise ValueError(
                f"swaps.{group} has the placeholders {sorted(texts)}, another group {sorted(placeholders)}"
            )
        if empty := [name for name, values in texts.items() if not values]:
            raise ValueError(f"swaps.{group}.{empty[0]} is empty; give at least one text")
