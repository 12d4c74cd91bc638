"""VAPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CLIPS, POLICY_SOURCES, STEPS

VAPO_RUNS = "VAPO, section 5.1, arXiv:2504.05118"

METHOD = Method(
    title="VAPO",
    about="PPO for long reasoning: a pre-trained critic, a lambda for each side, and for each length.",
    family="policy",
    kind="vapo",
    options=(
        "value_warmup_rollouts",
        "value_gae_lambda",
        "length_adaptive_alpha",
        "positive_nll_coef",
        "positive_score",
        *CLIPS,
        "group_size",
        *STEPS,
        "value_learning_rate",
    ),
    computed_by="losses.advantage:length_adaptive_lambda",
    paper="Yue et al.",
    year=2025,
    arxiv="2504.05118",
    sources={
        "clip_low=0.2": VAPO_RUNS,
        "clip_high=0.28": VAPO_RUNS,
        "group_size=16": VAPO_RUNS,
        "epochs_per_rollout=1": "ours: a rollout of groups has steps enough for one pass",
        "prompts_per_rollout=64": f"{VAPO_RUNS}: its 16 steps a rollout, of an eighth as many completions",
        "minibatch_size=64": f"ours: an eighth of the 512 of {VAPO_RUNS}",
        "value_learning_rate=null": f"ours: the policy's rate; {VAPO_RUNS}, has twice it, 2e-6",
        "value_gae_lambda=1.0": "VAPO, section 4.1, arXiv:2504.05118",
        "length_adaptive_alpha=0.05": "VAPO, section 4.2, arXiv:2504.05118",
        "positive_nll_coef=0.1": "VAPO, arXiv:2504.05118",
        "positive_score=0.0": "ours: of a verifier's 0 and 1 only the 1 lies above",
        "value_warmup_rollouts=50": f"{VAPO_RUNS}, there of steps",
    },
    shared_sources=POLICY_SOURCES,
)
