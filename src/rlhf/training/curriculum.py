"""Prompts by measured pass rate: those that the policy solves now and then come more often, and none is ever removed.

A group in which all completions pass, or none does, has no advantage to learn from (Yu et al. 2025, section 3.2, arXiv:2503.14476), and
the gradient of a prompt with binary rewards is largest in expectation at a pass rate of one half (its variance p (1 - p); Foster and
Foerster 2025, arXiv:2502.12272). The pass rate moves with the policy, so prompts outside the band are asked again, in a stated share.

What is measured is the whole group, by the reward's own scores. A filter on each completion's siblings without itself would drop the one
success among failures, from which most is to be learned (NVIDIA-NeMo/RL pull requests 3469 and 4158); a filter on shaped scores would take
differences in length for differences in success (NVIDIA-NeMo/RL issue 2431).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from rlhf.config.curriculum import CurriculumConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import CheckpointError
from rlhf.training.metrics import Metrics
from rlhf.training.row_order import permutation

NEW, BELOW, INSIDE, ABOVE = "new", "below", "inside", "above"
BANDS = (NEW, BELOW, INSIDE, ABOVE)


class Curriculum:
    """Which prompts come next; in the place of ``row_order.Cycle``.

    ``take`` changes nothing: what comes next depends only on what was measured, the seed and the place in the sequence, so that a
    resumed run asks the same prompts. In each band the prompt that waited longest comes first; those that waited equally long are
    shuffled again each time.
    """

    def __init__(self, prompts: Sequence[Prompt], config: CurriculumConfig, *, seed: int) -> None:
        """Nothing is measured yet.

        Args:
            prompts: All of them, each with an id of its own.
            config: Band and shares.
            seed: The run's.
        """
        self.config = config
        self.seed = seed
        self.place_of = {prompt.id: place for place, prompt in enumerate(prompts)}
        self.rates: list[list[float]] = [[] for _ in prompts]
        """[P] pass rates of the newest visits, oldest first."""
        self.visited: list[int] = [0] * len(prompts)
        """[P] number of the newest visit, counted over all prompts; 0 for none."""
        self.num_visits = 0

    def pass_rate(self, place: int) -> float:
        """Mean over the window; NaN where nothing was measured."""
        rates = self.rates[place]
        return math.fsum(rates) / len(rates) if rates else math.nan

    def band(self, place: int) -> str:
        """Where a prompt stands."""
        rate = self.pass_rate(place)
        if math.isnan(rate):
            return NEW
        return BELOW if rate < self.config.floor else ABOVE if rate > self.config.ceiling else INSIDE

    def take(self, start: int, count: int, *, under_way: Collection[int] = ()) -> list[int]:
        """Prompts for the places ``start .. start + count`` of the endless sequence; each once before any comes twice.

        Args:
            start: First place.
            count: How many.
            under_way: Prompts that are asked and not recorded yet: they count as those that waited least.
        """
        chosen: list[int] = []
        while len(chosen) < count:
            more = min(count - len(chosen), len(self.rates))
            chosen += self._without_repeats(start + len(chosen), more, under_way)
        return chosen

    def _without_repeats(self, start: int, count: int, under_way: Collection[int]) -> list[int]:
        newest = dict.fromkeys(under_way, self.num_visits + 1)

        def last_visit(place: int) -> int:
            return newest.get(place, self.visited[place])

        pools: dict[str, list[int]] = {NEW: [], INSIDE: [], "outside": []}
        for place in sorted(permutation(len(self.rates), self.seed, "curriculum", start), key=last_visit):
            band = self.band(place)
            pools[band if band in pools else "outside"].append(place)
        wanted = {
            "outside": _share_of(self.config.outside_share, start, count),
            NEW: _share_of(self.config.new_share, start, count),
        }
        wanted[NEW] = min(wanted[NEW], count - wanted["outside"])
        wanted[INSIDE] = count - wanted["outside"] - wanted[NEW]
        counts = {name: min(wanted[name], len(pool)) for name, pool in pools.items()}
        for name in (INSIDE, NEW, "outside"):  # who takes the slots that another band can't fill
            counts[name] += min(count - sum(counts.values()), len(pools[name]) - counts[name])
        return [place for name, pool in pools.items() for place in pool[: counts[name]]]

    def record(self, prompts: Sequence[Prompt], scores: Mapping[str, Sequence[float]]) -> None:
        """What the reward said of a round of completions.

        Args:
            prompts: All that were asked. One without scores was visited, and what is known of it stays.
            scores: Prompt id -> the scores of its completions.
        """
        self.num_visits += 1
        for name in dict.fromkeys(prompt.id for prompt in prompts):
            place = self.place_of[name]
            self.visited[place] = self.num_visits
            if own := scores.get(name):
                passed = sum(score >= self.config.success_score for score in own) / len(own)
                self.rates[place] = [*self.rates[place], passed][-self.config.window :]

    def measure(self, metrics: Metrics) -> None:
        """Shares of all prompts by band, and the mean pass rate of those that were measured."""
        bands = [self.band(place) for place in range(len(self.rates))]
        for name in BANDS:
            metrics.mean(f"curriculum/{name}_frac", torch.tensor(bands.count(name) / len(bands), dtype=torch.float64))
        known = [self.pass_rate(place) for place, band in enumerate(bands) if band != NEW]
        if known:
            metrics.mean("curriculum/pass_rate", torch.tensor(math.fsum(known) / len(known), dtype=torch.float64))

    def state_dict(self) -> dict[str, Any]:
        """All that was measured."""
        return {
            "rates": [list(rates) for rates in self.rates],
            "visited": list(self.visited),
            "num_visits": self.num_visits,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken.

        Raises:
            CheckpointError: It is of another number of prompts.
        """
        if len(state["rates"]) != len(self.rates):
            raise CheckpointError(
                f"The checkpoint's curriculum has measured {len(state['rates']):,} prompts, and there are {len(self.rates):,} now; go on "
                "with the same prompts."
            )
        self.rates = [list(rates) for rates in state["rates"]]
        self.visited = list(state["visited"])
        self.num_visits = state["num_visits"]


def _share_of(share: float, start: int, count: int) -> int:
    """How many of ``count`` slots from ``start`` on; over many rollouts exactly the share, whatever is rounded."""
    return math.floor((start + count) * share + 1e-9) - math.floor(start * share + 1e-9)
