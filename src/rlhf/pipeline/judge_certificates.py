"""Judges of a stage that are language models and have no certificate that holds: said by every stage, refused by gates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlhf.config.judges import judges_held
from rlhf.config.stage_inputs import StageConfig
from rlhf.errors import ConfigError
from rlhf.pipeline.stages.context import StageContext, resolved
from rlhf.rewards.pairwise.certificate import asked_by, certificate_problem

KEY = "allow_uncertified"
"""Of stages that decide: they refuse such a judge unless it is true."""


@dataclass(frozen=True, slots=True)
class UncertifiedJudge:
    """A judge on which nothing is to rest yet."""

    key: str
    """Of the stage's settings."""
    problem: str
    """Why, a sentence."""


def uncertified_judges(stage: StageConfig, at: StageContext) -> Iterator[UncertifiedJudge]:
    """Every judge of a stage that needs a certificate and has none that holds.

    Args:
        stage: Its settings.
        at: Where it works: the models of earlier stages are there.

    Raises:
        DataError: A certificate can't be read.
    """
    for key, holder, judge in judges_held(stage):
        problem = certificate_problem(resolved(judge, at), asked=asked_by(holder))
        if problem is not None:
            yield UncertifiedJudge(key, problem)


def refuses_uncertified(stage: StageConfig) -> bool:
    """Whether a stage decides something, and nobody allowed it to decide by such a judge."""
    return getattr(stage, KEY, True) is False


def check_certified(stage: StageConfig, at: StageContext) -> None:
    """Refuse a gate whose evidence would rest on such a judge, before anything is asked.

    Raises:
        ConfigError: Names the key, says why, and what to do.
    """
    if not refuses_uncertified(stage):
        return
    for judge in uncertified_judges(stage, at):
        raise ConfigError(
            f"stages.{at.name}.{judge.key}: {judge.problem} A gate does not decide by such a judge; certify it, or set {KEY}: true."
        )
