"""The code of the process that runs a reward function. Standard library only, so that it starts quickly.

Messages over the pipe, pickled, both ways: first (sys.path, function spec) -> (None | Failure); then for each call its
keyword arguments -> (verdicts | None, Failure | None). A verdict is a float, None, or ``Odd`` for anything else.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rlhf.errors import ConfigError, InterruptedRun, did_you_mean, printable, text_of, with_article
from rlhf.rewards.background import run_async

PIPE_CLOSED = 113
"""Exit code where the function closed the pipe: files that it did not open."""
RESERVED = ("prompts", "completions", "completion_ids", "ended")
"""Names that a column can't have, because every reward function gets something else under them."""
OURS = ("truncated",)
"""Columns that the library adds to a user's rows."""
LONGEST_TEXT = 400
"""Characters of an exception's text that a message repeats."""


class Odd(NamedTuple):
    """A verdict that is not a number."""

    shown: str


class Failure(NamedTuple):
    """Why there is no verdict: on one sample, or on all of a call."""

    reason: str
    """Completes "The reward f failed on sample 'p1': ..."; says what to do unless that is obvious."""
    trace: str = ""
    """The function's own traceback, where it raised."""
    hopeless: bool = False
    """It would fail on any samples: it does not exist, can't be imported, or needs columns that the rows don't have."""
    slow: bool = False
    """It took too long."""
    worker_lost: bool = False
    """Its process died or had to be killed."""
    wrong_count: bool = False
    """It returned a list of another length."""


class CallError(Exception):
    """A call gave no verdicts."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def find_function(spec: str) -> Callable[..., Any]:
    """What ``package.module:function`` or ``path/to/file.py:function`` names.

    Raises:
        CallError: It is not there, or its module does not import; says why.
    """
    source, _, name = spec.rpartition(":")
    try:
        module = _module_from_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except (CallError, KeyboardInterrupt, InterruptedRun):
        raise
    except BaseException as err:
        raise CallError(_import_failure(source, err)) from err
    try:
        function = getattr(module, name, None)
    except ConfigError as err:  # of rlhf.rewards.in_memory
        raise _hopeless(str(err).removesuffix(".")) from err
    if not callable(function):
        known = [
            n
            for n, value in vars(module).items()
            if callable(value) and not n.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
        raise _hopeless(
            f"{source} has no function {name!r}.{did_you_mean(name, known)} "
            f"Its functions are: {', '.join(known) or 'none'}"
        )
    function_of_name: Callable[..., Any] = function
    return function_of_name


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[float | Odd | None]:
    """Call with the arguments that the function takes, and bring what it returns to plain numbers.

    Raises:
        CallError: It raised, wants an argument that is not there, or did not return a list.
    """
    positional, keyword = _accepted(function, arguments)
    try:
        result = function(*positional, **keyword)
        if inspect.isawaitable(result):
            result = run_async(result)
        if hasattr(result, "tolist"):
            result = result.tolist()
        if isinstance(result, str | bytes | Mapping) or not isinstance(result, Sequence):
            raise CallError(Failure(_no_list(result)))
        return [_verdict(value) for value in result]
    except (CallError, KeyboardInterrupt, InterruptedRun):
        raise
    except BaseException as err:  # SystemExit and CancelledError are not Exceptions, and would end the training
        failure = _exception_failure(err, _source(function))
        raise CallError(failure._replace(reason=f"{failure.reason}{chat_hint(err, arguments)}")) from err


def chat_hint(err: BaseException, arguments: Mapping[str, Any]) -> str:
    """What to add to an error of a function that was written for texts and was given messages; the empty text otherwise."""
    is_chat = any(not isinstance(prompt, str) for prompt in arguments.get("prompts", ()))
    if not is_chat or not isinstance(err, AttributeError | KeyError | TypeError):
        return ""
    return (
        "; prompts and completions are lists of messages, [{role, content}], because the prompt rows hold messages: see "
        "docs/rewards.md"
    )


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments: all where it takes ``**``, else those that it names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return [], dict(arguments)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [p for p in parameters if p.kind in kinds]
    missing = [p.name for p in named if p.default is p.empty and p.name not in arguments]
    if missing:
        own = sorted(name for name in arguments if name not in (*RESERVED, *OURS))
        raise _hopeless(
            f"it wants {', '.join(missing)}, which the prompt rows don't have (they have {', '.join(own) or 'no other columns'})."
            f"{did_you_mean(missing[0], own)} Add the column, give it in `arguments`, or give the parameter a default"
        )
    first = [p.name for p in named if p.kind is p.POSITIONAL_ONLY and p.name in arguments]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = set(arguments if takes_all else (p.name for p in named)) - set(first)
    return [arguments[name] for name in first], {name: value for name, value in arguments.items() if name in names}


def _verdict(value: Any) -> float | Odd | None:
    if value is None:
        return None
    if isinstance(value, str | bytes):
        return Odd(_shown(value))
    try:
        return float(value)
    except Exception:
        return Odd(_shown(value))


def _no_list(result: Any) -> str:
    advice = {
        type(None): "is a `return` missing?",
        tuple: "",
        dict: "return the values alone, in the order of the completions",
    }.get(type(result), "return a list with a number or None for each completion")
    what = "None" if result is None else f"{with_article(type(result).__name__)}"
    return f"it returned {what} instead of a list of numbers; {advice}"


def _module_from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise _hopeless(f"there is no file {path}")
    name = f"rlhf_user_{path.stem}"
    description = importlib.util.spec_from_file_location(name, path)
    if description is None or description.loader is None:
        raise _hopeless(f"{path} can't be read as Python")
    module = importlib.util.module_from_spec(description)
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        description.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_failure(source: str, err: BaseException) -> Failure:
    if isinstance(err, SyntaxError):
        failure = Failure(f"it is not valid Python: {printable(err.msg)} ({err.filename}, line {err.lineno})")
    elif isinstance(err, ModuleNotFoundError) and err.name and f"{source}.".startswith(f"{err.name}."):
        failure = Failure(f"there is no module {source!r}")
    elif isinstance(err, SystemExit):
        raised = _exception_failure(err, source)
        reason = raised.reason.partition(";")[0].removeprefix("it ")
        failure = Failure(
            f'importing it {reason}; put what the script does under `if __name__ == "__main__":`', raised.trace
        )
    else:
        raised = _exception_failure(err, source)
        failure = Failure(f"importing {raised.reason}", raised.trace)
    return failure._replace(hopeless=True)


def _exception_failure(err: BaseException, source: str) -> Failure:
    """What was raised and where: the innermost line of the function's own file, or else the innermost of all."""
    trace = err.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if source and os.path.realpath(frame.filename) == os.path.realpath(source)]
    where = [f" ({frame.filename}, line {frame.lineno})" for frame in (own or frames)[-1:]]
    if isinstance(err, SystemExit):
        what = f"it called sys.exit({'' if err.code is None else repr(err.code)})"
        advice = "; a reward function must return, or raise an error"
    else:
        text = _text(err)
        what, advice = f"it raised {type(err).__name__}{': ' if text else ''}{text}", ""
    lines = traceback.format_exception(type(err), err, trace)
    return Failure(f"{what}{''.join(where)}{advice}", printable("".join(lines)))


