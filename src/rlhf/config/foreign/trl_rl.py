"""TRL's keys for trainers that sample: GRPO, RLOO, and PPO as it was until 1.12."""

from __future__ import annotations

from typing import Any

from rlhf.config.foreign import common
from rlhf.config.foreign import trl_conversions as become
from rlhf.config.foreign.key_table import Entry, Given, Reason, Settings, no, to
from rlhf.config.foreign.trl_rewards import rewards

COUNTED = common.counted
BETA = to("odds_coef", "divergence_beta", "beta", "kl.coef", by=become.beta)
REFERENCE = to("reference", note="By default the reference is the model that the stage starts from.")
ADDED_UP = (
    "scores are added up, then compared in the group; `normalize: true` of each reward scales it over the rollout first"
)
FROM_ONE = "As a distance from 1 for every policy_loss: TRL's bound of 5 for CISPO is 4 here."
TEACHER_WRITES = (
    "texts that the teacher writes are `data`: a stage `best_of_n` of the teacher with num_samples 1 makes them"
)
RATIOS: dict[str, Any] = {"token": {}, "sequence": "sequence", "sequence_token": "sequence_token"}
CUT = "a cut completion is not left out; missing_eos_penalty is subtracted from its score"
ADVANTAGES: dict[Any, str] = {
    "group": "group", True: "group", "true": "group", "batch": "batch_std", "none": "group_mean", False: "group_mean", "false": "group_mean",
}  # fmt: skip


def only_with(switch: str, ours: str, *, otherwise: bool = False) -> Any:
    """A value that counts where another key of theirs is on.

    Args:
        switch: That key.
        ours: What the value becomes then.
        otherwise: Whether it is on by default.
    """

    def convert(value: Any, given: Given) -> Settings | Reason:
        return Settings({ours: value}) if given.theirs.get(switch, otherwise) else Reason(f"{switch} is off")

    return convert


