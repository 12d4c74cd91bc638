"""A rollout before anything is learned from it: who was asked, what was said, what the judge says of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf.data.contracts import Prompt
from rlhf.errors import RewardError
from rlhf.rewards.types import Scorer, ask_scorer, sample_name
from rlhf.rollout.types import Completion
from rlhf.training.experience import RolloutExperience
from rlhf.training.guards import repetition
from rlhf.training.metrics import Metrics
from rlhf.training.watch import SHOWN


@dataclass(frozen=True, slots=True)
class Rollout:
    """Completions, and who asked for them."""

    experience: RolloutExperience
    prompts: list[Prompt]
    """[S] the prompt of each completion."""
    completions: list[Completion]
    """[S]."""

    @property
    def truncated(self) -> Tensor:
        """bool [S] cut by the length limit."""
        return torch.tensor([completion.truncated for completion in self.completions])

    @property
    def sampled_logprobs(self) -> Tensor:
        """float32 [M] what the engine reported."""
        return torch.tensor([number for completion in self.completions for number in completion.logprobs])

    def only(self, groups: Collection[int]) -> Rollout:
        """The same with some of its prompts; without columns yet."""
        kept = [place for place, group in enumerate(self.experience.group.tolist()) if group in groups]
        return Rollout(
            RolloutExperience([self.experience.groups[group] for group in sorted(groups)]),
            [self.prompts[place] for place in kept],
            [self.completions[place] for place in kept],
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """What a scorer made of a rollout."""

    rollout: Rollout
    """Without the prompts that have a completion without a score."""
    scores: Tensor
    """float32 [S] of what is left."""
    left_out: Mapping[str, Any] | None
    """The alarm about prompts that are left out; None where there are none."""


def judge_rollout(rollout: Rollout, scorer: Scorer, metrics: Metrics, *, limit: float, name: str) -> Judged:
    """Ask the scorer about every completion.

    Args:
        rollout: What was asked.
        scorer: Who judges.
        metrics: Gets the means of the reward's components.
        limit: Share of the prompts that may be left out for want of a score.
        name: What messages call the run.

    Raises:
        RewardError: Too many completions got no score, or the scorer gave another number of them.
    """
    found = ask_scorer(scorer, rollout.prompts, rollout.completions)
    for component, verdicts in found.per_component.items():
        metrics.mean(f"reward/{component}", torch.tensor([v for v in verdicts if v is not None], dtype=torch.float32))
    scores = torch.tensor(found.scores, dtype=torch.float32)
    unscored = dict.fromkeys((~scores.isfinite()).nonzero().flatten().tolist(), "its score is not finite")
    unscored |= found.errors
    if not unscored:
        return Judged(rollout, scores, None)
    group_of = rollout.experience.group.tolist()
    left_out = {group_of[place] for place in unscored}
    total, (place, reason) = len(rollout.experience.groups), min(unscored.items())
    message = (
        f"{name}: the reward {scorer.name} gave no score for {len(unscored)} of {len(rollout.completions)} completions; the first, of "
        f"prompt {sample_name(rollout.prompts[place], rollout.completions[place])}: {_sentence(reason)}"
    )
    if len(left_out) > limit * total:
        raise RewardError(
            f"{message} That touches {len(left_out)} of {total} prompts, and at most {limit:.0%} of a rollout may be left out "
            "(max_unscored_frac). Nothing was trained on this rollout."
        )
    kept = set(group_of) - left_out
    alarm = {
        "text": f"{message} {len(left_out)} of {total} prompts are left out.",
        "guard": "unscored", "metric": "unscored", "value": len(unscored), "limit": limit, "action": "left out",
        "samples": [
            {"id": rollout.prompts[p].id, "prompt": rollout.prompts[p].text, "completion": rollout.completions[p].text}
            for p in sorted(unscored)[:SHOWN]
        ],
    }  # fmt: skip
    return Judged(rollout.only(kept), scores[[p for p, group in enumerate(group_of) if group in kept]], alarm)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def measure_rollout(name: str, rollout: Rollout, scores: Tensor, ref_kl: Tensor, metrics: Metrics) -> None:
    """What people watch of a rollout, under ``name/``."""
    metrics.mean(f"{name}/score_mean", scores)
    metrics.mean(f"{name}/score_std", scores.std(correction=0))
    metrics.mean(f"{name}/ref_kl", ref_kl)
    lengths = torch.tensor([len(completion.tokens) for completion in rollout.completions])
    metrics.mean(f"{name}/length_mean", lengths)
    metrics.mean(f"{name}/eos_frac", ~rollout.truncated)
    repeated = [repetition(completion.tokens) for completion in rollout.completions]
    metrics.mean(f"{name}/repetition", torch.tensor(repeated))
