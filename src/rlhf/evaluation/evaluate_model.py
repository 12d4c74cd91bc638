"""``evaluate_model``: metrics of a model on test rows, by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf.config.base import FUNCTION
from rlhf.config.judges import is_judge_config, with_any_judge
from rlhf.config.metric_table import METRICS, NEEDS, NO_COMPLETIONS, Metric, check_metric_names, missing_need, unmet
from rlhf.config.policy import SamplingConfig
from rlhf.data.accepted import ACCEPTED, TEACHES
from rlhf.data.contracts import Kind, PreferenceRow, Prompt, Row
from rlhf.data.datasets import GRPODataset, TokenizedDataset
from rlhf.data.expand import preferences_of
from rlhf.data.read import read_rows
from rlhf.data.sources import Source
from rlhf.errors import ConfigError, DataError, check_type, did_you_mean
from rlhf.evaluation.judges import Judge, load_judge
from rlhf.evaluation.metrics.metric_inputs import BASELINE_SIDE, MetricInputs, MetricNeeds
from rlhf.evaluation.metrics.reference_texts import references_of
from rlhf.evaluation.metrics.refusal import COLUMN as SHOULD_REFUSE
from rlhf.evaluation.metrics.unit_statistics import Measured
from rlhf.evaluation.model_evaluation import ModelEvaluation
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.factory import as_scorer, build_reward
from rlhf.rewards.functions import FunctionReward, load_function
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.votes import PairwiseJudge
from rlhf.rewards.types import Scorer
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import RolloutEngine

ModelLike = PolicyModel | str | Path


def evaluate_model(
    model: ModelLike,
    test_dataset: Source | TokenizedDataset[Any],
    metrics: Sequence[str] | str | None = None,
    *,
    ref_model: ModelLike | None = None,
    baseline: ModelLike | None = None,
    reward_model: Any = None,
    judge: Any = None,
    pairs: Source | None = None,
    texts: Source | None = None,
    toxicity_classifier: str | None = None,
    refusal_patterns: str | Path | None = None,
    by: str | None = None,
    sampling: SamplingConfig | None = None,
    samples_per_prompt: int = 1,
    solved_at: float = 1.0,
    tie_band: float | None = None,
    limit: int | None = None,
    seed: int = 0,
    build_engine: Callable[[PolicyModel], RolloutEngine] = LocalEngine,
    progress: Callable[..., None] | None = None,
) -> ModelEvaluation:
    """Measure a model.

        found = evaluate_model("my-model", "test.jsonl", metrics=["reward_score", "kl_divergence"], reward_model="rm", ref_model="start")
        found["kl_divergence"], found.interval("kl_divergence").low

    Args:
        model: A folder, a hub name, `embedded`, or a ``PolicyModel``.
        test_dataset: A file, a list of prompts or rows, or a data set of this library. Rows may have columns that metrics need:
            `reference` or `completion`, `should_refuse`, and what the judge or reward wants. Pairs are read as such, texts too.
        metrics: Keys of ``rlhf.config.metric_table.METRICS``, or a function or ``Metric`` as ``package.module:name``. By default all whose
            needs are given.
        ref_model: What KL is measured to; the baseline by default.
        baseline: Another model on the same prompts: every metric of a model is measured for it too, and the difference.
        reward_model: A ``RewardModel``, a folder, or any other reward that a recipe or ``as_scorer`` takes.
        judge: See ``rlhf.evaluation.judges``; a name as ``package.module:function``, whatever a reward may be, settings of a judge
            (``rlhf.config.judges``, also a file ``judge.yaml``), or a judge of pairs, which can say nothing but the win rate.
        pairs: Held-out preference pairs; by default the test rows, where they are.
        texts: Texts, demonstrations or dialogues for perplexity; by default the test rows, where they are.
        toxicity_classifier: Folder or hub name of a text classifier, or ``lexicon:FILE``.
        refusal_patterns: A file of regular expressions; by default the bundled one.
        by: A column of the test rows: every metric for each of its values too (``ModelEvaluation.groups``).
        sampling: How completions are drawn; by default at temperature 1.
        samples_per_prompt: Completions of each prompt; the prompt stays the unit of all intervals.
        solved_at: For pass@k: the judge's score from which on a prompt is solved.
        tie_band: For the win rate: judge scores this close are ties; by default the judge's own, else 0.
        limit: Use only this many rows.
        seed: Of samples and resampling.
        build_engine: What samples from a model.
        progress: Called as ``progress(whose, by=how_many)`` for completions that are done.

    Returns:
        The numbers by name, with intervals.

    Raises:
        UnknownNameError: There is no such metric.
        ConfigError: A metric needs something that was not given; the message names both.
        DataError: The rows can't be read, or none has a prompt.
    """
    names = [metrics] if isinstance(metrics, str) else None if metrics is None else list(metrics)
    chosen = None if names is None else load_metrics(names)
    policy = _model(model, "model")
    rows = rows_of(test_dataset, wanted=chosen, limit=limit)
    own_pairs = [] if pairs is None else _pairs(list(read_rows(pairs, accepts=ACCEPTED["preference"], limit=limit)))
    other = None if baseline is None else _model(baseline, "baseline")
    reference = _model(ref_model, "ref_model") if ref_model is not None else other
    scorer, learned = reward_of(reward_model, policy)
    judge, pairwise, own_band = divided_judge(judge)
    needs = MetricNeeds(
        ref_model=reference,
        reward=scorer,
        reward_model=learned,
        judge=judge_of(judge, policy),
        pairwise_judge=pairwise,
        pairs=own_pairs or _pairs(rows),
        texts=texts if texts is not None else texts_among(rows),
        toxicity_classifier=toxicity_classifier,
        refusal_patterns=None if refusal_patterns is None else str(refusal_patterns),
        solved_at=solved_at,
        tie_band=own_band if tie_band is None else tie_band,
        limit=limit,
    )
    wants_prompts = chosen is None or any(asks_model(metric) for metric in chosen.values())
    prompts = _prompts(rows, policy, needed=chosen is not None) if wants_prompts else []
    inputs = MetricInputs(
        model=policy, prompts=prompts, needs=needs, sampling=sampling or SamplingConfig(),
        samples_per_prompt=samples_per_prompt, seed=seed, build_engine=build_engine, progress=progress,
    )  # fmt: skip
    if other is not None:
        inputs = with_baseline(inputs, other)
    return measure(inputs, chosen, by=by)


def measure(inputs: MetricInputs, metrics: Mapping[str, Metric] | None, *, by: str | None = None) -> ModelEvaluation:
    """Metrics of what is given.

    Args:
        inputs: The model, its prompts, and what metrics need.
        metrics: Name -> metric (``load_metrics``); None for all of the table whose needs are given.
        by: A column.

    Raises:
        ConfigError: A metric needs something that was not given, or no row has the column.
    """
    given = what_is_given(inputs)
    if metrics is None:
        metrics = {
            name: m
            for name, m in METRICS.items()
            if missing_need(m.needs, given) is None and (inputs.prompts or not asks_model(m))
        }
    for name, metric in metrics.items():
        if (need := missing_need(metric.needs, given)) is not None:
            raise unmet(name, need)
    labels = (
        {} if by is None else _labels(inputs, by, texts=any("texts" in metric.needs for metric in metrics.values()))
    )
    measured = {name: _measured(name, metric, inputs) for name, metric in metrics.items()}
    before: dict[str, Measured] = {}
    if inputs.baseline is not None:
        before = {name: _measured(name, m, inputs.baseline) for name, m in metrics.items() if m.of_baseline}
    return ModelEvaluation(
        metrics=metrics,
        measured=measured,
        of_baseline=before,
        prompt_ids=[prompt.id for prompt in inputs.prompts],
        labels=labels,
        settings={
            "policy": inputs.name,
            "baseline": inputs.baseline.name if inputs.baseline is not None else None,
            "num_prompts": len(inputs.prompts),
            "samples_per_prompt": inputs.samples_per_prompt,
            "seed": inputs.seed,
            "sampling": inputs.sampling.model_dump(),
            "by": by,
        },
    )


def with_baseline(
    inputs: MetricInputs, baseline: PolicyModel, *, name: str = "the baseline", given: Any = None
) -> MetricInputs:
    """The same inputs next to those of another model, which samples by seeds of its own and reads the prompts in its own token ids.

    Args:
        inputs: Of the model.
        baseline: The other one.
        name: What reports call it.
        given: Its completions, where they were sampled already.
    """
    prompts = (
        _read_by(baseline, inputs.prompts) if given is None and _ids_differ(inputs.model, baseline) else inputs.prompts
    )
    own = replace(inputs, model=baseline, prompts=prompts, side=BASELINE_SIDE, baseline=None, name=name, given=given)
    return replace(inputs, baseline=own)


def load_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """Name -> metric, a user's own imported.

    Raises:
        UnknownNameError: There is none of that name.
        ConfigError: A user's own can't be imported, or a need of it is unknown.
    """
    check_metric_names(names)
    return {name: _own_metric(name) if FUNCTION.match(name) else METRICS[name] for name in names}


def asks_model(metric: Metric) -> bool:
    """Whether the model must write completions for it."""
    return not NO_COMPLETIONS & set(metric.needs)


def what_is_given(inputs: MetricInputs) -> frozenset[str]:
    """Keys of ``NEEDS`` that are met."""
    needs = inputs.needs
    met = {
        "ref_model": needs.ref_model is not None,
        "baseline": inputs.baseline is not None,
        "reward_model": needs.reward is not None,
        "judge": needs.judge is not None,
        "preference": needs.judge is not None or needs.pairwise_judge is not None,
        "pairwise_judge": needs.pairwise_judge is not None,
        "quality": needs.judge is not None or needs.reward is not None,
        "pairs": bool(needs.pairs),
        "texts": needs.texts is not None,
        "toxicity_classifier": needs.toxicity_classifier is not None,
        "references": any(references_of(prompt) for prompt in inputs.prompts),
        "should_refuse": any(prompt.columns.get(SHOULD_REFUSE) is not None for prompt in inputs.prompts),
    }
    assert met.keys() == NEEDS.keys()
    return frozenset(name for name, there in met.items() if there)


def reward_of(reward: Any, policy: PolicyModel) -> tuple[Scorer | None, RewardModel | None]:
    """Who gives scores, and the reward model behind it where there is one; failures of single samples are reported, not raised."""
    if reward is None:
        return None, None
    if isinstance(reward, Path):
        reward = str(reward)
    scorer: Scorer
    if isinstance(reward, RewardModel):
        scorer = LearnedReward(reward, tokenizer=policy.tokenizer, on_error="report")
    elif isinstance(reward, str | Mapping):
        scorer = build_reward(reward, tokenizer=policy.tokenizer, on_error="report")
    elif isinstance(reward, Scorer | type) or not callable(reward):
        scorer = as_scorer(reward, tokenizer=policy.tokenizer)
    else:
        scorer = FunctionReward(reward, in_process=True, on_error="report")
    if isinstance(scorer, LearnedReward):
        scorer.lengths.cuts = True
        return scorer, scorer.model
    return scorer, None


def divided_judge(judge: Any) -> tuple[Any, PairwiseJudge | None, float]:
    """(who scores completions, who compares two of them, tie band); one of the first two is None."""
    if isinstance(judge, PairwiseJudge):
        return None, judge, 0.0
    if not is_judge_config(judge):
        return judge, None, 0.0
    lifted = with_any_judge({"judge": judge})
    if "judge" not in lifted:
        return None, build_judge(lifted["pairwise_judge"]), 0.0
    settings = lifted["judge"]
    if settings["kind"] == "function":
        return functools.partial(load_judge(settings["function"]), **settings["arguments"]), None, lifted["tie_band"]
    return settings, None, lifted["tie_band"]


def judge_of(judge: Any, policy: PolicyModel) -> Judge | None:
    """A function as it is, for it may say more than a score; any other text, and settings, as the reward that they name."""
    if isinstance(judge, str) and FUNCTION.match(judge):
        return load_judge(judge)
    if isinstance(judge, str | Mapping):
        return build_reward(judge, tokenizer=policy.tokenizer)
    scoring_judge: Judge | None = judge
    return scoring_judge


def rows_of(
    source: Source | TokenizedDataset[Any], *, wanted: Mapping[str, Metric] | None = None, limit: int | None = None
) -> list[Row]:
    """The rows of a test set. Bare strings are prompts, or texts where all metrics wanted read only texts."""
    if isinstance(source, TokenizedDataset):
        return list(source.rows)[:limit]
    only_texts = wanted is not None and bool(wanted) and all("texts" in metric.needs for metric in wanted.values())
    return list(read_rows(source, strings_are=Kind.TEXT if only_texts else Kind.PROMPT, limit=limit))


def texts_among(rows: Sequence[Row]) -> list[Row] | None:
    """The rows themselves where each has a text whose likelihood can be measured."""
    return list(rows) if rows and all(row.kind in TEACHES for row in rows) else None


def _pairs(rows: Sequence[Row]) -> list[PreferenceRow]:
    if not rows or not all(row.kind in ACCEPTED["preference"] for row in rows):
        return []
    return [pair for row in rows for pair in preferences_of(row)]


def _prompts(rows: Sequence[Row], policy: PolicyModel, *, needed: bool) -> list[Prompt]:
    """Those of the rows; none where no metric that was asked for needs them and they have none."""
    try:
        return list(GRPODataset(rows, policy.tokenizer))
    except DataError:
        if needed:
            raise
        return []


def _ids_differ(policy: PolicyModel, baseline: PolicyModel) -> bool:
    return bool(policy.tokenizer.get_vocab() != baseline.tokenizer.get_vocab())


def _read_by(model: PolicyModel, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The same prompts in another model's token ids, and in its chat template where they are dialogues."""
    rows = [{"id": prompt.id, "prompt": prompt.messages or prompt.text} for prompt in prompts]
    read = list(GRPODataset(rows, model.tokenizer))
    return [replace(prompt, ids=own.ids) for prompt, own in zip(prompts, read, strict=True)]


