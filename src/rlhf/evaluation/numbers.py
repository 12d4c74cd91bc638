"""Formatting of numbers for the console and for reports; imports only the standard library.

The minus sign is the ASCII one: a number can be searched for and copied from the page to the console. Shares are
printed as percentages, their changes as percentage points; a missing measurement is printed as such and never as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

ROUNDING = 1e-9
"""Smaller values are printed as 0, without a sign."""


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def number(value: Any, otherwise: float | None = None) -> float | None:
    """The value if it is a finite number, else something else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return otherwise
    return float(value)


def times(count: int) -> str:
    """A count as an adverb."""
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
    """With its sign, also if it is positive."""
    found = number(value)
    if found is None:
        return plain_number(value)
    text = plain_number(abs(found), digits)
    return f"{'-' if found < 0 and text.strip('0.') else '+'}{text}"


def percentage(value: Any, digits: int = 1) -> str:
    """A share, rounded before it is multiplied: for 0.9925 the console prints 0.993, so this gives 99.3 and not 99.2."""
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
    """'low to high', or an empty string without an interval."""
    if number(estimate.get("low")) is None or number(estimate.get("high")) is None:
        return ""
    return f"{formatted(estimate['low'], share, signed)} to {formatted(estimate['high'], share, signed)}"


def shares_of_100(counts: Sequence[int]) -> list[int]:
    """Whole percentages that add up to 100 (largest remainder; the first of equals gets more); zeros if nothing was counted."""
    total = sum(counts)
    if total <= 0:
        return [0 for _ in counts]
    floors = [100 * count // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda i: (-(100 * counts[i] % total), i))
    for i in by_remainder[: 100 - sum(floors)]:
        floors[i] += 1
    return floors


def told_apart(first: float, second: float) -> tuple[str, str]:
    """Two different numbers, with as many digits as needed to see the difference."""
    digits = digits_for(first, second)
    return plain_number(first, digits), plain_number(second, digits)


def digits_for(*values: float, digits: int = 2) -> int:
    """The number of digits needed to distinguish different values."""
    different = len(set(values))
    while digits < 12 and len({plain_number(value, digits) for value in values}) < different:
        digits += 1
    return digits
