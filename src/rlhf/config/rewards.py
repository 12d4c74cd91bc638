"""Who judges completions while a policy is trained. A text stands for the commonest settings:

stage:reward                   a reward model that an earlier stage trained
models/rm, org/name            a reward model in a folder or on the hub
package.module:function        a Python function; also path/to/file.py:function
rules                          the built-in rules with their defaults
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, field_validator

from rlhf.config.base import Config

FUNCTION = re.compile(r"^(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|.+\.py):(?P<name>[A-Za-z_]\w*)$")
"""``package.module:function`` or ``path/to/file.py:function``."""


class RewardBase(Config):
    """What every kind of reward has."""

    weight: FiniteFloat = 1.0
    """The score is multiplied by this before several are added up; negative for something unwanted."""
    normalize: bool = False
    """Shift and scale the score to mean 0 and deviation 1 over each rollout before it is weighted."""
    name: str | None = None
    """What metrics call it; by default its kind or its function's name."""


class LearnedRewardConfig(RewardBase):
    """A reward model."""

    kind: Literal["learned"] = "learned"
    source: str
    """`stage:NAME`, a folder or a hub name."""


class RulesRewardConfig(RewardBase):
    """Heuristics of form: length near a target, capital at the start, punctuation at the end."""

    kind: Literal["rules"] = "rules"
    target_words: int = Field(200, ge=1)
    """The length, in words, that costs nothing."""
    length_weight: float = Field(1.0, ge=0)
    """Lost by a completion of 0 words or of twice the target, and in proportion between and beyond."""
    capital_weight: float = Field(0.5, ge=0)
    """Given for a first letter that is a capital."""
    punctuation_weight: float = Field(0.5, ge=0)
    """Given for a last character that ends a sentence."""


class LexiconRewardConfig(RewardBase):
    """How positive a text is, from a lexicon of rated words."""

    kind: Literal["lexicon"] = "lexicon"
    path: str
    """VADER's `vader_lexicon.txt`, or any file of `word<tab>valence` lines."""
    scale: Literal["mean", "compound"] = "mean"
    """`mean` valence of the rated words, -4 to 4; `compound` is VADER's sum s / sqrt(s^2 + 15), -1 to 1."""
    negation: bool = True
    """A negating word up to three words before turns a valence round, times VADER's 0.74."""


class FunctionRewardConfig(RewardBase):
    """A Python function `reward(prompts, completions, **columns) -> list[float]`."""

    kind: Literal["function"] = "function"
    function: str
    """`package.module:function` or `path/to/file.py:function`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Given to every call by keyword, beside the columns of the prompt rows."""
    in_process: bool = False
    """Call it in the training process: no timeout can stop it, but nothing is copied to another process."""
    timeout_seconds: float = Field(60.0, gt=0)
    """A call that takes longer is killed, with an error."""

    @field_validator("function")
    @classmethod
    def _names_a_function(cls, text: str) -> str:
        if not FUNCTION.match(text):
            raise ValueError("a function is named package.module:function or path/to/file.py:function")
        return text


def _from_text(value: Any) -> Any:
    """The settings that a plain text stands for."""
    if not isinstance(value, str):
        return value
    if value == "rules":
        return {"kind": "rules"}
    if not value.startswith("stage:") and FUNCTION.match(value):
        return {"kind": "function", "function": value}
    return {"kind": "learned", "source": value}


RewardSpec = Annotated[
    LearnedRewardConfig | RulesRewardConfig | LexiconRewardConfig | FunctionRewardConfig,
    Field(discriminator="kind"),
    BeforeValidator(_from_text),
]
"""One judge; a list of them is a weighted sum."""


def _to_list(value: Any) -> Any:
    """One judge is a list of one."""
    return value if isinstance(value, list | tuple) else [value]


RewardSpecs = Annotated[list[RewardSpec], Field(min_length=1), BeforeValidator(_to_list)]
"""What a recipe's ``reward:`` holds: one judge or several; always a list once it was read."""
