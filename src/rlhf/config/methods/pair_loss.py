"""What a loss on pairs against a reference declares: its formula, and which settings of ``kind: dpo`` are its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLoss:
    """One loss, a choice of ``loss``."""

    formula: str
    """``module:function`` below ``rlhf``: takes the summed log-probabilities of chosen and rejected completions under the policy and
    under the reference, ``[P]`` each, and ``beta`` by keyword; gives ``[P]`` losses."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Further keywords of the formula -> the setting that each has the value of."""
    options: tuple[str, ...] = ()
    """Further settings that belong to this loss and change what the trainer hands to the formula."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Settings that must be above 0 -> why, in words that follow the loss's name."""
    sees_margin_only: bool = False
    """Whether a pair is seen only by its margin: another divergence, or no reference, may be used then."""
    compares_pairs: bool = False
    """Whether the pairs of a step are compared with each other, so that all of them are needed at once."""

    @property
    def settings(self) -> tuple[str, ...]:
        """All settings that belong to this loss, or to it and a few others."""
        return (*self.arguments.values(), *self.options)
