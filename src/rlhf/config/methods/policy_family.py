"""What methods that learn from the policy's own completions have in common."""

from __future__ import annotations

from collections.abc import Mapping

ROLLOUT = ("rollouts", "prompts_per_rollout", "group_size", "epochs_per_rollout", "minibatch_size")
"""How much is asked, and how often it is learned from."""
STEPS = ("prompts_per_rollout", "minibatch_size", "epochs_per_rollout")
"""How many steps a rollout is; in the first of them a ratio is 1, and nothing that bounds it acts."""
CLIPS = ("clip_low", "clip_high")
PENALTY = ("kl.where", "kl.estimator", "kl.coef")
LENGTH = ("missing_eos_penalty", "overlong")
"""What being cut, or coming near to it, costs."""
CREDIT = ("advantage", "policy_loss", "aggregation")
CRITIC = ("gae_lambda", "gamma", "value_learning_rate", "value_init", "value_model", "value_coef", "clip_value")

LMHP = "openai/lm-human-preferences"
RLHF_REWARD = "Ouyang et al. 2022, eq. 2, arXiv:2203.02155"
AS_PPO = "ours: that of PPO here"
POLICY_SOURCES: Mapping[str, str] = {
    "gamma=1.0": f"{LMHP} (`gamma`)",
    "gae_lambda=0.95": f"{LMHP} (`gae_lambda`)",
    "kl.estimator=k1": RLHF_REWARD,
    "kl.where=reward": RLHF_REWARD,
    "rollouts=100": "ours: a round number; what you can spend decides",
    "prompts_per_rollout=64": AS_PPO,
    "minibatch_size=64": AS_PPO,
}
