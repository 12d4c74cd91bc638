"""DiscoPOP: how the method is declared."""

from __future__ import annotations

from pydantic import Field

from rlhf.config.base import BaseConfig
from rlhf.config.formulas import PairFormula
from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS


class DiscoPOPSettings(BaseConfig):
    """Of this loss."""

    discopop_temperature: float = Field(0.05, gt=0, le=1)
    """How sharply DiscoPOP turns from its logistic to its exponential part, in nats times beta."""


METHOD = Method(
    title="DiscoPOP",
    about="A blend of the logistic and the exponential loss that a language model's search came up with.",
    family="preference",
    kind="dpo",
    settings={"loss": "discopop"},
    options=("loss", "discopop_temperature", *PAIR_TERMS),
    pair_settings=DiscoPOPSettings,
    computed_by="losses.preference:discopop_loss",
    pair_losses={
        "discopop": PairFormula(
            function="losses.preference:discopop_loss", arguments={"tau": "discopop_temperature"}, sees_margin_only=True
        )
    },
    paper="Lu et al.",
    year=2024,
    arxiv="2406.08414",
    sources={
        "beta=0.1": "TRL 1.16 (`DPOConfig`, for all its losses); the paper has 0.05, appendix B.1",
        "discopop_temperature=0.05": "DiscoPOP, appendix E, arXiv:2406.08414; TRL 1.16 (`discopop_tau`)",
    },
    shared_sources=PAIR_SOURCES,
)
