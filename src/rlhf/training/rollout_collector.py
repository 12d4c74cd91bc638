"""Where the completions of a rollout come from, and their scores: the engine, the sampler ahead of training, the scorer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.distributed.sharding import whole_weights
from rlhf.rollout.engines import close_engine, engine_figures, listen_to, samples_elsewhere
from rlhf.rollout.main_rank_engine import build_trainer_engine
from rlhf.training.async_rollouts import build_async_rollouts
from rlhf.training.engine_calls import ask_engine
from rlhf.training.inputs import RLInputs
from rlhf.training.log import TrainingLogger
from rlhf.training.metrics import Metrics
from rlhf.training.rollouts import Judged, Rollout, judge_rollout


class RolloutCollector:
    """Samples completions of prompts, and asks the scorer about them.

    Args:
        inputs: The trainer's: its policy, scorer, engine and config.
        name: What messages call the run.
        log: Where alarms go.
    """

    def __init__(self, inputs: RLInputs[Any], *, name: str, log: TrainingLogger) -> None:
        self.policy = inputs.policy
        self.scorer = inputs.scorer
        self.config = inputs.config
        self.name = name
        self.log = log
        self.own_engine = inputs.engine is None and self.config.engine.in_this_process
        """Whether completions come from the module that is trained."""
        self.engine = inputs.engine or build_trainer_engine(
            self.policy, self.config.engine, autocast=self.config.autocast
        )
        self.ahead = build_async_rollouts(self.policy, self.config, own_engine=self.own_engine, name=name)
        if self.ahead is not None and hasattr(self.engine, "sampler_ahead"):
            self.ahead.build = partial(self.engine.sampler_ahead, rollouts_ahead=self.config.max_staleness)
        self.version = 0
        """Of the weights that the engine samples with next."""
        listen_to(self.engine, log.alarm)

    @property
    def figures(self) -> dict[str, float]:
        """What the sampler reports of the newest rollout."""
        return engine_figures(self.engine) if self.ahead is None else self.ahead.figures

    def first_round(self, prompts: Sequence[Prompt], rollout_index: int) -> Rollout:
        """Completions of the prompts that a rollout begins with: sampled now, or during the training on rollouts before where
        ``async_rollouts`` says so."""
        if self.ahead is not None:
            return self.ahead.take(prompts, rollout_index=rollout_index)
        return self.sample(prompts, rollout_index, num_samples=self.config.group_size, seed=self.config.seed)

    def sample(
        self,
        prompts: Sequence[Prompt],
        rollout_index: int,
        *,
        num_samples: int,
        seed: int,
        sampling: SamplingConfig | None = None,
    ) -> Rollout:
        """Completions sampled with the weights as they are now, in the recipe's way or another.

        While ranks sample with the module that is trained, each has its weights whole, as ranks take different numbers of passes.
        """
        with whole_weights([] if samples_elsewhere(self.engine) else [self.policy.model]):
            return ask_engine(
                self.engine, prompts, num_samples=num_samples, sampling=sampling or self.config.sampling, seed=seed,
                rollout_index=rollout_index, version=self.version, name=self.name,
                same_as=None if self.own_engine else self.policy,
            )  # fmt: skip

    def judge(self, rollout: Rollout, metrics: Metrics, *, step: int, planned: int | None = None) -> Judged:
        """Scores of a rollout or a part of one; prompts without a score are left out, with an alarm.

        Args:
            rollout: What was sampled.
            metrics: Gets the means of the reward's components.
            step: Optimizer step that an alarm is logged at.
            planned: Prompts of the whole rollout, where this is a part of one.
        """
        if self.scorer is None:
            return Judged.without_scores(rollout)
        limit = self.config.max_unscored_frac
        judged = judge_rollout(rollout, self.scorer, metrics, limit=limit, name=self.name, planned=planned)
        if judged.left_out is not None:
            self.log.alarm(step=step, **judged.left_out)
        return judged

    def close(self) -> None:
        """End the sampler's process and the engine."""
        if self.ahead is not None:
            self.ahead.close()
        close_engine(self.engine)
