"""A reward tried on rows before anything is trained with it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.evaluation.score_distribution import RewardTrial, ScoredRows
from rlhf.rewards.factory import build_reward
from rlhf.rewards.judge_reward import JudgeReward
from rlhf.rewards.types import Scorer, TextCompletion, ask_scorer, parts_of

ROWS_AT_ONCE = 256
"""Rows asked about in one call, and so many more that no prompt's completions are parted."""


def try_reward(rows: ScoredRows, reward: Any, file: Path | str) -> ScoredRows:
    """Rows with the scores of a reward, NaN where it has none; completions of one prompt (of one step) are siblings.

    Args:
        rows: With prompts and completions.
        reward: What a recipe's ``reward`` takes.
        file: What messages call the rows.

    Raises:
        ConfigError: The rows lack prompts or completions, or the reward's settings are wrong.
        RewardError: It does not work at all.
    """
    if rows.completions is None or rows.prompts is None:
        raise ConfigError(f"reward=... scores rows with prompt and completion, and {file} has rows without.")
    scorer = build_reward(reward, on_error="report")
    prompts, completions, groups = _asked(rows, Path(file).name)
    scores = [math.nan] * len(prompts)
    parts: dict[str, list[float | None]] = {}
    reasons: Counter[str] = Counter()
    began = time.perf_counter()
    for places in _calls(groups):
        scored = ask_scorer(scorer, [prompts[i] for i in places], [completions[i] for i in places])
        reasons.update(scored.errors.values())
        for number, place in enumerate(places):
            scores[place] = scored.scores[number]
        for name, values in scored.per_component.items():
            column = parts.setdefault(name, [None] * len(prompts))
            for number, place in enumerate(places):
                column[place] = values[number]
    seconds = time.perf_counter() - began
    judges = list(_judges(scorer))
    trial = RewardTrial(
        parts={name: values for name, values in parts.items() if name != scorer.name},
        reasons=dict(reasons.most_common()),
        seconds=seconds,
        questions=sum(judge.num_answers for judge in judges) if judges else None,
        cost=math.fsum(judge.cost_of_answers for judge in judges) if judges and all(j.priced for j in judges) else None,
    )
    return replace(rows, scores=np.array(scores, dtype=np.float64), trial=trial)


def _asked(rows: ScoredRows, name: str) -> tuple[list[Prompt], list[TextCompletion], list[list[int]]]:
    """Prompts and completions as a scorer takes them, and the places of each prompt's completions."""
    assert rows.completions is not None
    assert rows.prompts is not None
    columns = {key: values for key, values in rows.columns.items() if key not in ("id", "score")}
    texts, raw = rows.plain_prompts or rows.prompts, rows.raw_prompts or rows.prompts
    ended = rows.columns.get("ended", [True] * len(texts))
    groups: dict[str, list[int]] = {}
    prompts, completions = [], []
    for place, key in enumerate(rows.prompts):
        siblings = groups.setdefault(key, [])
        siblings.append(place)
        written: Any = raw[place]
        messages = written if isinstance(written, list) else None
        own = {column: values[place] for column, values in columns.items()}
        prompts.append(Prompt(f"{name}:{siblings[0] + 1}", [], texts[place], columns=own, messages=messages))
        said = TextCompletion(rows.completions[place], truncated=ended[place] is False, sample=len(siblings) - 1)
        completions.append(said)
    return prompts, completions, list(groups.values())


def _calls(groups: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Places asked about together."""
    places: list[int] = []
    for group in groups:
        places += group
        if len(places) >= ROWS_AT_ONCE:
            yield places
            places = []
    if places:
        yield places


def _judges(scorer: Scorer) -> Iterator[JudgeReward]:
    """The judges that a reward asks."""
    if isinstance(scorer, JudgeReward):
        yield scorer
    for part in parts_of(scorer):
        yield from _judges(part)
