"""A results file for the Hub: the settings."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rlhf.config.base import BaseConfig


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
