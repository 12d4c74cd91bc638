"""Keys of recipes from before the first release, and what they are called now: the answer to an old recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

RENAMED: Mapping[str, Sequence[str]] = {
    "rows_per_step": ["batch_size"],
    "sequences_per_step": ["minibatch_size"],
    "tokens_per_step": ["batch_tokens"],
    "tokens_per_microbatch": ["microbatch_tokens"],
    "score": ["train_on"],
    "overlap": ["async_rollouts"],
    "lam": ["gae_lambda"],
    "critic_lam": ["value_gae_lambda"],
    "use_margin": ["margin"],
    "hinge_margin": ["margin"],
    "use_confidence": ["use_label_probability"],
    "length_normalised": ["length_normalized"],
    "factory": ["environment.source"],
}
"""Old key to the new ones."""
