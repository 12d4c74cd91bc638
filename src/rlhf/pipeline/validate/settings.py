"""Settings that contradict each other, have no effect, or are far from typical values. Reads no files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf.config.file_stages import EvaluateStage
from rlhf.config.learned_rewards import LearnedRewardConfig
from rlhf.config.model import ModelConfig
from rlhf.config.policy import PPOConfig, RLConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.config.reward_base import RewardBase
from rlhf.config.rewards import training_rewards_of
from rlhf.config.rule_rewards import RulesRewardConfig
from rlhf.config.stage_inputs import DataInputs, OfflineStage, PolicyStage
from rlhf.config.stage_union import Stage
from rlhf.config.training import TrainConfig
from rlhf.config.training_stages import TRPOStage
from rlhf.config.typical_learning_rates import far_from_usual, method_and_size, usual_rates
from rlhf.errors import ModelError, RewardError, did_you_mean
from rlhf.native.library import compiler, why_no_compiler
from rlhf.pipeline.validate.independence import find_leakage, find_shared_judge
from rlhf.pipeline.validate.input_paths import facts_of
from rlhf.pipeline.validate.inputs import policies
from rlhf.pipeline.validate.review import Review

LARGE_BETA = 100
SMALL_BETA = 1000
"""So far from the default of its method, a beta is more likely a typing error than a choice; SPPO's authors have 0.001."""
HIGHER_IS_BETTER = frozenset(
    {
        "eval/accuracy",
        "eval/margin",
        "eval/reward_margin",
        "eval/score_mean",
        "eval/win_rate",
        "eval/done_frac",
        "eval/outcome_accuracy",
        "eval/wrong_found",
        "eval/first_wrong",
        "eval/sound",
        "eval/f1",
    }
)
LOWER_IS_BETTER = frozenset({"eval/loss", "eval/error", "eval/perplexity", "eval/teacher_kl", "eval/divergence"})


def check_settings(review: Review) -> None:
    """Check every stage's settings, alone and together."""
    for _, stage in review.each_stage():
        if stage.trains:
            _check_evaluation(review, stage)
            _check_learning_rate(review, stage)
            _check_beta(review, stage)
            _check_compiled(review, stage)
        if isinstance(stage, DataInputs):
            _check_rows(review, stage)
        if isinstance(stage, RLConfig):
            _check_policy_stage(review, stage)
        if isinstance(stage, PolicyStage) and stage.judge is not None:
            _check_held_out_judge(review, stage)
        if isinstance(stage, EvaluateStage):
            _check_evaluate(review, stage)
            _check_compiled(review, stage)
        for key, config in policies(stage):
            _check_adapter(review, key, config)
            if config.dtype == "float16" and config.lora is None and key == "model" and _scales_gradients(stage):
                review.error(
                    "autocast", "It is float16, and so are the weights; train float32 weights (`model.dtype: float32`)."
                )
                continue
            if config.dtype != "float32" and config.lora is None and key == "model" and stage.trains:
                review.warn(
                    f"{key}.dtype",
                    f"Weights in {config.dtype} round small steps away; to train all of them use dtype: float32 with "
                    "autocast: bfloat16.",
                )


def _check_adapter(review: Review, key: str, config: ModelConfig) -> None:
    """Whether there is a layer to put it on, by the names of the weights in the files; in memory a few families have others."""
    facts = facts_of(review, config) if config.lora is not None else None
    if config.lora is None or facts is None or isinstance(targets := config.lora.target_modules, str):
        return
    if not any(f".{layer}".endswith(f".{name}") for layer in facts.layers for name in targets):
        known = sorted({layer.rpartition(".")[2] for layer in facts.layers})
        review.warn(
            f"{key}.lora.target_modules",
            f"No layer of {facts.folder} is called {' or '.join(targets) or 'anything here'}, so the stage would stop at its start."
            f"{did_you_mean(targets[0], known) if targets else ''} Its layers: {', '.join(known)}.",
            ModelError,
        )


def _scales_gradients(stage: Stage) -> bool:
    return stage.trains and stage.autocast == "float16"


