"""More completions go round in circles than the starting policy's do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf.config.hacking import RepetitionShareConfig
from rlhf.formatting import percentage
from rlhf.training.monitoring.hacking.observations import Array, Detection, RolloutObservation, strongest


def longest_repeated_block(words: Sequence[str]) -> int:
    """Words that say a block again, directly after it, in the longest such place; 0 where nothing is repeated at once.

    With period p, a run of r places in a row with word[i] = word[i + p] is a block repeated at once where r >= p: "a b c a b c" is p 3,
    r 3. Periods go up to half the text. A block that is said m times counts (m - 1) times its length.

    Args:
        words: The text.
    """
    count = len(words)
    if count < 2:
        return 0
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(word, len(numbers)) for word in words])
    if len(numbers) == count:
        return 0
    longest = 0
    for period in range(1, count // 2 + 1):
        if count - period <= longest:
            break  # no longer period has room for a longer run
        differs = np.flatnonzero(ids[period:] != ids[:-period])
        run = int(np.diff(differs, prepend=-1, append=count - period).max()) - 1
        if run >= period and run > longest:
            longest = run
    return longest


class RepetitionShare:
    """Share of completions with a long repeated block over the last rollouts, against the starting policy's on the same prompts.

        alarm:  mean(flagged) > mean(flagged by the starting policy) + max_rise

    Lists, tables and code repeat, so a fixed share would depend on the prompts; early rollouts are no measure either, as they may
    be hacked already or ask other prompts.

    Args:
        config: What flags a completion, window and limit.
    """

    def __init__(self, config: RepetitionShareConfig) -> None:
        self.min_words, self.max_rise = config.min_words, config.max_rise
        self.window, self.min_completions, self.penalty = config.window, config.min_completions, config.penalty
        self.value: float | None = None
        self.counts: list[list[float]] = []
        """Completions, flagged ones, and how many the starting policy would have, of each rollout."""
        self.alarmed = False

    def flags(self, repeated_words: Array) -> Array:
        """[n] 1.0 for a completion that goes round in circles."""
        return (repeated_words >= self.min_words).astype(np.float64)

    def update(self, observation: RolloutObservation) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        flagged = self.flags(observation.repeated_words)
        self.counts.append([len(flagged), float(flagged.sum()), float(observation.reference_repeated.sum())])
        while len(self.counts) > self.window and sum(c[0] for c in self.counts[1:]) >= self.min_completions:
            del self.counts[0]
        total, repeated, expected = (sum(c[k] for c in self.counts) for k in range(3))
        self.alarmed = False
        if len(self.counts) < self.window or total < self.min_completions:
            return None
        self.value = repeated / total
        limit = expected / total + self.max_rise
        self.alarmed = self.value > limit
        if not self.alarmed:
            return None
        return Detection(
            value=self.value,
            limit=limit,
            message=(
                f"{percentage(self.value)} of the completions of the last {len(self.counts)} rollouts repeat a block of {self.min_words} "
                f"words or more at once, against {percentage(expected / total)} of the starting policy's on the same prompts (limit "
                f"{percentage(limit)}): repetition may be what the reward likes. Penalize it, or raise kl.coef."
            ),
            places=strongest(flagged * observation.repeated_words),
        )

    def penalties(self, observation: RolloutObservation) -> Array:
        """[n] what `penalize` subtracts from the rewards of an observation that was just taken in."""
        return self.penalty * self.flags(observation.repeated_words) * self.alarmed

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {"counts": self.counts, "value": self.value, "alarmed": self.alarmed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.counts = [list(each) for each in state["counts"]]
        self.value, self.alarmed = state["value"], state["alarmed"]
