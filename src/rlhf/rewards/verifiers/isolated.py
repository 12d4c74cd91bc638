"""Verifiers that may hang or use too much memory, in a process that can be killed; a light module, because that process imports it."""

from __future__ import annotations

import importlib
import logging
import resource
from collections.abc import Mapping
from typing import Any

from rlhf.rewards.verifiers.answers import BadReferenceError

MEMORY_BYTES = 4 << 30
VERIFIERS = "rlhf.rewards.verifiers."


def judge(verifier: str, text: str | None, reference: Any, options: Mapping[str, Any]) -> list[Any]:
    """Called in the worker, with one completion; or with None, so that no completion waits for what a verifier loads.

    Returns:
        Score and format; or None, where memory ran out; or nothing, where the reference can't be read.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    logging.disable()  # math-verify tells every expression that it can't read
    module = importlib.import_module(f"{VERIFIERS}{verifier}")
    if text is None:
        module.prepare()
        return []
    try:
        verdict = module.verify(text, reference, **options)
    except BadReferenceError:
        return []
    except (MemoryError, RecursionError):
        return [None]
    return [verdict.score, float(verdict.formatted)]
