"""``stage:NAME`` and ``stage:NAME/FILE``: is that stage of the right kind, does it write that file?"""

from __future__ import annotations

from collections.abc import Iterable

from rlhf.config.learned_rewards import EnsembleRewardConfig, LearnedRewardConfig, ProcessRewardConfig
from rlhf.config.recipe import STAGE, stage_references
from rlhf.config.rewards import rewards_of
from rlhf.config.stage_union import Stage
from rlhf.config.stages import JUDGE_KINDS, POLICY_KINDS, judge_kinds
from rlhf.errors import DataError, ModelError, did_you_mean
from rlhf.pipeline.validate.inputs import (
    ROWS_TAKEN,
    ROWS_WANTED,
    judging_models,
    policies,
    reward_models,
    rows_inputs,
)
from rlhf.pipeline.validate.review import Review


def check_references(review: Review) -> None:
    """Look at every reference of every stage; that there is such a stage before, the recipe has made sure of itself."""
    for _, stage in review.each_stage():
        for place, parent, file in stage_references(stage):
            if file is not None and parent in review.recipe.stages:
                _check_file(review, place, parent, file)
        _check_models(review, stage)
        _check_combinations(review, stage)
        _check_rows(review, stage)


def _check_combinations(review: Review, stage: Stage) -> None:
    """Whether there are several scores if a reward sets how to combine them."""
    for key, spec in rewards_of(stage):
        if isinstance(spec, LearnedRewardConfig):
            judge = review.recipe.stages.get(_parent(review, spec.source) or "")
            if (
                judge is not None
                and judge.judges == "completions"
                and judge.num_models * judge.num_heads == 1
                and spec.combine != "mean"
            ):
                review.warn(
                    f"{key}.combine",
                    f"It does nothing: {spec.source} trains one model with one head; give it num_models or num_heads above 1.",
                )
        elif isinstance(spec, EnsembleRewardConfig) and len(set(spec.sources)) < len(spec.sources):
            review.warn(f"{key}.sources", "One is listed twice: it would count double and never disagree with itself.")


def _check_file(review: Review, place: str, parent: str, file: str) -> None:
    stage = review.recipe.stages[parent]
    written = stage.files_written()
    if not any(file == name or (name.endswith("/") and f"{file}/".startswith(name)) for name in written):
        change = stage.why_unwritten.get(file.partition("/")[0])
        hint = f" To have it, {change}." if change else did_you_mean(file, written)
        review.error(place, f"stage:{parent} will write no file {file!r}.{hint} It writes {_names(parent, written)}.")


def _names(parent: str, written: Iterable[str]) -> str:
    return ", ".join(f"stage:{parent}/{name.removesuffix('/')}" for name in written)


def _check_models(review: Review, stage: Stage) -> None:
    """A policy where one is wanted, and a reward model where that is."""
    stages = review.recipe.stages
    for key, config in (*policies(stage), *judging_models(stage)):
        parent = _parent(review, config.path)
        if parent is not None and stages[parent].kind in JUDGE_KINDS:
            what = "a process reward model" if stages[parent].judges == "steps" else "a reward model"
            review.error(
                key,
                f"stage:{parent} trains {what}, which returns scores, not text; a policy is required here "
                f"({_of_kind(review, POLICY_KINDS)}).",
                ModelError,
            )
    for key, source in reward_models(stage):
        parent = _parent(review, source)
        if parent is not None and stages[parent].kind in POLICY_KINDS:
            review.error(
                key,
                f"stage:{parent} is a {stages[parent].kind} stage, which trains a policy; a reward model is wanted here "
                f"({_of_kind(review, judge_kinds('completions'))}).",
                ModelError,
            )
    _check_kinds_of_judge(review, stage)


def _check_kinds_of_judge(review: Review, stage: Stage) -> None:
    """A judge of steps where that is wanted, and one of whole completions where that is."""
    stages = review.recipe.stages
    by_steps = {key for key, spec in rewards_of(stage) if isinstance(spec, ProcessRewardConfig)}
    for key, source in reward_models(stage):
        parent = _parent(review, source)
        judges = stages[parent].judges if parent is not None else None
        if judges == "steps" and key.removesuffix(".source") not in by_steps:
            how = f"; write {{kind: process, source: stage:{parent}}}" if key.startswith("reward.") else ""
            review.error(key, f"stage:{parent} trains a process reward model, which judges steps{how}.", ModelError)
        elif judges == "completions" and key.removesuffix(".source") in by_steps:
            review.error(
                key,
                f"stage:{parent} trains a reward model of whole completions; kind: process wants a judge of steps "
                f"({_of_kind(review, judge_kinds('steps'))}).",
                ModelError,
            )


def _check_rows(review: Review, stage: Stage) -> None:
    """Rows of the kind that the stage takes."""
    for rows in rows_inputs(stage):
        for source in rows.sources:
            match = STAGE.match(source)
            parent = _parent(review, source)
            if match is None or parent is None:
                continue
            if match["file"] is None:
                review.error(
                    rows.key, f"{source} is a model; rows are required here: a file of a stage, as in {source}/FILE."
                )
                continue
            written = review.recipe.stages[parent].files_written()
            kind = written.get(match["file"])
            if match["file"] in written and kind not in ROWS_TAKEN[rows.wanted]:
                fitting = [
                    f"stage:{name}/{file}"
                    for name, other in review.recipe.stages.items()
                    for file, held in other.files_written().items()
                    if held in ROWS_TAKEN[rows.wanted] and name != review.stage
                ]
                hint = f" Such rows are in {', '.join(fitting[:3])}." if fitting else ""
                review.error(
                    rows.key,
                    f"{source} holds {f'rows of kind {kind}' if kind else 'no rows'}; this stage wants "
                    f"{ROWS_WANTED[rows.wanted]}.{hint}",
                    DataError,
                )


def _parent(review: Review, source: str | None) -> str | None:
    """The stage that a source names, where there is one."""
    match = STAGE.match(source) if source is not None else None
    return match["name"] if match is not None and match["name"] in review.recipe.stages else None


def _of_kind(review: Review, kinds: Iterable[str]) -> str:
    names = [f"stage:{name}" for name, stage in review.recipe.stages.items() if stage.kind in kinds]
    return f"such as {', '.join(names)}" if names else "this recipe has no such stage"
