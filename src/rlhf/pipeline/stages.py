"""What each kind of stage does: load its inputs, call a trainer or an evaluator, leave files and one line for people."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rlhf
from rlhf.config.model import ModelConfig
from rlhf.config.recipe import (
    STAGE,
    DPOStage,
    EvaluateStage,
    GRPOStage,
    PPOStage,
    PreferencesStage,
    RewardStage,
    SFTStage,
    WorldStage,
)
from rlhf.config.rewards import FunctionRewardConfig, RewardSpec
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset, PreferenceDataset, SFTDataset
from rlhf.data.pack import Branch, Group
from rlhf.data.streaming import StreamingPreferenceDataset, StreamingSFTDataset
from rlhf.data.world import build_world, train_tokenizer
from rlhf.errors import ConfigError
from rlhf.evaluation.evaluator import evaluate_policies, judge_reward_model
from rlhf.evaluation.judges import Judge, load_judge
from rlhf.evaluation.overoptimisation import judge_rollouts
from rlhf.evaluation.records import SCHEMA
from rlhf.files import write_json, write_jsonl
from rlhf.models.load import disable_dropout
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference, build_reference
from rlhf.models.reward import RewardModel
from rlhf.models.value import ValueModel
from rlhf.rewards.factory import build_reward
from rlhf.rewards.functions import load_function
from rlhf.rewards.types import Scorer
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion
from rlhf.seeds import derive_seed
from rlhf.training.dpo import DPOTrainer
from rlhf.training.grpo import GRPOTrainer
from rlhf.training.log import RunLog
from rlhf.training.loop import TrainResult
from rlhf.training.ppo import PPOTrainer
from rlhf.training.reward import RewardModelTrainer
from rlhf.training.sft import SFTTrainer

Annotator = Callable[..., Sequence[Mapping[str, Any] | None]]
"""(prompts, completions of each, *, ended, noise, seed) -> for each prompt None, or the numbers of the ``chosen`` and the
``rejected`` completion and any further columns."""

ROWS_FOR_SELF_CHECK = 3
SAMPLES_AT_ONCE = 256
"""Prompts asked in one call when preferences are collected."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """Where a stage works."""

    name: str
    run_dir: Path
    log: RunLog

    @property
    def folder(self) -> Path:
        """The stage's own folder."""
        return self.run_dir / self.name

    def path(self, source: str) -> str:
        """A file or folder: ``stage:NAME/FILE`` and ``stage:NAME`` inside the run, anything else as it is."""
        match = STAGE.match(source)
        if match is None:
            return source
        return str(self.run_dir / match["name"] / (match["file"] or "model"))

    def paths(self, source: str | list[str]) -> str | list[str]:
        """``path`` for one or several."""
        return self.path(source) if isinstance(source, str) else [self.path(item) for item in source]

    def model(self, config: ModelConfig) -> ModelConfig:
        """A model config whose folders are real."""
        changes = {
            key: self.path(value) for key in ("path", "tokenizer") if (value := getattr(config, key)) is not None
        }
        return config.updated(**changes)


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What a stage reports."""

    headline: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    """For the model card."""


def run_world(stage: WorldStage, at: StageContext) -> StageOutcome:
    """The embedded world's files."""
    world = build_world(_seed(stage.seed), at.folder, split_seed=stage.split_seed, num_documents=stage.num_documents)
    rows = world["rows"]
    if stage.vocab_size is not None:
        texts = [
            json.loads(line)["text"] for line in (at.folder / "pretrain.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        train_tokenizer(texts, stage.vocab_size).save_pretrained(at.folder / "tokenizer")
    return StageOutcome(
        f"{rows['sft.jsonl']} demonstrations, {rows['prompts.jsonl']} prompts, {rows['test_prompts.jsonl']} held-out prompts",
        rows,
    )


def run_preferences(stage: PreferencesStage, at: StageContext) -> StageOutcome:
    """Samples of a model, compared by an annotator."""
    policy = _load_policy(stage.model, at, seed=_seed(stage.seed))
    annotate = load_function(stage.annotator)
    engine = LocalEngine(policy)
    counts: dict[str, Any] = {}
    wanted = [("pairs", stage.prompts, stage.num_pairs, stage.noise)]
    if stage.test_prompts is not None:
        wanted.append(("test_pairs", stage.test_prompts, stage.num_test_pairs, 0.0))
    for name, source, count, noise in wanted:
        prompts = list(GRPODataset(at.path(source), policy.tokenizer))
        random.Random(derive_seed(_seed(stage.seed), "preferences", name)).shuffle(prompts)
        rows: list[Any] = []
        asked = 0
        with at.log.progress(name, count) as bar:
            while len(rows) < count and asked < len(prompts):
                batch = prompts[asked : asked + SAMPLES_AT_ONCE]
                asked += len(batch)
                samples = engine.generate(
                    batch,
                    num_samples=stage.completions_per_prompt,
                    sampling=stage.sampling,
                    seed=_seed(stage.seed),
                    step=0,
                )
                found = _pairs(batch, samples, annotate, noise=noise, seed=_seed(stage.seed))
                rows += found
                bar.advance(by=len(found))
        if len(rows) < count:
            at.log.alarm(f"{name}: {asked} prompts gave {len(rows)} pairs, {count} were wanted; the others were ties.")
        write_jsonl(at.folder / f"{name}.jsonl", rows[:count])
        counts[f"num_{name}"] = min(count, len(rows))
    return StageOutcome(
        f"{counts['num_pairs']} pairs with {stage.noise:.0%} noise, {counts.get('num_test_pairs', 0)} held-out pairs without",
        counts,
    )


def run_sft(stage: SFTStage, at: StageContext) -> StageOutcome:
    """A fine-tuned policy."""
    policy = _load_for_training(stage.model, at, seed=_seed(stage.seed))
    options: dict[str, Any] = {"max_length": stage.max_length, "truncation": stage.truncation, "score": stage.score}
    train, held_out = _datasets(stage, at, SFTDataset, StreamingSFTDataset, policy, options)
    _choose_path(policy, train, at)
    trainer = SFTTrainer(policy, stage, train, held_out, log=at.log, checkpoint_dir=at.folder)
    result = trainer.train()
    metrics = {**result.metrics, **result.evaluation}
    _save(policy, stage, at, metrics)
    loss = metrics.get("eval/loss", metrics["loss/train"])
    return StageOutcome(f"{_rows(train)} rows, {result.steps} steps, loss {loss:.3f} nats/token", metrics)


def run_reward(stage: RewardStage, at: StageContext) -> StageOutcome:
    """A reward model."""
    seed = _seed(stage.seed)
    model = RewardModel.from_policy(
        at.model(stage.model),
        head=stage.head,
        head_dropout=stage.head_dropout,
        num_models=stage.num_models,
        num_heads=stage.num_heads,
        seed=seed,
    )
    options: dict[str, Any] = {"max_length": stage.max_length, "truncation": stage.truncation}
    train, held_out = _datasets(stage, at, PreferenceDataset, StreamingPreferenceDataset, model, options)
    _choose_path(model, train, at)
    result = RewardModelTrainer(model, stage, train, held_out, log=at.log, checkpoint_dir=at.folder).train()
    metrics = {**result.metrics, **result.evaluation}
    accuracy = "nothing held out"
    if held_out is not None:
        quality = judge_reward_model(model, held_out, seed=seed)
        write_json(at.folder / "evaluation.json", {"schema": SCHEMA, "reward_model": quality.to_dict()})
        found = quality.accuracy
        metrics |= {"eval/accuracy": found.value, "eval/accuracy_low": found.low, "eval/accuracy_high": found.high}
        accuracy = f"held-out accuracy {found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
    _save(model, stage, at, metrics)
    return StageOutcome(f"{_rows(train)} pairs, {result.steps} steps, {accuracy}", metrics)


def run_dpo(stage: DPOStage, at: StageContext) -> StageOutcome:
    """A policy that learned from pairs directly."""
    policy = _load_for_training(stage.model, at, seed=_seed(stage.seed))
    options: dict[str, Any] = {"max_length": stage.max_length, "truncation": stage.truncation}
    disable_dropout(policy.model)  # the reference that it is compared with has none
    train, held_out = _datasets(stage, at, PreferenceDataset, None, policy, options)
    _choose_path(policy, train, at)
    result = DPOTrainer(policy, stage, train, held_out, log=at.log, checkpoint_dir=at.folder).train()
    metrics = {**result.metrics, **result.evaluation}
    _save(policy, stage, at, metrics)
    accuracy = metrics.get("eval/accuracy", metrics["dpo/accuracy"])
    margin = metrics.get("eval/reward_margin", metrics["dpo/reward_margin"])
    return StageOutcome(
        f"{_rows(train)} pairs, {result.steps} steps, accuracy {accuracy:.3f}, margin {margin:.2f}", metrics
    )


def run_ppo(stage: PPOStage, at: StageContext) -> StageOutcome:
    """A policy that learned from rewards, with a critic."""
    seed = _seed(stage.seed)
    policy, prompts, scorer, reference = _rl_inputs(stage, at, seed=seed)
    if stage.value_model == "shared":
        value_model = ValueModel.shared(policy, seed=seed)
    elif stage.value_init == "reward":
        reward_model = RewardModel.from_pretrained(at.path(_learned_source(stage.reward)))
        value_model = ValueModel.from_reward(reward_model, lora=stage.model.lora, seed=seed)
    else:
        value_model = ValueModel.from_policy(policy, lora=stage.model.lora, seed=seed)
    disable_dropout(value_model)
    trainer = PPOTrainer(
        policy, value_model, stage, prompts, scorer,
        reference=reference, eval_prompts=_eval_prompts(stage, policy, at), log=at.log, checkpoint_dir=at.folder,
    )  # fmt: skip
    return _finish_rl("ppo", policy, trainer.train(), stage, at)


def run_grpo(stage: GRPOStage, at: StageContext) -> StageOutcome:
    """A policy that learned from rewards, against its own siblings."""
    policy, prompts, scorer, reference = _rl_inputs(stage, at, seed=_seed(stage.seed))
    trainer = GRPOTrainer(
        policy, stage, prompts, scorer,
        reference=reference, eval_prompts=_eval_prompts(stage, policy, at), log=at.log, checkpoint_dir=at.folder,
    )  # fmt: skip
    return _finish_rl("grpo", policy, trainer.train(), stage, at)


def run_evaluate(stage: EvaluateStage, at: StageContext) -> StageOutcome:
    """Policy against baseline on held-out prompts."""
    seed = _seed(stage.seed)
    policy = _load_policy(stage.policy, at, seed=seed)
    baseline = _load_policy(stage.baseline, at, seed=seed)
    prompts = _prompts(
        stage.prompts, policy, at, limit=stage.limit, max_prompt_length=stage.max_prompt_length, truncation="drop"
    )
    reward_model = RewardModel.from_pretrained(at.path(stage.reward_model)) if stage.reward_model else None
    pairs = PreferenceDataset(at.path(stage.pairs), policy.tokenizer) if stage.pairs else None
    judge = _judge(stage.judge, at)
    with at.log.progress("evaluate", 2 * len(prompts) * stage.samples_per_prompt) as bar:
        evaluation = evaluate_policies(
            policy, baseline, prompts, judge,
            reward_model=reward_model, pairs=pairs, sampling=stage.sampling,
            samples_per_prompt=stage.samples_per_prompt, seed=seed, progress=bar.advance,
        )  # fmt: skip
    if stage.rollouts is not None:
        evaluation = evaluation.with_curve(judge_rollouts(Path(at.path(stage.rollouts)), judge))
    evaluation.write(at.folder / "evaluation.json")
    return StageOutcome(evaluation.headline(), evaluation.summary())


def _pairs(
    prompts: Sequence[Prompt], samples: Sequence[Sequence[Completion]], annotate: Annotator, *, noise: float, seed: int
) -> list[dict[str, Any]]:
    """Rows with texts for people and the sampled token ids for training: nothing is tokenised again."""
    choices = annotate(
        [prompt.text for prompt in prompts],
        [[completion.text for completion in group] for group in samples],
        ended=[[completion.finish_reason != "length" for completion in group] for group in samples],
        noise=noise,
        seed=seed,
    )
    return [
        {
            "id": prompt.id,
            "prompt": prompt.text,
            "chosen": group[choice["chosen"]].text,
            "rejected": group[choice["rejected"]].text,
            "prompt_ids": list(prompt.ids),
            "chosen_ids": list(group[choice["chosen"]].tokens),
            "rejected_ids": list(group[choice["rejected"]].tokens),
            **{name: value for name, value in choice.items() if name not in ("chosen", "rejected")},
        }
        for prompt, group, choice in zip(prompts, samples, choices, strict=True)
        if choice is not None
    ]


def _load_policy(config: ModelConfig, at: StageContext, *, seed: int) -> PolicyModel:
    return PolicyModel.from_pretrained(at.model(config), seed=seed)


def _load_for_training(config: ModelConfig, at: StageContext, *, seed: int) -> PolicyModel:
    if config.dtype != "float32" and config.lora is None:
        at.log.alarm(
            f"Weights in {config.dtype} round small steps away; to train all of them use dtype: float32 with autocast: bfloat16."
        )
    return _load_policy(config, at, seed=seed)


def _datasets(
    stage: Any, at: StageContext, kind: Any, streaming: Any, model: Any, options: dict[str, Any]
) -> tuple[Any, Any]:
    """Training and held-out rows."""
    options = {**options, "on_bad_row": stage.on_bad_row, "columns": stage.columns}
    source = at.paths(stage.data)
    held_out = kind(at.paths(stage.eval_data), model.tokenizer, **options) if stage.eval_data is not None else None
    if stage.streaming:
        if streaming is None:
            raise ConfigError(
                f"stages.{at.name}.streaming: {stage.kind} scores its reference before the first step and needs all rows."
            )
        if stage.eval_frac:
            raise ConfigError(f"stages.{at.name}.eval_frac: a stream has no length to take a share of; give eval_data.")
        seed = derive_seed(_seed(stage.seed), "stream")
        stream = streaming(
            source, model.tokenizer, limit=stage.limit, shuffle_buffer=stage.shuffle_buffer, seed=seed, **options
        )
        return stream, held_out
    train = kind(source, model.tokenizer, limit=stage.limit, **options)
    if held_out is None and stage.eval_frac:
        train, held_out = train.split(stage.eval_frac, seed=derive_seed(_seed(stage.seed), "split"))
    for name, data in (("data", train), ("eval_data", held_out)):
        if data is not None:
            at.log.write("note", message=f"{name}: {data.report.to_text()}")
    return train, held_out


def _choose_path(model: PolicyModel | RewardModel, data: Any, at: StageContext) -> None:
    """The self-check of every run: a few rows scored every way."""
    cursor = data.state_dict() if hasattr(data, "state_dict") else None
    groups = list(itertools.islice(iter(data), ROWS_FOR_SELF_CHECK))
    if cursor is not None:
        data.load_state_dict(cursor)  # a stream gives its first rows to training all the same
    choice = model.choose_path(groups)
    at.log.write("note", message=f"Scoring path: {choice.path} ({choice.reason}).")
    if choice.path != "packed":
        at.log.alarm(f"Scoring takes the {choice.path} path, slower than packed: {choice.reason}.")


def _prompts(source: str | list[str], policy: PolicyModel, at: StageContext, **options: Any) -> list[Prompt]:
    data = GRPODataset(at.paths(source), policy.tokenizer, **options)
    at.log.write("note", message=f"prompts: {data.report.to_text()}")
    return list(data)


def _rl_inputs(
    stage: PPOStage | GRPOStage, at: StageContext, *, seed: int
) -> tuple[PolicyModel, list[Prompt], Scorer, Reference]:
    policy = _load_for_training(stage.model, at, seed=seed)
    disable_dropout(policy.model)  # a noisy policy's ratios differ from 1 before it has learned anything
    prompts = _prompts(
        stage.prompts, policy, at,
        limit=stage.limit, max_prompt_length=stage.max_prompt_length, truncation=stage.truncation,
    )  # fmt: skip
    rows = [Group(prompt.ids, [Branch(prompt.ids[-1:])]) for prompt in prompts[:ROWS_FOR_SELF_CHECK]]
    _choose_path(policy, rows, at)
    scorer = build_reward([_resolved(spec, at) for spec in stage.reward], tokenizer=policy.tokenizer)
    if stage.reference is not None:
        return policy, prompts, scorer, _load_policy(stage.reference, at, seed=seed).requires_grad_(False)
    return policy, prompts, scorer, build_reference(policy)


def _eval_prompts(stage: PPOStage | GRPOStage, policy: PolicyModel, at: StageContext) -> list[Prompt]:
    if stage.eval_prompts is None:
        return []
    return _prompts(
        stage.eval_prompts, policy, at,
        max_prompt_length=stage.max_prompt_length, truncation=stage.truncation,
    )  # fmt: skip


def _resolved(spec: RewardSpec, at: StageContext) -> RewardSpec:
    """A reward spec whose ``stage:`` source is a folder."""
    source = getattr(spec, "source", None)
    return spec.updated(source=at.path(source)) if isinstance(source, str) else spec


def _learned_source(reward: Sequence[RewardSpec]) -> str:
    for spec in reward:
        if spec.kind == "learned":
            return spec.source
    raise ConfigError("value_init is `reward`, but no reward of this stage is a learned one; use `value_init: policy`.")


def _judge(spec: RewardSpec, at: StageContext) -> Judge:
    """A function as it is; any other judge through its standard signature."""
    if isinstance(spec, FunctionRewardConfig):
        return functools.partial(load_judge(spec.function), **spec.arguments)
    scorer = build_reward(_resolved(spec, at))
    assert callable(scorer), f"{type(scorer).__name__} lacks the standard signature"
    return scorer


def _save(model: PolicyModel | RewardModel, stage: Any, at: StageContext, metrics: Mapping[str, Any]) -> None:
    about = {
        "stage": at.name,
        "summary": f"Made by the `{stage.kind}` stage of an rlhf recipe.",
        "version": rlhf.__version__,
        "base_model": stage.model.path or "random weights",
        "data": stage.data if hasattr(stage, "data") else stage.prompts,
        "recipe": stage.model_dump(mode="json", exclude_unset=True),
        "metrics": {name: value for name, value in metrics.items() if isinstance(value, int | float)},
    }
    model.save_pretrained(at.folder / "model", card=about)


def _finish_rl(name: str, policy: PolicyModel, result: TrainResult, stage: Any, at: StageContext) -> StageOutcome:
    metrics = {**result.metrics, **result.evaluation}
    _save(policy, stage, at, metrics)
    curve = [e["metrics"] for e in at.log.read("metrics") if f"{name}/score_mean" in e["metrics"]]
    first, last = curve[0], curve[-1]
    metrics |= {
        f"{name}/score_first": first[f"{name}/score_mean"],
        f"{name}/score_last": last[f"{name}/score_mean"],
    }
    return StageOutcome(
        f"{len(curve)} rollouts, {result.steps} steps, reward {first[f'{name}/score_mean']:+.2f} -> {last[f'{name}/score_mean']:+.2f}, "
        f"KL {last[f'{name}/ref_kl']:.2f} nats/sequence",
        metrics,
    )


def _rows(data: Any) -> str:
    return str(len(data)) if hasattr(data, "__len__") else "streamed"


def _seed(seed: int | None) -> int:
    return 0 if seed is None else seed


STAGES: dict[str, Callable[[Any, StageContext], StageOutcome]] = {
    "world": run_world,
    "preferences": run_preferences,
    "sft": run_sft,
    "reward": run_reward,
    "dpo": run_dpo,
    "ppo": run_ppo,
    "grpo": run_grpo,
    "evaluate": run_evaluate,
}
"""Stage kind to what it does; keys equal the kinds of ``rlhf.config.recipe.Stage``."""
