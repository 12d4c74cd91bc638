"""Numbers as people write them, on the console and in reports alike; loads nothing but the standard library.

There is one minus sign, the one of every keyboard: a number can be searched for and copied from the page to the console. Shares are
printed as percentages, their changes as percentage points; what was not measured says so and is never a 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

ROUNDING = 1e-9
"""What is smaller is printed as 0, without a sign."""


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
    return {0: "never", 1: "once"}.get(count, f"{count:,} times")


def plain_number(value: Any, digits: int = 2) -> str:
    """A number in a few digits."""
    found = number(value)
    if found is None:
        return "not measured"
    found = 0.0 if abs(found) < ROUNDING else found
    if found == 0 or 0.01 <= abs(found) < 100:
        return f"{found:,.{digits}f}"
    if abs(found) < 1e6:
        return (
            f"{found:.{digits}g}"
            if abs(found) < 1
            else f"{found:,.{max(0, digits - (1 if abs(found) < 10_000 else 2))}f}"
        )
    return f"{found:.{digits + 1}g}"


def signed_number(value: Any, digits: int = 2) -> str:
    """With its sign, also where it is positive."""
    found = number(value)
    if found is None:
        return plain_number(value)
    text = plain_number(abs(found), digits)
    return f"{'-' if found < 0 and text.strip('0.') else '+'}{text}"


def percentage(value: Any, digits: int = 1) -> str:
    """A share, rounded before it is multiplied: where the console says 0.993 this says 99.3, and not 99.2 for 0.9925."""
    found = number(value)
    return "not measured" if found is None else f"{100 * round(found, digits + 2) + 0.0:.{digits}f}\u202f%"


def percentage_points(value: Any) -> str:
    """A change of a share."""
    found = number(value)
    return "not measured" if found is None else f"{100 * round(found, 3) + 0.0:+.1f}\u202fpp"


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


def told_apart(first: float, second: float) -> tuple[str, str]:
    """Two numbers that differ, in as many digits as it takes to see it."""
    digits = digits_for(first, second)
    return plain_number(first, digits), plain_number(second, digits)


def digits_for(*values: float, digits: int = 2) -> int:
    """As many digits as it takes to see that values differ which do."""
    different = len(set(values))
    while digits < 12 and len({plain_number(value, digits) for value in values}) < different:
        digits += 1
    return digits
