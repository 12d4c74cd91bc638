"""What a training run is currently doing, and the listener that measures it.

The code that does the work marks it in one line and does not depend on the listener:

    with doing("backward", tokens=batch.num_tokens):
        loss.backward()

Without a listener this costs one comparison. ``rlhf.training.profile`` has the listener of ``--profile``.
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
"""In display order. ``sampler wait`` is time spent on the sampler process: starting it, sending it weights, waiting
for it; its own time is in no activity. ``scoring`` is the policy's log-probabilities and the critic's values of a
rollout before training on it; ``other`` is everything else."""


class Listener(Protocol):
    """Receives the current activity."""

    def doing(self, what: Activity, tokens: int) -> AbstractContextManager[object]:
        """The activity while entered; nested in another activity, it interrupts that one."""
        ...

    def count(self, what: Activity, tokens: int) -> None:
        """Additional tokens, if their number is known only afterwards."""
        ...

    def loop(self, name: str) -> AbstractContextManager[object]:
        """A training loop runs while this is entered."""
        ...

    def before_phase(self, number: int, num_phases: int) -> None:
        """The loop starts to collect its next training data: the rows of a step, or a rollout for several steps."""
        ...

    def step(self) -> None:
        """An optimizer step is over."""
        ...


_OFF: AbstractContextManager[object] = nullcontext()
_listener: Listener | None = None


def doing(what: Activity, *, tokens: int = 0) -> AbstractContextManager[object]:
    """Context of an activity.

    Args:
        what: One of ``ACTIVITIES``.
        tokens: Distinct tokens that are read or written, if applicable.
    """
    return _OFF if _listener is None else _listener.doing(what, tokens)


def doing_each(what: Activity, items: Iterator[T]) -> Iterator[T]:
    """The same items: producing each counts as this activity, using them does not."""
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
    """Add tokens to an activity whose number of tokens was not known at its start."""
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
    """Context in which this listener is active; there is one at a time."""
    global _listener
    assert _listener is None, "there is a listener already"
    _listener = listener
    try:
        yield
    finally:
        _listener = None
