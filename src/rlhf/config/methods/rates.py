"""What a method declares of learning rates that work for it, on models of all sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one method on models of one size."""

    usual: float
    lowest: float
    """Below it a run of the usual length learns next to nothing."""
    highest: float
    """Above it no run of ours worked, or nobody has published one."""

    @classmethod
    def around(cls, usual: float) -> Rates:
        """Published ones: a factor of 20 below is a default for larger models, one of 100 above a typing error."""
        return cls(usual, usual / 20, usual * 100)

    def times(self, factor: float) -> Rates:
        """All of them, so many times larger."""
        return Rates(self.usual * factor, self.lowest * factor, self.highest * factor)


@dataclass(frozen=True, slots=True)
class TypicalRates:
    """Of one method on models of all sizes."""

    small: Rates
    """Usual: what works on the model that bears least; lowest: a tenth of the lowest rate that worked on any of the models of
    docs/learning-rates.md; highest: the highest that worked on any of them."""
    medium: float
    """For all weights, of published runs of Llama, Qwen and Mistral models."""
    large: float
    """The same for the largest ones."""
