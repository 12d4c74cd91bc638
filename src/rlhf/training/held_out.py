"""What is measured on held-out prompts while a policy learns from rewards: pass@k, and the win rate against the start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rlhf.data.contracts import Prompt
from rlhf.rollout.engines import exactly
from rlhf.rollout.types import Completion
from rlhf.seeds import derive_seed
from rlhf.training.metrics import Metrics
from rlhf.training.randomness import random_state_kept

if TYPE_CHECKING:
    from rlhf.training.rollout_collector import RolloutCollector
    from rlhf.training.rollouts import Judged

Key = tuple[str, int]
"""Id of a prompt, and which of its completions."""


class HeldOut:
    """Completions of held-out prompts and their scores, and those of the starting policy, which are taken once and kept.

    Args:
        collector: Samples and scores; its config's ``evaluation`` says what to measure.
        prompts: Held out; may be empty. No more than ``evaluation.limit`` are asked.
    """

    def __init__(self, collector: RolloutCollector, prompts: Sequence[Prompt]) -> None:
        self.collector = collector
        self.config = collector.config.evaluation
        self.prompts = prompts[: self.config.limit]
        self.start: dict[Key, float] | None = None
        """The starting policy's scores; None before they were taken."""

    def sample(self, *, step: int) -> Judged:
        """Completions of the policy as it is now, with the same seeds every time, and their scores.

        Args:
            step: Optimizer step that an alarm is logged at.
        """
        collector = self.collector
        seed = derive_seed(collector.config.seed, "evaluate")
        with exactly(collector.engine):  # what is measured is the policy, and not a copy for sampling
            rollout = collector.sample(self.prompts, 0, num_samples=self.config.samples, seed=seed)
        return collector.judge(rollout, Metrics(), step=step)

    def measure_start(self) -> None:
        """Ask the starting policy, if a win rate is wanted: later evaluations are compared with it."""
        if not self.prompts or not self.config.win_rate or self.start is not None:
            return
        with random_state_kept():
            judged = self.sample(step=0)
        self.start = by_key(judged.rollout.completions, judged.scores)

    def metrics(self, completions: Sequence[Completion], scores: Tensor) -> dict[str, float]:
        """What the settings ask for of an evaluation's completions.

        Args:
            completions: [S] of the policy as it is.
            scores: [S].
        """
        metrics: dict[str, float] = {}
        ours = by_key(completions, scores)
        if self.config.success_score is not None:
            for k in sorted(set(self.config.pass_k)):
                metrics[f"eval/pass_at_{k}"] = mean_pass_at_k(ours, self.config.success_score, k)
        if self.start is not None:
            rate = win_rate(ours, self.start)
            if rate is not None:
                metrics["eval/win_rate"] = rate
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Plain lists."""
        return {"start": None if self.start is None else [[*key, score] for key, score in self.start.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        saved = state["start"]
        self.start = None if saved is None else {(prompt, sample): score for prompt, sample, score in saved}


def by_key(completions: Sequence[Completion], scores: Tensor) -> dict[Key, float]:
    """Scores by prompt and sample: prompts without a score may be missing from one evaluation and not from another."""
    return {
        (completion.prompt_id, completion.sample): score
        for completion, score in zip(completions, scores.tolist(), strict=True)
    }


def chance_of_a_success(num_right: int, num_samples: int, k: int) -> float:
    """pass@k of one problem without bias, from n >= k samples of which c are right: 1 - C(n - c, k) / C(n, k).

    Binomials are exact integers, so there is nothing to overflow or to cancel.

    Source: Chen et al. 2021, eq. 1, arXiv:2107.03374.

    Args:
        num_right: c, from 0 to n.
        num_samples: n.
        k: Samples that may be tried, from 1 to n.
    """
    every = math.comb(num_samples, k)
    return (every - math.comb(num_samples - num_right, k)) / every


def mean_pass_at_k(scores: Mapping[Key, float], success_score: float, k: int) -> float:
    """Mean over prompts of the chance that one of k completions scores at least ``success_score``."""
    right: dict[str, list[bool]] = {}
    for (prompt, _), score in scores.items():
        right.setdefault(prompt, []).append(score >= success_score)
    chances = [chance_of_a_success(sum(successes), len(successes), k) for successes in right.values()]
    return math.fsum(chances) / len(chances)


def win_rate(ours: Mapping[Key, float], theirs: Mapping[Key, float]) -> float | None:
    """Share of completions that score higher than the other side's of the same prompt and sample, ties counted half.

    None where no completion has a score on both sides.
    """
    pairs = [(score, theirs[key]) for key, score in ours.items() if key in theirs]
    points = [1.0 if our > their else 0.5 if our == their else 0.0 for our, their in pairs]
    return math.fsum(points) / len(points) if points else None
