"""From judges of pairs to judges that grade single answers from 1 to 10, or are asked by another prompt."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.data.contracts import Text
from rlhf.errors import ConfigError
from rlhf.rewards.pairwise.templates import JudgeTemplate
from rlhf.rewards.pairwise.votes import Pair, PairwiseJudge, Vote


def grading_judge(judge: PairwiseJudge) -> PairwiseJudge:
    """The judge that gives grades; it has an identity, and so kept verdicts, of its own.

    Raises:
        ConfigError: It can only compare.
    """
    make = getattr(judge, "grading", None)
    if make is None:
        raise ConfigError(
            f"The judge {judge.name} compares two completions and can't grade one. Take an endpoint, a local model, a jury of these, or a "
            "function (prompts, completions) that returns grades from 1 to 10."
        )
    grading: PairwiseJudge = make()
    return grading


def asking(judge: PairwiseJudge, template: JudgeTemplate) -> PairwiseJudge:
    """The same judge with another prompt; it has an identity, and so kept verdicts, of its own.

    Raises:
        ConfigError: It has no prompt.
    """
    make = getattr(judge, "with_template", None)
    if make is None:
        raise ConfigError(
            f"The judge {judge.name} has no prompt that could ask for {template.name}. Take an endpoint, a local model or a jury of these."
        )
    asker: PairwiseJudge = make(template)
    return asker


def grades_of(judge: PairwiseJudge, prompts: Sequence[Text], answers: Sequence[str]) -> list[Vote]:
    """A grade of each answer as ``Vote.first``; None where there is none that can be read.

    Args:
        judge: As of ``grading_judge``.
        prompts: [n].
        answers: [n].

    Raises:
        RewardError: The judge does not answer.
    """
    return judge.votes([Pair(prompt=p, first=a, second="") for p, a in zip(prompts, answers, strict=True)])
