"""Checks of rows read as in the stages: their number, steps, leaked prompts."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlhf.config.hacking import MIN_HELD_OUT, HackingConfig
from rlhf.config.stage_inputs import OfflineStage, PolicyStage, RowsInput
from rlhf.config.stage_union import Stage
from rlhf.data.contracts import Preference, RankingSample, Row, StepwiseRow, UnpairedRow
from rlhf.data.expand import prompt_key
from rlhf.data.message_text import counted
from rlhf.errors import DataError
from rlhf.pipeline.validate.independence import find_leakage
from rlhf.pipeline.validate.inputs import is_of_stage, rows_inputs
from rlhf.pipeline.validate.lengths import check_lengths, check_models
from rlhf.pipeline.validate.review import Review
from rlhf.pipeline.validate.row_cache import MAX_ROWS, FirstRows, read_once
from rlhf.pipeline.validate.seen_prompts import count_seen_prompts

MANY_PASSES = 100
"""Over the same rows; more are more often a slip than a wish."""


def check_rows(review: Review) -> None:
    """Read what every stage will read, as far as it is there already."""
    for _, stage in review.each_stage():
        if isinstance(stage, PolicyStage):
            _note_rollouts(review, stage)
        for rows in rows_inputs(stage):
            first_rows = read_once(review, rows)
            if first_rows is None:
                continue
            if rows.key in ("data", "prompts"):
                _check_amount(review, stage, first_rows)
            if isinstance(stage, OfflineStage) and rows.key == "data":
                _check_verdicts(review, stage, first_rows)
            if isinstance(stage, PolicyStage) and rows.key == "eval_prompts":
                _check_held_out(review, stage, first_rows)
            check_lengths(review, stage, rows, first_rows)
        _check_leaks(review, stage)
    check_models(review)


def _note_rollouts(review: Review, stage: PolicyStage) -> None:
    steps = stage.rollouts * stage.steps_per_rollout
    completions = stage.rollouts * stage.prompts_per_rollout * stage.group_size
    review.note(f"{counted(stage.rollouts, 'rollout')}, {counted(completions, 'completion')}, {counted(steps, 'step')}")


def _check_amount(review: Review, stage: Stage, first_rows: FirstRows) -> None:
    """Whether there are enough rows for a step or a rollout, and how many steps there will be."""
    count = len(first_rows.rows)
    if isinstance(stage, PolicyStage) and first_rows.complete and count < stage.prompts_per_rollout:
        review.warn(
            "prompts_per_rollout",
            f"There are {counted(count, 'prompt')}, fewer than the {stage.prompts_per_rollout:,} of a rollout: some will be repeated "
            "in each.",
        )
    if not isinstance(stage, OfflineStage) or not first_rows.complete or stage.streaming:
        return
    if stage.eval_data is None and stage.eval_frac:
        count -= max(1, round(stage.eval_frac * count))
    if stage.batch_tokens is not None:
        return  # only lengths of all rows would tell
    per_epoch = max(1, math.ceil(count / stage.batch_size))
    steps = stage.max_steps if stage.max_steps is not None else max(1, math.ceil((stage.epochs or 0) * per_epoch))
    passes = steps / per_epoch
    review.note(f"{counted(count, 'row')}, {counted(steps, 'step')}, {passes:.3g} pass{'es' if passes != 1 else ''}")
    if count < stage.batch_size and stage.differs("batch_size"):
        review.warn(
            "batch_size",
            f"A step takes {counted(stage.batch_size, 'row')}, more than the {count:,} here; every step is smaller than configured.",
        )
    if passes > MANY_PASSES:
        review.warn(
            "max_steps",
            f"{counted(steps, 'step')} are {passes:,.0f} passes over {counted(count, 'row')}; is that intended?",
        )


def _check_held_out(review: Review, stage: PolicyStage, first_rows: FirstRows) -> None:
    """Whether there are enough prompts for the detectors that ask a held-out judge."""
    count, wanted = len(first_rows.rows), (stage.hacking or HackingConfig()).num_prompts
    if stage.judge is None or not first_rows.complete or count >= wanted:
        return
    counted_prompts = f"There are {counted(count, 'held-out prompt')} for the judge"
    if count < MIN_HELD_OUT:
        review.error("eval_prompts", f"{counted_prompts}; give at least {MIN_HELD_OUT}, better {wanted:,}.")
    else:
        review.warn(
            "eval_prompts", f"{counted_prompts}, fewer than {wanted:,}: its detectors see less, and err more often."
        )


def _check_verdicts(review: Review, stage: OfflineStage, first_rows: FirstRows) -> None:
    """Rows with identical labels, from which a loss learns nothing or the wrong thing."""
    rows, wanted = first_rows.rows, stage.rows_wanted
    fault = ""
    if wanted == "kto":
        labels = {row.label if isinstance(row, UnpairedRow) else None for row in rows}
        if len(labels) == 1 and None not in labels:
            fault = (
                f"every completion is {'good' if labels == {True} else 'bad'}; there is nothing to distinguish it from"
            )
    elif wanted == "stepwise":
        if all(all(row.labels) for row in rows if isinstance(row, StepwiseRow)):
            fault = "every step is right; the model will call all steps right"
    elif getattr(stage, "loss", None) in ("davidson", "rao_kupper"):
        ties = [_has_tie(row) for row in rows]
        if not any(ties):
            fault = "there is no tie, so the learned tie parameter would diverge; use `loss: bradley_terry`"
        elif all(getattr(row, "preference", None) is Preference.TIE for row in rows):
            fault = "every row is a tie; no row prefers one of its completions"
    if fault and rows:
        review.warn("data", f"Of {first_rows.among}, {fault}.", DataError)


def _has_tie(row: Row) -> bool:
    """Whether a judgment contains a tie of two completions."""
    if isinstance(row, RankingSample):
        judged = row.ranks if row.ranks is not None else row.ratings or []
        return len(set(judged)) < len(judged)
    return getattr(row, "preference", None) is Preference.TIE


def _check_leaks(review: Review, stage: Stage) -> None:
    """Held-out rows whose prompt is learned from."""
    inputs = rows_inputs(stage)
    if stage.evaluates:
        _check_seen_prompts(review, stage)
    for held_out in inputs[1:]:
        if held_out.key in ("eval_data", "eval_prompts"):
            _check_leak(review, held_out, inputs[0], inputs[0].key)


def _check_seen_prompts(review: Review, stage: Stage) -> None:
    count = partial(count_seen_prompts, most=MAX_ROWS)
    seen = find_leakage(review.recipe.stages, stage, runs=Path(review.recipe.output_dir), count=count)
    for warning in seen.about_rows:
        review.warn("prompts", warning, DataError)
    if not review.is_whole:  # a stage that is not valid is not there, and so of unknown origin
        seen = replace(seen, unknown=())
    for note in seen.notes:
        review.note(note)


def _check_leak(review: Review, held_out: RowsInput, trained: RowsInput, where: str) -> None:
    shared = [source for source in held_out.sources if source in trained.sources]
    if shared and any(is_of_stage(source) for source in shared):
        review.warn(
            held_out.key,
            f"{shared[0]} is also training data of {where}; hold out rows that no stage trains on.",
            DataError,
        )
        return
    if any(is_of_stage(source) for source in (*held_out.sources, *trained.sources)):
        return
    ours, theirs = read_once(review, held_out), read_once(review, trained)
    if ours is None or theirs is None:
        return
    known = _prompt_keys(review, trained, theirs)
    leaked = sum(key in known for key in _prompt_list(ours))
    if leaked:
        review.warn(
            held_out.key,
            f"{leaked:,} of {ours.among} have exactly the same prompt as a training row of {where}; results on them say "
            "nothing about new prompts.",
            DataError,
        )


def _prompt_keys(review: Review, rows: RowsInput, first_rows: FirstRows) -> set[str]:
    place = ("prompts", rows.sources, rows.wanted, rows.limit)
    if place not in review.shared:
        review.shared[place] = set(_prompt_list(first_rows))
    keys: set[str] = review.shared[place]
    return keys


def _prompt_list(first_rows: FirstRows) -> list[str]:
    return [prompt_key(row).strip() for row in first_rows.rows]
