"""Judges among the rewards: how often they will be asked, and at which price."""

from __future__ import annotations

import os
from statistics import fmean
from typing import Any

from rlhf.config.judge_requests import BYTES_OF_TOKEN, judge_requests
from rlhf.config.judge_reward import JudgeRewardConfig, judges_inside
from rlhf.config.rewards import training_rewards_of
from rlhf.data.expand import prompt_of
from rlhf.pipeline.validate.inputs import rows_inputs
from rlhf.pipeline.validate.review import Review
from rlhf.pipeline.validate.row_cache import read_once


def check_judge_rewards(review: Review) -> None:
    """Count requests and their price; warn of a limit below them and of a missing key."""
    for _, stage in review.each_stage():
        specs = {place: spec for place, spec in training_rewards_of(stage) if isinstance(spec, JudgeRewardConfig)}
        for place, spec in specs.items():
            _check_keys(review, place, spec)
        if not specs:
            continue
        counts = {rows.key: read_once(review, rows) for rows in rows_inputs(stage)}
        asked, held_out = counts.get("prompts"), counts.get("eval_prompts")
        lengths = [_length(prompt_of(row)) for row in asked.rows[:100]] if asked is not None else []
        for requests in judge_requests(
            stage,
            prompt_tokens=fmean(lengths) / BYTES_OF_TOKEN if lengths else None,
            num_prompts=len(asked.rows) if asked is not None and asked.complete else None,
            num_held_out=len(held_out.rows) if held_out is not None and held_out.complete else None,
        ):
            review.note(requests.sentence())
            if limit := requests.limit_sentence():
                review.warn(f"{requests.place}.max_requests", f"{limit[0].upper()}{limit[1:]}")


def _length(prompt: Any) -> int:
    """Bytes of a prompt's texts."""
    messages = prompt.prompt if isinstance(prompt.prompt, list) else [{"content": prompt.prompt}]
    return sum(len(str(message.get("content", "")).encode("utf-8", "surrogatepass")) for message in messages)


def _check_keys(review: Review, place: str, spec: JudgeRewardConfig) -> None:
    """Whether the environment variables of keys are set."""
    for judge in judges_inside(spec.judge):
        variable = getattr(judge, "api_key_variable", None)
        if variable is not None and variable not in os.environ:
            review.error(
                f"{place}.judge.api_key_variable",
                f"The environment variable {variable}, which holds the key of the judge, is not set; export it before the run.",
            )
