"""The answer is the right expression, according to math-verify; sympy may not terminate, so this runs in a worker."""

from __future__ import annotations

import importlib
from typing import Any

from rlhf.rewards.verifiers.answers import BadReferenceError, Verdict


def check_reference(reference: Any) -> None:
    """Refuse what is not text.

    Raises:
        BadReferenceError: It is not.
    """
    if not isinstance(reference, str | int | float) or not str(reference).strip():
        raise BadReferenceError(f"holds {str(reference)[:60]!r}; wanted a LaTeX expression")


def prepare() -> None:
    """Load math-verify and let it build its parser, which takes seconds on a busy machine."""
    verify("$1$", "1")


def verify(text: str, reference: Any) -> Verdict:
    """1 where the completion's last expression equals the reference's.

    Args:
        text: The completion.
        reference: LaTeX, with or without dollar signs.

    Raises:
        BadReferenceError: math-verify finds no expression in the reference.
    """
    math_verify: Any = importlib.import_module("math_verify")
    parse = math_verify.parse

    # Their own time limits are alarms of the same clock that a caller may use; ours is the worker's end.
    reference = str(reference)
    wanted = parse(reference if "$" in reference or "\\boxed" in reference else f"${reference}$", parsing_timeout=None)
    if not wanted:
        raise BadReferenceError(f"holds {reference[:60]!r}, in which math-verify finds no expression")
    parsed = parse(text, parsing_timeout=None)
    if not parsed:
        return Verdict(0.0, False)
    return Verdict(float(math_verify.verify(wanted, parsed, timeout_seconds=None)), "\\boxed" in text)
