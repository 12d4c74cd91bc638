"""A policy on held-out prompts: metrics, and against its baseline."""

from __future__ import annotations

import functools
import importlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf.config.file_stages import EvaluateStage
from rlhf.config.gates import GateStage
from rlhf.config.search import SearchConfig
from rlhf.config.stage_inputs import listed
from rlhf.config.yaml_text import read_yaml
from rlhf.data.accepted import ACCEPTED
from rlhf.data.contracts import PreferenceRow
from rlhf.data.datasets import PreferenceDataset
from rlhf.data.expand import preferences_of
from rlhf.data.read import read_rows
from rlhf.errors import RewardError, RLHFError
from rlhf.evaluation.evaluate_model import asks_model, load_metrics, measure, reward_of, with_baseline
from rlhf.evaluation.evaluator import evaluate_policies
from rlhf.evaluation.judges import Judge
from rlhf.evaluation.metrics.metric_inputs import MetricInputs, MetricNeeds
from rlhf.evaluation.overoptimization import judge_rollouts
from rlhf.evaluation.records import SCHEMA, Evaluation
from rlhf.files import write_json
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.pipeline.evidence import called, judge_called, judge_texts, training_between
from rlhf.pipeline.leakage import Leakage, recorded_leakage
from rlhf.pipeline.stages.context import StageContext, StageOutcome, resolved, resolved_reward, seed_of
from rlhf.pipeline.stages.inputs import load_policy, longest_row, read_prompts
from rlhf.pipeline.stages.judging import open_judge, tell_cuts
from rlhf.pipeline.validate.independence import leakage_in_recipe
from rlhf.pipeline.verdicts import independence_of
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.verdict_cache import FILE as VERDICTS
from rlhf.rewards.pairwise.votes import PairwiseJudge
from rlhf.rollout.engines import build_engine


def run_evaluate(stage: EvaluateStage, at: StageContext) -> StageOutcome:
    """A policy on held-out prompts: by metrics, and against a baseline where there are one and a judge."""
    seed, started = seed_of(stage.seed), datetime.now(UTC)
    policy = load_policy(stage.policy, at, seed=seed)
    baseline = load_policy(stage.baseline, at, seed=seed) if stage.baseline is not None else None
    prompts = [] if stage.prompts is None else read_prompts(
        stage.prompts, policy, at, row_filter=stage.row_filter, workers=stage.data_workers,
        limit=stage.limit, max_prompt_length=stage.max_prompt_length, truncation="drop",
    )  # fmt: skip
    reward_model = RewardModel.from_pretrained(at.path(stage.reward_model)) if stage.reward_model else None
    judge = open_judge(stage.judge, at) if stage.judge is not None else None
    chosen = load_metrics(stage.metrics) if stage.metrics else {}
    whose = at.naming("judge", RewardError, what="The judge is")
    compares = baseline is not None and judge is not None
    build: Any = functools.partial(build_engine, config=stage.engine)
    searched = None
    if stage.search is not None:
        build = searched = _searched_models(stage.search, build, at)
    asks = (compares or any(map(asks_model, chosen.values()))) * (1 if baseline is None else 2)
    with whose, at.log.progress(at.name, asks * len(prompts) * stage.samples_per_prompt) as bar:
        inputs = MetricInputs(
            model=policy, prompts=prompts, sampling=stage.sampling, samples_per_prompt=stage.samples_per_prompt, seed=seed,
            needs=metric_needs(stage, at, policy, baseline, reward_model, judge), name=called(stage.policy.path),
            build_engine=build, progress=bar.advance,
        )  # fmt: skip
        if baseline is not None:
            assert stage.baseline is not None
            inputs = with_baseline(inputs, baseline, name=called(stage.baseline.path))
        evaluation = _compared(stage, at, inputs, reward_model) if compares else None
        measured = measure(inputs, chosen, by=stage.by) if chosen else None
    account = {} if searched is None else {"search": searched.account(_named(inputs))}
    metrics = None if measured is None else measured.to_dict()
    if metrics is not None:
        metrics["settings"] = {**metrics["settings"], **account}
    if evaluation is None:
        assert measured is not None, "a stage without metrics has a baseline and a judge"
        document = {"schema": SCHEMA, "metrics": metrics, "per_prompt": measured.per_prompt}
        write_json(at.folder / "evaluation.json", document)
        _export(stage, at, inputs, None, started)
        return _with_cost(StageOutcome(measured.headline(), measured.summary()), searched)
    evaluation = replace(evaluation, settings={**evaluation.settings, **account})
    summary = evaluation.summary()
    if measured is not None:
        per_prompt = {**evaluation.per_prompt, **measured.per_prompt}
        evaluation = replace(evaluation, metrics=metrics, per_prompt=per_prompt)
        summary |= {f"metrics/{name}": value for name, value in measured.summary().items()}
    evaluation.write(at.folder / "evaluation.json")
    _export(stage, at, inputs, evaluation, started)
    return _with_cost(StageOutcome(evaluation.headline(), summary), searched)


def _searched_models(search: SearchConfig, build: Any, at: StageContext) -> Any:
    """What builds engines that search; by text, because only stages with a search have it in their key."""
    module = importlib.import_module(f"{__package__}.searched_models")
    return module.SearchedModels(resolved(search, at), build, at.log.alarm)


