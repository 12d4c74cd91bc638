"""Splits of a stage's rows before the first step: the held-out share, KTO's mismatched completions, and
the demonstrations that a student does not complete itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlhf.config.stage_inputs import OfflineStage
from rlhf.config.training_stages import DistillStage
from rlhf.data.contracts import Row
from rlhf.data.expand import prompt_key
from rlhf.data.row_report import TokenizationReport
from rlhf.data.split import held_out_numbers
from rlhf.data.tokenization import tokenization
from rlhf.errors import ConfigError, DataError
from rlhf.pipeline.validate.input_paths import facts_of
from rlhf.pipeline.validate.inputs import rows_inputs
from rlhf.pipeline.validate.lengths import tokenizer_of
from rlhf.pipeline.validate.review import Review
from rlhf.pipeline.validate.row_cache import FirstRows, read_once

if TYPE_CHECKING:
    from rlhf.data.pack import Group


def check_splits(review: Review) -> None:
    """Do what every stage does with its training rows before it trains, and complain of what would end it there."""
    for _, stage in review.each_stage():
        if isinstance(stage, DistillStage):
            _check_demonstrations(review, stage)
        elif isinstance(stage, OfflineStage) and not stage.streaming:
            first_rows = read_once(review, rows_inputs(stage)[0])
            if first_rows is not None and first_rows.complete and first_rows.rows:
                _check_rows(review, stage, first_rows)


def _check_rows(review: Review, stage: OfflineStage, first_rows: FirstRows) -> None:
    from rlhf.data.plans import PLANS

    if first_rows.bad_rows and stage.on_bad_row == "error":
        return  # said already, and what is left of them is not what will be read
    if stage.measures_reference_point:
        _check_reference_point(review, stage, first_rows)
    elif stage.eval_data is None and stage.eval_frac:
        plan, report = PLANS[stage.rows_wanted], TokenizationReport()
        rows = [made for row in first_rows.rows for made in plan.expand(row, report)]
        with review.at("eval_frac"):
            _held_out(stage, rows)


def _held_out(stage: OfflineStage, rows: list[Row]) -> list[int]:
    """Numbers of the rows that the stage holds out; none where nothing is left to be parted."""
    if not rows:
        return []
    return held_out_numbers(rows, stage.eval_frac, seed=stage.split_seed, by=stage.eval_split)


def _check_reference_point(review: Review, stage: Any, first_rows: FirstRows) -> None:
    """Whether every step, and the held-out rows, have completions of other prompts. The rows are tokenized as they will be."""
    items = _tokenized(review, stage, first_rows)
    if items is None:
        return
    rows, groups = [row for row, _ in items], [group for _, group in items]
    held_out: list[Group] = []
    if stage.eval_data is not None:
        theirs = read_once(review, rows_inputs(stage)[1])
        held_out = [group for _, group in _tokenized(review, stage, theirs) or []] if theirs is not None else []
    elif stage.eval_frac:
        numbers: set[int] = set()
        with review.at("eval_frac"):
            numbers = set(_held_out(stage, rows))
        held_out = [group for number, group in enumerate(groups) if number in numbers]
        groups = [group for number, group in enumerate(groups) if number not in numbers]
    if not groups:
        return
    from rlhf.training.kto import check_prompts_of_steps
    from rlhf.training.row_order import ShuffledRows

    with review.at("reference_point", otherwise=ConfigError):
        check_prompts_of_steps(ShuffledRows(groups, stage), groups, held_out)


def _tokenized(review: Review, stage: Any, first_rows: FirstRows) -> list[tuple[Row, Group]] | None:
    """Rows as the stage will have them; None without its tokenizer."""
    from rlhf.data.plans import PLANS
    from rlhf.data.tokenize import TokenizedRow

    tokenizer = tokenizer_of(review, "model", stage.model)
    if tokenizer is None or tokenizer.eos_token_id is None:
        return None
    facts = facts_of(review, stage.model)
    context = facts.context if facts is not None else None
    limits = [limit for limit in (stage.max_length, context) if limit is not None]
    how = tokenization(tokenizer, max_length=min(limits, default=None), truncation=stage.truncation)
    items = []
    with review.at("data"):
        items = PLANS[stage.rows_wanted].items(first_rows.rows, how, TokenizationReport(), skip_bad_rows=True)
    return [(row, stored.item(row)) for row, stored in items if isinstance(stored, TokenizedRow)]


def _check_demonstrations(review: Review, stage: DistillStage) -> None:
    """Whether there are demonstrations of the prompts that the student does not complete itself."""
    inputs = {rows.key: rows for rows in rows_inputs(stage)}
    asked = read_once(review, inputs["prompts"])
    shown = read_once(review, inputs["data"]) if "data" in inputs else None
    if asked is None or shown is None or not (asked.complete and shown.complete):
        return
    if not {prompt_key(row) for row in asked.rows} & {prompt_key(row) for row in shown.rows}:
        review.error(
            "data",
            f"None of {asked.among} of prompts is the prompt of a demonstration, for the share that the student does not complete "
            f"itself (on_policy_frac {stage.on_policy_frac:g}); give demonstrations of the same prompts.",
            DataError,
        )
