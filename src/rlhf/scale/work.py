"""The work of one optimizer step of each kind of stage, in passes over tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf.activity import Activity
from rlhf.config.engines import DraftModelConfig, is_lowered
from rlhf.config.judge_reward import JudgeRewardConfig
from rlhf.config.stage_inputs import OfflineStage
from rlhf.scale.costs import Head
from rlhf.training.reward_model import ROWS_TO_NORMALIZE

Whose = str
"""``policy``, ``critic``, ``reference``, ``teacher``, ``reward 1`` ...: names of the models in ``Models``."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A model over tokens."""

    activity: Activity
    """``forward`` is forward and backward together."""
    whose: Whose
    tokens: float
    """Distinct ones, in all."""
    max_tokens: int
    """In one micro-batch."""
    head: Head = "logprobs"
    times: float = 1.0

    @property
    def microbatches(self) -> int:
        """That one time takes."""
        return max(1, math.ceil(self.tokens / self.max_tokens))

    @property
    def largest(self) -> float:
        """Tokens of the largest micro-batch: each is filled before the next one begins."""
        return min(self.tokens, float(self.max_tokens))


@dataclass(frozen=True, slots=True)
class Work:
    """What a phase of a loop does."""

    steps: float
    """Optimizer steps of a phase."""
    learned: list[Pass]
    """Forward and back."""
    read: list[Pass]
    """Without gradient."""
    optimized: dict[Whose, float]
    """Steps of AdamW of each model."""
    once: list[Pass] = field(default_factory=list)
    """At the beginning of the run, not in each phase."""
    looked_at: list[Pass] = field(default_factory=list)
    """Evaluations, and what sets the scale of a reward model: they count for memory alone."""
    asked: float = 0.0
    """How many times the rollout's completions are sampled."""


def offline_work(
    stage: OfflineStage, *, tokens_per_row: float, num_rows: int | None, eval_rows: int | None = None
) -> Work:
    """One step on rows of a file.

    Args:
        stage: Its settings.
        tokens_per_row: Distinct ones, the mean.
        num_rows: Of the data; None where that is not known.
        eval_rows: Held out in separate files; None if there are none, or they do not exist yet.
    """
    rows = stage.batch_size if stage.batch_tokens is None else max(1.0, stage.batch_tokens / tokens_per_row)
    if num_rows is not None:
        rows = min(rows, num_rows)
    limit, tokens = stage.microbatch_tokens, rows * tokens_per_row
    head: Head = "scalar" if stage.judges else "logprobs"
    models = int(getattr(stage, "num_models", 1))
    learned = [Pass("forward", "policy", tokens, limit, head, times=models)]
    read, once = [], []
    if stage.compares_pairs:
        read.append(Pass("scoring", "policy", tokens, limit))
    if stage.measures_reference_point:
        read += [Pass("scoring", whose, tokens, limit) for whose in ("policy", "reference")]
    if stage.asks_reference_once and num_rows is not None:
        once.append(Pass("reference", "reference", num_rows * tokens_per_row, limit))
    looked_at = []
    for held_out in _looked_at(stage, num_rows, eval_rows):
        looked_at.append(Pass("evaluation", "policy", held_out * tokens_per_row, limit, head))
    return Work(1.0, learned, read, {"policy": float(models)}, once, looked_at)


def steps_of_run(stage: Any, num_rows: int | None, tokens_per_row: float) -> int | None:
    """Optimizer steps of a whole run; None where the number of rows is not known."""
    if not isinstance(stage, OfflineStage):
        return int(stage.rollouts * steps_of_rollout(stage))
    if stage.max_steps is not None:
        return int(stage.max_steps)
    if num_rows is None or stage.epochs is None:
        return None
    kept = num_rows * (1 - stage.eval_frac if stage.eval_data is None else 1)
    rows = stage.batch_size if stage.batch_tokens is None else max(1.0, stage.batch_tokens / tokens_per_row)
    return max(1, math.ceil(stage.epochs * math.ceil(kept / rows)))


def steps_of_rollout(stage: Any) -> int:
    """As its settings count them."""
    return int(stage.steps_per_rollout)


