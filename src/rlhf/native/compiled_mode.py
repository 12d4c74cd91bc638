"""Whether the models that are trained or scored here compute in C what is not a large matrix product."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from rlhf.native.library import check_compiler

_IN_C: contextvars.ContextVar[bool] = contextvars.ContextVar("rlhf_in_c", default=False)


@contextlib.contextmanager
def in_c(on: bool) -> Iterator[None]:
    """While this lasts, what can be is computed in C; with False, all of it as torch does.

    Raises:
        ConfigError: There is no C compiler.
    """
    if on:
        check_compiler()
    token = _IN_C.set(on)
    try:
        yield
    finally:
        _IN_C.reset(token)


def is_in_c() -> bool:
    """The last value passed to ``in_c``."""
    return _IN_C.get()
