"""Who takes which micro-batch of a step: everyone as many, of about the same cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def share_of(costs: Sequence[int], *, rank: int, size: int) -> list[tuple[int, bool]]:
    """Which pieces of work a rank takes, and whether each counts.

    Pieces are dealt from the most expensive to the cheapest, to and fro, so that all ranks have about the same to do. Every
    rank takes as many, because each is a number of collectives that all ranks take part in: where there are too few, a
    rank takes the cheapest once more, with no weight.

    Args:
        costs: Of all pieces; at least one.
        rank: From 0 to ``size - 1``.
        size: Ranks; a single one takes everything in order.

    Returns:
        (index of a piece, whether it counts) in the rank's order; over all ranks each piece counts once.
    """
    if size == 1:
        return [(index, True) for index in range(len(costs))]
    order = sorted(range(len(costs)), key=lambda index: (-costs[index], index))
    share = []
    for first in range(0, len(order), size):
        dealt = order[first : first + size]
        place = rank if first // size % 2 == 0 else size - 1 - rank
        share.append((dealt[place], True) if place < len(dealt) else (order[-1], False))
    return share


def even_limit(count: Callable[[int], int], *, limit: int, size: int) -> int:
    """The smallest limit of a micro-batch that cuts a step into as many micro-batches as all ranks take turns.

    Args:
        count: Limit -> number of micro-batches; never rises with the limit.
        limit: The largest that is allowed.
        size: Ranks; with a single one nothing is cut finer.
    """
    if size == 1:
        return limit
    wanted = -(-count(limit) // size) * size
    low, high = 1, limit
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if count(middle) <= wanted else (middle + 1, high)
    return high
