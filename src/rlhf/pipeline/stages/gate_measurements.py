"""What the requirements of a gate need, measured of candidate and champion on the same prompts and items."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlhf.config.gates import GateStage
from rlhf.config.requirements import NoAlarm, metric_of
from rlhf.config.stage_union import stage_adapter
from rlhf.config.yaml_text import read_yaml
from rlhf.data.contracts import Prompt
from rlhf.errors import RewardError, RLHFError
from rlhf.evaluation.evaluate_model import load_metrics, measure, with_baseline
from rlhf.evaluation.gates.measurements import Measurements, MetricMeasurement, StageAlarms, SuiteMeasurement, Values
from rlhf.evaluation.intervals import finite_or_none
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.model_evaluation import ModelEvaluation
from rlhf.evaluation.records import SHARE
from rlhf.evaluation.suites.suite import Suite, load_suite
from rlhf.evaluation.suites.suite_run import SuiteRun, run_suite
from rlhf.formatting import mapping
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.pipeline.archive import events_of
from rlhf.pipeline.artifacts import Artifact
from rlhf.pipeline.stages.capabilities import resolved_suite
from rlhf.pipeline.stages.context import StageContext, seed_of
from rlhf.pipeline.stages.evaluate import metric_needs
from rlhf.pipeline.stages.inputs import load_policy, read_prompts
from rlhf.pipeline.stages.judging import open_judge
from rlhf.rollout.engines import build_engine
from rlhf.training.log import EVENTS, read_jsonl
from rlhf.training.monitoring.guard_rules import WATCHES
from rlhf.training.monitoring.hacking.detector_table import DETECTORS

NO_RECORD = "no rlhf run recorded how it was trained"


@dataclass(frozen=True, slots=True)
class Contenders:
    """Whom a gate compares."""

    candidate: PolicyModel
    champion: PolicyModel | None
    names: tuple[str, str]
    """Candidate, champion."""


def measure_contenders(stage: GateStage, at: StageContext, contenders: Contenders, folder: Path) -> Measurements:
    """Metrics, suites and alarms, as far as a requirement reads them.

    Args:
        stage: Its settings.
        at: Where it works.
        contenders: The models.
        folder: Of the candidate, next to which is the record of who made it.
    """
    missing: dict[str, str] = {}
    metrics = _metrics(stage, at, contenders)
    suites = _suites(stage, at, contenders)
    stages = {}
    for each in stage.require:
        if isinstance(each, NoAlarm):
            made_in = folder.parent if each.stage is None else Path(at.path(each.stage)).parent
            alarms = stage_alarms(made_in)
            if isinstance(alarms, str):
                missing[f"alarms {each.stage or ''}".strip()] = f"{made_in}: {alarms}"
            else:
                stages[each.stage or ""] = alarms
    return Measurements(
        has_champion=contenders.champion is not None, metrics=metrics, suites=suites, stages=stages, missing=missing
    )


def stage_alarms(folder: Path) -> StageAlarms | str:
    """What the guards of the stage in a folder said; or why nothing is known."""
    artifact = Artifact.read(folder)
    if artifact is None:
        return NO_RECORD
    run = folder.parent
    events = events_of(read_jsonl(run / EVENTS), artifact.stage)
    if not any(event.get("event") == "stage_start" for event in events):
        return f"its log, {run / EVENTS}, says nothing of the stage {artifact.stage}"
    try:
        settings = mapping(mapping(read_yaml(run / "recipe.yaml").get("stages")).get(artifact.stage))
        stage = stage_adapter().validate_python({"seed": 0, **settings})
    except (RLHFError, ValidationError, OSError) as err:
        return f"the settings of the stage {artifact.stage} can't be read: {err}"
    logged = {name for event in events for name in mapping(event.get("metrics"))}
    alarms = [
        {key: event.get(key) for key in ("guard", "step", "metric", "message")}
        for event in events
        if event.get("event") == "alarm" and event.get("guard")
    ]
    return StageAlarms(stage=artifact.stage, watched=watching(stage, logged), alarms=alarms)


def watching(stage: Any, logged: Collection[str]) -> list[str]:
    """Guards and detectors that were on and had something to look at.

    Args:
        stage: Settings of a training stage.
        logged: Names of the metrics that it logged.
    """

    def seen(metric: str) -> bool:
        return any(name == metric or name.endswith(f"/{metric}") for name in logged)

    names = []
    guards, hacking = getattr(stage, "guards", None), getattr(stage, "hacking", None)
    if guards is not None:
        for name in guards.of_each():
            looks_at = [metric for metric, _ in WATCHES.get(name, ())]
            if guards.action_of(name) != "off" and (any(map(seen, looks_at)) if looks_at else bool(logged)):
                names.append(name)
    if hacking is not None:
        names += [
            name for name in hacking.of_each() if hacking.action_of(name) != "off" and seen(DETECTORS[name].metric)
        ]
    return names


def _metrics(stage: GateStage, at: StageContext, contenders: Contenders) -> dict[str, MetricMeasurement]:
    wanted = [
        name for each in stage.require for name in each.metrics_read() if contenders.champion or not each.compares
    ]
    wanted = list(dict.fromkeys(wanted))
    if not wanted:
        return {}
    seed = seed_of(stage.seed)
    candidate, champion = contenders.candidate, contenders.champion
    prompts: list[Prompt] = []
    if stage.prompts is not None:
        prompts = read_prompts(
            stage.prompts,
            candidate,
            at,
            limit=stage.limit,
            max_prompt_length=stage.max_prompt_length,
            truncation="drop",
        )
    reward_model = RewardModel.from_pretrained(at.path(stage.reward_model)) if stage.reward_model else None
    judge = open_judge(stage.judge, at) if stage.judge is not None else None
    reference = load_policy(stage.reference, at, seed=seed) if stage.reference is not None else champion
    metrics = load_metrics(list(dict.fromkeys(map(metric_of, wanted))))
    whose = at.naming("judge", RewardError, what="The judge is")
    asked = len(prompts) * stage.samples_per_prompt * (1 if champion is None else 3 if stage.repeat else 2)
    with whose, at.log.progress(at.name, asked) as bar:
        inputs = MetricInputs(
            model=candidate, prompts=prompts, sampling=stage.sampling, samples_per_prompt=stage.samples_per_prompt, seed=seed,
            needs=replace(metric_needs(stage, at, candidate, champion, reward_model, judge), ref_model=reference),
            name=contenders.names[0], build_engine=functools.partial(build_engine, config=stage.engine), progress=bar.advance,
        )  # fmt: skip
        again: ModelEvaluation | None = None
        if champion is not None:
            inputs = with_baseline(inputs, champion, name=contenders.names[1])
            assert inputs.baseline is not None
            if stage.repeat:
                own = {name: metric for name, metric in metrics.items() if metric.of_baseline}
                again = measure(replace(inputs.baseline, seed=seed + 1), own)
        evaluation = measure(inputs, metrics)
    judged_with = _measured_with(stage, prompts)
    return {name: _measurement(name, evaluation, again, judged_with) for name in wanted}


def _measurement(
    name: str, model_evaluation: ModelEvaluation, again: ModelEvaluation | None, with_what: str
) -> MetricMeasurement:
    metric = model_evaluation.metrics[metric_of(name)]
    compares = "baseline" in metric.needs
    sides = {"candidate": with_what, "champion": with_what}
    values = _values(model_evaluation.prompt_ids, model_evaluation.measured, name)
    return MetricMeasurement(
        name=name,
        candidate=values,
        champion=_values(model_evaluation.prompt_ids, model_evaluation.of_baseline, name),
        again=_values(again.prompt_ids, again.measured, name) if again is not None else {},
        compares=compares,
        neutral=0.5 if compares and metric.unit == SHARE else 0.0,
        estimate=None if values else model_evaluation.interval(name).to_dict(),
        gain=None if values else model_evaluation.gain(name).to_dict(),
        measured_with=sides,
    )


def _values(prompts: Sequence[str], measured: Mapping[str, Any], name: str) -> Values:
    """Prompt -> number; empty where the metric, or its part, is no mean over prompts."""
    each = measured.get(metric_of(name))
    if each is None or each.over != "prompts":
        return {}
    statistic = each.value if name == metric_of(name) else each.parts.get(name.partition("/")[2])
    values = None if statistic is None else statistic.per_unit
    if values is None or len(values) != len(prompts):
        return {}
    return {prompt: finite_or_none(value) for prompt, value in zip(prompts, values.tolist(), strict=True)}


def _measured_with(stage: GateStage, prompts: Sequence[Prompt]) -> str:
    """Hash of all that decides a metric but the model: prompts as they are asked, sampling, and who judges."""
    keys = {
        "judge",
        "reward_model",
        "sampling",
        "samples_per_prompt",
        "solved_at",
        "toxicity_classifier",
        "refusal_patterns",
    }
    settings = stage.model_dump(mode="json", include=keys)
    text = json.dumps([settings, [[prompt.id, list(prompt.ids)] for prompt in prompts]], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _suites(stage: GateStage, at: StageContext, contenders: Contenders) -> dict[str, SuiteMeasurement]:
    measured: dict[str, SuiteMeasurement] = {}
    for each in stage.require:
        if each.compares and contenders.champion is None:
            continue
        for source in each.suites_read():
            suite = load_suite(resolved_suite(source, at))
            name = source if isinstance(source, str) else suite.name
            if name not in measured:
                with (
                    at.naming("require", RewardError, what="The scorer is"),
                    at.log.progress(at.name, len(suite.items)) as bar,
                ):
                    measured[name] = _ask(stage, suite, contenders, bar.advance)
    return measured


def _ask(stage: GateStage, suite: Suite, contenders: Contenders, progress: Any) -> SuiteMeasurement:
    seed = seed_of(stage.seed)

    def ask(policy: PolicyModel, name: str, own: int) -> SuiteRun:
        engine = functools.partial(build_engine, config=stage.engine)
        return run_suite(policy, suite, name=name, seed=own, build_engine=engine, progress=progress)

    champion, again = None, None
    if contenders.champion is not None:
        champion = ask(contenders.champion, contenders.names[1], seed)
        if suite.config.sampling.temperature > 0 if stage.repeat is None else stage.repeat:
            again = ask(contenders.champion, contenders.names[1], seed + 1)
    return SuiteMeasurement(
        name=suite.name, fingerprint=suite.fingerprint, margin=suite.config.margin,
        candidate=ask(contenders.candidate, contenders.names[0], seed), champion=champion, again=again,
    )  # fmt: skip
