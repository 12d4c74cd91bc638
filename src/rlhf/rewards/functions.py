"""Any Python function as a scorer.

It may be slow or buggy: every verdict is checked, and an error names the function and the sample.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

from rlhf.config.rewards import FUNCTION
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RewardError
from rlhf.rewards.process import FunctionProcess
from rlhf.rewards.types import CompletionLike, ScoreResult, sample_name
from rlhf.rewards.worker import CallError, Odd, call, find_function

RESERVED = ("prompts", "completions", "completion_ids", "ended")
"""Names that a column can't have, because every reward function gets something else under them."""


class FunctionReward:
    """Scores completions with a function of the standard signature."""

    def __init__(
        self,
        function: str | Callable[..., Any],
        *,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        timeout_seconds: float = 60.0,
        in_process: bool = False,
        on_error: Literal["raise", "report"] = "raise",
    ) -> None:
        """Wrap a function; it is looked for at once, and runs at the first call.

        Args:
            function: ``package.module:function``, ``path/to/file.py:function``, or the function itself.
            name: What metrics and errors call it; by default its own name.
            arguments: Given to every call by keyword.
            timeout_seconds: A call that takes longer is killed; without effect in this process.
            in_process: Call it here: nothing is copied but the arguments, and nothing can stop it.
            on_error: ``report`` puts failures into the result's ``errors`` instead of raising.

        Raises:
            ConfigError: There is no such function, or another process could not find it.
        """
        self._name = name or _own_name(function)
        self.arguments = dict(arguments or {})
        self.timeout_seconds = timeout_seconds
        self.on_error = on_error
        self._function: Callable[..., Any] | None = None
        self._process: FunctionProcess | None = None
        if in_process:
            self._function = load_function(function) if isinstance(function, str) else function
        else:
            spec = function if isinstance(function, str) else _spec_of(function)
            check_function_name(spec)
            self._process = FunctionProcess(spec)

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        return self._name

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """See ``Scorer``. A verdict of None is an error here: a function alone must judge every sample.

        Raises:
            RewardError: Names the function and the first sample that it fails on.
        """
        verdicts, errors = self.checked_verdicts(prompts, completions)
        for place, verdict in enumerate(verdicts):
            if verdict is None and place not in errors:
                errors[place] = "it returned None (does not apply), and no other reward judges the sample"
        self._refuse(errors, prompts, completions)
        scores = [math.nan if verdict is None else verdict for verdict in verdicts]
        return ScoreResult(scores, {self.name: verdicts}, errors)

    def checked_verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, str]]:
        """Raw verdicts [n], None where the function does not apply or failed, and why it failed on which sample.

        Raises:
            RewardError: It failed, and this scorer was not built to report that.
        """
        verdicts, errors = self._verdicts(prompts, completions)
        self._refuse(errors, prompts, completions)
        return verdicts, errors

    def close(self) -> None:
        """End the function's process; a later call starts another."""
        if self._process is not None:
            self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, str]]:
        """A call that fails as a whole is tried again sample by sample, to find out whose fault it is.

        Raises:
            RewardError: The function fails on all samples together and on none of them alone.
        """
        if not completions:
            return [], {}
        whole = function_arguments(prompts, completions, self.arguments)
        try:
            return _checked(self._call(whole), len(completions))
        except CallError as err:
            together = str(err)
        if len(completions) == 1:
            return [None], {0: together}
        verdicts: list[float | None] = [None] * len(completions)
        errors: dict[int, str] = {}
        for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            try:
                single, wrong = _checked(self._call(function_arguments([prompt], [completion], self.arguments)), 1)
                verdicts[place] = single[0]
                if wrong:
                    errors[place] = wrong[0]
            except CallError as err:
                errors[place] = str(err)
            if errors and self.on_error == "raise":
                break
        if not errors:
            raise RewardError(
                f"The reward {self.name} failed on {len(completions)} samples together, from "
                f"{sample_name(prompts[0], completions[0])} on, but on none of them alone: {together}."
            )
        return verdicts, errors

    def _refuse(
        self, errors: Mapping[int, str], prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> None:
        if errors and self.on_error == "raise":
            place, reason = min(errors.items())
            sample = sample_name(prompts[place], completions[place])
            raise RewardError(f"The reward {self.name} failed on sample {sample}: {reason}.")

    def _call(self, arguments: Mapping[str, Any]) -> list[float | Odd | None]:
        if self._process is not None:
            return self._process.call(arguments, self.timeout_seconds)
        assert self._function is not None
        return call(self._function, copy.deepcopy(dict(arguments)))


def load_function(spec: str) -> Callable[..., Any]:
    """The function that ``package.module:function`` or ``path/to/file.py:function`` names, in this process.

    Raises:
        ConfigError: The text names no function, or there is none; says what there is.
    """
    check_function_name(spec)
    importlib.invalidate_caches()  # the file may be younger than this process
    try:
        return find_function(spec)
    except CallError as err:
        raise ConfigError(f"The function {spec!r} can't be used: {err}.") from err


def check_function_name(spec: str) -> None:
    """Refuse a text that is not of the form of a function's name."""
    if not FUNCTION.match(spec):
        raise ConfigError(f"{spec!r} names no function; write package.module:function or path/to/file.py:function.")


def function_arguments(
    prompts: Sequence[Prompt], completions: Sequence[CompletionLike], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword arguments of a call in the standard signature.

    Raises:
        RewardError: A column has a name that is taken.
    """
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns)
    taken = [name for name in (*names, *fixed) if name in RESERVED]
    if taken:
        raise RewardError(
            f"The column {taken[0]!r} can't be given to a reward function, which gets something else under that name; "
            "rename it."
        )
    arguments: dict[str, Any] = {
        "prompts": [prompt.text if prompt.messages is None else prompt.messages for prompt in prompts],
        "completions": [
            completion.text if prompt.messages is None else [{"role": "assistant", "content": completion.text}]
            for prompt, completion in zip(prompts, completions, strict=True)
        ],
        "completion_ids": [completion.tokens for completion in completions],
        "ended": [not completion.truncated for completion in completions],
    }
    return arguments | {name: [prompt.columns.get(name) for prompt in prompts] for name in names} | dict(fixed)


def _checked(verdicts: list[float | Odd | None], count: int) -> tuple[list[float | None], dict[int, str]]:
    if len(verdicts) != count:
        raise CallError(f"it returned {len(verdicts)} verdicts for {count} completions; it must return one for each")
    errors = {}
    for place, verdict in enumerate(verdicts):
        if isinstance(verdict, Odd) or (verdict is not None and not math.isfinite(verdict)):
            shown = verdict.shown if isinstance(verdict, Odd) else verdict
            errors[place] = f"it returned {shown}, which is not a finite number"
    return [None if place in errors or isinstance(v, Odd) else v for place, v in enumerate(verdicts)], errors


def _own_name(function: str | Callable[..., Any]) -> str:
    if isinstance(function, str):
        return function.rpartition(":")[2]
    return str(getattr(function, "__name__", type(function).__name__))


def _spec_of(function: Callable[..., Any]) -> str:
    """The name by which another process finds a function."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or module == "__main__" or not name.isidentifier():
        raise ConfigError(
            f"Another process can't find the reward function {_own_name(function)!r}, which is not at the top level of "
            "a module; name it as path/to/file.py:function, or use in_process=True, which has no timeout."
        )
    return f"{module}:{name}"
