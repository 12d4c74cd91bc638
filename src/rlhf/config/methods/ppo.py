"""PPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CLIPS, CRITIC, LENGTH, LMHP, PENALTY, POLICY_SOURCES, STEPS

METHOD = Method(
    title="PPO",
    about="The classic of RLHF: a critic says what to expect, a clipped ratio how far a step may go.",
    family="policy",
    kind="ppo",
    options=(*CLIPS, *STEPS, *PENALTY, *CRITIC, "whiten_advantages", *LENGTH[:1]),
    computed_by="losses.policy:clipped_policy_loss",
    paper="Schulman et al.",
    year=2017,
    arxiv="1707.06347",
    sources={
        "clip_low=0.2": "PPO, table 1, arXiv:1707.06347",
        "clip_high=0.2": "PPO, table 1, arXiv:1707.06347",
        "prompts_per_rollout=64": f"{LMHP} (`batch_size`)",
        "minibatch_size=64": f"{LMHP} (`batch_size`, in one of `nminibatches`)",
        "clip_value=0.2": f"{LMHP} (`cliprange_value`)",
        "epochs_per_rollout=4": f"{LMHP} (`noptepochs`)",
        "kl.coef=0.1": f"ours: between TRL 1.12's 0.05 and the 0.2 of {LMHP}",
        "missing_eos_penalty=0.0": "TRL 1.12 (`missing_eos_penalty`: off)",
        "value_coef=0.5": "openai/baselines (`ppo2`, `vf_coef`)",
        "value_init=policy": "ours: it is always there; Ouyang et al. 2022 start from the reward model",
        "value_learning_rate=null": f"{LMHP}: one `lr` for both",
        "value_model=separate": "TRL 1.12: a second backbone",
        "whiten_advantages=true": f"{LMHP}, in its loss",
    },
    shared_sources=POLICY_SOURCES,
)
