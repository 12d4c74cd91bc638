"""Numbers as people read them, on the console, in messages, alarms, reports and on the web page.

    2,500    92.4 %    +1.5 pp    0.69 to 0.81    16.0 MiB    3 min 20 s    not measured

There is one minus sign, the one of every keyboard: a number can be searched for and copied from the page to the console. Between a
number and its percent sign is a narrow space that does not break. Shares are printed as percentages, their changes as percentage
points; what was not measured says so and is never a 0. Loads nothing but the standard library.
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
    x = number(value)
    if x is None:
        return "not measured"
    x = 0.0 if abs(x) < ROUNDING else x
    if x == 0 or 0.01 <= abs(x) < 100:
        return f"{x:,.{digits}f}"
    if abs(x) < 1e6:
        return f"{x:.{digits}g}" if abs(x) < 1 else f"{x:,.{max(0, digits - (1 if abs(x) < 10_000 else 2))}f}"
    return f"{x:.{digits + 1}g}"


def rounded(value: float, digits: int = 2, *, sign: bool = False) -> str:
    """A number with so many digits, without a minus where it is shown as zero; with ``sign`` every other one has its sign."""
    return f"{round(value, digits) + 0.0:{'+' if sign else ''}.{digits}f}"


def signed_number(value: Any, digits: int = 2) -> str:
    """With its sign, also if it is positive."""
    x = number(value)
    if x is None:
        return plain_number(value)
    text = plain_number(abs(x), digits)
    return f"{'-' if x < 0 and text.strip('0.') else '+'}{text}"


def percentage(value: Any, digits: int = 1) -> str:
    """A share, rounded before it is multiplied: for 0.9925 the console prints 0.993, so this gives 99.3 and not 99.2."""
    share = number(value)
    return "not measured" if share is None else f"{100 * round(share, digits + 2) + 0.0:.{digits}f}\u202f%"


def percentage_points(value: Any) -> str:
    """A change of a share."""
    share = number(value)
    return "not measured" if share is None else f"{100 * round(share, 3) + 0.0:+.1f}\u202fpp"


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


def bytes_text(count: float) -> str:
    """``512 bytes``, ``16.0 MiB``, ``1,024.5 TiB``."""
    if count < 1024:
        return f"{count:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:,.1f} TiB"


def seconds_text(number: float) -> str:
    """``1.5 h``, ``12.0 min``, ``3.20 s``, ``4.1 ms``: a duration to compare with others."""
    if number >= 3600:
        return f"{number / 3600:,.1f} h"
    if number >= 90:
        return f"{number / 60:.1f} min"
    return f"{number:.2f} s" if number >= 0.1 else f"{number * 1000:.1f} ms"


def duration(value: Any) -> str:
    """Seconds: ``8.2 s``, ``45 s``, ``3 min 20 s``, ``2 h 5 min``."""
    x = number(value)
    if x is None:
        return "unknown"
    if x < 60:
        return f"{x:.1f} s" if x < 10 else f"{x:.0f} s"
    minutes, seconds = divmod(round(x), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