def online_work(stage: Any, *, tokens: float, reward_models: Sequence[tuple[Whose, Head]]) -> Work:
    """One rollout and the steps that learn from it.

    Args:
        stage: Its settings.
        tokens: Distinct tokens of the rollout, prompts that are shared counted once.
        reward_models: Whose, and how each reads.
    """
    limit, steps = stage.microbatch_tokens, steps_of_rollout(stage)
    epochs = float(stage.epochs_per_rollout)
    in_step = tokens * epochs / steps
    critic = getattr(stage, "value_model", None)
    learned = [Pass("forward", "policy", in_step, limit, times=steps)]
    read = (
        [Pass("reference", "reference", tokens, limit, times=1 / stage.kl.measure_every)]
        if stage.kl.measure_every
        else []
    )
    # the first rollout uses all models: it checks that sampler, trainer and reference are the same
    once = [Pass("scoring", "policy", tokens, limit)]
    if not read:
        once.append(Pass("reference", "reference", tokens, limit))
    optimized = {"policy": float(steps)}
    if asks_policy_again(stage):
        read.append(Pass("scoring", "policy", tokens, limit))
        once = once[1:]
    read += _exact_kl(stage, tokens=tokens, in_step=in_step)
    if critic is not None:
        values = Pass("scoring", "critic", tokens, limit, "scalar", times=1 + stage.bootstrap_truncated)
        read.append(values)
    if critic == "separate":
        learned.append(Pass("forward", "critic", in_step, limit, "scalar", times=steps))
        optimized["critic"] = float(steps)
    if stage.kind == "trpo":
        # the gradient and, for each step of the solver, a Hessian-vector product: a pass forward and two back; then tries
        products = 1 + 2 * stage.cg_iterations * stage.fisher_frac
        learned[0] = Pass("forward", "policy", tokens, limit, times=products)
        read.append(Pass("scoring", "policy", tokens, limit, times=2))
        optimized["policy"] = 1.0
    if getattr(stage, "teacher", None) is not None:
        read.append(Pass("scoring", "teacher", tokens, limit, times=epochs))
    read += [Pass("reward", whose, tokens, limit, head) for whose, head in reward_models]
    asked = 1.0
    if getattr(stage, "advantage", None) == "greedy":
        asked += 1 / stage.group_size
    return Work(float(steps), learned, read, optimized, once, asked=asked)


def asks_policy_again(stage: Any) -> bool:
    """Whether a rollout is scored by the policy before it learns from it: not where the sampler's own log-probabilities are the
    trainer's, nor where the only step finds them on its way. See ``rlhf.training.rl_trainer.RLTrainer``."""
    samples_itself = stage.engine.in_this_process and getattr(stage, "environment", None) is None
    if not samples_itself or is_lowered(stage.engine) or stage.max_staleness > 0:
        return True
    if stage.autocast == "none" and stage.model.dtype == "float32":
        return False
    needed_before = stage.kl.where == "reward" or stage.importance is not None
    return steps_of_rollout(stage) > 1 or needed_before


def not_foreseen(stage: Any) -> Iterator[str]:
    """What a plan of a policy stage leaves out, in sentences.

    Args:
        stage: Its settings.
    """
    yield "completions keep their assumed lengths: how training changes them can't be predicted"
    if stage.max_staleness > 0:
        yield "sampling in a separate process (async_rollouts) is counted as if this process did it, plus the memory of that process"
    if not stage.engine.in_this_process:
        yield f"the engine {stage.engine.kind} is assumed to cost what sampling in this process does; its time and memory are unknown"
    yield from _of_drafts(stage)
    if stage.kl.estimator == "exact" and stage.kl.where != "none":
        yield "comparing two whole distributions (kl.estimator exact) takes no longer than the passes that they come from"
    if getattr(stage, "dynamic_sampling", False):
        yield "every group is informative: dynamic sampling needs no second round"
    if getattr(stage, "environment", None) is not None:
        yield "an episode is one turn, and the environment takes no time"
    if any(not spec.models_asked() for spec in getattr(stage, "reward", [])):
        yield "rewards that are functions, rules, services or judges over HTTP take no time"
    if any(isinstance(spec, JudgeRewardConfig) and spec.models_asked() for spec in getattr(stage, "reward", [])):
        yield "a judge that is run here reads each completion once; the time of its answers is not counted"


def _of_drafts(stage: Any) -> Iterator[str]:
    config = getattr(stage.engine, "speculate", None)
    if config is None:
        return
    if isinstance(config, DraftModelConfig):
        yield "the draft model (engine.speculate) guesses nothing, and takes no time and memory"
    else:
        yield "drafts (engine.speculate) are accepted as often as with untrained weights"
    rows = stage.prompts_per_rollout * stage.group_size
    if rows > config.max_rows:
        yield (
            f"a rollout samples {rows:,} completions side by side, and engine.speculate drafts only while at most {config.max_rows} are left: "
            "it hardly helps here, and with more rows a wrong guess costs what a right one saves; leave it out unless measured otherwise "
            "(docs/speculative.md)"
        )


def _exact_kl(stage: Any, *, tokens: float, in_step: float) -> Iterator[Pass]:
    """A KL over the whole vocabulary evaluates the reference while the policy trains, or both of them before."""
    limit = stage.microbatch_tokens
    if stage.kl.estimator != "exact":
        return
    if stage.kl.where == "loss":
        yield Pass("forward", "reference", in_step, limit, times=steps_of_rollout(stage))
    elif stage.kl.where == "reward":
        yield from (Pass("other", whose, tokens, limit) for whose in ("policy", "reference"))


def _looked_at(stage: OfflineStage, num_rows: int | None, eval_rows: int | None) -> Iterator[float]:
    """Rows of each pass over data outside of training."""
    if eval_rows is not None:
        yield eval_rows
    elif num_rows is not None and stage.eval_frac:
        yield num_rows * stage.eval_frac
    if getattr(stage, "normalize", False) and num_rows is not None:
        yield min(num_rows, ROWS_TO_NORMALIZE)
