"""OpenRLHF's flags: those with underscores (until early 2026), and those with dots that took their place."""

from __future__ import annotations

from typing import Any

from rlhf.config.foreign import common
from rlhf.config.foreign import openrlhf_conversions as become
from rlhf.config.foreign.key_table import TOP, Entry, Reason, no, to

PROGRAMS = {
    "train_sft": "sft",
    "train_dpo": "dpo",
    "train_rm": "reward",
    "train_kto": "kto",
    "train_ppo": "ppo",
    "train_ppo_ray": "ppo",
}
"""Their module to the kind of stage; of ``ppo`` the estimator of advantages decides."""
NORMALIZED = (
    "reward models scale their scores after training here; `normalize: true` of a reward scales them over each rollout"
)
TRACKER = "the service's own environment variables, such as WANDB_PROJECT"
FLAGS: dict[str, Entry] = {
    "pretrain": to("model"),
    "ref_pretrain": to("reference"),
    "reward_pretrain": to("reward", by=become.rewards),
    "remote_rm_url": to("reward", by=become.rewards),
    "critic_pretrain": Reason("`value_init: reward` or `policy` says where the critic starts"),
    "dataset": to("data", "prompts", by=become.sources),
    "prompt_data": to("prompts", by=become.sources),
    "eval_dataset": to("eval_data", "eval_prompts", by=become.held_out),
    "max_samples": to("limit"),
    "input_key": to("columns", by=common.column("prompt")),
    "prompt_key": to("columns", by=common.column("prompt")),
    "output_key": to("columns", by=common.column("completion")),
    "chosen_key": to("columns", by=common.column("chosen")),
    "rejected_key": to("columns", by=common.column("rejected")),
    "label_key": to("columns", by=become.label),
    "pretrain_mode": to("train_on", by=common.switch("train_on", "all")),
    "multiturn": to("train_on", by=common.switch("train_on", "assistant")),
    "tokenizer_chat_template": to("model.chat_template"),
    "train_batch_size": to("batch_size", "minibatch_size", by=become.step),
    "rollout_batch_size": to("prompts_per_rollout"),
    "n_samples_per_prompt": to("group_size", by=become.group_size),
    "num_episodes": to("rollouts", by=common.epochs, when=1),
    "max_epochs": to("epochs", "epochs_per_rollout"),
    "learning_rate": to("learning_rate"),
    "actor_learning_rate": to("learning_rate"),
    "critic_learning_rate": to("value_learning_rate"),
    "lr_scheduler": to("schedule", by=common.SCHEDULES),
    "lr_warmup_ratio": to("warmup_frac"),
    "min_lr_ratio": to("min_learning_rate_frac"),
    "adam_betas": to("betas", by=common.betas),
    "adam_eps": to("eps"),
    "l2": to("weight_decay"),
    "max_norm": to("max_grad_norm"),
    "optim": to(by={"adam": {}}, note="AdamW is the optimizer."),
    "param_dtype": to("autocast", by=common.AUTOCASTS),
    "bf16": to("autocast", by=common.autocast("bfloat16"), note="As in `autocast: bfloat16`."),
    "gradient_checkpointing": to("model.gradient_checkpointing", by=common.switch("model.gradient_checkpointing")),
    "lora_rank": to("model.lora.rank", by=common.lora("rank", "lora_rank")),
    "lora_alpha": to("model.lora.alpha", by=common.lora("alpha", "lora_rank")),
    "lora_dropout": to("model.lora.dropout", by=common.lora("dropout", "lora_rank")),
    "target_modules": to("model.lora.target_modules", by=common.lora("target_modules", "lora_rank")),
    "load_in_4bit": to("model.lora.quantize_4bit", by=common.switch("model.lora.quantize_4bit")),
    "train_max_tokens_per_gpu": to("microbatch_tokens"),
    "seed": to(TOP + "seed"),
    "save_path": to(TOP + "name", TOP + "output_dir", by=common.folder, note=common.FOLDER),
    "eval_steps": to("eval_every", by=common.every("eval_every", in_rollouts=True), when=2),
    "save_steps": to("save_every", by=common.every("save_every", in_rollouts=True), when=2),
    "max_ckpt_num": to("keep_checkpoints"),
    "enable_ema": to("ema_decay", by=become.ema),
    "ema_beta": to("ema_decay", by=become.ema),
    "use_wandb": to("log_to", by=become.tracked("wandb")),
    "use_tensorboard": to("log_to", by=become.tracked("tensorboard")),
    # pairs and single completions
    "beta": to("beta"),
    "ipo": to("loss", by=common.switch("loss", "ipo")),
    "label_smoothing": to("label_smoothing"),
    "nll_loss_coef": to("sft_coef"),
    "desirable_loss_weight": to("desirable_weight"),
    "undesirable_loss_weight": to("undesirable_weight"),
    "loss": to("loss", by={"sigmoid": "bradley_terry", "logexp": "bradley_terry"}),
    "margin_loss": to("margin", by=common.switch("margin", "column")),
    "max_len": to("max_length", "max_prompt_length", "sampling.max_new_tokens", by=become.whole_length),
    # rewards
    "advantage_estimator": to("advantage", "baseline", by=become.estimator),
    "prompt_max_len": to("max_prompt_length"),
    "generate_max_len": to("sampling.max_new_tokens"),
    "max_new_tokens": to("sampling.max_new_tokens"),
    "temperature": to("sampling.temperature"),
    "top_p": to("sampling.top_p"),
    "init_kl_coef": to("kl.coef", by=become.kl_coef),
    "use_kl_loss": to("kl.where", by={True: "loss", False: "reward"}),
    "kl_estimator": to("kl.estimator", by=become.kl_estimator),
    "kl_target": to("kl.target"),
    "kl_horizon": to("kl.horizon"),
    "eps_clip": to("clip_low", "clip_high", by=common.clips),
    "eps_clip_low_high": to("clip_low", "clip_high", by=common.clips),
    "dual_clip": to("dual_clip"),
    "value_clip": to("clip_value"),
    "lambd": to("gae_lambda"),
    "gamma": to("gamma"),
    "policy_loss_type": to("policy_loss", by=become.policy_loss),
    "entropy_loss_coef": to("entropy_coef"),
    "freezing_actor_steps": to("value_warmup_rollouts", by=become.critic_first),
    "no_advantage_std_norm": to("advantage", by=common.switch("advantage", "group_mean")),
    "reward_clip_range": to("clip_score", by=common.widest, note="Scores beyond it on either side are brought to it."),
    "overlong_buffer_len": to("overlong.buffer_tokens", by=become.overlong),
    "overlong_penalty_factor": to("overlong.weight", by=become.overlong),
    "dynamic_filtering": to("dynamic_sampling", by=common.switch("dynamic_sampling")),
    "eval_n_samples_per_prompt": to("evaluation.samples"),
    "vllm_num_engines": to("engine.kind", by=become.engines),
    "vllm_tensor_parallel_size": to("engine.options", by=become.with_vllm("engine.options.tensor_parallel_size")),
    "vllm_gpu_memory_utilization": to("engine.options", by=become.with_vllm("engine.options.gpu_memory_utilization")),
    "enforce_eager": to("engine.options", by=become.with_vllm("engine.options.enforce_eager")),
    "enable_prefix_caching": to("engine.options", by=become.with_vllm("engine.options.enable_prefix_caching")),
    "enable_vllm_is_correction": to("importance", by=become.correction),
    "vllm_is_truncated_threshold": to("importance.low", "importance.high", by=become.correction),
    "is_correction_type": to("importance.level", "importance.bound", by=become.correction),
    "use_icepop": to("importance.bound", by=become.correction),
    **no("dynamic_filtering_reward_range", "dynamic_sampling asks again where all completions of a prompt score alike"),
    **no("async_train async_queue_size partial_rollout", "rollouts of vLLM are not asynchronous here (docs/async-rollouts.md says what is)"),
    **no("normalize_reward", NORMALIZED),
    **no("stop_properly_penalty_coef", "missing_eos_penalty is subtracted from the score of a cut completion; theirs multiplies it"),
    "pretrain_data": to("ptx.data", "ptx.train_on", by=become.other_rows, note="All their tokens count, as in `ptx.train_on: all`."),
    "ptx_coef": to("ptx.coef", by=become.ptx_coef),
    **no("agent_func_path", "a policy that acts talks with an `environment` (docs/environments.md)"),
    **no("aux_loss_coef", "no counterpart: the router's loss of a mixture of experts is not added"),
    **no("dataset_probs prompt_data_probs pretrain_data_probs", "rows of several files count alike; write a file with the mixture"),
    **no("dataset_split prompt_split eval_split train_split pretrain_split", common.SPLIT),
    **no("apply_chat_template input_template", common.TEMPLATE),
    **no("eval_temperature", "held-out prompts are sampled as the others are; evaluation has samples, success_score, pass_k"),
    **no("max_tokens_per_gpu rollout_max_tokens_per_gpu micro_train_batch_size micro_rollout_batch_size use_dynamic_batch", common.MICRO),
    **no("packing_samples", common.PACKED),
    **no("logging_steps", common.LOGGED),
    **no("wandb_key wandb_org wandb_group wandb_project wandb_run_name tensorboard_dir", TRACKER),
    **no("ckpt_path load_checkpoint save_hf_ckpt disable_ds_ckpt max_ckpt_mem use_ds_universal_ckpt best_metric_key", common.RESUMES),
    "save_value_network": to("save_critic"),
    **no("value_head_prefix", "nothing to set: a value head has one name"),
    **no("attn_implementation flash_attn experts_implementation deepcompile", common.CHOSEN),
    **no("use_liger_kernel compute_fp32_loss", common.LOSSLESS),
    **no("disable_fast_tokenizer dataloader_num_workers", common.LOADING),
    **no(
        "ref_num_nodes ref_num_gpus_per_node reward_num_nodes reward_num_gpus_per_node actor_num_nodes actor_num_gpus_per_node "
        "critic_num_nodes critic_num_gpus_per_node colocate_actor_ref colocate_critic_reward colocate_all_models colocate_all "
        "deepspeed_enable_sleep local_rank zero_stage zpg "
        "adam_offload actor_init_on_gpu ref_reward_offload ref_offload reward_offload grad_accum_dtype overlap_comm "
        "gradient_checkpointing_use_reentrant ds_tensor_parallel_size ring_attn_size ring_head_stride",
        common.ONE_PROCESS,
    ),
    **no("vllm_sync_backend vllm_sync_with_ray vllm_enable_sleep vllm_generate_batch_size", common.ENGINE),
    **no("muon_lr muon_momentum muon_ns_steps muon_nesterov muon_no_nesterov", "AdamW is the optimizer; there is no Muon"),
    **no("placeholder_token reward_tokens", "a process reward model has a head of its own; step_separator ends a step"),
    **no("full_determinism perf use_ms", common.DEBUG),
    **no("image_key max_images_per_prompt freeze_visual_encoder", "no counterpart: models here read text"),
}  # fmt: skip
"""Theirs with underscores -> ours."""
DOTTED = {
    "actor.model_name_or_path": "pretrain", "model.model_name_or_path": "pretrain", "ref.model_name_or_path": "ref_pretrain",
    "reward.model_name_or_path": "reward_pretrain", "reward.remote_url": "remote_rm_url", "critic.model_name_or_path": "critic_pretrain",
    "data.dataset": "dataset", "data.prompt_dataset": "prompt_data", "data.prompt_probs": "prompt_data_probs",
    "data.prompt_split": "prompt_split", "eval.dataset": "eval_dataset", "eval.split": "eval_split",
    "actor.adam.lr": "actor_learning_rate", "critic.adam.lr": "critic_learning_rate", "adam.lr": "learning_rate",
    "actor.adam.betas": "adam_betas", "actor.adam.eps": "adam_eps", "actor.adam.weight_decay": "l2", "adam.weight_decay": "l2",
    "actor.lr_scheduler": "lr_scheduler", "actor.lr_warmup_ratio": "lr_warmup_ratio", "actor.optim": "optim",
    "actor.min_lr_ratio": "min_lr_ratio", "actor.max_norm": "max_norm", "rollout.batch_size": "rollout_batch_size",
    "train.batch_size": "train_batch_size", "train.micro_batch_size": "micro_train_batch_size",
    "rollout.micro_batch_size": "micro_rollout_batch_size", "train.colocate_all": "colocate_all_models",
    "train.async_enable": "async_train", "train.dynamic_batch_enable": "use_dynamic_batch",
    "train.max_tokens_per_gpu": "train_max_tokens_per_gpu", "train.partial_rollout_enable": "partial_rollout",
    "ckpt.output_dir": "save_path", "ckpt.path": "ckpt_path", "ckpt.save_hf": "save_hf_ckpt", "ckpt.disable_ds": "disable_ds_ckpt",
    "ckpt.max_num": "max_ckpt_num", "ckpt.max_mem": "max_ckpt_mem", "ckpt.load_enable": "load_checkpoint",
    "ds.enable_sleep": "deepspeed_enable_sleep", "ds.tensor_parallel_size": "ds_tensor_parallel_size", "ds.lora.rank": "lora_rank",
    "ds.lora.alpha": "lora_alpha", "ds.lora.dropout": "lora_dropout", "ds.lora.target_modules": "target_modules",
    "algo.advantage.estimator": "advantage_estimator", "algo.advantage.lambd": "lambd", "algo.advantage.gamma": "gamma",
    "algo.advantage.no_std_norm": "no_advantage_std_norm", "algo.advantage.is_correction_enable": "enable_vllm_is_correction",
    "algo.advantage.is_correction_threshold": "vllm_is_truncated_threshold", "algo.kl.init_coef": "init_kl_coef",
    "algo.kl.use_loss": "use_kl_loss", "algo.kl.estimator": "kl_estimator", "algo.kl.target": "kl_target",
    "algo.kl.horizon": "kl_horizon", "algo.dynamic_filtering_enable": "dynamic_filtering",
    "algo.dynamic_filtering_range": "dynamic_filtering_reward_range", "reward.normalize_enable": "normalize_reward",
    "reward.clip_range": "reward_clip_range", "actor.entropy_coef": "entropy_loss_coef", "critic.freezing_steps": "freezing_actor_steps",
    "critic.value_clip": "value_clip", "model.ipo_enable": "ipo", "model.pretrain_mode_enable": "pretrain_mode",
    "model.loss_type": "loss", "model.margin_loss_enable": "margin_loss", "model.compute_fp32_loss_enable": "compute_fp32_loss",
    "logger.wandb.key": "use_wandb", "logger.tensorboard_dir": "use_tensorboard", "eval.steps": "eval_steps",
    "eval.temperature": "eval_temperature", "eval.n_samples_per_prompt": "eval_n_samples_per_prompt", "ref.offload": "ref_offload",
    "vllm.enforce_eager": "enforce_eager", "vllm.enable_prefix_caching": "enable_prefix_caching",
    "train.full_determinism_enable": "full_determinism", "ds.use_universal_ckpt": "use_ds_universal_ckpt",
    "ds.ring_attn_head_stride": "ring_head_stride",
    "rollout.max_tokens_per_gpu": "rollout_max_tokens_per_gpu",
}  # fmt: skip
"""Flags with dots that are more than a dot for an underscore, or a section in front."""
ENDINGS = ("gradient_checkpointing_enable", "gradient_checkpointing_reentrant")
CHANGED_ENDINGS = {ENDINGS[0]: "gradient_checkpointing", ENDINGS[1]: "gradient_checkpointing_use_reentrant"}


