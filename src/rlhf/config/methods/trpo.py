"""TRPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CRITIC, POLICY_SOURCES

METHOD = Method(
    title="TRPO",
    about="One natural-gradient step a rollout, as long as the exact KL allows: nothing to clip.",
    family="policy",
    kind="trpo",
    options=("max_kl", "damping", "cg_iterations", "line_search_tries", "fisher_frac", *CRITIC[:3]),
    computed_by="losses.trust_region:trust_region_step",
    paper="Schulman et al.",
    year=2015,
    arxiv="1502.05477",
    sources={
        "value_learning_rate=null": "ours: `learning_rate`, which is the critic's alone, as the policy has none",
        "cg_iterations=10": "TRPO, appendix C, arXiv:1502.05477",
        "damping=0.1": "openai/baselines (`trpo_mpi`, its MuJoCo settings)",
        "fisher_frac=1.0": "ours: rollouts here are small; the paper, in appendix C, takes a tenth",
        "line_search_tries=10": "openai/baselines (`trpo_mpi`), whose tries are halved, too",
        "max_kl=0.01": "TRPO, section 8.1, arXiv:1502.05477",
    },
    shared_sources=POLICY_SOURCES,
)
