"""A results file for the Hub: the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from rlhf.config.base import BaseConfig
from rlhf.config.requirements import metric_of
from rlhf.errors import did_you_mean

OF_A_COMPARISON = (
    "win_rate", "judge_score", "gold", "proxy", "entropy", "length", "unended_frac", "empty_frac", "repetition",
    "judge_unseen_frac", "judge_overlong_frac", "distinct_1", "distinct_2", "distinct_completions", "variety",
)  # fmt: skip
"""What an evaluation with a judge and a baseline measures without being asked for it by `metrics`."""


class HubResultsConfig(BaseConfig):
    """Which benchmark a number belongs to; the files are for a model's repository (docs/evaluation.md)."""

    dataset: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    """Id of the data set on the Hub, such as `openai/gsm8k`. A leaderboard shows the result where it is a benchmark."""
    task_id: str = "default"
    """Of the benchmark, as its `eval.yaml` calls it."""
    metric: str
    """The number: a metric of this evaluation, such as `judge_score`, `pass_at_k` or `win_rate`."""
    revision: str | None = None
    """Of the data set."""
    split: str | None = None
    """Of the data set, for the model index."""
    dataset_name: str | None = None
    """For people; the id by default."""
    task_type: str = "text-generation"
    """The Hub's name of the task, for the model index."""
    source_url: str | None = None
    """Where the evaluation can be looked at, such as a repository with the Inspect log."""
    source_name: str | None = None
    """What the link is called."""
    notes: str | None = None
    """Said beside the interval, such as the prompt's form."""

    @model_validator(mode="after")
    def _name_has_a_link(self) -> Self:
        if self.source_name is not None and self.source_url is None:
            raise ValueError("source_name names a link; give source_url with it")
        return self

    def check_metric(self, measured: Sequence[str]) -> None:
        """Refuse a number that the evaluation will not have, before anything is sampled.

        Args:
            measured: Metrics of the evaluation; ``metric/part`` is a part of one, and which parts there are shows later.

        Raises:
            ValueError: The number is none of them.
        """
        if self.metric not in measured and metric_of(self.metric) not in measured:
            hint = did_you_mean(self.metric, measured)
            raise ValueError(
                f"hub_results.metric names {self.metric!r}, which this evaluation does not measure.{hint} It measures: {', '.join(measured)}"
            )
