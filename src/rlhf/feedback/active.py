"""What to ask next: the tasks on which the members of a reward ensemble disagree most teach a reward model most.

    priorities = reward_priorities(store.tasks(), [RewardModel.from_pretrained("runs/x/reward/model")])
    store.set_priorities(priorities)                # ``rlhf feedback prioritize --reward FOLDER`` does both

Disagreement between members is what judgments can remove; that a pair is close is not, and asking about it again and
again buys nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr, expit

from rlhf.data.contracts import Prompt, Text
from rlhf.data.pack import pack, split_by_tokens
from rlhf.errors import ConfigError, RewardError
from rlhf.models.reward import RewardModel
from rlhf.models.score import base_model, context_length, evaluating
from rlhf.rewards.lengths import check_lengths
from rlhf.rewards.model_reward import groups_of_texts
from rlhf.rewards.types import TextCompletion

if TYPE_CHECKING:
    from rlhf.store import Task

Array = NDArray[np.float64]
MAX_TOKENS = 16_384
"""Distinct tokens in one forward pass; memory only."""


def mutual_information(differences: ArrayLike) -> Array:
    """What the answer to a comparison would tell about which member is right, nats.

        H(mean over members of p_k) - mean over members of H(p_k),    p_k = sigmoid(d_k)

    High where members are sure of opposite things; 0 where they agree, however close the pair is to them all.

    Source: Houlsby et al. 2011, "Bayesian active learning for classification and preference learning", eq. 2,
    arXiv:1112.5745; for reward models: Gleave and Irving 2022, arXiv:2203.07472.

    Args:
        differences: [K, P] each member's score of the first completion less that of the second.

    Returns:
        [P], from 0 to log 2.
    """
    p = expit(np.asarray(differences, dtype=np.float64))
    mean = p.mean(0)
    return np.maximum(entr(mean) + entr(1 - mean) - (entr(p) + entr(1 - p)).mean(0), 0.0)


def reward_priorities(tasks: Iterable[Task], models: Sequence[RewardModel]) -> dict[str, float]:
    """How urgent each task is, from 0 to 1: the share of tasks of its kind that the ensemble disagrees on less.

    Comparisons count by ``mutual_information``, rankings by its mean over their pairs, single completions by the
    deviation of their score between members. Shares make kinds comparable, which nats and scores are not. Gold items are
    left out: they are asked at their own rate. So are tasks of kind ``multiclass``, which are not asked at all.

    Args:
        tasks: Those to order.
        models: Ensembles, or single models that together are one; scores are normalized by each model's own training.

    Returns:
        Task id -> priority, for ``PreferenceStore.set_priorities``.

    Raises:
        ConfigError: There are fewer than two members in all, so that nobody can disagree.
        RewardError: A task is too long for a model, or a score is not finite.
    """
    members = sum(model.num_scores for model in models)
    if members < 2:
        raise ConfigError(
            f"{members} reward model has nobody to disagree with. Train an ensemble (reward stage, num_models: 3), or give "
            "several folders."
        )
    plain = [task for task in tasks if task.gold is None and str(task.kind) != "multiclass"]
    by_kind: dict[str, dict[str, float]] = defaultdict(dict)
    for task, scores in zip(plain, _member_scores(plain, models), strict=True):
        by_kind[str(task.kind)][task.id] = _disagreement(scores, is_single=str(task.kind) in ("rating", "binary"))
    return {name: share for disagreements in by_kind.values() for name, share in _shares(disagreements).items()}


def _disagreement(scores: Array, *, is_single: bool) -> float:
    """Of the members on one task, from [K, responses] scores."""
    if is_single:
        return float(scores.std(0).mean())
    pairs = list(combinations(range(scores.shape[1]), 2))
    return float(mutual_information(np.stack([scores[:, i] - scores[:, j] for i, j in pairs], axis=1)).mean())


def _shares(values_of: dict[str, float]) -> dict[str, float]:
    """Value -> share of values below it; equal ones share theirs."""
    values = np.sort(np.array(list(values_of.values())))
    most = max(len(values) - 1, 1)
    return {name: float(np.searchsorted(values, value)) / most for name, value in values_of.items()}


def _member_scores(tasks: Sequence[Task], models: Sequence[RewardModel]) -> list[Array]:
    """Of each task [K, responses], all models' members one after the other."""
    prompts = [_prompt(task.id, task.prompt) for task in tasks for _ in task.responses]
    said = [TextCompletion(_text(response.text, task.id)) for task in tasks for response in task.responses]
    each = np.concatenate([_scores(model, prompts, said) for model in models]) if said else np.zeros((2, 0))
    if not np.isfinite(each).all():
        place = int(np.flatnonzero(~np.isfinite(each).all(0))[0])
        raise RewardError(f"The completion of task {prompts[place].id!r} got a score that is not finite.")
    ends = np.cumsum([len(task.responses) for task in tasks])[:-1]
    return np.split(each, ends, axis=1) if tasks else []


@torch.no_grad()
def _scores(model: RewardModel, prompts: Sequence[Prompt], said: Sequence[TextCompletion]) -> Array:
    """[K, S] of one model."""
    who = "The reward model"
    groups = groups_of_texts(model.tokenizer, prompts, said, who=who)
    check_lengths(context_length(base_model(model.members[0])), groups, prompts, said, who=who)  # type: ignore[arg-type]
    with evaluating(model):
        parts = [model.member_scores(pack(run)).float().cpu() for run in split_by_tokens(groups, max_tokens=MAX_TOKENS)]
    return np.asarray(torch.cat(parts, dim=1).numpy(), dtype=np.float64)


def _prompt(name: str, prompt: Text) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(name, [], prompt)
    return Prompt(name, [], "", messages=prompt)


def _text(completion: Text, task: str) -> str:
    if isinstance(completion, str):
        return completion
    if len(completion) == 1 and completion[0].get("role") == "assistant":
        return str(completion[0]["content"])
    raise RewardError(
        f"A completion of task {task!r} is a dialogue of {len(completion)} turns; reward models here score a single answer."
    )