def _check_evaluation(review: Review, stage: Stage) -> None:
    give = "eval_prompts" if isinstance(stage, RLConfig) else "eval_data or eval_frac"
    if not stage.has_held_out:
        if stage.early_stopping is not None:
            review.error("early_stopping", f"It needs held-out rows, but this stage has none; give {give}.")
        if stage.eval_every is not None:
            review.warn("eval_every", f"It does nothing: this stage has nothing to evaluate on; give {give}.")
        return
    if stage.early_stopping is None:
        return
    metric, mode = stage.early_stopping.metric, stage.early_stopping.mode
    known = stage.measured
    if metric not in known:
        review.error(
            "early_stopping.metric",
            f"A {stage.kind} stage does not measure {metric!r}.{did_you_mean(metric, known)} It measures {', '.join(known)}.",
        )
        return
    better_higher = metric in HIGHER_IS_BETTER or metric.startswith("eval/pass_at_")
    if (mode == "min" and better_higher) or (mode == "max" and metric in LOWER_IS_BETTER):
        better = "higher" if better_higher else "lower"
        review.warn("early_stopping.mode", f"mode is {mode!r}, but a {better} {metric} is better.")


def usual_learning_rate(recipe: RecipeConfig, name: str) -> tuple[float, str] | None:
    """The rate for a stage that names none, and in words why: what is usual for its method and size, else its default.

    Args:
        recipe: A valid one.
        name: The stage's, in it.

    Returns:
        None where nothing is trained at one rate.
    """
    stage = recipe.stages[name]
    if not stage.trains or isinstance(stage, TRPOStage) or stage.lr_find == "use":
        return None
    model = stage.model
    facts = facts_of(Review(recipe, deep=False), model)
    if facts is None:
        return stage.learning_rate, (
            f"the default of {stage.kind}, because the size of {model.path or 'the new model'} could not be read before it is loaded; "
            "docs/learning-rates.md lists typical rates by size"
        )
    rates = usual_rates(stage.kind, facts.num_parameters, is_lora=model.lora is not None)
    return rates.usual, f"usual for {method_and_size(stage.kind, facts.num_parameters)}"


def _check_learning_rate(review: Review, stage: TrainConfig) -> None:
    kind: str = stage.kind  # type: ignore[attr-defined]
    model = stage.model  # type: ignore[attr-defined]
    facts = facts_of(review, model)
    if facts is None or stage.lr_find == "use":
        return
    far = far_from_usual(stage.learning_rate, kind, facts.num_parameters, is_lora=model.lora is not None)
    if far is not None:
        usual, reason = far
        likely = "it will probably diverge" if stage.learning_rate > usual else "it will hardly learn"
        if not stage.differs("learning_rate"):
            reason = f"The recipe uses the default rate of {kind}, which is from large models: {reason}"
        review.warn(
            "learning_rate",
            f"{reason}; {likely}. Set learning_rate to {usual:g}, or let `lr_find: suggest` measure this model's own.",
        )


def _check_beta(review: Review, stage: TrainConfig) -> None:
    beta = getattr(stage, "beta", None)
    if beta is None:
        return
    usual = type(stage).model_fields["beta"].default * (10 if getattr(stage, "length_normalized", False) else 1)
    if beta > LARGE_BETA * usual:
        review.warn(
            "beta",
            f"{beta:g} is {beta / usual:,.0f} times the usual {usual:g}: pairs that differ by a fraction of a nat count as learned, "
            "so the policy will hardly change.",
        )
    elif beta < usual / SMALL_BETA:
        review.warn(
            "beta",
            f"{beta:g} is 1/{usual / beta:,.0f} of the usual {usual:g}: nothing will keep the policy near its start.",
        )


