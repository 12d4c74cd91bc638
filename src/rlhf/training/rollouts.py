"""A rollout before anything is learned from it: who was asked, what was said, what the judge says of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlhf.activity import doing
from rlhf.config.policy import RLConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import RewardError
from rlhf.formatting import percentage
from rlhf.losses import overlong_penalty, segment_count
from rlhf.rewards.types import Scorer, ScoreResult, sample_name
from rlhf.rollout.types import Completion
from rlhf.training.experience import RolloutExperience
from rlhf.training.metrics import Metrics
from rlhf.training.monitoring.alarms import SHOWN
from rlhf.training.monitoring.guards import repetition
from rlhf.training.rollouts_over_ranks import score_over_ranks

LARGEST_SCORE = 1e15
"""Squares of scores, summed over a rollout, must stay within float32, which ends at 3e38."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Completions, and who asked for them."""

    experience: RolloutExperience
    prompts: list[Prompt]
    """[S] the prompt of each completion."""
    completions: list[Completion]
    """[S]."""

    @classmethod
    def of(cls, prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]]) -> Rollout:
        """What each prompt got."""
        asked = [prompt for prompt, group in zip(prompts, groups, strict=True) for _ in group]
        return cls(RolloutExperience.of(prompts, groups), asked, [c for group in groups for c in group])

    @property
    def truncated(self) -> Tensor:
        """bool [S] cut by the length limit."""
        return torch.tensor([completion.truncated for completion in self.completions])

    @property
    def sampled_logprobs(self) -> Tensor:
        """float32 [M] what the engine reported."""
        return torch.tensor([number for completion in self.completions for number in completion.logprobs])

    @property
    def drawn_logprobs(self) -> Tensor:
        """float32 [M] under the distribution that was drawn from: filters of the sampler and penalties included."""
        return torch.tensor([number for c in self.completions for number in c.sampling_logprobs or c.logprobs])

    def only(self, groups: Collection[int]) -> Rollout:
        """The same with some of its prompts; without columns yet."""
        kept = [place for place, group in enumerate(self.experience.group.tolist()) if group in groups]
        return Rollout(
            RolloutExperience([self.experience.groups[group] for group in sorted(groups)]),
            [self.prompts[place] for place in kept],
            [self.completions[place] for place in kept],
        )

    @classmethod
    def joined(cls, parts: Sequence[Rollout]) -> Rollout:
        """Several, one after the other."""
        return cls(
            RolloutExperience([group for part in parts for group in part.experience.groups]),
            [prompt for part in parts for prompt in part.prompts],
            [completion for part in parts for completion in part.completions],
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """What a scorer made of a rollout."""

    rollout: Rollout
    """Without the prompts that have a completion without a score."""
    scores: Tensor
    """float32 [S] of what is left."""
    kept: list[int]
    """Places among the prompts asked of those that are left."""
    left_out: Mapping[str, Any] | None
    """The alarm about prompts that are left out; None where there are none."""

    @classmethod
    def without_scores(cls, rollout: Rollout) -> Judged:
        """Where nobody judges: every score is 0."""
        return cls(rollout, torch.zeros(len(rollout.completions)), list(range(len(rollout.experience.groups))), None)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a rollout learns from: completions, and what the scorer says of them."""

    rollout: Rollout
    scores: Tensor
    """float32 [S]."""
    all_scores: Tensor
    """float32, those of completions that were asked for and are not learned from included."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """[S] further numbers for each completion."""


def judge_rollout(
    rollout: Rollout, scorer: Scorer, metrics: Metrics, *, limit: float, name: str, planned: int | None = None
) -> Judged:
    """Ask the scorer about every completion.

    Args:
        rollout: What was asked.
        scorer: Who judges.
        metrics: Gets the means of the reward's components.
        limit: Share of the prompts that may be left out for want of a score.
        name: What messages call the run.
        planned: Prompts of a whole rollout, where these are a part of one; ``limit`` is a share of those.

    Raises:
        RewardError: Too many completions got no score, or the scorer gave another number of them.
    """
    with doing("reward", tokens=rollout.experience.num_tokens):
        scored = score_over_ranks(scorer, rollout.prompts, rollout.completions)
    for component, verdicts in scored.per_component.items():
        metrics.mean(f"reward/{component}", torch.tensor([v for v in verdicts if v is not None], dtype=torch.float32))
    scores = torch.tensor(scored.scores, dtype=torch.float32)
    unscored = {p: _beyond(scored, p) for p in (~(scores.abs() <= LARGEST_SCORE)).nonzero().flatten().tolist()}
    unscored |= scored.errors
    asked = len(rollout.experience.groups)
    if not unscored:
        return Judged(rollout, scores, list(range(asked)), None)
    group_of = rollout.experience.group.tolist()
    left_out = {group_of[place] for place in unscored}
    total, (place, reason) = max(asked, planned or 0), min(unscored.items())
    message = (
        f"{name}: the reward {scorer.name} gave no score for {len(unscored)} of {len(rollout.completions)} completions; the first, of "
        f"prompt {sample_name(rollout.prompts[place], rollout.completions[place])}: {_sentence(reason)}"
    )
    if len(left_out) > limit * total:
        raise RewardError(
            f"{message} That touches {len(left_out)} of {total} prompts, and at most {percentage(limit, 0)} of a rollout may be left out "
            "(max_unscored_frac). Nothing was trained on this rollout."
        )
    kept = sorted(set(group_of) - left_out)
    alarm = {
        "text": f"{message} {len(left_out)} of {total} prompts are left out.",
        "guard": "unscored", "metric": "unscored", "value": len(unscored), "limit": limit, "action": "left out",
        "samples": [
            {"id": rollout.prompts[p].id, "prompt": rollout.prompts[p].text, "completion": rollout.completions[p].text}
            for p in sorted(unscored)[:SHOWN]
        ],
    }  # fmt: skip
    places = [place for place, group in enumerate(group_of) if group not in left_out]
    return Judged(rollout.only(kept), scores[places], kept, alarm)


def shaped_scores(rollout: Rollout, scores: Tensor, config: RLConfig) -> Tensor:
    """[S] scores after the penalties for completions that were cut or nearly cut, and the limits.

    Args:
        rollout: Whose completions they are.
        scores: [S].
        config: ``missing_eos_penalty``, ``overlong`` and ``clip_score``.
    """
    scores = scores - config.missing_eos_penalty * rollout.truncated
    if config.overlong is not None and config.overlong.weight:
        experience, limit = rollout.experience, config.sampling.max_new_tokens
        scores = scores + config.overlong.weight * overlong_penalty(
            segment_count(experience.score_seq, experience.num_sequences),
            max_tokens=limit,
            buffer_tokens=config.overlong.buffer_before(limit),
        )
    return scores if config.clip_score is None else scores.clamp(-config.clip_score, config.clip_score)


def _beyond(score_result: ScoreResult, place: int) -> str:
    """Why a score can't be trained on, with what each of several rewards gave."""
    parts = {name: values[place] for name, values in score_result.per_component.items() if values[place] is not None}
    given = f" ({', '.join(f'{name} gave {value:.3g}' for name, value in parts.items())})" if len(parts) > 1 else ""
    return (
        f"its score is {score_result.scores[place]:.3g}{given}, and training takes scores up to {LARGEST_SCORE:g} either way, because it "
        "squares and sums them. Bring the reward to a smaller scale"
    )


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def rollout_rows(
    rollout: Rollout, scores: Tensor | None, ref_kl: Tensor | None, *, step: int
) -> Iterator[dict[str, Any]]:
    """One entry of ``rollouts.jsonl`` for each completion: scores [S] where somebody judged, and KL to the reference [S] in nats where
    it was asked. Texts are for people; the ids are what was sampled, bytes that are no UTF-8 included. ``logprobs`` are the sampler's,
    one for each token that the policy sampled, to 5 decimals."""
    entries: list[dict[str, float]] = [{} for _ in rollout.completions]
    for name, values in (("score", scores), ("kl", ref_kl)):
        if values is not None:
            for entry, value in zip(entries, values.tolist(), strict=True):
                entry[name] = round(value, 5)
    for prompt, completion, numbers in zip(rollout.prompts, rollout.completions, entries, strict=True):
        yield {
            "step": step,
            "prompt": prompt.text,
            "completion": completion.text,
            "ended": not completion.truncated,
            **numbers,
            "prompt_id": prompt.id,
            "sample": completion.sample,
            "finish_reason": completion.finish_reason,
            "prompt_ids": list(prompt.ids),
            "completion_ids": list(completion.tokens),
            "logprobs": [round(number, 5) for number in completion.logprobs],
            **({} if completion.scored is None else {"scored": list(completion.scored)}),
            **({} if prompt.messages is None else {"messages": prompt.messages}),
            **_of_episode(completion),
        }


def _of_episode(completion: Completion) -> dict[str, Any]:
    """What a row says of the environment; nothing where there was none."""
    if completion.environment_error is not None:
        return {"turns": completion.turns, "environment_error": completion.environment_error}
    if completion.environment_reward is None:
        return {}
    return {"turns": completion.turns, "environment_reward": completion.environment_reward}


def measure_rollout(
    name: str, rollout: Rollout, scores: Tensor | None, ref_kl: Tensor | None, metrics: Metrics
) -> None:
    """What people watch of a rollout, under ``name/``; of its scores only where somebody judged, of the KL only where it was asked."""
    if scores is not None:
        metrics.mean(f"{name}/score_mean", scores)
        metrics.mean(f"{name}/score_std", scores.std(correction=0))
    if ref_kl is not None:
        metrics.mean(f"{name}/ref_kl", ref_kl)
    lengths = torch.tensor([len(completion.logprobs) for completion in rollout.completions])
    metrics.mean(f"{name}/length_mean", lengths)
    metrics.mean(f"{name}/eos_frac", ~rollout.truncated)
    metrics.mean(
        f"{name}/empty_frac", torch.tensor([not completion.text.strip() for completion in rollout.completions])
    )
    repeated = [repetition(completion.sampled_tokens) for completion in rollout.completions]
    metrics.mean(f"{name}/repetition", torch.tensor(repeated))
    if any(completion.environment_reward is not None for completion in rollout.completions):
        _measure_episodes(name, rollout.completions, metrics)


def _measure_episodes(name: str, completions: Sequence[Completion], metrics: Metrics) -> None:
    """Turns, the share of episodes that the environment ended, and what it reported: 0 where an episode says nothing."""
    metrics.mean(f"{name}/turns_mean", torch.tensor([completion.turns for completion in completions]))
    metrics.mean(f"{name}/done_frac", torch.tensor([c.finish_reason == "done" for c in completions]))
    for number in sorted({key for completion in completions for key in completion.environment_info}):
        values = [completion.environment_info.get(number, 0.0) for completion in completions]
        metrics.mean(f"{name}/environment/{number}", torch.tensor(values))