def plain_flag(flag: str) -> str:
    """The name with underscores of a flag with dots."""
    if flag in DOTTED or "." not in flag:
        return DOTTED.get(flag, flag)
    changed = CHANGED_ENDINGS.get(flag.rpartition(".")[2], "")
    joined = [flag.split(".", cut)[cut].replace(".", "_") for cut in range(flag.count(".") + 1)]
    return next((name for name in (changed, *joined) if name in FLAGS), joined[0])


OPTIMIZED = {
    "lr_scheduler": "cosine_with_min_lr", "lr_warmup_ratio": 0.03, "min_lr_ratio": 0.1, "adam_betas": [0.9, 0.95], "param_dtype": "bf16",
    "train_batch_size": 128, "l2": 0.0,
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "sft": {**OPTIMIZED, "max_epochs": 2, "learning_rate": 5e-6, "max_len": 2048},
    "dpo": {**OPTIMIZED, "max_epochs": 1, "learning_rate": 1e-5, "max_len": 512, "beta": 0.1},
    "reward": {**OPTIMIZED, "max_epochs": 1, "learning_rate": 9e-6, "max_len": 512},
    "kto": {**OPTIMIZED, "max_epochs": 1, "learning_rate": 1e-5, "max_len": 512, "beta": 0.1},
    "ppo": {
        **OPTIMIZED, "actor_learning_rate": 1e-6, "critic_learning_rate": 9e-6, "rollout_batch_size": 1024, "n_samples_per_prompt": 1,
        "max_epochs": 1, "num_episodes": 1, "advantage_estimator": "gae", "init_kl_coef": 0.01, "kl_estimator": "k1", "eps_clip": 0.2,
        "value_clip": 0.5, "lambd": 1.0, "gamma": 1.0, "reward_clip_range": [-10, 10], "temperature": 1.0, "ptx_coef": 0.05,
    },
}  # fmt: skip
"""Theirs that count where a script does not give them; where versions differ, those of 2026."""
