"""What a training run is doing at this moment, and who listens.

The rooms that do the work say so in one line, and know nothing of who measures:

    with doing("backward", tokens=batch.num_tokens):
        loss.backward()

Without a listener that is one comparison. ``rlhf.training.profile`` has the one that ``--profile`` sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol, TypeVar, get_args

T = TypeVar("T")
Activity = Literal[
    "data",
    "rollout prefill",
    "rollout decode",
    "sampler wait",
    "reward",
    "reference",
    "scoring",
    "forward",
    "backward",
    "optimizer",
    "checkpoint",
    "evaluation",
    "other",
]
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)
"""In the order in which they are shown. ``sampler wait`` is what goes into a process that samples beside this one: starting it, handing
it weights, waiting for it; what it spends itself is in no activity. ``scoring`` is what the policy itself and its critic say of a
rollout before they learn from it; ``other`` is what nobody claims."""


class Listener(Protocol):
    """Who is told what goes on."""

    def doing(self, what: Activity, tokens: int) -> AbstractContextManager[object]:
        """This goes on as long as it is entered; inside another activity it interrupts that."""
        ...

    def count(self, what: Activity, tokens: int) -> None:
        """So many more tokens: where that is known only afterwards."""
        ...

    def loop(self, name: str) -> AbstractContextManager[object]:
        """A training loop lasts as long as this is entered."""
        ...

    def before_phase(self, number: int, num_phases: int) -> None:
        """The loop begins to collect what it learns from next: the rows of a step, or a rollout for several."""
        ...

    def step(self) -> None:
        """An optimizer step is over."""
        ...


_OFF: AbstractContextManager[object] = nullcontext()
_listener: Listener | None = None


def doing(what: Activity, *, tokens: int = 0) -> AbstractContextManager[object]:
    """What goes on inside.

    Args:
        what: One of ``ACTIVITIES``.
        tokens: Distinct tokens that are read or written, where that has a meaning.
    """
    return _OFF if _listener is None else _listener.doing(what, tokens)


def doing_each(what: Activity, items: Iterator[T]) -> Iterator[T]:
    """The same items: making each of them is this activity, and what is done with them is not."""
    return items if _listener is None else _heard(what, items)


def _heard(what: Activity, items: Iterator[T]) -> Iterator[T]:
    end = object()
    while True:
        with doing(what):
            item: Any = next(items, end)
        if item is end:
            return
        yield item


def count_tokens(what: Activity, tokens: int) -> None:
    """Add tokens to an activity that could not say at its beginning how many there will be."""
    if _listener is not None:
        _listener.count(what, tokens)


def training_loop(name: str) -> AbstractContextManager[object]:
    """A training loop runs inside."""
    return _OFF if _listener is None else _listener.loop(name)


def before_phase(number: int, num_phases: int) -> None:
    """Phase ``number`` of the loop, from 0, begins: collecting, and the steps with what was collected."""
    if _listener is not None:
        _listener.before_phase(number, num_phases)


def step_done() -> None:
    """An optimizer step is over."""
    if _listener is not None:
        _listener.step()


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Inside, this one is told; there is one at a time."""
    global _listener
    assert _listener is None, "somebody listens already"
    _listener = listener
    try:
        yield
    finally:
        _listener = None
