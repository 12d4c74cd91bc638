"""What a run folder knows of an evaluation in addition to its samples, for the verdict: how training ended, what the judge learned
from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rlhf.config.function_reward import FunctionRewardConfig
from rlhf.config.learned_rewards import CombinedRewardConfig
from rlhf.config.recipe import STAGE
from rlhf.config.reward_base import RewardBase
from rlhf.data.read import open_rows
from rlhf.errors import RLHFError
from rlhf.evaluation.measures import KnownTexts
from rlhf.evaluation.verdict_inputs import HeldAlarm, Training
from rlhf.pipeline.archive import events_of
from rlhf.pipeline.lineage import run_of
from rlhf.pipeline.validate.ancestry import Made, Root, Surroundings, ancestors
from rlhf.training.log import EVENTS, read_jsonl
from rlhf.training.monitoring.guard_rules import OF_CHANGES

LAST_FRAC = 0.2
"""Of the rollouts, or of the steps of a stage that samples nothing: an alarm that holds there was never resolved."""
JUDGE_ROWS = 50_000
"""Rows of the judge's training data that are read, the first ones."""
HINTS = frozenset({"judge_gap", "simple_length", "simple_repetition", "simple_spikes"})
"""Detectors whose alarms decide nothing: they are raised in many healthy runs, too (docs/reward-hacking.md)."""
MODEL = "model"
"""A stage's folder of weights."""
NOT_TRACED = "No run has a record of how {} was trained, so whether an alarm of that training still holds is not known."


def called(source: str | None) -> str:
    """What reports call a model: ``ppo`` for ``stage:ppo``, the last two folders of a path without the ``model`` at its end."""
    if source is None:
        return "a new model"
    if (match := STAGE.match(source)) is not None:
        return match["name"] if match["file"] in (None, MODEL) else f"{match['name']}/{match['file']}"
    parts = Path(source).parts
    if len(parts) > 2 and parts[-1] == MODEL:
        parts = parts[:-1]
    return "/".join(parts[-2:])


def judge_called(spec: RewardBase) -> str | None:
    """What reports call a judge that is made of models; None for one that has a name of its own."""
    if isinstance(spec, CombinedRewardConfig):
        names = [called(source) for _, source in spec.models_asked()]
        return f"the reward model{'s' if len(names) > 1 else ''} {', '.join(names)}"
    if isinstance(spec, FunctionRewardConfig):
        return spec.function
    return None


def training_between(
    policy: str | None, baseline: str | None, *, runs: Path | None = None
) -> tuple[list[Training], str | None]:
    """How every stage between a baseline and a policy ended, newest first.

    Args:
        policy: Its folder of weights, of any run, or a copy of one; None for a new model.
        baseline: The same.
        runs: Where the origin of copies is looked for.

    Returns:
        The stages, and a sentence where a stage is missing because nothing recorded it, or None.
    """
    around = Surroundings(runs=runs)
    start = around.model(baseline)
    trainings: list[Training] = []
    for model in ancestors(around.model(policy)):
        if model.is_same(start):
            break
        if isinstance(model, Root):
            is_whole = model.is_known or (
                trainings and not model.name.startswith("stage ")
            )  # the base model of somebody else
            return trainings, None if is_whole else NOT_TRACED.format(model.name)
        if model.folder is None or run_of(model.folder) != model.folder.parent or _is_checkpoint(policy, model.folder):
            return trainings, NOT_TRACED.format(model.name)
        name = model.folder.name
        trainings.append(training_of(events_of(read_jsonl(model.folder.parent / EVENTS), name), name))
    return trainings, None


def _is_checkpoint(model: str | None, stage: Path) -> bool:
    """Whether a folder of weights lies in a stage's folder and is not what the stage ended with."""
    path = Path(model or "").resolve()
    return path.is_relative_to(stage.resolve()) and path != (stage / MODEL).resolve()


def training_of(events: Sequence[Mapping[str, Any]], stage: str) -> Training:
    """How a stage's training ended, from its events."""
    curves = _curves(events)
    at_rollouts = sorted({step for name, curve in curves.items() if name.endswith("/score_mean") for step in curve})
    steps = at_rollouts or sorted({step for curve in curves.values() for step in curve})
    if not steps:
        return Training(stage=stage)
    late = steps[-max(1, math.ceil(LAST_FRAC * len(steps)))]
    last = {name: [value for step, value in curve.items() if step >= late] for name, curve in curves.items()}
    first = {name: [curve[step] for step in steps[:1] if step in curve] for name, curve in curves.items()}
    return Training(
        stage=stage,
        rollouts=len(at_rollouts),
        alarms=tuple(_held_alarms(events, last, late)),
        first=_figures(first) if at_rollouts else {},
        last=_figures(last) if at_rollouts else {},
    )