SAMPLED: dict[str, Entry] = {
    "max_completion_length": to("sampling.max_new_tokens"),
    "response_length": to("sampling.max_new_tokens"),
    "max_new_tokens": to("sampling.max_new_tokens"),
    "temperature": to("sampling.temperature"),
    "top_p": to("sampling.top_p"),
    "top_k": to("sampling.top_k", by=common.sampled("sampling.top_k")),
    "min_p": to("sampling.min_p"),
    "repetition_penalty": to("sampling.repetition_penalty"),
    "missing_eos_penalty": to("missing_eos_penalty"),
    "ref_model": REFERENCE,
    "kl_estimator": to("kl.estimator"),
    "reward_model_path": to("reward", by=rewards),
    "reward_model_name_or_path": to("reward", by=rewards),
    "reward_funcs": to("reward", by=rewards),
    "reward_weights": to("reward", by=rewards),
}
ENGINE: dict[str, Entry] = {
    "use_vllm": to("engine.kind", by=common.switch("engine.kind", "vllm")),
    "vllm_gpu_memory_utilization": to("engine.options", by=become.vllm("engine.options.gpu_memory_utilization")),
    "vllm_tensor_parallel_size": to("engine.options", by=become.vllm("engine.options.tensor_parallel_size")),
    "vllm_max_model_length": to("engine.max_model_len", by=become.vllm("engine.max_model_len")),
    "vllm_server_timeout": to("engine.start_timeout_seconds", by=become.vllm("engine.start_timeout_seconds")),
    **no(
        "vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host vllm_server_port "
        "vllm_group_port use_transformers_continuous_batching transformers_continuous_batching_config "
        "use_transformers_paged",
        common.ENGINE,
    ),
    **no(
        "vllm_structured_outputs_regex generation_kwargs",
        "completions are drawn freely; sampling has temperature, top_k, top_p, min_p, repetition_penalty, stop",
    ),
}  # fmt: skip
GROUPS: dict[str, Entry] = {
    **SAMPLED,
    "num_generations": to("group_size"),
    "generation_batch_size": to("prompts_per_rollout", by=common.counted),
    "steps_per_generation": to("prompts_per_rollout", by=common.counted),
    "num_iterations": to("epochs_per_rollout"),
    "beta": BETA,
    "epsilon": to("clip_low", "clip_high", by=become.ratio_bounds),
    "epsilon_high": to("clip_high", by=become.ratio_bounds, note=FROM_ONE),
    "num_generations_eval": to("evaluation.samples"),
    "mask_truncated_completions": to("missing_eos_penalty", by={False: {}, True: Reason(CUT)}, note=CUT[0].upper() + CUT[1:] + "."),
    **ENGINE,
    **no("chat_template_kwargs", "from a column of that name in the rows"),
    **no(
        "max_tool_calling_iterations tools environment_factory rollout_func",
        "tools are an `environment`; a class of `environment_factory` is its `source` with `kind: trl` (docs/environments.md)",
    ),
}  # fmt: skip
GRPO: dict[str, Entry] = {
    **GROUPS,
    "loss_type": to("policy_loss", "aggregation", by=become.group_loss),
    "scale_rewards": to("advantage", by=ADVANTAGES, note="`group` divides by the group's deviation, `group_mean` does not."),
    "importance_sampling_level": to("policy_loss", by=RATIOS, note="`policy_loss: sequence` is one ratio for a whole completion."),
    "delta": to("dual_clip"),
    "entropy_coef": to("entropy_coef"),
    "sapo_temperature_pos": to("gate_temperatures", by=become.gates),
    "sapo_temperature_neg": to("gate_temperatures", by=become.gates),
    "use_bias_correction_kl": to("kl.unbiased", by=COUNTED),
    "vllm_importance_sampling_correction": to("importance", by=become.correction),
    "vllm_importance_sampling_mode": to("importance.level", "importance.bound", by=become.correction),
    "vllm_importance_sampling_cap": to("importance.high", by=become.correction),
    "vllm_importance_sampling_clip_max": to("importance.high", by=become.correction),
    "vllm_importance_sampling_clip_min": to("importance.low", by=become.correction),
    "multi_objective_aggregation": to(by={"sum_then_normalize": {}, "normalize_then_sum": Reason(ADDED_UP)}),
    **no(
        "use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target",
        "the weight entropy_coef is fixed",
    ),
    **no(
        "top_entropy_quantile off_policy_mask_threshold vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg",
        "no counterpart: not one of the losses here (`rlhf methods`)",
    ),
}  # fmt: skip
RLOO: dict[str, Entry] = {
    **GROUPS,
    "rloo_k": to("group_size"),
    "kl_coef": to("kl.coef"),
    "reward_clip_range": to("clip_score", by=common.widest, note="Scores beyond it on either side are brought to it."),
    "normalize_advantages": to("advantage", by=common.switch("advantage", "batch_std")),
}  # fmt: skip
BATCH = to(
    "prompts_per_rollout", "minibatch_size", by=become.prompt_batch, note="It counts prompts, which are sampled before every step."
)  # fmt: skip
ONLINE_DPO: dict[str, Entry] = {
    **{key: entry for key, entry in SAMPLED.items() if key not in ("max_completion_length", "response_length")},
    **ENGINE,
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": to("prompts_per_rollout", by=common.counted),
    "beta": to("beta", by=become.first_beta),
    "loss_type": to("loss", by={"sigmoid": "sigmoid", "ipo": "ipo"}),
    **no("judge", "pairs are chosen by scores, of a reward model, a rule, a function or a judge over HTTP: `reward` (docs/rewards.md)"),
    **no("max_length", "max_prompt_length and sampling.max_new_tokens are its two parts"),
}  # fmt: skip
DISTILL: dict[str, Entry] = {
    **{key: SAMPLED[key] for key in ("max_new_tokens", "temperature", "top_p", "top_k", "min_p")},
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": to("prompts_per_rollout", by=common.counted),
    "dataset_name": to("prompts", "data", by=become.demonstrations, note="Its prompts are asked; its completions are `data`."),
    "teacher_model_name_or_path": to("teacher"),
    "lmbda": to("on_policy_frac"),
    "beta": to("divergence_beta"),
    "seq_kd": to(by={False: {}, True: Reason(TEACHER_WRITES)}, note=f"{TEACHER_WRITES[0].upper()}{TEACHER_WRITES[1:]}."),
    **no("teacher_model_init_kwargs", "`teacher: {path: ..., dtype: ...}` takes what `model` takes"),
    **no("max_length truncation_mode", "max_prompt_length and sampling.max_new_tokens are its two parts"),
}  # fmt: skip
PPO: dict[str, Entry] = {
    **SAMPLED,
    "model_name": to("model"),
    "sft_model_path": to("model"),
    "num_ppo_epochs": to("epochs_per_rollout"),
    "num_mini_batches": to("minibatch_size", by=common.counted),
    "total_episodes": to("rollouts", by=become.episodes, when=1),
    "steps": to("rollouts", by=become.episodes, when=1),
    "kl_coef": to("kl.coef"),
    "whiten_rewards": to("whiten_rewards"),
    "cliprange": to("clip_low", "clip_high", by=common.clips),
    "cliprange_value": to("clip_value"),
    "vf_coef": to("value_coef"),
    "gamma": to("gamma"),
    # TRL 0.11 and before: PPOConfig of the loop of generate() and step()
    "batch_size": to("prompts_per_rollout"),
    "mini_batch_size": to("minibatch_size"),
    "ppo_epochs": to("epochs_per_rollout"),
    "init_kl_coef": to("kl.coef"),
    "kl_penalty": to("kl.estimator", by={"kl": "k1", "abs": "abs", "mse": "mse", "full": "exact"}),
    "adap_kl_ctrl": to("kl.target", by={True: {}, False: {}}, note="The weight is adapted where `kl.target` is given."),
    "target": to("kl.target", by=only_with("adap_kl_ctrl", "kl.target", otherwise=True)),
    "horizon": to("kl.horizon"),
    "target_kl": to("stop_at_kl", "kl.target", by=only_with("early_stopping", "stop_at_kl")),
    "early_stopping": to("stop_at_kl", by={True: {}, False: {}}, note="A rollout's passes end early where `stop_at_kl` is given."),
    "score_clip": to("clip_score"),
    "log_with": to("log_to", by=common.loggers),
    "query_dataset": to("prompts"),
    "reward_model": to("reward", by=rewards),
    "forward_batch_size": Reason(common.MICRO),
    **no("use_score_scaling use_score_norm", "`normalize: true` of a reward shifts and scales it over each rollout"),
    **no("value_model_path", "`value_init: reward` or `policy` says where the critic starts"),
    **no(
        "num_sample_generations ratio_threshold max_grad_norm_value task_name tracker_project_name tracker_kwargs "
        "accelerator_kwargs project_kwargs optimize_cuda_cache optimize_device_cache compare_steps "
        "is_encoder_decoder is_peft_model backward_batch_size global_backward_batch_size global_batch_size "
        "remove_unused_columns",
        common.DEBUG,
    ),
}  # fmt: skip