def _check_rows(review: Review, stage: DataInputs) -> None:
    assert isinstance(stage, OfflineStage)
    if stage.streaming:
        if stage.asks_reference_once:
            review.error(
                "streaming",
                f"{stage.kind} scores its reference before the first step and needs all rows; leave it out.",
            )
        if stage.eval_frac:
            review.error("eval_frac", "A stream has no length to take a share of; give eval_data.")
        if stage.max_steps is None:
            review.error("streaming", "A stream has no known length: give max_steps.")
    elif stage.differs("shuffle_buffer"):
        review.warn("shuffle_buffer", "It does nothing without streaming: true; all rows are shuffled anyway.")
    if stage.eval_data is not None and stage.eval_frac:
        review.warn("eval_frac", "It does nothing together with eval_data.")
    if stage.differs("eval_split") and (stage.eval_data is not None or not stage.eval_frac):
        review.warn("eval_split", "It does nothing without eval_frac, whose share of the rows it chooses.")
    if stage.max_steps is not None and stage.differs("epochs") and stage.epochs is not None:
        review.warn("epochs", f"It does nothing: max_steps ({stage.max_steps}) decides the length.")
    if stage.batch_tokens is not None and stage.differs("batch_size"):
        review.warn("batch_size", f"It does nothing: batch_tokens ({stage.batch_tokens}) decides the size.")


def _check_policy_stage(review: Review, stage: Any) -> None:
    per_rollout = stage.prompts_per_rollout * stage.group_size
    if stage.minibatch_size > per_rollout and stage.differs("minibatch_size"):
        review.warn(
            "minibatch_size",
            f"A step takes {stage.minibatch_size} completions, and a rollout has only {per_rollout} "
            f"(prompts_per_rollout x group_size: {stage.prompts_per_rollout} x {stage.group_size}); every step is as small as that.",
        )
    steps = stage.steps_per_rollout
    if not stage.policy_formula.has_ratio and steps > 1 and stage.takes_importance:
        review.warn(
            "policy_loss",
            f"`{stage.policy_loss}` has no ratio and a rollout is {steps} steps: all but the first learn from completions of an older "
            "policy as if they were its own; use `clip`, or one step to a rollout.",
        )
    if steps == 1 and stage.takes_importance and not isinstance(stage, TRPOStage):
        _check_single_step(review, stage)
    sampling = stage.sampling
    is_whole = (sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty) == (None, 1, 0, 1)
    is_own = stage.engine.in_this_process and stage.engine.lowered is None and stage.max_staleness == 0
    is_exact = stage.autocast == "none" and stage.model.dtype == "float32"
    if stage.importance is not None and is_whole and is_own and is_exact:
        review.warn(
            "importance",
            "It does nothing: this process samples from the policy itself, in float32 and without filters, so that every ratio is 1.",
        )
    if stage.engine.lowered == stage.model.dtype:
        review.warn("engine.weights", f"It does nothing: the policy's own weights are in {stage.model.dtype}.")
    if stage.max_staleness >= stage.rollouts - 1 > 0:
        review.warn(
            "async_rollouts.max_staleness",
            f"It is {stage.max_staleness}, and there are {stage.rollouts} rollouts: all of them are sampled with the weights that the "
            "stage begins with.",
        )
    if stage.max_staleness > 0 and isinstance(stage, PolicyStage) and stage.environment is not None:
        review.error(
            "async_rollouts",
            "It samples with a copy of the policy in a separate process, but episodes run in this one; leave it out.",
        )
    if stage.kl.where == "none" and stage.kl.target is not None:
        review.warn("kl.target", "It does nothing where kl.where is `none`: there is no penalty to adapt.")
    if stage.kl.where == "none":
        for key in ("coef", "estimator"):
            of_kind = getattr(type(stage).model_fields["kl"].default, key)
            if stage.kl.differs(key) and getattr(stage.kl, key) not in (0, of_kind):
                review.warn(f"kl.{key}", "It does nothing where kl.where is `none`: there is no penalty.")
    if stage.kl.target is None and stage.kl.differs("horizon"):
        review.warn("kl.horizon", "It does nothing without kl.target.")
    if stage.differs("truncation") and stage.max_prompt_length is None:
        review.warn("truncation", "It does nothing without max_prompt_length.")
    if isinstance(stage, PPOConfig):
        _check_critic(review, stage)
    if stage.eval_prompts is None and stage.differs("evaluation"):
        review.warn("evaluation", "It does nothing without eval_prompts.")
    reason = _why_constant(stage) if isinstance(stage, PolicyStage) else None
    if reason:
        what = "nothing can be learned from it" if stage.group_size > 1 else "only the penalties would be learned"
        review.error("reward", f"The score can't vary between completions: {reason}; {what}.", RewardError)


