"""What a run folder knows of an evaluation beside its samples, for the verdict: how training ended, what the judge learned
from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rlhf.config.recipe import STAGE
from rlhf.config.rewards import EnsembleRewardConfig, FunctionRewardConfig, LearnedRewardConfig, RewardBase
from rlhf.data.read import open_rows
from rlhf.errors import RLHFError
from rlhf.evaluation.measures import KnownTexts
from rlhf.evaluation.verdict import HeldAlarm, Training
from rlhf.pipeline.artifacts import Artifact
from rlhf.pipeline.previous import events_of
from rlhf.training.log import EVENTS, read_jsonl

LAST_FRAC = 0.2
"""Of the rollouts, or of the steps of a stage that samples nothing: an alarm that holds there was never resolved."""
JUDGE_ROWS = 50_000
"""Rows of the judge's training data that are read, the first ones."""
MODEL = "model"
"""A stage's folder of weights."""


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
    if isinstance(spec, LearnedRewardConfig):
        return f"the reward model {called(spec.source)}"
    if isinstance(spec, EnsembleRewardConfig):
        return f"the reward models {', '.join(map(called, spec.sources))}"
    if isinstance(spec, FunctionRewardConfig):
        return spec.function
    return None


def training_between(policy: Path | str, baseline: Path | str) -> list[Training]:
    """How every stage between a baseline and a policy ended, newest first; none where no run recorded it.

    Args:
        policy: Its folder of weights.
        baseline: The same.
    """
    return [
        training_of(events_of(read_jsonl(folder.parent / EVENTS), folder.name), folder.name)
        for folder, _ in _stages_behind(Path(policy), until=Path(baseline))
    ]


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


def judge_texts(spec: RewardBase) -> KnownTexts | str | None:
    """What a judge's training completions look like; why that is not known; None for a judge that learned from none.

    Args:
        spec: With real folders in the place of ``stage:`` inputs.
    """
    if isinstance(spec, LearnedRewardConfig):
        folders = [spec.source]
    elif isinstance(spec, EnsembleRewardConfig):
        folders = list(spec.sources)
    else:
        return None
    texts: list[str] = []
    for folder in folders:
        source = _training_rows(Path(folder))
        if isinstance(source, str):
            return source
        try:
            rows = itertools.islice(open_rows([str(path) for path in source], on_bad_row="skip"), JUDGE_ROWS)
            texts += [text for row in rows for text in _completions(row)]
        except (RLHFError, OSError) as err:
            return f"the rows that the judge was trained on can't be read ({type(err).__name__})"
    return KnownTexts(texts) if texts else "the rows that the judge was trained on hold no completions"


def _stages_behind(policy: Path, *, until: Path) -> Iterator[tuple[Path, Artifact]]:
    """Folders and records of the stages that made a model, newest first, as far as they are recorded."""
    known: set[Path] = set()
    model = policy.resolve()
    while model != until.resolve() and model not in known:
        known.add(model)
        folder = model.parent
        artifact = Artifact.read(folder) if model.name == MODEL else None
        if artifact is None:
            return
        yield folder, artifact
        config = (artifact.settings or {}).get("model")
        path = config.get("path") if isinstance(config, Mapping) else config
        if not isinstance(path, str):
            return
        model = _resolved(path, folder.parent).resolve()


def _resolved(source: str, run: Path) -> Path:
    match = STAGE.match(source)
    return Path(source).expanduser() if match is None else run / match["name"] / (match["file"] or MODEL)


def _training_rows(model: Path) -> list[Path] | str:
    """Files that a reward model was trained on, or why they are not known."""
    folder = model.resolve().parent
    artifact = Artifact.read(folder)
    data = (artifact.settings or {}).get("data") if artifact is not None else None
    if data is None:
        return "no rlhf run recorded what the judge was trained on"
    paths = [_resolved(str(source), folder.parent) for source in (data if isinstance(data, list) else [data])]
    gone = next((path for path in paths if not path.exists()), None)
    return paths if gone is None else f"{gone}, which the judge was trained on, is not there any more"


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
    found: dict[str, dict[int, float]] = {}
    for event in events:
        if event.get("event") != "metrics":
            continue
        for name, value in event["metrics"].items():
            if isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(name, {})[int(event["step"])] = float(value)
    return found


def _held_alarms(
    events: Sequence[Mapping[str, Any]], last: Mapping[str, Sequence[float]], late: int
) -> Iterator[HeldAlarm]:
    """Alarms of guards whose metric is, in the median of the last steps, still beyond the limit; the first of each metric.

    Where there is no limit, or the metric was not a number, whether the alarm was raised among these steps decides. One that passed
    is no news: a single token's ratio, a step's gradient.
    """
    told: set[str] = set()
    for event in events:
        guard, metric = event.get("guard"), str(event.get("metric") or "")
        step = event.get("raised_at", event.get("step"))
        if event.get("event") != "alarm" or not guard or metric in told or not isinstance(step, int):
            continue
        value, limit = event.get("value"), event.get("limit")
        now = median(last[metric]) if last.get(metric) else None
        if isinstance(value, int | float) and isinstance(limit, int | float) and now is not None:
            holds = now > limit if value > limit else now < limit
        else:
            holds = step >= late
        if holds:
            told.add(metric)
            bound = float(limit) if isinstance(limit, int | float) else None
            yield HeldAlarm(guard=str(guard), metric=metric, step=step, limit=bound, value=now)


def _figures(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The quantities of ``Training.first`` and ``last``, those that are there."""
    means: dict[str, float] = {}
    for name, found in values.items():
        if found:
            means[name.partition("/")[2] if name != "loss/entropy" else "entropy"] = fmean(found)
    figures: dict[str, float] = {name: means[name] for name in ("entropy", "repetition") if name in means}
    if "eos_frac" in means:
        figures["cut"] = 1 - means["eos_frac"]
    if "ref_kl" in means and means.get("length_mean"):
        figures["kl_per_token"] = means["ref_kl"] / means["length_mean"]
    return figures
