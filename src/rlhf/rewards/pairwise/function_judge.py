"""A judge that is a programmatic rule or a Python function."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.config.judge_types.function_judge import REWARD_NAMES, FunctionJudgeConfig
from rlhf.errors import RewardError, text_of
from rlhf.rewards.functions import load_function
from rlhf.rewards.pairwise.scores import ScoreJudge, scorer_of
from rlhf.rewards.pairwise.votes import OnVote, Pair, Vote, told


def longer(prompts: Sequence[Any], completions: Sequence[str]) -> list[float]:
    """Characters: what a judge that is fooled by length would prefer."""
    return [float(len(_text(completion))) for completion in completions]


def shorter(prompts: Sequence[Any], completions: Sequence[str]) -> list[float]:
    """The opposite."""
    return [-length for length in longer(prompts, completions)]


RULES: Mapping[str, Callable[..., list[float]]] = {"longer": longer, "shorter": shorter}
"""Name -> rule; ``rlhf.config.judges.RULES`` has the same names."""


class ComparingFunction:
    """A function ``judge(prompts, first, second, **columns)`` that gives an outcome for each pair.

    Args:
        function: Gives [n] numbers from 0 to 1, True or False, or None.
        name: What results call it.
        arguments: Given to every call by keyword.
    """

    symmetric = False

    def __init__(self, function: Callable[..., Any], *, name: str, arguments: Mapping[str, Any] | None = None) -> None:
        self.function = function
        self.name = name
        self.arguments = dict(arguments or {})
        self.identity = {"type": "function", **function_identity(function), "arguments": self.arguments}

    def votes(self, pairs: Sequence[Pair], on_vote: OnVote | None = None) -> list[Vote]:
        """A verdict on each pair, in the order given.

        Raises:
            RewardError: It raised, or gave another number of outcomes, or something that is no outcome.
        """
        if not pairs:
            return []
        given: dict[str, Any] = {
            "prompts": [pair.prompt for pair in pairs],
            "first": [pair.first for pair in pairs],
            "second": [pair.second for pair in pairs],
        }
        for name in dict.fromkeys(name for pair in pairs for name in pair.columns):
            given.setdefault(name, [pair.columns.get(name) for pair in pairs])
        parameters = inspect.signature(self.function).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            given = {name: values for name, values in given.items() if name in parameters}
        try:
            outcomes = list(self.function(**given, **self.arguments))
        except Exception as err:
            raise RewardError(
                f"The judge {self.name} failed on {len(pairs)} pairs: {type(err).__name__}: {text_of(err)}."
            ) from err
        if len(outcomes) != len(pairs):
            raise RewardError(
                f"The judge {self.name} returned {len(outcomes)} outcomes for {len(pairs)} pairs; it must return one for each."
            )
        return told([self._vote(outcome, place) for place, outcome in enumerate(outcomes)], on_vote)

    def _vote(self, outcome: Any, place: int) -> Vote:
        if outcome is None:
            return Vote(first=None, reason=f"{self.name} returned None")
        try:
            value = float(outcome)
        except (TypeError, ValueError):
            value = math.nan
        if isinstance(outcome, str) or not 0 <= value <= 1:
            raise RewardError(
                f"The judge {self.name} returned {outcome!r} for pair {place}; wanted 1 where the first is better, 0 where the second is, "
                "a number between, or None."
            )
        return Vote(first=value)


def function_judge(
    function: Callable[..., Any], *, name: str, arguments: Mapping[str, Any] | None = None, tie_band: float = 0.0
) -> ScoreJudge | ComparingFunction:
    """A judge of a function: one that takes ``first`` and ``second`` compares, any other scores."""
    try:
        takes = set(inspect.signature(function).parameters)
    except ValueError:  # some builtins have no signature
        takes = set()
    if "first" in takes and "second" in takes:
        return ComparingFunction(function, name=name, arguments=arguments)
    identity = {"type": "function", **function_identity(function), "arguments": dict(arguments or {})}
    return ScoreJudge(
        scorer_of(function, name=name, arguments=arguments), identity=identity, tie_band=tie_band, name=name
    )


def function_identity(function: Callable[..., Any]) -> dict[str, Any]:
    """Its name, and the hash of its source where there is one."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", type(function).__qualname__)
    try:
        source = inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        return {"function": f"{module}:{name}"}
    return {"function": f"{module}:{name}", "source": hashlib.sha256(source.encode()).hexdigest()[:16]}


def build_function_judge(config: FunctionJudgeConfig) -> ScoreJudge | ComparingFunction:
    """A rule, a kind of reward, or a user's function."""
    name = config.name or config.function
    if config.function in REWARD_NAMES:
        from rlhf.rewards.factory import build_reward

        scorer = build_reward({"kind": config.function, **config.arguments}, on_error="report")
        identity = {"type": "function", "function": config.function, "arguments": config.arguments}
        return ScoreJudge(scorer, identity=identity, tie_band=config.tie_band, name=name)
    function = RULES.get(config.function) or load_function(config.function)
    return function_judge(function, name=name, arguments=config.arguments, tie_band=config.tie_band)


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