def _source(function: Callable[..., Any]) -> str:
    """The file that a function was written in; the empty text where that is not known."""
    inner = getattr(function, "func", function)  # a functools.partial
    if not hasattr(inner, "__code__"):  # an object with __call__
        inner = vars(type(inner)).get("__call__", inner)
    return str(getattr(getattr(inner, "__code__", None), "co_filename", ""))


def _text(err: BaseException) -> str:
    """The message of an exception, on one line."""
    text = " ".join(text_of(err).split())
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ..."


def _shown(value: Any) -> str:
    try:
        return printable(repr(value)[:80])
    except Exception:
        return f"{with_article(type(value).__name__)}"


def _hopeless(reason: str) -> CallError:
    return CallError(Failure(reason, hopeless=True))


def main(descriptor: int) -> None:
    """Serve calls until the other end of the pipe closes; where the function closed our end, exit with ``PIPE_CLOSED``."""
    os.set_inheritable(descriptor, False)  # a program that the function starts must not keep the pipe open
    pipe = Connection(descriptor)
    try:
        sys.path[:], spec = pipe.recv()
        try:
            function = find_function(spec)
        except CallError as err:
            pipe.send(err.failure)
            return
        pipe.send(None)
        while True:
            message = pipe.recv_bytes()
            try:
                pipe.send((call(function, _unpickled(message)), None))
            except CallError as err:
                pipe.send((None, err.failure))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
    except OSError:  # the descriptor is closed, or something else by now
        os._exit(PIPE_CLOSED)


def _unpickled(message: bytes) -> Mapping[str, Any]:
    try:
        arguments: Mapping[str, Any] = pickle.loads(message)
    except Exception as err:
        raise _hopeless(
            f"a column can't be read in another process ({type(err).__name__}: {_text(err)}); use in_process"
        ) from err
    return arguments
