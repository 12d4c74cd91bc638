"""What the process runs that runs a reward function. Standard library only, so that it starts quickly.

Messages over the pipe, pickled, both ways: first (sys.path, function spec) -> (None | error); then for each call its
keyword arguments -> (verdicts | None, error | None). A verdict is a float, None, or ``Odd`` for anything else.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class Odd(NamedTuple):
    """A verdict that is not a number."""

    shown: str


class CallError(Exception):
    """A function could not be found, raised, or did not return a list of the right length."""


def find_function(spec: str) -> Callable[..., Any]:
    """What ``package.module:function`` or ``path/to/file.py:function`` names.

    Raises:
        CallError: It is not there, or its module does not import; says why.
    """
    source, _, name = spec.rpartition(":")
    try:
        module = _module_from_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except Exception as err:
        own = isinstance(err, ModuleNotFoundError) and err.name is not None and source.startswith(err.name)
        reason = f"there is no module {source!r}" if own else f"importing it raised {type(err).__name__}: {err}"
        raise CallError(reason) from err
    function = getattr(module, name, None)
    if not callable(function):
        known = ", ".join(n for n, value in vars(module).items() if callable(value) and not n.startswith("_")) or "none"
        raise CallError(f"{source} has no function {name!r}; its functions are: {known}")
    found: Callable[..., Any] = function
    return found


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[float | Odd | None]:
    """Call with the arguments that the function takes, and bring what it returns to plain numbers.

    Raises:
        CallError: It raised, wants an argument that is not there, or did not return a list.
    """
    try:
        result = function(**_accepted(function, arguments))
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
    except CallError:
        raise
    except Exception as err:
        place = traceback.extract_tb(err.__traceback__)[-1]
        raise CallError(f"it raised {type(err).__name__}: {err} ({place.filename}, line {place.lineno})") from err
    if hasattr(result, "tolist"):
        result = result.tolist()
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Sequence):
        raise CallError(f"it returned a {type(result).__name__} instead of a list of numbers")
    return [_verdict(value) for value in result]


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some builtins have no signature
        return dict(arguments)
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in arguments
    ]
    if missing:
        raise CallError(
            f"it wants {', '.join(missing)}, which the prompt rows don't have; they have {', '.join(arguments)}"
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(arguments)
    names = {p.name for p in parameters}
    return {name: value for name, value in arguments.items() if name in names}


def _verdict(value: Any) -> float | Odd | None:
    if value is None:
        return None
    if isinstance(value, str | bytes):
        return Odd(repr(value)[:80])
    try:
        return float(value)
    except Exception:
        return Odd(repr(value)[:80])


def _module_from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise CallError(f"there is no file {path}")
    name = f"rlhf_user_{path.stem}"
    description = importlib.util.spec_from_file_location(name, path)
    if description is None or description.loader is None:
        raise CallError(f"{path} can't be read as Python")
    module = importlib.util.module_from_spec(description)
    sys.modules[name] = module  # dataclasses and pickle look there
    description.loader.exec_module(module)
    return module


def main(descriptor: int) -> None:
    """Serve calls until the other end of the pipe closes."""
    pipe = Connection(descriptor)
    try:
        sys.path[:], spec = pipe.recv()
        try:
            function = find_function(spec)
        except CallError as err:
            pipe.send(str(err))
            return
        pipe.send(None)
        while True:
            arguments = pipe.recv()
            try:
                pipe.send((call(function, arguments), None))
            except CallError as err:
                pipe.send((None, str(err)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
