"""Rewards that check an answer, a form or a program."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rlhf.config.reward_base import RewardBase


class VerifierBase(RewardBase):
    """A judge that compares a completion with the reference in a column of its prompt's row."""

    column: str = "answer"
    """Column of the prompt rows that holds the reference; a row where it is null is left to the other judges."""


class ExactRewardConfig(VerifierBase):
    """1 for the reference word for word, apart from white space."""

    builds = "rlhf.rewards.verifiers.scorer:build_comparison"
    kind: Literal["exact"] = "exact"
    where: list[Literal["hashes", "boxed", "phrase", "whole"]] = Field(["whole"], min_length=1)
    """Where the answer stands, tried in order: behind `####`, in `\\boxed{}`, behind `the answer is`, or the whole text."""
    ignore_case: bool = False
    """Capitals don't matter."""


class NumericRewardConfig(VerifierBase):
    """1 for the right number; the reference may be a whole solution that ends in `#### 42`."""

    builds = "rlhf.rewards.verifiers.scorer:build_comparison"
    kind: Literal["numeric"] = "numeric"
    where: list[Literal["hashes", "boxed", "phrase", "last_number", "whole"]] = Field(
        ["hashes", "boxed", "phrase", "last_number"], min_length=1
    )
    """Where the answer stands, tried in order: behind `####`, in `\\boxed{}`, behind `the answer is`; `last_number` takes
    the text's last number where none of the marks is there."""
    tolerance: float = Field(0.0, ge=0)
    """How far off it may be."""
    relative_tolerance: float = Field(0.0, ge=0)
    """The same, as a share of the reference."""


class MathRewardConfig(VerifierBase):
    """1 for an expression equal to the reference, as math-verify judges; needs the extra `eval`."""

    builds = "rlhf.rewards.verifiers.scorer:build_isolated"
    kind: Literal["math"] = "math"
    timeout_seconds: float = Field(5.0, gt=0)
    """For one completion, which counts 0 when it takes longer."""

    @property
    def in_actors(self) -> bool:
        """Expressions may take as long as they are allowed to."""
        return True


class PatternRewardConfig(RewardBase):
    """1 for a completion in which a regular expression is found."""

    builds = "rlhf.rewards.verifiers.scorer:build_isolated"
    kind: Literal["pattern"] = "pattern"
    pattern: str
    """Of Python's `re`; flags go inside, as in `(?is)`."""
    full: bool = False
    """It must match the whole completion."""
    column: str | None = None
    """Column of the prompt rows with what the pattern's first group must hold."""
    timeout_seconds: float = Field(1.0, gt=0)
    """For one completion, which counts 0 when it takes longer."""

    @model_validator(mode="after")
    def _is_a_pattern(self) -> Self:
        try:
            groups = re.compile(self.pattern).groups
        except (re.error, OverflowError, RecursionError) as err:
            raise ValueError(f"the pattern is not a regular expression: {err}") from None
        if self.column is not None and groups == 0:
            raise ValueError("with a `column`, the pattern needs a group in parentheses for what is compared with it")
        return self


class JSONRewardConfig(RewardBase):
    """1 for a completion that is JSON, alone or in a fenced block, and keeps the schema."""

    builds = "rlhf.rewards.verifiers.scorer:build_isolated"
    kind: Literal["json"] = "json"
    json_schema: dict[str, Any] | None = None
    """The schema itself, written out; needs the package jsonschema."""
    column: str | None = None
    """Column of the prompt rows with a schema of each row's own, in place of `json_schema`."""
    timeout_seconds: float = Field(2.0, gt=0)
    """For one completion, which counts 0 when it takes longer."""


class CodeRewardConfig(RewardBase):
    """The share of its row's tests that a completion's last block of Python passes, in a sandbox."""

    builds = "rlhf.rewards.code.scorer:build_code"
    kind: Literal["code"] = "code"
    column: str = "tests"
    """Column of the prompt rows with the tests: Python source with assert statements, a list of such, or a list of
    `{input, output}`."""
    all_or_nothing: bool = False
    """1 where all tests pass, else 0."""
    unfenced: bool = False
    """A completion without a fenced block is a program as a whole."""
    isolation: Literal["full", "available"] = "full"
    """`full` refuses to run anything where this machine can't isolate it wholly; `available` takes what there is."""
    cpu_seconds: int = Field(5, ge=1)
    """Computing time of each test."""
    timeout_seconds: float = Field(15.0, gt=0)
    """By the clock, for each test; well above cpu_seconds, or a busy machine would decide scores."""
    memory_mb: int = Field(512, ge=64)
    """Address space of each process."""
    file_mb: int = Field(16, ge=1)
    """What a program may write."""
    processes: int = Field(1, ge=1)
    """Processes and threads that a program may be, itself included."""
    output_kb: int = Field(256, ge=1)
    """What a test may say."""
    workers: int = Field(0, ge=0)
    """Programs at a time; 0 for as many as there are processors, at most 8."""

    @property
    def in_actors(self) -> bool:
        """Programs take time."""
        return True
