"""How much of their beginning two sequences share."""

from __future__ import annotations

from typing import TypeVar

SequenceT = TypeVar("SequenceT", str, list[int])


def shared_length(first: SequenceT, second: SequenceT) -> int:
    """Characters or token ids at the beginning that are equal in both; halves the unknown part with each comparison."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    # first[:low] is shared and first[:high] is not.
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