def _labels(inputs: MetricInputs, by: str, *, texts: bool) -> dict[str, list[str | None]]:
    """What units are -> their groups."""
    labels_of = {"prompts": [prompt.columns.get(by) for prompt in inputs.prompts]}
    labels_of["pairs"] = [pair.columns.get(by) for pair in inputs.needs.pairs]
    if texts and inputs.needs.texts is not None:
        rows = read_rows(inputs.needs.texts, accepts=ACCEPTED["sft"], limit=inputs.needs.limit)
        labels_of["texts"] = [row.columns.get(by) for row in rows]
    if all(label is None for labels in labels_of.values() for label in labels):
        known = dict.fromkeys(name for prompt in inputs.prompts for name in prompt.columns)
        raise ConfigError(f"by={by!r}: no test row has a column of that name.{did_you_mean(by, known)}")
    return {over: [_label(value) for value in labels] for over, labels in labels_of.items() if labels}


def _label(value: Any) -> str | None:
    """The name of a row's group; None, and with it what a table leaves empty, is no group."""
    return None if value is None or value != value or value == "" else str(value)


def _measured(name: str, metric: Metric, inputs: MetricInputs) -> Measured:
    result = metric(inputs)
    check_type(
        result, Measured, name=f"The result of the metric {name!r}", expected="a Measured, of a number over prompts"
    )
    measured: Measured = result
    return measured


