"""Lengths of a stage's rows: from a sample of its data, tokenized as in the stage, or from its limits if there is no data yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf.config.model import ModelConfig
from rlhf.config.stage_inputs import OfflineStage
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group
from rlhf.data.plans import PLANS, stepwise
from rlhf.data.read import open_rows
from rlhf.data.row_report import TokenizationReport
from rlhf.data.tokenization import Score, Tokenization, tokenization
from rlhf.models.tokens import load_tokenizer
from rlhf.scale.expected_inputs import Sources
from rlhf.scale.sampled_lengths import SampledLengths
from rlhf.scale.shape import ModelShape, known_family
from rlhf.seeds import derive_seed

SAMPLE = 512
"""Rows that are tokenized."""
MOST_READ = 50_000
"""Rows that are read; a longer file is judged by its beginning."""
SYNTHETIC = 64
"""Number of synthetic rows if there are no real ones."""
NO_LIMIT = 512
"""Tokens of a row if neither data nor settings give its length."""
NO_PROMPT_LIMIT = 256
BRANCHES = {"preference": 2, "comparison": 2, "ranking": 4}
"""Completions of a made-up row; other kinds have one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of a stage."""

    groups: list[Group]
    """Tokenized; at least one."""
    num_rows: int | None
    """Of all the data; None where that is not known."""
    said: str
    """Where the lengths come from."""
    num_eval: int | None = None
    """Rows that are held out in separate files; None if there are none, or it is unknown."""

    @property
    def tokens_per_row(self) -> float:
        """Distinct ones, the mean."""
        return sum(group.num_tokens for group in self.groups) / len(self.groups)

    @property
    def scored_per_row(self) -> float:
        """Tokens that a loss sees, the mean."""
        return sum(group.num_scored for group in self.groups) / len(self.groups)


@dataclass(frozen=True, slots=True)
class Asked:
    """A policy's prompts, and the expected lengths of its completions."""

    prompts: list[Prompt]
    num_prompts: int | None
    completion_lengths: list[int]
    """Tokens, a sample; none above the stage's limit."""
    said: str


def rows_of(stage: OfflineStage, shape: ModelShape, sources: Sources) -> Sample:
    """Rows that a stage learns from."""
    sample = _read(stage.data, stage.rows_wanted, stage, sources, limit=stage.limit)
    if sample is not None:
        rows, total = sample
        return Sample(rows, total, f"{len(rows)} rows of {_named(stage.data)}", _held_out(stage, sources))
    limit = _length_limit(stage, shape)
    return Sample(
        made_up_rows(stage.rows_wanted, limit, shape.vocabulary),
        None,
        f"settings: rows of {limit} tokens, the longest there may be",
    )


