"""TRL's reward functions, by name, as rewards of ours."""

from __future__ import annotations

from typing import Any

from rlhf.config.foreign.common import importable
from rlhf.config.foreign.key_table import Given, Reason, Settings

THINKING = r"(?s)^<think>(?!.*<think>)(.*?)</think>.*$"
BUILT_IN: dict[str, dict[str, Any]] = {
    "accuracy_reward": {"kind": "math", "column": "solution"},
    "reasoning_accuracy_reward": {"kind": "math", "column": "solution"},
    "think_format_reward": {"kind": "pattern", "name": "think_format", "pattern": THINKING},
}
OVERLONG = "get_soft_overlong_punishment"


def rewards(value: Any, given: Given) -> Settings | Reason:
    """`reward_funcs`, `reward_model_name_or_path`, `reward_weights` and the reward model of PPO, together."""
    models = [given.get(key) for key in ("reward_model_name_or_path", "reward_model_path", "reward_model")]
    named = given.get("reward_funcs", [])
    functions = [named] if isinstance(named, str) else list(named)
    judges: list[Any] = [str(model) for model in models if model]
    values: dict[str, Any] = {}
    for name in functions:
        if name == OVERLONG:
            values["overlong.buffer_tokens"] = min(256, given.get("max_completion_length", 256))
        else:
            judges.append(dict(BUILT_IN[name]) if name in BUILT_IN else importable(str(name)))
    weights = given.get("reward_weights")
    if weights is not None and len(weights) == len(judges):
        judges = [weighted(judge, weight) for judge, weight in zip(judges, weights, strict=True)]
    elif weights is not None:
        return Reason(f"{len(weights)} weights for {len(judges)} rewards; give each reward its `weight`")
    if judges:
        values["reward"] = judges[0] if len(judges) == 1 else judges
    called = [judge for judge in judges if isinstance(judge, str) and ":" in judge]
    note = (
        f"{called[0]} is called by name: prompts, completions and columns; texts, or messages where the rows hold them"
        if called
        else ""
    )
    return Settings(values, note) if values else Reason("names no reward")


def weighted(judge: Any, weight: float) -> dict[str, Any]:
    """A reward with its weight."""
    if isinstance(judge, dict):
        return {**judge, "weight": weight}
    kind = {"kind": "function", "function": judge} if ":" in judge else {"kind": "learned", "source": judge}
    return {**kind, "weight": weight}
