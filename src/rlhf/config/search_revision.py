"""How a search asks for critiques and for revisions of a draft."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from rlhf.config.base import FUNCTION, BaseConfig, FunctionName, InputPath, Kind, Names
from rlhf.config.policy import SamplingConfig

PAIR_GAIN = 0.05
"""In units of the judge's score: a smaller gain of a revision makes no preference pair, unless the settings say so."""
PLACEHOLDER = re.compile(r"\{(prompt|draft|rejected|critique)\}")
CRITIQUE = """Task:
{prompt}

Answer:
{draft}

Say what is wrong with this answer and what it lacks, point by point. Do not write another answer.
"""
COMPARISON = """Task:
{prompt}

Preferred answer:
{draft}

Rejected answer:
{rejected}

Explain, point by point, what makes the preferred answer better than the rejected one, and what it still lacks.
Do not write another answer.
"""
ADVICE = """Task:
{prompt}

Answer:
{draft}

Criticism:
{critique}

Turn the criticism into instructions for a better answer, one a line. Do not write the answer.
"""
REVISION = """Task:
{prompt}

Earlier answer:
{draft}

What to do better:
{critique}

Write the improved answer, and nothing else.
"""


def _template(*wanted: str) -> Any:
    """A text with placeholders, of which some must be there."""

    def check(text: str) -> str:
        if missing := [name for name in wanted if f"{{{name}}}" not in text]:
            raise ValueError(f"the text has no {{{missing[0]}}}, so the model would not see it")
        return text

    return AfterValidator(check)


def filled(template: str, **parts: str) -> str:
    """A template with its placeholders replaced; what the parts hold is no placeholder."""
    return PLACEHOLDER.sub(lambda mark: parts.get(mark[1], mark[0]), template)


class RevisionConfig(BaseConfig):
    """How a draft is revised."""

    by: Literal["rewriting", "continuing"] = "rewriting"
    """`rewriting`: the policy reads prompt, draft and critique, and writes the completion anew. `continuing`: it reads no critique, and
    goes on from the part of the draft that the critic says is right, which suits models that follow no instructions."""
    prompt: Annotated[str, _template("draft", "critique")] = REVISION
    """What the policy reads when it rewrites, with `{prompt}`, `{draft}` and `{critique}`."""

    def text(self, *, prompt: str, draft: str, critique: str) -> str:
        """The text that takes the place of the prompt."""
        return filled(self.prompt, prompt=prompt, draft=draft, critique=critique)


class CriticBase(Kind):
    """Who says what is wrong with a draft. A new kind is a class below this one and its line in ``CRITIC_KINDS``."""

    builds: ClassVar[str]
    """``package.module:function`` that makes the critic: takes the settings, the policy, and the engine that samples from it."""


class FunctionCriticConfig(CriticBase):
    """A Python function `critic(prompts, completions, rejected, **columns)`, see docs/search.md; it runs in this process."""

    builds = "rlhf.search.critics:build_function_critic"
    kind: Literal["function"] = "function"
    function: FunctionName
    """`package.module:function` or `path/to/file.py:function`."""
    arguments: Annotated[dict[str, Any], Names.TEXT_OR_FILE] = Field(default_factory=dict)
    """Given to every call by keyword."""


class PolicyCriticConfig(CriticBase):
    """The policy itself, asked in words."""

    builds = "rlhf.search.critics:build_policy_critic"
    kind: Literal["policy"] = "policy"
    critique: Annotated[str, _template("draft")] = CRITIQUE
    """What it reads of a draft, with `{prompt}` and `{draft}`."""
    comparison: Annotated[str, _template("draft", "rejected")] = COMPARISON
    """What it reads of a draft and a worse one, with `{prompt}`, `{draft}` and `{rejected}`."""
    advice: Annotated[str, _template("critique")] = ADVICE
    """What it reads to make instructions of a critique, with `{prompt}`, `{draft}` and `{critique}`."""
    sampling: SamplingConfig = SamplingConfig(max_new_tokens=256)
    """How critiques are drawn."""


class ModelCriticConfig(PolicyCriticConfig):
    """Another model, asked in words."""

    builds = "rlhf.search.critics:build_model_critic"
    kind: Literal["model"] = "model"  # type: ignore[assignment]
    source: InputPath
    """`stage:NAME`, a folder or a hub name."""


CRITIC_KINDS: tuple[type[CriticBase], ...] = (FunctionCriticConfig, PolicyCriticConfig, ModelCriticConfig)
"""Every kind of critic; one line more is one kind more."""


def critic_from_text(value: Any) -> Any:
    """The settings that a plain text stands for: `policy`, a function, or else a model."""
    if not isinstance(value, str):
        return value
    if value == "policy":
        return {"kind": "policy"}
    return {"kind": "function", "function": value} if FUNCTION.match(value) else {"kind": "model", "source": value}


if TYPE_CHECKING:
    CriticSpec = Any  # any CriticBase
else:
    CriticSpec = Annotated[reduce(or_, CRITIC_KINDS), Field(discriminator="kind"), BeforeValidator(critic_from_text)]
