"""Any Python function as a scorer.

It may be slow or buggy: every returned value is checked, and an error names the function and the sample. A call that fails is
repeated sample by sample to find the cause, and a process that dies or hangs is replaced at the next call: a function
that keeps state between calls must handle both.
"""

from __future__ import annotations

import copy
import importlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rlhf.config.base import FUNCTION
from rlhf.config.function_reward import FunctionRewardConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RewardError, kind_of, text_of
from rlhf.rewards.checked_values import NONE_ALONE, checked, refusal, refuse, score_result
from rlhf.rewards.function_process import FunctionProcess
from rlhf.rewards.in_memory import needs_this_process, own_name
from rlhf.rewards.types import CompletionLike, Notify, OnError, RewardContext, ScoreResult, sample_name
from rlhf.rewards.worker import RESERVED, CallError, Failure, Odd, call, find_function

logger = logging.getLogger(__name__)
MAX_LOST_WORKERS = 3
"""Samples on which a function may die or hang, each for the whole timeout, before the remaining ones are skipped."""


MAX_SLOW_AT_FIRST = 2
"""Single samples, the first of a call that took too long, that may take too long too: then it is the function, not they."""


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
        on_error: OnError = "raise",
    ) -> None:
        """Wrap a function; its process starts at the first call.

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
        if not isinstance(function, str) and not callable(function):
            raise ConfigError(
                f"function is {kind_of(function)}; expected a function, or its name as package.module:function."
            )
        self._name = name or _own_name(function)
        self._spec = function if isinstance(function, str) else _own_name(function)
        self.function = function
        """As it was given: itself or its name."""
        self.arguments = dict(arguments or {})
        self.timeout_seconds = timeout_seconds
        self.on_error = on_error
        self.notify: Notify = logger.warning
        """Called with a message when a call took too long, before its samples are tried one by one."""
        self._function: Callable[..., Any] | None = None
        self._process: FunctionProcess | None = None
        if in_process:
            self._function = load_function(function) if isinstance(function, str) else function
        else:
            spec = function if isinstance(function, str) else _spec_of(function)
            check_function_name(spec)
            file = spec.rpartition(":")[0]
            if file.endswith(".py") and not Path(file).is_file():
                raise ConfigError(f"The function {spec!r} can't be used: there is no file {file}.")
            self._process = FunctionProcess(spec)

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        return self._name

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion. A verdict of None is an error here: a function alone must judge every sample.

        Raises:
            RewardError: Names the function and the first sample that it fails on.
        """
        verdicts, failures = self._verdicts(prompts, completions)
        abstained = {place: NONE_ALONE for place, verdict in enumerate(verdicts) if verdict is None}
        failures = abstained | failures
        if self.on_error == "raise":
            refuse(f"The reward {self.name}", failures, prompts, completions)
        return score_result(self.name, verdicts, failures)

    def checked_verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, str]]:
        """Verdicts [n], None where it does not apply or failed, and why it failed on which sample.

        Raises:
            RewardError: It failed, and this scorer was not built to report that.
        """
        verdicts, failures = self._verdicts(prompts, completions)
        if self.on_error == "raise":
            refuse(f"The reward {self.name}", failures, prompts, completions)
        return verdicts, {place: failure.reason for place, failure in failures.items()}

    def start(self) -> None:
        """Start the function's process now, so that a missing function is reported before anything is sampled.

        Raises:
            RewardError: It can't be found, or its module does not import.
        """
        if self._process is not None:
            try:
                self._process.start()
            except CallError as err:
                raise self._unusable(err.failure) from err

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
    ) -> tuple[list[float | None], dict[int, Failure]]:
        """A call that fails as a whole is tried again sample by sample, to find out whose fault it is.

        Raises:
            RewardError: The function can't be used at all, is too slow, or fails on all samples together and on none
                of them alone.
        """
        if not completions:
            return [], {}
        try:
            return checked(self._call(prompts, completions), len(completions))
        except CallError as err:
            together = err.failure
        if together.hopeless:
            raise self._unusable(together)
        if len(completions) == 1:
            return [None], {0: together}
        if together.slow:
            self.notify(
                f"The reward {self.name} did not answer for {len(completions)} completions within {self.timeout_seconds:g} "
                "seconds (timeout_seconds) and was killed; trying them one by one."
            )
        verdicts, failures = self._one_by_one(together, prompts, completions)
        if not failures and together.wrong_count:
            raise refusal(f"The reward {self.name} ({self._spec}) {together.reason.removeprefix('it ')}.", together)
        if not failures:
            raise refusal(
                f"The reward {self.name} failed on {len(completions)} samples together, from "
                f"{sample_name(prompts[0], completions[0])} on, but on none of them alone: {together.reason}.",
                together,
            )
        return verdicts, failures

    def _one_by_one(
        self, together: Failure, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, Failure]]:
        """Verdicts and failures of each sample alone; up to the first failure where that is going to be raised."""
        verdicts: list[float | None] = [None] * len(completions)
        failures: dict[int, Failure] = {}
        seconds, lost = 0.0, 0
        for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            all_slow = place == len(failures) == MAX_SLOW_AT_FIRST and all(f.slow for f in failures.values())
            if lost == MAX_LOST_WORKERS or (together.slow and all_slow):
                return verdicts, failures | self._not_asked(place, lost, len(completions))
            self.start()  # a new process takes time that is not the sample's
            start = time.monotonic()
            try:
                (verdicts[place],), wrong = checked(self._call([prompt], [completion]), 1)
                if wrong:
                    failures[place] = wrong[0]
                seconds += time.monotonic() - start
            except CallError as err:
                if err.failure.hopeless:
                    raise self._unusable(err.failure) from err
                failures[place] = err.failure
                lost += err.failure.worker_lost
            if failures and self.on_error == "raise":
                break
            if together.slow and seconds > self.timeout_seconds:
                raise self._too_slow(place + 1, seconds, len(completions))
        return verdicts, failures

    def _not_asked(self, start: int, lost: int, count: int) -> dict[int, Failure]:
        """The failures of the samples from a place on, after too many that the function died or hung on."""
        reason = f"it was not called, after {lost} samples on which it died or hung"
        if lost == start:
            reason += f" and none that it judged within timeout_seconds ({self.timeout_seconds:g}); raise that"
        return dict.fromkeys(range(start, count), Failure(reason))

    def _call(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> list[float | Odd | None]:
        """One call on copies, so that whatever the function does to its arguments is its own affair."""
        arguments = function_arguments(prompts, completions, self.arguments)
        if self._process is not None:
            return self._process.call(arguments, self.timeout_seconds)
        assert self._function is not None
        try:
            arguments = copy.deepcopy(arguments)
        except Exception as err:
            reason = f"a column can't be copied ({type(err).__name__}: {text_of(err)}), and a function gets copies only"
            raise CallError(Failure(reason, hopeless=True)) from err
        return call(self._function, arguments)

    def _unusable(self, failure: Failure) -> RewardError:
        return refusal(f"The reward {self.name} can't be used: {failure.reason}.", failure)

    def _too_slow(self, done: int, seconds: float, count: int) -> RewardError:
        return RewardError(
            f"The reward {self.name} did not judge {count} samples within timeout_seconds ({self.timeout_seconds:g}). None "
            f"of the first {done} hangs: one by one they took {seconds:.3g} seconds. Set timeout_seconds to "
            f"{math.ceil(2 * seconds / done * count)} or more, or make the function faster."
        )


def build_function(spec: FunctionRewardConfig, at: RewardContext) -> FunctionReward:
    """A user's function."""
    return FunctionReward(
        spec.function,
        name=spec.name,
        arguments=spec.arguments,
        timeout_seconds=spec.timeout_seconds,
        in_process=spec.in_process,
        on_error=at.on_error,
    )


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


def _own_name(function: str | Callable[..., Any]) -> str:
    return function.rpartition(":")[2] if isinstance(function, str) else own_name(function)


def _spec_of(function: Callable[..., Any]) -> str:
    """The name by which another process finds a function."""
    if needs_this_process(function):
        raise ConfigError(
            f"Another process can't find the reward function {_own_name(function)!r}, which is not at the top level of "
            "a module; name it as path/to/file.py:function, or use in_process=True, which has no timeout."
        )
    return f"{function.__module__}:{function.__qualname__}"
