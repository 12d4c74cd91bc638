"""Feeds the detectors of reward hacking while a policy learns: samples held-out prompts, asks reward and judge, docks rewards.

    before a rollout, every ``every`` steps     one completion to each held-out prompt, scored by the reward and by the judge
    where that made the policy its own best     a few more, which later ones are compared with
    after a rollout was judged                  its lengths, repetition and rewards

What detectors say goes to the loop as findings, which the guards turn into alarms. Samples have seeds of their own, so that
watching changes no bit of the training unless a detector acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf.config.hacking import MIN_HELD_OUT, HackingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.rewards.types import Scorer, parts_of
from rlhf.rollout.engines import exactly
from rlhf.seeds import derive_seed
from rlhf.training.inputs import RLInputs
from rlhf.training.metrics import Metrics
from rlhf.training.monitoring.alarms import LONGEST_TEXT, SHOWN
from rlhf.training.monitoring.guards import Alarm, Finding
from rlhf.training.monitoring.hacking.detector import HackingReport, RewardHackingDetector
from rlhf.training.monitoring.hacking.detector_table import DETECTORS
from rlhf.training.monitoring.hacking.observations import Array
from rlhf.training.randomness import random_state_kept
from rlhf.training.rollout_collector import RolloutCollector
from rlhf.training.rollouts import Rollout
from rlhf.training.rollouts_over_ranks import score_over_ranks


class HackingWatch:
    """The detectors of one training run.

    Args:
        config: Detectors and what they do.
        collector: Samples, and has the reward.
        judge: Scores held-out completions; None for the detectors that need none.
        prompts: Held-out prompts; the first ``num_prompts`` are asked.
        training_prompts: Gives the first n prompts that training will ask.
        num_steps: Optimizer steps of the run.
        steps_per_rollout: Of one rollout.
        seed: The run's.

    Raises:
        ConfigError: The judge is the reward, or there are too few held-out prompts.
    """

    def __init__(
        self,
        config: HackingConfig,
        *,
        collector: RolloutCollector,
        judge: Scorer | None,
        prompts: Sequence[Prompt],
        training_prompts: Callable[[int], Sequence[Prompt]],
        num_steps: int,
        steps_per_rollout: int,
        seed: int,
    ) -> None:
        if judge is not None:
            if len(prompts) < MIN_HELD_OUT:
                raise ConfigError(
                    f"The held-out judge compares the policy with itself on held-out prompts, and there are {len(prompts)}; give at least "
                    f"{MIN_HELD_OUT} as eval_prompts, better {config.num_prompts}."
                )
            if not config.allow_shared:
                check_separate(judge, collector.scorer)
        self.collector, self.judge = collector, judge
        self.prompts = list(prompts[: config.num_prompts])
        self.training_prompts = training_prompts
        self.reference_completions = config.reference_completions
        self.every, self.steps_per_rollout, self.seed = config.every, steps_per_rollout, seed
        looks = 1 + num_steps // max(config.every, steps_per_rollout)
        self.detector = RewardHackingDetector(config, horizon=looks)
        self.asks_judge = judge is not None and self._looks_at("held_out")
        self.asks_start = self._looks_at("rollout")
        self.may_restore = "restore" in self.detector.actions.values()
        self.pending: list[Finding] = []
        """What detectors said since the loop asked last."""

    @classmethod
    def of(
        cls,
        inputs: RLInputs[Any],
        collector: RolloutCollector,
        *,
        training_prompts: Callable[[int], Sequence[Prompt]],
        num_steps: int,
        steps_per_rollout: int,
    ) -> HackingWatch | None:
        """That of a trainer, where there is a judge, or settings; arguments as above."""
        config = inputs.config.hacking
        if inputs.scorer is None or (config is None and inputs.judge is None):
            return None
        return cls(
            config or HackingConfig(),
            collector=collector, judge=inputs.judge, prompts=inputs.eval_prompts, training_prompts=training_prompts,
            num_steps=num_steps, steps_per_rollout=steps_per_rollout, seed=inputs.config.seed,
        )  # fmt: skip

    def before_rollout(self, rollout_index: int, metrics: Metrics) -> None:
        """Sample the starting policy at first, and the held-out prompts where it is time to."""
        step = rollout_index * self.steps_per_rollout
        with random_state_kept():
            if rollout_index == 0 and self.asks_start:
                asked = self.training_prompts(self.reference_completions)
                start = self._sample(asked, "reference", 0, num_samples=1)
                ids, texts = [p.id for p in start.prompts], [c.text for c in start.completions]
                self.detector.add_reference(ids, texts)
            due = rollout_index == 0 or step // self.every > (step - self.steps_per_rollout) // self.every
            if due and self.asks_judge:
                self._look(step, metrics)

    def after_judging(self, rollout: Rollout, scores: Tensor, *, step: int, metrics: Metrics) -> Tensor:
        """Look at a rollout.

        Args:
            rollout: Completions that have a score.
            scores: [S] as the reward gave them.
            step: The optimizer step that the rollout is logged at.
            metrics: Gets the detectors' statistics, and what was subtracted.

        Returns:
            [S] to be subtracted from the scores; 0 where no detector's action is `penalize`.
        """
        if not self._looks_at("rollout") or not len(scores):
            return torch.zeros_like(scores)
        ids, texts = [prompt.id for prompt in rollout.prompts], [completion.text for completion in rollout.completions]
        report = self.detector.check(ids, texts, np.array(scores.tolist()), step=step)
        samples = [
            {
                "id": prompt.id,
                "prompt": prompt.text[:LONGEST_TEXT],
                "completion": text[:LONGEST_TEXT],
                "score": round(score, 5),
            }
            for prompt, text, score in zip(rollout.prompts, texts, scores.tolist(), strict=True)
        ]
        self._keep(report, samples, metrics)
        lost = torch.zeros_like(scores)
        for name, values in report.penalties.items():
            penalties = scores.new_tensor(values)
            metrics.mean(f"hacking/penalty_{name}", penalties)
            lost = lost + penalties
        return lost

    def findings(self) -> list[Finding]:
        """What was said since this was last asked."""
        findings, self.pending = self.pending, []
        return findings

    def state_dict(self) -> dict[str, Any]:
        """The detectors', and what the loop has not asked for yet."""
        return {"detector": self.detector.state_dict(), "pending": [asdict(finding) for finding in self.pending]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.detector.load_state_dict(state["detector"])
        self.pending = [
            Finding(one["about"], None if one["alarm"] is None else Alarm(**one["alarm"])) for one in state["pending"]
        ]

    def _looks_at(self, what: str) -> bool:
        return any(DETECTORS[name].looks_at == what for name in self.detector.detectors)

    def _look(self, step: int, metrics: Metrics) -> None:
        """One completion to each held-out prompt."""
        rollout = self._sample(self.prompts, "held_out", step, num_samples=1)
        assert self.judge is not None
        proxy, judge = self._scores(self.collector.scorer, rollout), self._scores(self.judge, rollout)
        for name, values in (("proxy", proxy), ("judge", judge)):
            metrics.mean(f"hacking/{name}_mean", torch.from_numpy(values[np.isfinite(values)]))
        report = self.detector.check_held_out(proxy, judge, step=step)
        samples = [
            {
                "id": prompt.id, "prompt": prompt.text[:LONGEST_TEXT], "completion": completion.text[:LONGEST_TEXT],
                "score": round(float(proxy[place]), 5), "judge": round(float(judge[place]), 5),
            }
            for place, (prompt, completion) in enumerate(zip(rollout.prompts, rollout.completions, strict=True))
        ]  # fmt: skip
        self._keep(report, samples, metrics)
        if self.detector.wants_anchor:
            count = self.detector.anchor_completions
            anchor = self._sample(self.prompts, "anchor", step, num_samples=count)
            self.detector.set_anchor(self._scores(self.judge, anchor).reshape(len(self.prompts), count))

    def _sample(self, prompts: Sequence[Prompt], use: str, step: int, *, num_samples: int) -> Rollout:
        """Completions of the policy as it is, with seeds that no other sample has."""
        seed = derive_seed(self.seed, "hacking", use, step)
        with exactly(self.collector.engine):
            return self.collector.sample(prompts, 0, num_samples=num_samples, seed=seed)

    def _scores(self, scorer: Scorer, rollout: Rollout) -> Array:
        """[n] NaN where there is none."""
        return np.array(score_over_ranks(scorer, rollout.prompts, rollout.completions).scores, dtype=np.float64)

    def _keep(self, report: HackingReport, samples: Sequence[Mapping[str, Any]], metrics: Metrics) -> None:
        """Log statistics, and put every detector that looked among the findings."""
        for metric, value in report.values.items():
            metrics.mean(metric, torch.tensor(value))
        alarms = {alarm.detector: alarm for alarm in report.alarms}
        looked = "held_out" if samples and "judge" in samples[0] else "rollout"
        for name in self.detector.detectors:
            if DETECTORS[name].looks_at != looked:
                continue
            raised = alarms.get(name)
            alarm = None if raised is None else Alarm(
                guard=name, step=raised.step, metric=raised.metric, value=raised.value, limit=raised.limit, action=raised.action,
                message=f"{raised.message} (False alarms in healthy runs: {raised.false_alarms}.)",
                samples=tuple(samples[place] for place in raised.places[:SHOWN]),
                false_alarms=raised.false_alarms, good_step=raised.good_step,
            )  # fmt: skip
            self.pending.append(Finding(f"hacking:{name}", alarm))


def check_separate(judge: Scorer, reward: Scorer) -> None:
    """Refuse a judge that is the reward or a part of it, or has the weights of one.

    Raises:
        ConfigError: It is not held out.
    """
    rewards = list(_parts(reward))
    weights = {model.fingerprint() for part in rewards if (model := getattr(part, "model", None)) is not None}
    for part in _parts(judge):
        model = getattr(part, "model", None)
        if any(part is other for other in rewards) or (model is not None and model.fingerprint() in weights):
            raise ConfigError(
                f"The judge {judge.name} is the reward {reward.name}, or has its weights: it shares every flaw that it should find. "
                "Give another judge, or hacking.allow_shared: true."
            )


def _parts(scorer: Any) -> Iterator[Any]:
    """A scorer and what it is made of."""
    yield scorer
    for part in parts_of(scorer):
        yield from _parts(part)
