"""What every training method declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf.config.base import BaseConfig, Kind
    from rlhf.config.formulas import PairFormula
    from rlhf.config.methods.rates import TypicalRates

FAMILIES = {
    "supervised": "Learning from demonstrations",
    "reward": "Models that judge",
    "preference": "Learning from preferences, without a model that judges",
    "own": "Learning from the policy's own completions, without a policy gradient",
    "policy": "Learning from rewards by a policy gradient",
}
"""What a method learns from; the order of tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: a kind of stage with certain settings."""

    title: str
    about: str
    """One line: what it does, for somebody who looks for a method."""
    family: str
    """A key of ``FAMILIES``."""
    kind: str
    """The kind of stage."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What makes a stage of this kind the method; empty where its defaults are."""
    options: tuple[str, ...]
    """Settings that belong to the method, dotted where they are nested; all others are those of every trainer."""
    computed_by: str
    """``module:function`` below ``rlhf``, where the formula is."""
    paper: str = ""
    """Authors, as they are cited; leave `paper`, `year` and `arxiv` out of a method of your own."""
    year: int | None = None
    arxiv: str | None = None
    derived_defaults: Mapping[str, str] = field(default_factory=dict)
    """Of options whose default follows from another setting: how."""
    stage: type[Kind] | None = None
    """The kind of stage, where the method declares one of its own."""
    pair_losses: Mapping[str, PairFormula] = field(default_factory=dict)
    """What the method adds to ``loss`` of ``kind: dpo``, by name."""
    pair_settings: type[BaseConfig] | None = None
    """Settings of these losses, which ``kind: dpo`` has in addition to its own."""
    rates: TypicalRates | None = None
    """Learning rates that work for its kind of stage; None for those of learning from rewards."""
    other_names: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What papers and other tools call the method, or one of its options: settings in addition to the method's own."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where defaults come from: ``option=default`` -> a paper, another tool, or "ours" and why. A default that changes loses its
    source, and a test asks for the new one. Words in backticks are the name that a tool has for the setting; code is named as on
    GitHub, owner/name; openai/lm-human-preferences is that of Ziegler et al. 2019 (arXiv:1909.08593)."""
    shared_sources: Mapping[str, str] = field(default_factory=dict)
    """Sources that the methods of a family have in common; ``sources`` come first."""

    def __post_init__(self) -> None:
        if bool(self.paper) != (self.year is not None) or (self.arxiv and not self.paper):
            raise TypeError(
                f"{self.title}: `paper` and `year` are given together, and `arxiv` only with both; a method without a publication has "
                "none of the three"
            )

    @property
    def published(self) -> str:
        """Authors and year; empty for a method without a publication."""
        return f"{self.paper} {self.year}" if self.paper else ""

    @property
    def citation(self) -> str:
        """Authors, year and, where there is one, the arXiv number; "not published" for a method without a publication."""
        return self.published + (f", arXiv:{self.arxiv}" if self.arxiv else "") if self.paper else "not published"
