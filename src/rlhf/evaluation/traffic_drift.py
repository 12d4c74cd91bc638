"""Whether what a server is asked, and how good its answers are, still looks like the evaluation set: tests with a stated rate of false alarms.

Each number that is watched fills windows of so many values, none of which is in two windows. A full window is compared with the
reference by the two-sample Kolmogorov-Smirnov test. The k-th window of a week may raise a false alarm with probability

    alpha_k = alpha * 6 / (pi^2 k^2) / (how many numbers are watched),

which sums to alpha over any number of windows: however much traffic there is, a week in which nothing has changed has an alarm with
probability alpha at most (union bound, so the numbers and windows need not be independent of each other). Ties, as lengths in tokens
have them, make the test say less, not more.

It holds where the values of the reference and of the traffic are drawn alike and independently. Users who send the same thing again
and again are no independent draws, and such traffic raises alarms that are true in one sense and of no use.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf.errors import ConfigError

WEEK_SECONDS = 7 * 86_400.0
MIN_REFERENCE = 50
"""Values; with fewer only the grossest changes could be seen."""


class UnigramSurprise:
    """How unusual the tokens of a text are beside those of other texts: -log p in nats, the mean over its tokens, with one added to each count.

    Args:
        texts: Token ids of each text.
        vocabulary: Ids are below it.
    """

    def __init__(self, texts: Sequence[Sequence[int]], *, vocabulary: int) -> None:
        counts = Counter(token for text in texts for token in text)
        self._counts, self._log_total = counts, math.log(counts.total() + vocabulary)

    def __call__(self, text: Sequence[int]) -> float:
        """Of at least one token."""
        return self._log_total - math.fsum(math.log1p(self._counts.get(token, 0)) for token in text) / len(text)


@dataclass(frozen=True, slots=True)
class WindowTest:
    """One full window beside the reference."""

    name: str
    """Of the number."""
    statistic: float
    """Largest distance of the two distribution functions, 0 to 1."""
    p_value: float
    threshold: float
    """Below it the window is an alarm."""

    @property
    def is_alarm(self) -> bool:
        """Whether the window looks unlike the reference."""
        return self.p_value < self.threshold


class DriftWatch:
    """Watches several numbers of the same traffic.

    Args:
        reference: Name of a number -> its values in the evaluation set.
        window: Values in a window.
        false_alarms: alpha, the probability of an alarm in a week in which nothing has changed.
        clock: Seconds; weeks begin with the watch.

    Raises:
        ConfigError: A reference is too small.
    """

    def __init__(
        self,
        reference: Mapping[str, Sequence[float]],
        *,
        window: int = 200,
        false_alarms: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, values in reference.items():
            if len(values) < MIN_REFERENCE:
                raise ConfigError(
                    f"The evaluation set gives {len(values)} values of {name}; drift is measured against {MIN_REFERENCE} or more."
                )
        self._reference = {name: np.asarray(values, dtype=np.float64) for name, values in reference.items()}
        self.window, self.false_alarms, self._clock = window, false_alarms, clock
        self._start = clock()
        self._filled: dict[str, list[float]] = {name: [] for name in reference}
        self._in_week: dict[str, tuple[int, int]] = dict.fromkeys(reference, (0, 0))
        """(week, windows that were compared in it)."""

    @property
    def names(self) -> list[str]:
        """Of the numbers that are watched."""
        return list(self._reference)

    def filled(self, name: str) -> int:
        """Values in the window that is not full yet."""
        return len(self._filled[name])

    def add(self, name: str, value: float) -> WindowTest | None:
        """Take a value; gives a test where it was the last of a window."""
        values = self._filled[name]
        values.append(value)
        if len(values) < self.window:
            return None
        self._filled[name] = []
        week = int((self._clock() - self._start) // WEEK_SECONDS)
        last_week, windows = self._in_week[name]
        number = windows + 1 if week == last_week else 1
        self._in_week[name] = (week, number)
        threshold = self.false_alarms * 6 / (math.pi**2 * number**2) / len(self._reference)
        from scipy.stats import ks_2samp  # here: a server without a reference does not need its 30 MiB

        statistic, p_value = ks_2samp(values, self._reference[name])
        return WindowTest(name, float(statistic), float(p_value), threshold)