def _check_compiled(review: Review, stage: TrainConfig | EvaluateStage) -> None:
    asked = {"compiled": stage.compiled} if isinstance(stage, TrainConfig) else {}
    if isinstance(stage, RLConfig | EvaluateStage) and "compiled" in type(stage.engine).model_fields:
        asked["engine.compiled"] = stage.engine.compiled
    for key in (key for key, on in asked.items() if on):
        if compiler() is None:
            review.error(key, f"It needs a C compiler, but {why_no_compiler()}; or leave it out.")
        if isinstance(stage, TrainConfig) and stage.autocast == "float16":
            review.warn(key, "It does nothing: C computes in float32 or bfloat16, and autocast is float16.")


def _check_single_step(review: Review, stage: PolicyStage) -> None:
    """Before the first step on a rollout no ratio has left 1, and what bounds ratios has nothing to bound."""
    more = "give fewer minibatch_size than a rollout has, or more epochs_per_rollout"
    if stage.policy_loss != "clip" and stage.policy_formula.has_ratio:
        review.warn(
            "policy_loss",
            f"A rollout is one step, before which every ratio is 1: `{stage.policy_loss}` is the plain policy gradient there; {more}.",
        )
        return
    chosen = {key for key in ("clip_low", "clip_high", "dual_clip", "stop_at_kl") if stage.differs(key)}
    if stage.clip_high != RLConfig.model_fields["clip_high"].default:  # of the kind, such as DAPO's
        chosen |= {"clip_high"}
    for key in sorted(chosen):
        if getattr(stage, key) is not None:
            review.warn(key, f"It does nothing: a rollout is one step, before which every ratio is 1; {more}.")


def _check_critic(review: Review, stage: Any) -> None:
    if stage.value_model == "shared":
        for key in ("value_init", "value_learning_rate"):
            if stage.differs(key):
                review.warn(key, "It does nothing for a critic that shares the policy's weights (value_model: shared).")
    elif stage.value_init == "reward" and not any(isinstance(spec, LearnedRewardConfig) for spec in stage.reward):
        review.error(
            "value_init",
            "It is `reward`, but no reward of this stage is `learned`, one reward model with a backbone to start from (the models "
            "of an `ensemble` have several); use `policy`.",
        )


def _why_constant(stage: PolicyStage) -> str | None:
    """Why all completions of a prompt will get the same score; None if no reason is known."""
    if stage.sampling.top_k == 1:
        return "sampling.top_k is 1, so all completions of a prompt are the same" if stage.group_size > 1 else None
    if stage.environment is not None:
        return None  # it may give its own rewards
    reasons = [_why_worthless(key, spec) for key, spec in training_rewards_of(stage)]
    return " and ".join(reason for reason in reasons if reason) if all(reasons) else None


def _why_worthless(key: str, spec: RewardBase) -> str | None:
    if spec.weight == 0:
        return f"{key}.weight is 0"
    if isinstance(spec, RulesRewardConfig) and not (
        spec.length_weight or spec.capital_weight or spec.punctuation_weight
    ):
        return f"the three weights of {key} are 0"
    return None


def _check_held_out_judge(review: Review, stage: PolicyStage) -> None:
    runs = Path(review.recipe.output_dir)
    shared = find_shared_judge(review.recipe.stages, stage, runs=runs, reads_records=review.deep)
    if shared.refusal and not stage.allows_shared_judge:
        review.error("judge", shared.refusal)
    elif shared.note:
        review.notes.append(f"{review.stage}: {shared.note}")


def _check_evaluate(review: Review, stage: EvaluateStage) -> None:
    if stage.policy == stage.baseline:
        review.warn("baseline", "It is the policy itself: the win rate will be one half.")
    if stage.pairs is not None and stage.reward_model is None and "judge_accuracy" not in stage.metrics:
        review.warn(
            "pairs", "It does nothing without reward_model, or the metric judge_accuracy, whose accuracy it is for."
        )
    if stage.sampling.temperature == 0 and stage.samples_per_prompt > 1:
        review.warn("samples_per_prompt", "At sampling.temperature 0 all samples of a prompt are the same.")
    seen = find_leakage(review.recipe.stages, stage, runs=Path(review.recipe.output_dir), reads_records=review.deep)
    for warning in seen.about_origin:
        review.warn("judge", warning)