def _named(inputs: MetricInputs) -> dict[str, PolicyModel]:
    """The models by the names that reports have for them."""
    named = {inputs.name: inputs.model}
    return named if inputs.baseline is None else {inputs.baseline.name: inputs.baseline.model, **named}


def _with_cost(outcome: StageOutcome, searched: Any) -> StageOutcome:
    """An outcome with what a completion cost, where it was looked for."""
    if searched is None or not (cost := searched.sentence()):
        return outcome
    return replace(outcome, headline=f"{outcome.headline}; {cost}", metrics={**outcome.metrics, **searched.figures()})


def _export(
    stage: EvaluateStage, at: StageContext, inputs: MetricInputs, evaluation: Evaluation | None, started: datetime
) -> None:
    """The same for other viewers; by text, because how a file is written is not in the stage's key."""
    if stage.inspect_log or stage.hub_results is not None:
        exporting = importlib.import_module(f"{__package__}.evaluation_export")
        read = listed(stage.prompts) if stage.prompts else [stage.texts or stage.pairs]
        exporting.export_evaluation(
            at, inputs, evaluation, dataset=", ".join(map(str, read)), inspect_log=stage.inspect_log,
            hub_results=stage.hub_results, started=started,
        )  # fmt: skip


def metric_needs(
    stage: EvaluateStage | GateStage,
    at: StageContext,
    policy: PolicyModel,
    baseline: PolicyModel | None,
    reward_model: RewardModel | None,
    judge: Judge | None,
) -> MetricNeeds:
    """What metrics may ask for."""
    pairs: list[PreferenceRow] = []
    if stage.pairs:
        with at.naming("pairs"):
            rows = read_rows(at.path(stage.pairs), accepts=ACCEPTED["preference"])
            pairs = [pair for row in rows for pair in preferences_of(row)]
    reward, learned = reward_of(reward_model, policy)
    return MetricNeeds(
        ref_model=baseline,
        reward=reward,
        reward_model=learned,
        judge=judge,
        pairs=pairs,
        texts=at.path(stage.texts) if stage.texts else None,
        toxicity_classifier=stage.toxicity_classifier,
        refusal_patterns=at.path(stage.refusal_patterns) if stage.refusal_patterns else None,
        pairwise_judge=_pairwise_judge(stage, at),
        tie_band=stage.tie_band,
        solved_at=stage.solved_at,
    )


def _pairwise_judge(stage: EvaluateStage | GateStage, at: StageContext) -> PairwiseJudge | None:
    """Its verdicts are kept in the run's folder, where a stage that is done again finds them."""
    if stage.pairwise_judge is None:
        return None
    return build_judge(resolved(stage.pairwise_judge, at), cache=at.run_dir / VERDICTS)


def _compared(
    stage: EvaluateStage, at: StageContext, inputs: MetricInputs, reward_model: RewardModel | None
) -> Evaluation:
    """Policy against baseline by the judge."""
    judge = inputs.needs.judge
    assert inputs.baseline is not None
    assert judge is not None
    assert stage.baseline is not None
    assert stage.judge is not None
    pairs = None
    if stage.pairs and reward_model:  # it reads its own tokens, not the policy's, and no more than it was made for
        limits: Any = {"max_length": longest_row(None, reward_model), "truncation": "drop"}
        pairs = PreferenceDataset(at.path(stage.pairs), reward_model.tokenizer, **limits)
        at.log.write("note", message=f"pairs: {pairs.report.to_text()}")
    knows = judge_texts(resolved_reward(stage.judge, at), runs=at.run_dir.parent)
    before = inputs.baseline.completions
    evaluation = evaluate_policies(
        inputs.model, inputs.baseline.model, inputs.prompts, judge,
        reward_model=reward_model, pairs=pairs, sampling=stage.sampling,
        samples_per_prompt=stage.samples_per_prompt, tie_band=stage.tie_band, seed=inputs.seed, completions=(inputs.completions, before),
        names=(inputs.name, inputs.baseline.name),
        judge_called=judge_called(stage.judge), judge_knows=None if isinstance(knows, str) else knows,
        not_drawn=None if stage.search is None else "a search found the completions; the policies did not draw them",
    )  # fmt: skip
    if stage.rollouts is not None:
        evaluation = evaluation.with_curve(judge_rollouts(Path(at.path(stage.rollouts)), judge))
    tell_cuts(judge, at, *evaluation.settings["proxy_cuts"])
    models = (at.model(model).path for model in (stage.policy, stage.baseline))
    training, untraced = training_between(*models, runs=at.run_dir.parent)
    missing = {"judge_unseen_frac": knows if isinstance(knows, str) else None, "training": untraced}
    return replace(
        evaluation,
        training=training,
        independence=independence_of(_seen(at)),
        missing={**evaluation.missing, **{name: why for name, why in missing.items() if why}},
    )


def _seen(at: StageContext) -> Leakage | None:
    """What training saw of judge and prompts; None where nothing says."""
    if (recorded := recorded_leakage(at.folder)) is not None:
        return recorded
    try:
        return leakage_in_recipe(read_yaml(at.run_dir / "recipe.yaml"), at.name)
    except RLHFError:
        return None
