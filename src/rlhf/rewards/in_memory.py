"""Functions that only this process has, such as lambdas, under names that a recipe can hold.

``name_of`` gives such a function a name like ``rlhf.rewards.in_memory:brief_3f2a9c0d1b22``, and this module is where that name is
looked up. The digits are a hash of the function's source code, its defaults and the values that it uses from outside: the key of a
stage is made of the settings, so a stage made with another function is not taken for this one. Where the code or one of the values
can't be read, the digits are random and no stage is ever reused.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import CodeType, FunctionType, ModuleType
from typing import Any

from rlhf.errors import ConfigError

PREFIX = f"{__name__}:"
UNREADABLE = "_unreadable_"
"""In the name of a function whose code or values can't be read."""
_NAME = re.compile(r"(?P<own>\w+?)(_unreadable)?_[0-9a-f]{12}")
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def name_of(function: Callable[..., Any]) -> str:
    """``package.module:function`` where another process can import the function, else a name in this process."""
    if not needs_this_process(function):
        return f"{function.__module__}:{function.__qualname__}"
    own = own_name(function)
    try:
        text = "\n".join(_parts(function, set()))
        name = f"{own}_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    except _UnreadableError:
        name = f"{own}{UNREADABLE}{secrets.token_hex(6)}"
    _FUNCTIONS[name] = function
    return f"{PREFIX}{name}"


def needs_this_process(function: Callable[..., Any]) -> bool:
    """Whether another process could not find a function: one that is not at the top level of a module, such as a lambda."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or module == "__main__" or not name.isidentifier():
        return True
    return getattr(sys.modules.get(module), name, None) is not function or not _is_importable(module)


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # made by hand, such as one of a notebook
        return False


def own_name(function: Callable[..., Any]) -> str:
    """What metrics call a function; ``lambda`` for one without a name."""
    name = str(getattr(function, "__name__", type(function).__name__))
    return re.sub(r"\W", "", name) or "function"


def is_in_memory(text: str) -> bool:
    """Whether a function's name in a recipe is of a function that one process had in memory."""
    return text.startswith(PREFIX)


def settings_of(named: Mapping[str, Any], function: Any) -> dict[str, Any]:
    """Settings with a function's name; they say so where it has to be called in this process.

    Args:
        named: The settings, with ``name_of`` the function under ``function``.
        function: What was given there; a name is left as it is.
    """
    if callable(function) and is_in_memory(named["function"]):
        return {"name": own_name(function), **named, "in_process": True}
    return dict(named)


def warning_about(text: str) -> str:
    """What a run says of a function in memory."""
    parts = _NAME.fullmatch(text.removeprefix(PREFIX))
    own = parts["own"] if parts is not None else text
    never = "; its source code or a value that it uses can't be read, so this stage is never reused" * (
        UNREADABLE in text
    )
    return (
        f"The function {own!r} exists in this process only and is called in place, without a timeout: this stage can't be resumed or "
        f"repeated elsewhere{never}. A function at the top level of an importable module has neither limit."
    )


def __getattr__(name: str) -> Any:
    """The function of a name, for ``rlhf.rewards.worker.find_function``.

    Raises:
        ConfigError: Another process had it.
    """
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise ConfigError(
        f"The function {parts['own']!r} was in the memory of another process, and this one does not have it: repeat the call that was "
        "given the function, such as train_grpo(reward=...), or name one as package.module:function or path/to/file.py:function."
    )


class _UnreadableError(Exception):
    """Nothing says what a value computes."""


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """Texts that differ where what a function computes may differ.

    Raises:
        _UnreadableError: A value is neither plain data nor code.
    """
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | re.Pattern):
        yield repr(value)
    elif isinstance(value, Mapping | Sequence | Set) and type(value).__module__ == "builtins":
        items = value.items() if isinstance(value, Mapping) else value
        inner = ["\n".join(_parts(item, seen)) for item in items]
        yield f"{type(value).__name__} {sorted(inner) if isinstance(value, Set) else inner!r}"
    elif isinstance(value, ModuleType):
        yield value.__name__
    elif isinstance(value, type) or inspect.isbuiltin(value):
        yield f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, type) and value.__module__ == "__main__":
            yield _source(value)
    elif isinstance(value, FunctionType):
        if id(value) not in seen:
            seen.add(id(value))
            yield from _function_parts(value, seen)
    else:
        raise _UnreadableError


def _function_parts(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield _source(function)
    if not needs_this_process(function):
        yield f"{function.__module__}.{function.__qualname__}"
        return
    codes = list(_codes(function.__code__))
    for code in codes:  # two lambdas of one line have one source text
        yield repr((code.co_code, code.co_names, [item for item in code.co_consts if not isinstance(item, CodeType)]))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = {name: _content(cell) for name, cell in cells}
    for name in sorted({name for code in codes for name in code.co_names} & function.__globals__.keys()):
        values[name] = function.__globals__[name]
    for value in (values, function.__defaults__, function.__kwdefaults__):
        yield from _parts(value, seen)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is given its value later
        return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _source(value: Any) -> str:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        raise _UnreadableError from None