def judge_texts(spec: RewardBase, *, runs: Path | None = None) -> KnownTexts | str | None:
    """What a judge's training completions look like; why that is not known; None for a judge that learned from none.

    Args:
        spec: With real folders instead of ``stage:`` inputs.
        runs: Where the origin of copies is looked for.
    """
    if not isinstance(spec, CombinedRewardConfig):
        return None
    texts: list[str] = []
    for _, folder in spec.models_asked():
        source = _training_rows(Path(folder), runs)
        if isinstance(source, str):
            return source
        try:
            rows = itertools.islice(open_rows([str(path) for path in source], on_bad_row="skip"), JUDGE_ROWS)
            texts += [text for row in rows for text in _completions(row)]
        except (RLHFError, OSError) as err:
            return f"the rows that the judge was trained on can't be read ({type(err).__name__})"
    return KnownTexts(texts) if texts else "the rows that the judge was trained on hold no completions"


def _training_rows(model: Path, runs: Path | None) -> list[Path] | str:
    """Files that a reward model was trained on, or why they are not known."""
    made = Surroundings(runs=runs).model(str(model))
    sources = [source for rows in made.rows() for source in made.files(rows)] if isinstance(made, Made) else []
    if not sources:
        return "no rlhf run recorded what the judge was trained on"
    gone = next((source.name for source in sources if source.path is None), None)
    if gone is not None:
        return f"{gone}, which the judge was trained on, is no longer there as it was"
    return [source.path for source in sources if source.path is not None]


def _completions(row: Any) -> Iterator[str]:
    """Every text of a row that answers its prompt."""
    for name in ("chosen", "rejected", "completion", "completion_a", "completion_b"):
        yield from _texts(getattr(row, name, None))
    for text in getattr(row, "completions", None) or ():
        yield from _texts(text)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple) and value and isinstance(value[-1], Mapping):
        yield str(value[-1].get("content", ""))


def _curves(events: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Metric -> step -> value; the newest of a step that was taken twice."""
    curves: dict[str, dict[int, float]] = {}
    for event in events:
        if event.get("event") != "metrics":
            continue
        for name, value in event["metrics"].items():
            if isinstance(value, int | float) and math.isfinite(value):
                curves.setdefault(name, {})[int(event["step"])] = float(value)
    return curves


def _held_alarms(
    events: Sequence[Mapping[str, Any]], last: Mapping[str, Sequence[float]], late: int
) -> Iterator[HeldAlarm]:
    """Alarms of guards whose metric is, in the median of the last steps, still beyond the limit; the first of each metric.

    Where there is no limit, the limit is one of changes, or the metric was not a number, whether the alarm was raised among these
    steps decides. One that passed is no news: a single token's ratio, a step's gradient.
    """
    reported: set[str] = set()
    for event in events:
        guard, metric = event.get("guard"), str(event.get("metric") or "")
        step = event.get("raised_at", event.get("step"))
        if (
            event.get("event") != "alarm"
            or not guard
            or guard in HINTS
            or metric in reported
            or not isinstance(step, int)
        ):
            continue
        value, limit = event.get("value"), event.get("limit")
        now = median(last[metric]) if last.get(metric) else None
        is_level = now is not None and guard not in OF_CHANGES
        if is_level and isinstance(value, int | float) and isinstance(limit, int | float):
            holds = median(last[metric]) > limit if value > limit else median(last[metric]) < limit
        else:
            holds = step >= late
        if holds:
            reported.add(metric)
            bound = float(limit) if isinstance(limit, int | float) else None
            yield HeldAlarm(guard=str(guard), metric=metric, step=step, limit=bound, value=now)


def _figures(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The quantities of ``Training.first`` and ``last``, those that are there."""
    means: dict[str, float] = {}
    for name, numbers in values.items():
        if numbers:
            means[name.partition("/")[2] if name != "loss/entropy" else "entropy"] = fmean(numbers)
    figures: dict[str, float] = {name: means[name] for name in ("entropy", "repetition") if name in means}
    if "empty_frac" in means:
        figures["empty"] = means["empty_frac"]
    if "eos_frac" in means:
        figures["cut"] = 1 - means["eos_frac"]
    if "ref_kl" in means and means.get("length_mean"):
        figures["kl_per_token"] = means["ref_kl"] / means["length_mean"]
    return figures
