"""The first rows of every file compared with what its stage expects: layout, columns, bad rows. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf.config.rewards import rewards_of
from rlhf.config.stage_inputs import RowsInput
from rlhf.config.stage_union import Stage
from rlhf.config.training_stages import RewardStage
from rlhf.data.contracts import OLD_LABEL_PROBABILITY, RENAMED_LABEL_PROBABILITY, Preference, Strength
from rlhf.data.expand import prompt_of
from rlhf.data.verifiable import is_verifiable
from rlhf.errors import DataError, RewardError, did_you_mean
from rlhf.pipeline.validate.inputs import is_of_stage, rows_inputs
from rlhf.pipeline.validate.review import Review
from rlhf.pipeline.validate.row_cache import FirstRows, read_once, why_unread

SHOWN = 3
"""Bad rows that a complaint names."""
MANY = 0.1
"""Share of bad rows above which skipping them is worth a warning."""


def check_first_rows(review: Review) -> None:
    """Read the first rows of every stage's existing inputs, as many as ``read_once`` reads."""
    for _, stage in review.each_stage():
        for rows in rows_inputs(stage):
            first_rows = read_once(review, rows)
            if first_rows is None:
                _complain(review, rows)
                continue
            _check_bad_rows(review, rows, first_rows)
            if isinstance(stage, RewardStage):
                _check_judgments(review, stage, rows, first_rows)
            if rows.key == "prompts":
                _check_references(review, stage, first_rows)


def _complain(review: Review, rows: RowsInput) -> None:
    """Say why there are no rows; for the stage that reads them, not for others that compare theirs with them."""
    if any(is_of_stage(source) for source in rows.sources):
        review.leave("rows that stages are still to make")
    elif (err := why_unread(review, rows)) is not None:
        with review.at(rows.key):
            raise err


def _check_bad_rows(review: Review, rows: RowsInput, first_rows: FirstRows) -> None:
    bad = first_rows.bad_rows
    if not bad:
        return
    first = "; ".join(f"{row.where}: {row.reason.rstrip('.')}" for row in bad[:SHOWN])
    more = f"; and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
    text = f"{len(bad):,} of {first_rows.among} {'is' if len(bad) == 1 else 'are'} bad: {first}{more}."
    if rows.skips_bad_rows:
        if len(bad) > MANY * (len(bad) + len(first_rows.rows)):
            review.warn(rows.key, f"{text} They will be skipped.", DataError)
        return
    way_out = ", or set on_bad_row: skip" if rows.can_skip else ""
    review.error(rows.key, f"{text} Fix them{way_out}; `rlhf data check` lists all of them.", DataError)


def _check_judgments(review: Review, stage: RewardStage, rows: RowsInput, first_rows: FirstRows) -> None:
    """What the loss needs of each judgment in addition to the texts."""
    if stage.margin == "column":
        _check_margins(review, rows, first_rows)
    judged = [row for row in first_rows.rows if getattr(row, "preference", None) is not Preference.TIE]
    wanted = (
        [("use_label_probability", "label_probability", "a number from 0.5 to 1")]
        if stage.use_label_probability
        else []
    )
    wanted += [("loss", "strength", " or ".join(Strength))] if stage.judgment_formula.needs_strength else []
    for key, column, what in wanted:
        lacking = [row for row in judged if row.columns.get(column, getattr(row, column, None)) is None]
        if lacking and rows.key == "data":
            renamed = column == "label_probability" and OLD_LABEL_PROBABILITY in lacking[0].columns
            review.error(
                key,
                f"It needs {what} in the column `{column}`, and {len(lacking):,} of {first_rows.among} have none, such as "
                f"{lacking[0].where}{f': {RENAMED_LABEL_PROBABILITY}' if renamed else ''}.",
                DataError,
            )


def _check_margins(review: Review, rows: RowsInput, first_rows: FirstRows) -> None:
    lacking = [row for row in first_rows.rows if isinstance(m := row.columns.get("margin"), bool | str) or m is None]
    if lacking and rows.key == "data":
        review.error(
            "margin",
            f"It needs a number in the column `margin`, and {len(lacking):,} of {first_rows.among} have none, such as "
            f"{lacking[0].where}.",
            DataError,
        )


def _lacks(columns: Mapping[str, Any], reference: str) -> bool:
    """Whether a row has no reference, and does not say that it needs none."""
    if reference in columns:
        return False
    try:
        return is_verifiable(columns) is not False
    except ValueError:
        return True


def _check_references(review: Review, stage: Stage, first_rows: FirstRows) -> None:
    """Whether prompts have the columns that verifiers compare completions with."""
    for key, spec in rewards_of(stage):
        column = getattr(spec, "column", None)
        if column is None or not first_rows.rows:
            continue
        lacking = [row for row in first_rows.rows if _lacks(prompt_of(row).columns, column)]
        if len(lacking) == len(first_rows.rows):
            known = sorted({name for row in first_rows.rows for name in prompt_of(row).columns})
            review.error(
                f"{key}.column",
                f"No row has the column {column!r}, which holds the reference (they have {', '.join(known) or 'no other columns'})."
                f"{did_you_mean(column, known)}",
                RewardError,
            )
        elif lacking:
            review.warn(
                f"{key}.column",
                f"{len(lacking):,} of {first_rows.among} have no column {column!r}, such as {lacking[0].where}; their completions will have no "
                "score. Null says that the reward does not apply to a row.",
                RewardError,
            )
