"""Numbers as people write them, on the console and in reports alike; loads nothing but the standard library.

There is one minus sign, the one of every keyboard: a number can be searched for and copied from the page to the console. Shares are
printed as percentages, their changes as percentage points; what was not measured says so and is never a 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def number(value: Any, otherwise: float | None = None) -> float | None:
    """The value if it is a finite number, else something else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return otherwise
    return float(value)


def times(count: int) -> str:
    """How often."""
    return "once" if count == 1 else f"{count:,} times"


def plain_number(value: Any, digits: int = 2) -> str:
    """A number in a few digits."""
    found = number(value)
    if found is None:
        return "not measured"
    found += 0.0  # no sign for a zero
    if found == 0 or 0.01 <= abs(found) < 10_000:
        return f"{found:,.{digits}f}" if abs(found) < 100 else f"{found:,.{max(0, digits - 1)}f}"
    return f"{found:.2g}" if abs(found) < 1 else f"{found:.3g}"


def signed_number(value: Any, digits: int = 2) -> str:
    """With its sign, also where it is positive."""
    found = number(value)
    return plain_number(value) if found is None else f"{'+' if found >= 0 else '-'}{plain_number(abs(found), digits)}"


def percentage(value: Any, digits: int = 1) -> str:
    """A share, rounded before it is multiplied: where the console says 0.993 this says 99.3, and not 99.2 for 0.9925."""
    found = number(value)
    return "not measured" if found is None else f"{100 * round(found, digits + 2) + 0.0:.{digits}f}\u202f%"


def percentage_points(value: Any) -> str:
    """A change of a share."""
    found = number(value)
    return "not measured" if found is None else f"{signed_number(100 * found, 1)}\u202fpp"


def formatted(value: Any, share: bool = False, signed: bool = False) -> str:
    """A value as its kind is printed: a share or not, a change or not."""
    if share:
        return percentage_points(value) if signed else percentage(value)
    return signed_number(value) if signed else plain_number(value)


def interval(estimate: Mapping[str, Any], share: bool = False, signed: bool = False) -> str:
    """'low to high', or nothing where there is no interval."""
    if number(estimate.get("low")) is None or number(estimate.get("high")) is None:
        return ""
    return f"{formatted(estimate['low'], share, signed)} to {formatted(estimate['high'], share, signed)}"


def shares_of_100(counts: Sequence[int]) -> list[int]:
    """Whole percentages that add up to 100 (largest remainder; the first of equals gets more); zeros where nothing was counted."""
    total = sum(counts)
    if total <= 0:
        return [0 for _ in counts]
    floors = [100 * count // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda i: (-(100 * counts[i] % total), i))
    for i in by_remainder[: 100 - sum(floors)]:
        floors[i] += 1
    return floors


def told_apart(first: float, second: float, digits: int = 2) -> tuple[str, str]:
    """Two numbers that differ, in as many digits as it takes to see it."""
    while digits < 6 and plain_number(first, digits) == plain_number(second, digits):
        digits += 1
    return plain_number(first, digits), plain_number(second, digits)
