"""What a function takes that a recipe names, as plain data that can come from another process."""

from __future__ import annotations

import inspect
from typing import Any

from rlhf.rewards.worker import CallError, find_function


def signature_of(spec: str) -> dict[str, Any]:
    """Import ``package.module:function`` or ``path/to/file.py:function`` and look at its parameters; it is not called.

    Returns:
        ``error``, a sentence, where it is not there or can't be imported. Else ``parameters``, each with its name, kind and whether it
        has a default, or null where nobody knows them; and ``lacks``, the methods of an environment that a class does not have.
    """
    try:
        function = find_function(spec)
    except CallError as err:
        return {"error": str(err)}
    lacks = [name for name in ("reset", "step") if not callable(getattr(function, name, None))]
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # some builtins have no signature
        return {"parameters": None, "lacks": lacks if inspect.isclass(function) else []}
    return {
        "parameters": [[p.name, p.kind.name, p.default is not p.empty] for p in parameters],
        "lacks": lacks if inspect.isclass(function) else [],
    }
