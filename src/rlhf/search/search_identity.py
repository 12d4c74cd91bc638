"""Who and what decides a search's answers beside its settings: what a file of results has to know to be gone on with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf.data.contracts import Prompt
from rlhf.files import sha256
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.model_reward import ModelReward
from rlhf.rewards.types import Scorer, parts_of
from rlhf.rollout.types import RolloutEngine
from rlhf.search.contract import Strategy
from rlhf.search.critics import Critic, FunctionCritic, ModelCritic, function_identity
from rlhf.search.search_helpers import SearchHelpers
from rlhf.search.value_scores import ValueScores


def participants(
    strategy: Strategy, *, engine: RolloutEngine, scorer: Scorer | None, helpers: SearchHelpers
) -> dict[str, Any]:
    """Weights by their hashes, functions by name and the hash of their file; JSON."""
    return {
        "strategy_code": code_identity(strategy),
        "policy_weights": engine.fingerprint(),
        "reward_identity": None if scorer is None else _scorer_identity(scorer),
        "critic_identity": None if helpers.critic is None else _critic_identity(helpers.critic),
        "value_weights": helpers.value.model.fingerprint() if isinstance(helpers.value, ValueScores) else None,
    }


def code_identity(function: str | Callable[..., Any]) -> list[Any]:
    """Name and file of a function, the hash of that file, and what a function made by another one has from it."""
    file, _, name = function_identity(function).rpartition(":")
    path = Path(file)
    code = sha256(path)[:16] if path.is_file() else ""
    cells = getattr(function, "__closure__", None) or ()
    inside = [text for cell in cells if " at 0x" not in (text := repr(cell.cell_contents))]
    return [path.name, name if file else type(function).__qualname__, code, *inside]


def prompt_identity(prompt: Prompt) -> str:
    """Hash of what a policy and a scorer read of a prompt, its id excepted."""
    text = json.dumps([list(prompt.ids), prompt.text, prompt.columns], sort_keys=True, default=plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plain(value: Any) -> Any:
    """What JSON can't hold, for a hash: functions by their code, and nothing by its place in memory."""
    if callable(value):
        return code_identity(value)
    text = str(value)
    return type(value).__qualname__ if " at 0x" in text else text


def _scorer_identity(scorer: Scorer) -> list[Any]:
    if parts_of(scorer):
        components: Any = getattr(scorer, "components", ())
        return [[each.weight, each.normalize, *_scorer_identity(each.scorer)] for each in components]
    if isinstance(scorer, FunctionReward):
        return [*code_identity(scorer.function), scorer.arguments]
    if isinstance(scorer, ModelReward):
        return [scorer.model.fingerprint(), getattr(scorer, "aggregate", None)]
    return [type(scorer).__qualname__, scorer.name]


def _critic_identity(critic: Critic) -> list[Any]:
    if isinstance(critic, FunctionCritic):
        return [*code_identity(critic.function), critic.arguments]
    return [critic.identity, critic.config.model_dump(mode="json") if isinstance(critic, ModelCritic) else None]
