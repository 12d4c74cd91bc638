"""The numbers of the status page: those that Prometheus reads, looked at as a Prometheus would, over the last minutes and since the start."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry

SNAPSHOT_SECONDS = 10.0
WINDOW_SECONDS = 300.0
"""What "recent" means; shorter while the server is younger."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

Labels = tuple[tuple[str, str], ...]
Snapshot = Mapping[tuple[str, Labels], float]
"""(name of a sample without the prefix, its labels) -> value."""


class MetricsHistory:
    """Snapshots of a server's metrics.

    Args:
        registry: Of the metrics.
        clock: Seconds.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry, self._clock = registry, clock
        self._kept: deque[tuple[float, Snapshot]] = deque([(clock(), self._snapshot())])

    async def keep(self) -> None:
        """Take a snapshot now and then, until canceled."""
        while True:
            await asyncio.sleep(SNAPSHOT_SECONDS)
            self.take()

    def take(self) -> None:
        """Keep the numbers of this moment, and forget those that are too old."""
        now = self._clock()
        self._kept.append((now, self._snapshot()))
        while len(self._kept) > 2 and self._kept[1][0] <= now - WINDOW_SECONDS:
            self._kept.popleft()

    def look(self) -> Look:
        """The numbers of this moment beside those of some minutes ago."""
        then, earlier = self._kept[0]
        return Look(self._snapshot(), earlier, self._clock() - then)

    def _snapshot(self) -> Snapshot:
        return {
            (sample.name.removeprefix("rlhf:"), tuple(sorted(sample.labels.items()))): float(sample.value)
            for metric in self._registry.collect()
            for sample in metric.samples
        }


class Look:
    """The numbers of a moment.

    Args:
        now: All of them.
        earlier: Those of the beginning of the window.
        seconds: Length of the window.
    """

    def __init__(self, now: Snapshot, earlier: Snapshot, seconds: float) -> None:
        self._now, self._earlier, self.seconds = now, earlier, seconds

    def value(self, name: str) -> float:
        """A number without labels."""
        return self._now.get((name, ()), 0.0)

    def by_label(self, name: str, label: str) -> dict[str, int]:
        """A counter by one of its labels, since the start."""
        return {
            dict(labels)[label]: int(value)
            for (sample, labels), value in sorted(self._now.items())
            if sample == f"{name}_total" and label in dict(labels)
        }

    def rate(self, name: str) -> float | None:
        """What a counter grew by in a second of the window, over all labels; None before there is a window."""
        return self._grown(f"{name}_total") / self.seconds if self.seconds > 0 else None

    def latency(self, name: str) -> dict[str, Any]:
        """Quantiles of a histogram, recent and since the start, in seconds; null where nothing was measured or it lies above
        ``max_bucket``."""
        now = self._buckets(self._now, name)
        before = self._buckets(self._earlier, name)
        recent = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
        bounds = [bound for bound in now if math.isfinite(bound)]
        return {
            "recent": _quantiles(recent),
            "since_start": _quantiles(now),
            "max_bucket": max(bounds, default=None),
        }

    def _grown(self, sample: str) -> float:
        return math.fsum(
            value - self._earlier.get((name, labels), 0.0)
            for (name, labels), value in self._now.items()
            if name == sample
        )

    @staticmethod
    def _buckets(snapshot: Snapshot, name: str) -> dict[float, float]:
        """Upper bound -> how many were not above it, in the order of the bounds."""
        buckets = {
            float(dict(labels)["le"]): value
            for (sample, labels), value in snapshot.items()
            if sample == f"{name}_bucket"
        }
        return dict(sorted(buckets.items()))


def _quantiles(buckets: Mapping[float, float]) -> dict[str, Any]:
    told: dict[str, Any] = {name: bucket_quantile(buckets, share) for name, share in QUANTILES.items()}
    return told | {"count": int(max(buckets.values(), default=0.0))}


def bucket_quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """A quantile from cumulative counts, values taken as spread evenly within a bucket: Prometheus's ``histogram_quantile``.

    Source: https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile.

    Args:
        buckets: Upper bound -> how many were not above it, in the order of the bounds, the last one infinite.
        share: In (0, 1).

    Returns:
        None where there are no values, or the quantile lies above the last finite bound.
    """
    total = max(buckets.values(), default=0.0)
    if not total:
        return None
    wanted = share * total
    for (low, below), (high, count) in itertools.pairwise([(0.0, 0.0), *buckets.items()]):
        if count >= wanted:
            return low + (high - low) * (wanted - below) / (count - below) if math.isfinite(high) else None
    return None