def prompts_of(stage: Any, shape: ModelShape, sources: Sources, sampled: SampledLengths | None = None) -> Asked:
    """Prompts of a stage, and how long completions may become: as long as what the policy was shown, where that is known.

    Args:
        stage: Its settings.
        shape: Of the policy.
        sources: Of its data.
        sampled: Lengths of completions that a policy sampled, which decide where there are any.
    """
    sample = _read(stage.prompts, "grpo", stage, sources, limit=stage.limit)
    longest = stage.sampling.max_new_tokens
    if sample is not None:
        prompts, total = sample
        said = f"{len(prompts)} prompts of {_named(stage.prompts)}"
    else:
        length = stage.max_prompt_length or min(NO_PROMPT_LIMIT, (shape.context or NO_LIMIT) // 2)
        prompts = [Prompt(str(i), _ids(length, shape.vocabulary, i), "") for i in range(SYNTHETIC)]
        total, said = None, f"settings: prompts of {length} tokens"
    if sampled is not None:
        sources.assume(f"completions are as long as those of {sampled.source}, {longest} tokens at most")
        cut = [min(length, longest) for length in sampled.pooled]
        return Asked(prompts, total, cut, f"{said}; completions of {sampled.source}")
    lengths, shown_by = _shown_lengths(stage, sources)
    if lengths:
        sources.assume(f"completions are as long as those that {shown_by} learns from, {longest} tokens at most")
        return Asked(prompts, total, [min(length, longest) for length in lengths], f"{said}; completions of {shown_by}")
    sources.assume(f"every completion has max_new_tokens ({longest}): it is unknown how soon it ends")
    return Asked(prompts, total, [longest], f"{said}; completions of {longest} tokens")


def rollout_groups(asked: Asked, *, num_prompts: int, group_size: int, vocabulary: int, seed: int = 0) -> list[Group]:
    """Prompts with completions, of lengths drawn from the sample: what one rollout brings."""
    draw = np.random.default_rng(derive_seed(seed, "plan", "rollout"))
    lengths = draw.choice(asked.completion_lengths, size=(num_prompts, group_size))
    chosen = draw.permutation(len(asked.prompts))
    return [
        Group(
            asked.prompts[chosen[place % len(chosen)]].ids,
            [Branch(_ids(int(n), vocabulary, place)) for n in lengths[place]],
        )
        for place in range(num_prompts)
    ]


def made_up_rows(wanted: str, length: int, vocabulary: int) -> list[Group]:
    """Rows of a length: half of it is prompt."""
    branches = BRANCHES.get(wanted, 1)
    prefix = max(1, length // 2)
    return [
        Group(
            _ids(prefix, vocabulary, row),
            [Branch(_ids(max(1, length - prefix), vocabulary, row + branch + 1)) for branch in range(branches)],
        )
        for row in range(SYNTHETIC)
    ]


def _held_out(stage: OfflineStage, sources: Sources) -> int | None:
    files = sources.files(stage.eval_data) if stage.eval_data is not None else None
    if not files:
        return None
    plan = stepwise(stage.step_separator) if stage.rows_wanted == "stepwise" else PLANS[stage.rows_wanted]  # type: ignore[attr-defined]
    options: dict[str, Any] = {"columns": stage.columns, "on_bad_row": "skip", "limit": MOST_READ}
    return sum(1 for _ in open_rows(files, accepts=plan.accepts, strings_are=plan.strings_are, **options))


def _read(
    source: str | list[str], wanted: str, stage: Any, sources: Sources, *, limit: int | None
) -> tuple[list[Any], int | None] | None:
    """Tokenized rows and how many there are in all; None where data or tokenizer are still to be made."""
    files, config = sources.files(source), sources.tokenizer(stage.model)
    if files is None or config is None:
        sources.assume(f"{_named(source)} is not there yet: lengths are those of the settings")
        return None
    if known_family(config) is not None and config.tokenizer is None:
        sources.assume(f"the tokenizer of {config.path} was not fetched: lengths are those of the settings")
        return None
    plan = stepwise(stage.step_separator) if wanted == "stepwise" else PLANS[wanted]
    options: dict[str, Any] = {
        "columns": stage.columns,
        "on_bad_row": "skip",
        "limit": min(limit or MOST_READ, MOST_READ),
    }
    rows = list(
        open_rows(files if len(files) > 1 else files[0], accepts=plan.accepts, strings_are=plan.strings_are, **options)
    )
    report, how = TokenizationReport(), _how(stage, wanted, config)
    picked = rows[:: max(1, math.ceil(len(rows) / SAMPLE))]
    items = plan.items(picked, how, report, skip_bad_rows=True)
    if not items:
        sources.assume(f"no row of {_named(source)} can be used as it is: lengths are those of the settings")
        return None
    whole = len(rows) < MOST_READ or limit is not None
    total = round(len(rows) * len(items) / len(picked)) if whole else None
    return [stored.item(row) for row, stored in items], total


def _how(stage: Any, wanted: str, config: ModelConfig) -> Tokenization:
    tokenizer = load_tokenizer(config)
    if wanted == "grpo":
        limits = {"max_prompt_length": stage.max_prompt_length, "truncation": stage.truncation}
        return tokenization(tokenizer, **limits, add_eos=False)
    train_on: Score = getattr(stage, "train_on", "completion")
    return tokenization(tokenizer, max_length=stage.max_length, truncation="keep_end", train_on=train_on)


def _shown_lengths(stage: Any, sources: Sources) -> tuple[list[int], str]:
    """Lengths of completions in the rows that the policy learned from last, and by which stage."""
    for name, parent in sources.ancestors(stage.model):
        if not isinstance(parent, OfflineStage):
            continue
        sample = _read(parent.data, parent.rows_wanted, parent, sources, limit=parent.limit)
        if sample is not None:
            lengths = [
                len(branch.tokens) if branch.scored is None else max(1, sum(branch.scored))
                for group in sample[0]
                for branch in group.branches
            ]
            return lengths, f"stage {name!r}"
    return [], ""


def _length_limit(stage: Any, shape: ModelShape) -> int:
    limits = [stage.max_length or NO_LIMIT, shape.context or NO_LIMIT]
    return max(2, min(limits))


def _ids(count: int, vocabulary: int, seed: int) -> list[int]:
    """Tokens that mean nothing."""
    ids: list[int] = np.random.default_rng(seed).integers(0, vocabulary, count).tolist()
    return ids


def _named(source: str | Sequence[str]) -> str:
    return source if isinstance(source, str) else ", ".join(source)