def _own_metric(name: str) -> Metric:
    own: Any = load_function(name)
    if not isinstance(own, Metric):
        return Metric(measure=_OwnFunction(own, name))
    unknown = [need for need in own.needs if need not in NEEDS]
    if unknown:
        raise ConfigError(
            f"The metric {name!r} needs {unknown[0]!r}, which nobody can give.{did_you_mean(unknown[0], NEEDS)} Known: {', '.join(NEEDS)}."
        )
    return own


@dataclass(frozen=True, slots=True)
class _OwnFunction:
    """A function of the reward signature as a metric: a mean over prompts, and what it can't say is counted."""

    function: Callable[..., Any]
    name: str

    def __call__(self, inputs: MetricInputs) -> Measured:
        """Scores of the completions, each a number."""
        from rlhf.evaluation.metrics.reward_score import reward_score

        scorer = FunctionReward(self.function, name=self.name, in_process=True, on_error="report")
        return reward_score(replace(inputs, needs=replace(inputs.needs, reward=scorer)))


def _model(model: Any, name: str) -> PolicyModel:
    check_type(model, (PolicyModel, str, Path), name=name, expected="a PolicyModel, or the folder or hub name of one")
    return model if isinstance(model, PolicyModel) else PolicyModel.from_pretrained(str(model))
