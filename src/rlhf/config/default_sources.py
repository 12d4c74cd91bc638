"""Where the default of each option on a method's page comes from: a paper, another tool, or us, and then why.

Keys are an option and its default, ``beta=0.1``, so that a default that changes loses its source, and a test asks for the new one.
Words in backticks are the name that a tool has for the setting. Code is named as on GitHub, owner/name;
openai/lm-human-preferences is that of Ziegler et al. 2019 (arXiv:1909.08593).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlhf.config.methods import Method
    from rlhf.config.schema import Setting

REQUIRED = "required"
"""What stands in the place of a default where there is none."""

DPO_LOSS = "DPO, eq. 7, arXiv:2305.18290"
DPO_RUNS = "DPO, appendix B, arXiv:2305.18290"
SIMPO_RUN = "`training_configs/llama-3-8b-base-simpo.yaml` in the authors' code, princeton-nlp/SimPO"
RLHF_REWARD = "Ouyang et al. 2022, eq. 2, arXiv:2203.02155"
RM_LOSS = "Ouyang et al. 2022, eq. 1, arXiv:2203.02155"
GRPO_LOSS = "GRPO, eq. 3, arXiv:2402.03300"
DAPO_RUNS = "DAPO, section 4.1, arXiv:2503.14476"
VAPO_RUNS = "VAPO, section 5.1, arXiv:2504.05118"
CISPO_LOSS = "MiniMax-M1, eqs. 4 and 5, arXiv:2506.13585"
REMAX = "ReMax, algorithm 1, arXiv:2310.10505"
REINFORCE_PP = "REINFORCE++, arXiv:2501.03262"
STEPS = "Lightman et al. 2023, section 2.6, arXiv:2305.20050"
LMHP = "openai/lm-human-preferences"
OAT_ZERO = "the authors' code, sail-sg/understand-r1-zero"
OPENRLHF_RUN = "OpenRLHF, the authors' code (`train_reinforce_llama_ray.sh`)"
AS_PPO = "ours: that of PPO here"

SOURCES: Mapping[str, str] = {
    "advantage=batch": REINFORCE_PP,
    "advantage=greedy": REMAX,
    "advantage=group": "GRPO, section 4.1.2, arXiv:2402.03300",
    "advantage=group_mean": "Dr. GRPO, section 3, arXiv:2503.20783",
    "advantage=leave_one_out": "RLOO, arXiv:2402.14740",
    "aggregate=product": STEPS,
    "aggregation=constant": "ours: the paper's sum over tokens, but for a constant",
    "aggregation=sequence": GRPO_LOSS,
    "aggregation=token": "DAPO, eq. 8, arXiv:2503.14476",
    "baseline=none": f"{REINFORCE_PP}: the form without groups",
    "beta=0.1": "TRL 1.16 (`DPOConfig`, for all its losses)",
    "beta=2.0": f"SimPO: {SIMPO_RUN}",
    "beta=3.0": "ours: with this world's 12 tokens it is 0.3 on sums; TÜLU 3 has 5",
    "center_coef=0.0": "TRL 1.16 (`center_rewards_coefficient`: off)",
    "cg_iterations=10": "TRPO, appendix C, arXiv:1502.05477",
    "clip_high=0.0004": "GSPO, section 5.1, arXiv:2507.18071",
    "clip_high=0.2": "TRL 1.16 (`epsilon`)",
    "clip_high=0.28": DAPO_RUNS,
    "clip_high=4.0": "TRL 1.16's advice for it, after ScaleRL, arXiv:2510.13786: weights up to 5",
    "clip_low=0.0003": "GSPO, section 5.1, arXiv:2507.18071",
    "clip_low=0.2": "TRL 1.16 (`epsilon`)",
    "clip_low=1.0": "MiniMax-M1, arXiv:2506.13585: no lower bound",
    "clip_value=0.2": f"{LMHP} (`cliprange_value`)",
    "value_gae_lambda=1.0": "VAPO, section 4.1, arXiv:2504.05118",
    "damping=0.1": "openai/baselines (`trpo_mpi`, its MuJoCo settings)",
    "desirable_weight=1.0": "TRL 1.16 (`KTOConfig`)",
    "discopop_temperature=0.05": "DiscoPOP, appendix E, arXiv:2406.08414; TRL 1.16 (`discopop_tau`)",
    "divergence=js": "ours: one of the paper's, arXiv:2309.16240, as an example",
    "divergence_alpha=null": "ours: only `alpha` has one",
    "divergence_beta=1.0": "TRL 1.16 (`DistillationConfig`)",
    "dynamic_sampling=true": "DAPO, eq. 11, arXiv:2503.14476",
    "epochs=3": "TRL 1.16 (`SFTConfig`)",
    "epochs_per_rollout=1": "TRL 1.16 (`num_iterations`)",
    "epochs_per_rollout=4": f"{LMHP} (`noptepochs`)",
    "extra_layers=0": "ours: the smaller model, until it proves too small",
    "fisher_frac=1.0": "ours: rollouts here are small; the paper, in appendix C, takes a tenth",
    "gamma=1.0": f"{LMHP} (`gamma`)",
    "group_size=1": REMAX,
    "group_size=16": DAPO_RUNS,
    "group_size=2": "Guo et al. 2024, abstract, arXiv:2402.04792",
    "group_size=4": "RLOO, arXiv:2402.14740: the larger of its 2 and 4",
    "group_size=8": "TRL 1.16 (`num_generations`); GRPO's paper has 64",
    "head=linear": "TRL 1.16: the head of transformers' sequence classification",
    "hinge_margin=1.0": "ours: scores have no unit, and this gives them one",
    "ipo_per_token=false": "IPO, eq. 17, arXiv:2310.12036",
    "keep=1": "RAFT, arXiv:2304.06767: the best of each prompt",
    "kl.coef=0.04": "GRPO, section 4.2, arXiv:2402.03300",
    "kl.coef=0.05": "TRL 1.16 (`RLOOConfig`)",
    "kl.coef=0.1": f"ours: between TRL 1.12's 0.05 and the 0.2 of {LMHP}",
    "kl.estimator=k1": RLHF_REWARD,
    "kl.estimator=k3": "GRPO, eq. 4, arXiv:2402.03300",
    "kl.measure_every=1": "ours: guards watch the KL of every rollout",
    "kl.unbiased=false": "GRPO, eq. 4, arXiv:2402.03300: no such weight",
    "kl.where=loss": GRPO_LOSS,
    "kl.where=none": "TRL 1.16 (`beta` of `GRPOConfig`: 0)",
    "kl.where=reward": RLHF_REWARD,
    "label_smoothing=0.0": DPO_LOSS,
    "label_smoothing=0.1": "ours: the share of wrong labels in the embedded world; take that of your own",
    "gae_lambda=0.95": f"{LMHP} (`lam`)",
    "learning_rate=2e-05": "TRL 1.16 (`SFTConfig`)",
    "learning_rate=5e-07": "the authors' code, eric-mitchell/direct-preference-optimization (`lr`); appendix B has 1e-6",
    "learning_rate=8e-06": "TRL (`examples/scripts/orpo.py`)",
    "length_adaptive_alpha=0.05": "VAPO, section 4.2, arXiv:2504.05118",
    "length_alpha=0.5": "ours: half-way from DPO to pairs cut to one length",
    "line_search_tries=10": "openai/baselines (`trpo_mpi`), whose tries are halved, too",
    "lm_coef=0.0": "ours: a judge need not write",
    "loss=sigmoid": DPO_LOSS,
    "loss=steps": STEPS,
    "max_kl=0.01": "TRPO, section 8.1, arXiv:1502.05477",
    "max_sampling_rounds=4": "ours: prompts that all score alike cannot hold a run for ever; verl asks 10 times",
    "min_score=null": "ours: the best is kept whatever it scores, as RAFT does",
    "missing_eos_penalty=0.0": "TRL 1.12 (`missing_eos_penalty`: off)",
    "neftune_alpha=5.0": "NEFTune, arXiv:2310.05914: the smallest of its 5, 10 and 15",
    "normalize=true": "ours: a penalty's weight then means the same whichever model judges",
    "num_heads=1": "ours: members with backbones of their own are less alike",
    "num_models=3": "ours: the fewest that can outvote one",
    "num_samples=8": "ours: at most 1.2 nats from the policy",
    "odds_coef=0.1": "TRL 1.16 (`ORPOConfig.beta`)",
    "on_policy_frac=1.0": "TRL 1.16: its `DistillationTrainer` learns from the student's samples alone",
    "policy_loss=cispo": CISPO_LOSS,
    "policy_loss=clip": GRPO_LOSS,
    "policy_loss=reinforce": "RLOO, arXiv:2402.14740",
    "policy_loss=sapo": "SAPO, arXiv:2511.20347",
    "policy_loss=sequence": "GSPO, eq. 5, arXiv:2507.18071",
    "positive_nll_coef=0.1": "VAPO, arXiv:2504.05118",
    "positive_score=0.0": "ours: of a verifier's 0 and 1 only the 1 lies above",
    "prompts_per_rollout=128": "ours: one step of `minibatch_size`",
    "prompts_per_rollout=16": "GRPO, section 4.2, arXiv:2402.03300: one step a rollout, there of 1,024 completions",
    "prompts_per_rollout=64": AS_PPO,
    "reference=null": "ours: right for a single round; the next ones name the first policy",
    "reference_free=false": DPO_LOSS,
    "reference_point=step": "KTO, section 4, arXiv:2402.01306",
    "reference_point_decay=0.9": "ours: about the last ten steps count",
    "rollouts=100": "ours: a round number; what you can spend decides",
    "batch_size=32": "ours: that of every stage that learns from rows; here more is better",
    "sampling.temperature=1.0": "ours: the policy's own distribution, of which the bound above speaks",
    "train_on=completion": "TRL 1.16 (`completion_only_loss`, for rows of prompt and completion)",
    "minibatch_size=128": "ours: an eighth of GRPO's 1,024, with groups an eighth of its 64",
    "minibatch_size=64": AS_PPO,
    "sft_coef=0.0": "ours: the method's own loss, and nothing that nobody asked for",
    "sft_coef=1.0": "RPO, arXiv:2404.19733: its alpha",
    r"step_separator=\n": "ours: a step a line",
    "target_margin=1.0": f"SimPO: {SIMPO_RUN} (0.5 times its beta of 2)",
    "top_ranks=null": "DPO, appendix A.3, arXiv:2305.18290: the whole ranking",
    "undesirable_weight=1.0": "TRL 1.16 (`KTOConfig`)",
    "until_first_error=false": "ours: a label that somebody gave is learned",
    "use_label_probability=false": f"{RM_LOSS}: labels are sure",
    "use_margin=false": f"{RM_LOSS}: no margin",
    "value_coef=0.5": "openai/baselines (`ppo2`, `vf_coef`)",
    "value_init=policy": "ours: it is always there; Ouyang et al. 2022 start from the reward model",
    "value_learning_rate=null": f"{LMHP}: one `lr` for both",
    "value_model=separate": "TRL 1.12: a second backbone",
    "value_warmup_rollouts=50": f"{VAPO_RUNS}, there of steps",
    "whiten_advantages=true": f"{LMHP}, in its loss",
    "wrong_weight=1.0": "ours: a wrong step counts like a right one",
}  # fmt: skip
"""By option and default, for all methods that have it so."""

OF_METHOD: Mapping[str, Mapping[str, str]] = {
    "sft": {"label_smoothing=0.0": "TRL 1.16 (`label_smoothing_factor`)"},
    "reward": {"label_smoothing=0.0": f"{RM_LOSS}: labels are sure"},
    "reward_hinge": {"use_margin=false": "ours: one margin for all, unless rows come with theirs"},
    "reward_binary": {"normalize=false": "ours: the score is to stay a log-odds"},
    "dpo": {"beta=0.1": DPO_RUNS},
    "cdpo": {"beta=0.1": f"DPO's: {DPO_RUNS}"},
    "robust_dpo": {"label_smoothing=0.1": "robust DPO, section 6, arXiv:2403.00409"},
    "exo": {
        "beta=0.1": "EXO, appendix B (beta_r), arXiv:2402.00856",
        "label_smoothing=0.1": "ours: the share of wrong labels in the embedded world; the authors have 0.001",
    },
    "apo_zero": {"beta=0.1": "APO, section 5.2 as published (TACL 2025), arXiv:2408.06266"},
    "apo_down": {"beta=0.1": "APO, section 5.2 as published (TACL 2025), arXiv:2408.06266"},
    "nca": {"beta=0.1": "TRL 1.16 (`DPOConfig`, for all its losses); the paper has 0.01, appendix C"},
    "bco": {"beta=0.1": "TRL 1.16 (`DPOConfig`, for all its losses); the paper has 0.01, appendix C"},
    "discopop": {"beta=0.1": "TRL 1.16 (`DPOConfig`, for all its losses); the paper has 0.05, appendix B.1"},
    "simpo": {
        "label_smoothing=0.0": "SimPO, eq. 6, arXiv:2405.14734",
        "sft_coef=0.0": "SimPO, eq. 6, arXiv:2405.14734: no such term",
    },
    "cpo": {
        "beta=0.1": "TRL 1.16 (`CPOConfig`)",
        "label_smoothing=0.0": "TRL 1.16 (`CPOConfig`)",
        "sft_coef=1.0": "TRL 1.16 (`cpo_alpha`)",
    },
    "orpo": {"sft_coef=1.0": "ORPO, eq. 6, arXiv:2403.07691"},
    "kto": {"beta=0.1": "TRL 1.16 (`KTOConfig`)"},
    "kto_bco": {"beta=0.1": "TRL 1.16 (`KTOConfig`)"},
    "iterative_dpo": {"beta=0.1": f"DPO's: {DPO_RUNS}"},
    "online_dpo": {"beta=0.1": "TRL 1.16 (`OnlineDPOConfig`)"},
    "ppo": {
        "clip_low=0.2": "PPO, table 1, arXiv:1707.06347",
        "clip_high=0.2": "PPO, table 1, arXiv:1707.06347",
        "prompts_per_rollout=64": f"{LMHP} (`batch_size`)",
        "minibatch_size=64": f"{LMHP} (`batch_size`, in one of `nminibatches`)",
    },
    "vapo": {
        "clip_low=0.2": VAPO_RUNS,
        "clip_high=0.28": VAPO_RUNS,
        "group_size=16": VAPO_RUNS,
        "epochs_per_rollout=1": "ours: a rollout of groups has steps enough for one pass",
        "prompts_per_rollout=64": f"{VAPO_RUNS}: its 16 steps a rollout, of an eighth as many completions",
        "minibatch_size=64": f"ours: an eighth of the 512 of {VAPO_RUNS}",
        "value_learning_rate=null": f"ours: the policy's rate; {VAPO_RUNS}, has twice it, 2e-6",
    },
    "trpo": {"value_learning_rate=null": "ours: `learning_rate`, which is the critic's alone, as the policy has none"},
    "grpo": {"group_size=8": "TRL 1.16 (`num_generations`); section 4.2 of the paper has 64"},
    "dr_grpo": {
        "aggregation=constant": "Dr. GRPO, section 3, arXiv:2503.20783",
        "group_size=8": f"{OAT_ZERO} (`num_samples`)",
        "kl.where=none": f"{OAT_ZERO} (`beta`: 0)",
        "prompts_per_rollout=128": f"{OAT_ZERO} (`rollout_batch_size`)",
        "minibatch_size=128": f"{OAT_ZERO} (`train_batch_size`)",
    },
    "dapo": {
        "prompts_per_rollout=128": f"{DAPO_RUNS}: its 16 steps a rollout, of a quarter as many completions",
        "minibatch_size=128": f"ours: a quarter of the 512 of {DAPO_RUNS}",
        "clip_low=0.2": DAPO_RUNS,
        "kl.where=none": "DAPO, section 2.3, arXiv:2503.14476",
        "overlong=max_new_tokens / 5": f"{DAPO_RUNS}: 4,096 of 20,480 tokens",
    },
    "gspo": {
        "aggregation=sequence": "GSPO, eq. 5, arXiv:2507.18071",
        "kl.where=none": "the authors, in verl's pull request 2775",
        "prompts_per_rollout=64": "GSPO, section 5.1, arXiv:2507.18071: its four steps a rollout",
    },
    "cispo": {
        "aggregation=token": CISPO_LOSS,
        "prompts_per_rollout=256": "MiniMax-M1, section 3.1, arXiv:2506.13585: its 16 steps a rollout",
    },
    "sapo": {
        "aggregation=sequence": "TRL 1.16 (`loss_type` `sapo`)",
        "prompts_per_rollout=64": "ours: four steps a rollout, as GSPO's, of the same authors",
    },
    "reinforce_pp": {
        "aggregation=token": "OpenRLHF, the authors' code",
        "group_size=1": f"{REINFORCE_PP}: no groups",
        "kl.coef=0.05": "ours: as in RLOO, which has the same penalty",
        "policy_loss=clip": REINFORCE_PP,
        "prompts_per_rollout=1024": OPENRLHF_RUN,
        "minibatch_size=128": OPENRLHF_RUN,
    },
    "remax": {"kl.coef=0.05": "ours: as in RLOO, which has the same penalty", "policy_loss=reinforce": REMAX},
}
"""By method, where it is another than that of all."""


def default_source(name: str, method: Method, setting: Setting) -> str:
    """Where the default of one of a method's options comes from, in words; empty where nobody has written it down.

    Args:
        name: The method's.
        method: The same.
        setting: With its default in a stage of the method.
    """
    if setting.default == REQUIRED:
        return "yours to give"
    key = f"{setting.name}={setting.default}"
    found = OF_METHOD.get(name, {}).get(key) or SOURCES.get(key, "")
    if not found and isinstance(method.settings.get(setting.name), str | bool):
        return f"it is the method: {method.citation}"
    return found
