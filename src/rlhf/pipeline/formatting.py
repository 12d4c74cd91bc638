"""Numbers in a sentence."""

from __future__ import annotations


def rounded(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """A number that has no minus where it is shown as zero; with ``sign`` every other one has a plus or a minus."""
    return f"{round(value, digits) + 0.0:{'+' if sign else ''}.{digits}f}"
