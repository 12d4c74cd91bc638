"""On-policy distillation: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import POLICY_SOURCES, ROLLOUT

METHOD = Method(
    title="On-policy distillation",
    about="A teacher's distributions on the student's own completions: dense, and about its own mistakes.",
    family="own",
    kind="distill",
    options=("divergence_beta", "on_policy_frac", *ROLLOUT[:2], "minibatch_size"),
    computed_by="losses.distillation:generalized_jsd",
    paper="Agarwal et al.",
    year=2023,
    arxiv="2306.13649",
    other_names={"gkd": {"divergence_beta": 0.5, "on_policy_frac": 0.5}},
    sources={
        "divergence_beta=1.0": "TRL 1.16 (`DistillationConfig`)",
        "on_policy_frac=1.0": "TRL 1.16: its `DistillationTrainer` learns from the student's samples alone",
    },
    shared_sources=POLICY_SOURCES,
)
