"""Classes for TRL's ``environment_factory`` as environments.

    class Library:
        def reset(self, **row) -> str | None: ...        # a text stands at the end of the prompt
        def look_up(self, word: str) -> str:             # every public method is a tool
            \"""Find a word.

            Args:
                word: Which one.
            \"""
        def get_reward(self) -> float: ...               # asked once, when the episode is over

Source: ``GRPOTrainer`` of TRL 1.16 (``trl/trainer/grpo_trainer.py``, ``environment_factory``). Where TRL keeps a pool of objects and
resets them, each episode has an object of its own here: nothing of an episode can be left for another.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.config.environments import TRLEnvironmentConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, did_you_mean, with_article
from rlhf.rollout.environments import EnvironmentContext, OpenedEnvironment, Turn
from rlhf.rollout.tool_formats import TOOL_FORMATS, choose_tool_format
from rlhf.rollout.tool_session import ToolFailedError, ToolSession

RESERVED = ("reset", "get_reward")
ROUTE = "environment"
"""Column of the prompt rows that chooses among several classes."""
TOOLS = "tools"
"""Column that the schemas stand in while a prompt is rendered; not part of the row."""


class TRLToolBox:
    """See ``rlhf.rollout.tool_session.ToolBox``; tools are methods of one object."""

    def __init__(self, choose: Callable[[Mapping[str, Any]], Callable[[], Any]], *, is_routed: bool) -> None:
        """Prepare for one episode.

        Args:
            choose: What makes the object for a row.
            is_routed: The row's column ``environment`` chose, and is not given to ``reset``.
        """
        self._choose = choose
        self._is_routed = is_routed
        self._instance: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def reset(self, prompt: Prompt) -> str | None:
        """Start an episode; a text is what the policy reads first."""
        self._instance = self._choose(prompt.columns)()
        hidden = {TOOLS, *([ROUTE] if self._is_routed else [])}
        row = {name: value for name, value in prompt.columns.items() if name not in hidden}
        words = self._await(self._instance.reset(**{"prompt": prompt.messages or prompt.text, **row}))
        if words is not None and not isinstance(words, str):
            raise TypeError(f"reset returned {with_article(type(words).__name__)}; it must return a text or None")
        return words

    def schemas(self) -> Sequence[Mapping[str, Any]]:
        """JSON schemas of the tools, known once ``reset`` was called."""
        cls: Any = type(self._instance)
        return tool_schemas(cls)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Turn:
        """Call a tool; the turn's observation is its result. Raises ``ToolFailedError``. The message of an exception goes to the
        policy, as in TRL."""
        try:
            result = self._await(getattr(self._instance, name)(**arguments))
        except Exception as err:
            raise ToolFailedError(str(err) or type(err).__name__) from err
        return Turn(str(result))

    def finish(self) -> float | None:
        """A last reward, asked once the episode is over; None adds nothing."""
        if not hasattr(self._instance, "get_reward"):
            return None
        reward: float | None = self._await(self._instance.get_reward())
        return reward

    def close(self) -> None:
        """Give back what the episode holds; called also for one that failed."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _await(self, result: Any) -> Any:
        """A method may be ``async``; all of an episode run in one loop."""
        if not inspect.isawaitable(result):
            return result
        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def waited() -> Any:
            return await result

        return self._loop.run_until_complete(waited())


@functools.cache
def tool_schemas(cls: Any) -> tuple[dict[str, Any], ...]:
    """JSON schemas of a class's public methods, as TRL and transformers read them.

    Raises:
        ConfigError: A method has no docstring, or an argument no type or no description.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    made = []
    for name, method in inspect.getmembers(cls, predicate=inspect.isfunction):
        if name in RESERVED or name.startswith("_"):
            continue
        try:
            schema: dict[str, Any] = get_json_schema(types.MethodType(method, cls))  # bound: `self` is no argument
        except Exception as err:  # DocstringParsingException, TypeHintParsingException, and whatever a type raises
            raise ConfigError(
                f"The method {name} of {cls.__name__} can't be offered as a tool: {err} A tool has a type for each argument and a Google "
                "docstring that describes it; a method that is no tool begins with an underscore."
            ) from err
        made.append(schema)
    return tuple(made)


def check_class(name: str, cls: Any, *, is_rewarded: bool) -> None:
    """Refuse a class that is no environment, before anything is sampled.

    Raises:
        ConfigError: Naming what it lacks.
    """
    if not isinstance(cls, type):
        raise ConfigError(f"{name} is {with_article(type(cls).__name__)}; wanted a class with reset(**row) and tools.")
    reset = getattr(cls, "reset", None)
    if not inspect.isfunction(reset):
        raise ConfigError(f"The class {name} has no reset; wanted reset(**row), which returns a text or None.")
    takes = list(inspect.signature(reset).parameters.values())[1:]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes) and "prompt" not in {
        p.name for p in takes
    }:
        raise ConfigError(
            f"reset of {name} takes neither **row nor prompt; it is given the prompt and every column of the row by keyword."
        )
    if not is_rewarded and not inspect.isfunction(getattr(cls, "get_reward", None)):
        raise ConfigError(
            f"The class {name} has no get_reward(), and the recipe no `reward:`; nothing would say how good an episode is. Add one of the two."
        )
    offered = tool_schemas(cls)
    if not offered:
        raise ConfigError(f"The class {name} has no tools; a public method other than {' and '.join(RESERVED)} is one.")


def open_trl(settings: TRLEnvironmentConfig, at: EnvironmentContext) -> OpenedEnvironment:
    """One object of the class for each episode, called in this process, one after the other.

    Raises:
        ConfigError: A class is no environment.
        ModelError: The chat template does not say how calls are written.
    """
    is_routed = not isinstance(settings.source, str)
    named = {"": settings.source} if isinstance(settings.source, str) else settings.source
    classes = {key: at.load(text) for key, text in named.items()}
    for key, cls in classes.items():
        check_class(named[key], cls, is_rewarded=at.is_rewarded)

    def choose(columns: Mapping[str, Any]) -> Callable[[], Any]:
        return functools.partial(_chosen(classes, columns, is_routed=is_routed), **at.arguments)

    family = choose_tool_format(settings.tool_format, at.tokenizer, has_messages=at.has_messages)
    return OpenedEnvironment(
        make=lambda: ToolSession(TRLToolBox(choose, is_routed=is_routed), TOOL_FORMATS[family]),
        tools=lambda columns: list(tool_schemas(_chosen(classes, columns, is_routed=is_routed))),
        speaks_first=True,
        notes=[f"tools: calls are read in the format {family!r}, such as {TOOL_FORMATS[family].about}"],
    )


def _chosen(classes: Mapping[str, Any], columns: Mapping[str, Any], *, is_routed: bool) -> Any:
    """The class of a row.

    Raises:
        ConfigError: Its column ``environment`` names none.
    """
    if not is_routed:
        return classes[""]
    name = columns.get(ROUTE)
    if not isinstance(name, str) or name not in classes:
        near = did_you_mean(name, classes) if isinstance(name, str) else ""
        raise ConfigError(
            f"A row's column {ROUTE!r} is {name!r}, and environment.source has the names {', '.join(classes)}.{near}"
        )
    return classes[name]
