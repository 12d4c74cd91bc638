"""Annotators made of numbers: for tests, for dry runs of a project, for asking what noise does to a result."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rlhf.errors import ConfigError
from rlhf.seeds import derive_seed

BETTER_FIRST, TIE, BETTER_SECOND = "a", "tie", "b"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedAnnotator:
    """How somebody judges two completions, one of which is better by a known amount.

    With probability ``laziness`` they do not read and take whatever comes first; a spammer answers by the throw of a coin.
    Who reads sees the difference blurred: P(the better one) = sigmoid(sharpness * difference), but for slips.
    """

    name: str
    error_rate: float = 0.0
    """Of giving the other answer by a slip, 0 to 1/2."""
    position_bias: float = 0.0
    """Added to the difference in favor of what comes first, in the same units; negative for the second."""
    length_bias: float = 0.0
    """Added in favor of the longer completion."""
    laziness: float = 0.0
    """Share of the items of which only the first is taken."""
    is_spammer: bool = False
    """Answers at random."""
    sharpness: float = math.inf
    """Infinite: the sign of the difference decides; finite: small differences are seen less surely."""
    tie_band: float = 0.0
    """Differences up to this are called a tie."""
    seconds: float = 20.0
    """Median time an item takes; a lazy or spamming answer takes a tenth."""

    def __post_init__(self) -> None:
        for field, low, high in (("error_rate", 0, 0.5), ("laziness", 0, 1)):
            if not low <= getattr(self, field) <= high:
                raise ConfigError(
                    f"{field} of the simulated annotator {self.name!r} is {getattr(self, field)}; it must be between {low} and {high}."
                )

    def judge(
        self, item: Hashable, difference: float, *, first_is_a: bool = True, longer: int = 0, seed: int = 0
    ) -> tuple[str, float]:
        """What they say of an item, and how long it takes; the same item and seed give the same answer.

        Args:
            item: Names the draw.
            difference: Quality of a minus that of b.
            first_is_a: Whether a comes first on their screen.
            longer: 1 where a is longer, -1 where b is, 0 for neither.
            seed: Of the simulation.

        Returns:
            ``a``, ``b`` or ``tie``, and seconds.
        """
        rng = random.Random(derive_seed(seed, "annotator", self.name, str(item)))
        shown_first = BETTER_FIRST if first_is_a else BETTER_SECOND
        time = self.seconds * math.exp(rng.gauss(0, 0.4))
        if self.is_spammer:
            return rng.choice((BETTER_FIRST, BETTER_SECOND)), time / 10
        if rng.random() < self.laziness:
            return shown_first, time / 10
        seen = difference + self.position_bias * (1 if first_is_a else -1) + self.length_bias * longer
        if abs(seen) <= self.tie_band:
            return TIE, time
        chance = float(seen > 0) if math.isinf(self.sharpness) else _sigmoid(self.sharpness * seen)
        answer = BETTER_FIRST if rng.random() < chance else BETTER_SECOND
        if rng.random() < self.error_rate:
            answer = BETTER_SECOND if answer == BETTER_FIRST else BETTER_FIRST
        return answer, time


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def crowd(num_good: int, num_careless: int = 0, num_spammers: int = 0) -> Sequence[SimulatedAnnotator]:
    """A mixed crowd: 5 %, 35 % and 50 % wrong."""
    return [
        *(SimulatedAnnotator(name=f"good-{n}", error_rate=0.05) for n in range(num_good)),
        *(SimulatedAnnotator(name=f"careless-{n}", error_rate=0.35) for n in range(num_careless)),
        *(SimulatedAnnotator(name=f"spammer-{n}", is_spammer=True) for n in range(num_spammers)),
    ]
