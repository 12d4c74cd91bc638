"""Best of n, distilled: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method

METHOD = Method(
    title="Best of n, distilled",
    about="Rejection-sampling fine-tuning (RAFT): ask often, keep what the reward likes best, imitate it.",
    family="own",
    kind="best_of_n",
    options=("num_samples", "keep", "min_score", "sampling.temperature"),
    computed_by="losses.supervised:nll_loss",
    paper="Dong et al.",
    year=2023,
    arxiv="2304.06767",
    other_names={"raft": {}, "rejection_sampling": {}, "rft": {}},
    sources={
        "keep=1": "RAFT, arXiv:2304.06767: the best of each prompt",
        "min_score=null": "ours: the best is kept whatever it scores, as RAFT does",
        "num_samples=8": "ours: at most 1.2 nats from the policy",
        "sampling.temperature=1.0": "ours: the policy's own distribution, of which the bound above speaks",
    },
)
