"""AOT: how the method is declared."""

from __future__ import annotations

from rlhf.config.formulas import PairFormula
from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS, SMOOTHING

METHOD = Method(
    title="AOT",
    about="Optimal transport: the policy's margins shall dominate the reference's, rank by rank over a step.",
    family="preference",
    kind="dpo",
    settings={"loss": "aot"},
    options=("loss", *PAIR_TERMS, "batch_size"),
    computed_by="losses.transport:aot_loss",
    pair_losses={
        "aot": PairFormula(function="losses.transport:aot_loss", arguments=SMOOTHING, compares_pairs=True),
        "aot_unpaired": PairFormula(
            function="losses.transport:aot_unpaired_loss", arguments=SMOOTHING, compares_pairs=True
        ),
    },
    paper="Melnyk et al.",
    year=2024,
    arxiv="2406.05882",
    other_names={"aot_pair": {}, "aot_unpaired": {"loss": "aot_unpaired"}},
    sources={
        "batch_size=32": "ours: that of every stage that learns from rows; here more is better",
    },
    shared_sources=PAIR_SOURCES,
)
