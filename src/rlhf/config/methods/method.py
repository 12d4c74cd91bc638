"""What every training method declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf.config.formulas import PairFormula
    from rlhf.config.schema import Setting
    from rlhf.config.stage_inputs import StageConfig
    from rlhf.config.typical_learning_rates import TypicalRates

FAMILIES = {
    "supervised": "Learning from demonstrations",
    "reward": "Models that judge",
    "preference": "Learning from preferences, without a model that judges",
    "own": "Learning from the policy's own completions, without a policy gradient",
    "policy": "Learning from rewards by a policy gradient",
}
"""What a method learns from; the order of tables."""
REQUIRED = "required"
"""Shown in place of a default where there is none."""


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
    paper: str
    """Authors, as they are cited."""
    year: int
    arxiv: str | None = None
    derived_defaults: Mapping[str, str] = field(default_factory=dict)
    """Of options whose default follows from another setting: how."""
    stage: type[StageConfig] | None = None
    """The kind of stage, where the method declares one of its own."""
    pair_losses: Mapping[str, PairFormula] = field(default_factory=dict)
    """What the method adds to ``loss`` of ``kind: dpo``, by name."""
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

    @property
    def citation(self) -> str:
        """Authors, year and, where there is one, the arXiv number."""
        return f"{self.paper} {self.year}" + (f", arXiv:{self.arxiv}" if self.arxiv else "")

    def described_options(self) -> Iterator[Setting]:
        """What a stage of this method cannot do without, then each option with the default that it has there."""
        from rlhf.config.schema import (
            describe_setting,
            settings_class,
        )  # here: the classes of settings load the methods

        owner = settings_class(self.kind)
        for option in self.required_settings():
            yield replace(describe_setting(owner, option), default=REQUIRED)
        for option in self.options:
            default = self.derived_defaults.get(option, self.settings.get(option))
            yield describe_setting(owner, option, default=default)

    def required_settings(self) -> tuple[str, ...]:
        """Names of what a recipe has to say in addition to what makes it this method, model first: model, data, who teaches or judges."""
        from pydantic import ValidationError

        from rlhf.config.schema import settings_class

        owner = settings_class(self.kind)
        try:
            owner.model_validate({"kind": self.kind, **self.settings})
        except ValidationError as error:  # not `is_required`: a reward is, too, where no environment gives one
            missing = {str(each["loc"][0]) for each in error.errors() if each["type"] == "missing"}
            return tuple(sorted(missing, key=lambda name: (name != "model", list(owner.model_fields).index(name))))
        return ()

    def source_of(self, setting: Setting) -> str:
        """Where the default of one of the method's options comes from, in words; empty where nobody has written it down.

        Args:
            setting: With its default in a stage of the method.
        """
        if setting.default == REQUIRED:
            return "yours to give"
        key = f"{setting.name}={setting.default}"
        source = self.sources.get(key) or self.shared_sources.get(key, "")
        if not source and isinstance(self.settings.get(setting.name), str | bool):
            return f"it is the method: {self.citation}"
        return source
