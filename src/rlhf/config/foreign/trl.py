"""TRL's keys (1.16, and older ones), for YAML files and flags of its scripts."""

from __future__ import annotations

from typing import Any

from rlhf.config.foreign import common
from rlhf.config.foreign import trl_conversions as become
from rlhf.config.foreign.key_table import TOP, Entry, Reason, no, to
from rlhf.config.foreign.trl_rl import BETA, COUNTED, DISTILL, GRPO, ONLINE_DPO, PPO, REFERENCE, RLOO

MOVES = "Of stages that learn from rewards: `every` counts rollouts, not steps, and `decay` is 1 - alpha."

COMMON: dict[str, Entry] = {
    "model_name_or_path": to("model", "path"),
    "model_revision": to("model.revision"),
    "trust_remote_code": to("model.trust_remote_code", by=common.switch("model.trust_remote_code")),
    "dtype": to("model.dtype", by=common.DTYPES),
    "torch_dtype": to("model.dtype", by=common.DTYPES),
    "chat_template_path": to("model.chat_template"),
    "gradient_checkpointing": to("model.gradient_checkpointing", by=common.switch("model.gradient_checkpointing")),
    "torch_compile": to("model.compile", by=common.switch("model.compile")),
    "use_peft": to("model.lora", by=common.switch("model.lora", {}), note="On all linear layers, unless lora_target_modules says which."),
    "lora_r": to("model.lora.rank", by=common.lora("rank", "use_peft")),
    "lora_alpha": to("model.lora.alpha", by=common.lora("alpha", "use_peft")),
    "lora_dropout": to("model.lora.dropout", by=common.lora("dropout", "use_peft")),
    "lora_target_modules": to("model.lora.target_modules", by=common.lora("target_modules", "use_peft")),
    "load_in_4bit": to("model.lora.quantize_4bit", by=common.switch("model.lora.quantize_4bit")),
    "dataset_name": to("data", "prompts"),
    "datasets": to("data", "prompts", by=become.datasets),
    "dataset_streaming": to("streaming", by=common.switch("streaming")),
    "streaming": to("streaming", by=common.switch("streaming")),
    "dataset_text_field": to("columns", by=common.column("text")),
    "per_device_train_batch_size": to("batch_size", "minibatch_size", "prompts_per_rollout", by=become.batch, note=common.MEMORY),
    "gradient_accumulation_steps": to("batch_size", "minibatch_size", by=common.counted, note=common.MEMORY),
    "learning_rate": to("learning_rate"),
    "lr_scheduler_type": to("schedule", by=common.SCHEDULES),
    "min_lr_rate": to("min_learning_rate_frac"),
    "warmup_ratio": to("warmup_frac"),
    "warmup_steps": to("warmup_frac", by=common.warmup_steps, when=2),
    "adam_beta1": to("betas", by=common.betas),
    "adam_beta2": to("betas", by=common.betas),
    "adam_epsilon": to("eps"),
    "weight_decay": to("weight_decay"),
    "max_grad_norm": to("max_grad_norm"),
    "optim": to(by={"adamw_torch": {}, "adamw_torch_fused": {}, "adamw_hf": {}, "adamw": {}}, note="AdamW is the optimizer."),
    "num_train_epochs": to("epochs", "rollouts", by=common.epochs, when=1),
    "max_steps": to("max_steps", "rollouts", by=common.max_steps, when=1),
    "bf16": to("autocast", by=common.autocast("bfloat16"), note="As in `autocast: bfloat16`."),
    "fp16": to("autocast", by=common.switch("autocast", "float16"), note="As in `autocast: float16`."),
    "seed": to(TOP + "seed"),
    "output_dir": to(TOP + "name", TOP + "output_dir", by=common.folder, note=common.FOLDER),
    "eval_strategy": to("eval_every", by=common.strategy, when=3),
    "evaluation_strategy": to("eval_every", by=common.strategy, when=3),
    "eval_steps": to("eval_every", by=common.every("eval_every", if_strategy="eval_strategy"), when=2),
    "save_strategy": to("save_every", by=common.save_strategy, when=3),
    "save_steps": to("save_every", by=common.every("save_every", if_strategy="save_strategy"), when=2),
    "save_total_limit": to("keep_checkpoints"),
    "metric_for_best_model": to("early_stopping.metric", by=common.best_metric, when=2),
    "greater_is_better": to("early_stopping.mode", by=COUNTED),
    "load_best_model_at_end": to("early_stopping.keep_best", by=COUNTED),
    "report_to": to("log_to", by=common.loggers),
    "neftune_noise_alpha": to("neftune_alpha"),
    "label_smoothing_factor": to("label_smoothing"),
    "dataset_num_proc": to("data_workers"),
    "max_length": to("max_length"),
    "max_seq_length": to("max_length"),
    "truncation_mode": to("truncation", by=common.TRUNCATIONS),
    "max_prompt_length": to("max_prompt_length"),
    **no(
        "logging_steps logging_strategy logging_first_step logging_nan_inf_filter logging_dir log_level "
        "log_level_replica log_on_each_node log_completions log_multimodal num_completions_to_print "
        "log_unique_prompts log_completions_hub_repo disable_tqdm include_num_input_tokens_seen "
        "skip_memory_metrics",
        common.LOGGED,
    ),
    **no(
        "resume_from_checkpoint ignore_data_skip restore_callback_states_from_checkpoint save_only_model "
        "enable_jit_checkpoint overwrite_output_dir",
        common.RESUMES,
    ),
    **no("push_to_hub hub_model_id hub_strategy hub_token hub_private_repo hub_always_push hub_revision", common.HUB),
    **no("dataset_config dataset_train_split dataset_test_split test_split_size", common.SPLIT),
    **no(
        "deepspeed fsdp fsdp_config accelerator_config parallelism_config local_rank ddp_backend "
        "ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout "
        "save_on_each_node ds3_gather_for_generation average_tokens_across_devices ignore_bias_buffers",
        common.ONE_PROCESS,
    ),
    **no("use_liger_kernel liger_kernel_config fused_lm_head activation_offloading torch_empty_cache_steps", common.LOSSLESS),
    **no(
        "attn_implementation tf32 torch_compile_backend torch_compile_mode use_cache cache_implementation "
        "cast_lm_head_to_fp32 activation_checkpointing activation_checkpointing_kwargs "
        "gradient_checkpointing_kwargs",
        common.CHOSEN,
    ),
    **no(
        "packing packing_strategy padding_free eval_packing pad_to_multiple_of train_sampling_strategy "
        "group_by_length length_column_name dataset_batch_size",
        common.PACKED,
    ),
    **no(
        "dataset_kwargs dataloader_num_workers dataloader_drop_last dataloader_pin_memory "
        "dataloader_in_order dataloader_persistent_workers dataloader_prefetch_factor "
        "dataloader_multiprocessing_context remove_unused_columns label_names",
        common.LOADING,
    ),
    **no(
        "per_device_eval_batch_size eval_accumulation_steps eval_do_concat_batches batch_eval_metrics "
        "auto_find_batch_size bf16_full_eval fp16_full_eval eval_use_gather_object precompute_ref_batch_size "
        "local_rollout_forward_batch_size",
        common.MICRO,
    ),
    **no(
        "do_train do_eval do_predict prediction_loss_only debug include_for_metrics eval_delay eval_on_start "
        "full_determinism exp_name project run_name trackio_space_id trackio_bucket_id trackio_static_space_id "
        "world_size num_total_batches local_batch_size dataset_mixer",
        common.DEBUG,
    ),
    **no("use_cpu no_cuda", "nothing to set: `device: cpu` at the top of a recipe, or --device"),
    **no("data_seed", "nothing to set: order, sampling and dropout have seeds of their own, made from `seed`"),
    **no("shuffle_dataset", "nothing to set: rows are shuffled, with the recipe's seed"),
    **no(
        "disable_dropout",
        "no such switch: a model has the dropout of its own config, which is 0 in most; set it there",
    ),
    **no("model_init_kwargs", "its keys are read by name; this one has no counterpart in `model`"),
    **no("lr_scheduler_kwargs", "of schedules there is min_learning_rate_frac: where it ends, as a share of the peak"),
    **no("optim_args optim_target_modules", "AdamW is the optimizer; it has betas, eps and weight_decay"),
    **no("router_aux_loss_coef", "no counterpart: the router's loss of a mixture of experts is not added"),
    **no(
        "eos_token pad_token stop_token stop_token_id",
        "nothing to set: a model's own EOS ends a completion, and no row is padded; `sampling.stop` takes texts",
    ),
    "sync_ref_model": to("moving_reference", by=become.moving_reference, note=MOVES, when=1),
    "ref_model_mixup_alpha": to("moving_reference.decay", by=become.moving_reference, note=MOVES, when=1),
    "ref_model_sync_steps": to("moving_reference.every", by=become.moving_reference, note=MOVES, when=1),
    **no(
        "load_in_8bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage",
        "of quantization there is model.lora.quantize_4bit (nf4)",
    ),
    **no(
        "lora_task_type lora_modules_to_save lora_target_parameters use_rslora use_dora",
        "of LoRA there are rank, alpha, dropout, target_modules and quantize_4bit",
    ),
}  # fmt: skip
"""What every trainer of TRL takes."""

SFT: dict[str, Entry] = {
    "completion_only_loss": to("train_on", by={True: "completion", False: "all"}, note="`completion` is the default."),
    "assistant_only_loss": to("train_on", by=common.switch("train_on", "assistant"), note="As in `train_on: assistant`."),
    "loss_type": to("loss", by={"nll": "nll", "dft": "dft"}),
}  # fmt: skip
DIVERGENCES: dict[str, Any] = {
    "reverse_kl": "reverse_kl",
    "forward_kl": "forward_kl",
    "js_divergence": "js",
    "alpha_divergence": {"divergence": "alpha", "divergence_alpha": 0.5},
}
PRECOMPUTED = to(
    "cache_reference", by=common.switch("cache_reference"), note="They are kept on disk for the next run, too."
)
DPO: dict[str, Entry] = {
    "loss_type": to("loss", by=become.pair_loss),
    "loss_weights": to("sft_coef", by=COUNTED),
    "beta": BETA,
    "label_smoothing": to("label_smoothing"),
    "ld_alpha": to("length_alpha"),
    "f_divergence_type": to("divergence", by=DIVERGENCES),
    "f_alpha_divergence_coef": to("divergence_alpha", when=1),
    "use_weighting": to("weight_by_policy", by=common.switch("weight_by_policy")),
    "discopop_tau": to("discopop_temperature"),
    "rpo_alpha": to("sft_coef"),
    "reference_free": to("reference_free", by=common.switch("reference_free")),
    "ref_model": REFERENCE,
    "precompute_ref_log_probs": PRECOMPUTED,
}  # fmt: skip
KTO: dict[str, Entry] = {
    "loss_type": to("loss", by={"kto": "kto", "bco": "bco", "apo_zero_unpaired": {"reference_point": "zero"}}),
    "beta": BETA,
    "desirable_weight": to("desirable_weight"),
    "undesirable_weight": to("undesirable_weight"),
    "ref_model": REFERENCE,
    "precompute_ref_log_probs": PRECOMPUTED,
}
REWARD: dict[str, Entry] = {
    "center_rewards_coefficient": to("center_coef"),
}
ORPO: dict[str, Entry] = {
    "beta": BETA,
    **no("generate_during_eval is_encoder_decoder padding_value max_completion_length", common.DEBUG),
}
CPO: dict[str, Entry] = {
    **ORPO,
    "label_smoothing": to("label_smoothing"),
    "cpo_alpha": to("sft_coef"),
    "simpo_gamma": to("target_margin"),
    "loss_type": to(by={"sigmoid": {}, "simpo": {}}, note="It decides the kind of stage."),
    **no("alpha", "AlphaPO's transformation has no counterpart"),
}

PRM: dict[str, Entry] = {
    "step_separator": to("step_separator"),
    "train_on_last_step_only": to(
        by={False: {}, True: Reason("every labeled step is learned from; labels of outcomes alone are `kind: reward, loss: binary`")},
        note="Every labeled step is learned from.",
    ),
}  # fmt: skip

METHODS: dict[str, dict[str, Entry]] = {
    "sft": SFT, "dpo": DPO, "kto": KTO, "reward": REWARD, "orpo": ORPO, "cpo": CPO, "simpo": CPO, "grpo": GRPO, "rloo": RLOO, "ppo": PPO,
    "online_dpo": ONLINE_DPO, "distill": DISTILL, "prm": PRM,
}  # fmt: skip
"""Keys of one trainer, by the kind of stage that takes its place."""

EVERY = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_train_epochs": 3.0, "lr_scheduler_type": "linear",
    "warmup_steps": 0, "gradient_checkpointing": True, "bf16": True, "lora_dropout": 0.05, "eval_strategy": "no", "save_steps": 500,
}  # fmt: skip
ROWS = {"max_length": 1024, "truncation_mode": "keep_start", "learning_rate": 1e-6}
SAMPLES = {"learning_rate": 1e-6, "max_completion_length": 512, "epsilon": 0.2}
DEFAULTS: dict[str, dict[str, Any]] = {
    "sft": {**EVERY, **ROWS, "learning_rate": 2e-5},
    "dpo": {**EVERY, **ROWS, "beta": 0.1},
    "kto": {**EVERY, **ROWS, "beta": 0.1},
    "reward": {**EVERY, "max_length": 1024, "learning_rate": 1e-4, "weight_decay": 0.0},
    "orpo": {**EVERY, **ROWS, "beta": 0.1},
    "cpo": {**EVERY, **ROWS, "beta": 0.1, "cpo_alpha": 1.0},
    "simpo": {**EVERY, **ROWS, "beta": 0.1, "cpo_alpha": 1.0, "simpo_gamma": 0.5},
    "grpo": {
        **EVERY, **SAMPLES, "num_generations": 8, "beta": 0.0, "loss_type": "dapo", "use_bias_correction_kl": True,
        "vllm_importance_sampling_mode": "sequence_mask",
    },
    "rloo": {**EVERY, **SAMPLES, "num_generations": 2, "beta": 0.05},
    "online_dpo": {**EVERY, "learning_rate": 5e-7, "beta": 0.1, "max_new_tokens": 64, "temperature": 0.9},
    "distill": {**EVERY, "learning_rate": 2e-5, "weight_decay": 0.0, "beta": 0.5, "lmbda": 0.5, "max_new_tokens": 128, "temperature": 0.9},
    "prm": {**EVERY, "max_length": 1024, "learning_rate": 1e-5, "step_separator": "\n", "weight_decay": 0.0},
    "ppo": {
        **EVERY, "learning_rate": 3e-6, "num_ppo_epochs": 4, "num_mini_batches": 1, "response_length": 53, "temperature": 0.7,
        "kl_coef": 0.05, "cliprange": 0.2, "cliprange_value": 0.2, "vf_coef": 0.1,
    },
}  # fmt: skip
"""Theirs that count where a file does not give them."""
OLD_LOOP = ("ppo_epochs", "init_kl_coef", "adap_kl_ctrl", "kl_penalty", "mini_batch_size")
"""Keys of the PPOConfig of TRL 0.11 and before, whose loop called generate() and step()."""
OLD_LOOP_DEFAULTS: dict[str, Any] = {
    "learning_rate": 1.41e-5, "batch_size": 128, "mini_batch_size": 128, "ppo_epochs": 4, "init_kl_coef": 0.2, "adap_kl_ctrl": True,
    "target": 6, "horizon": 10_000, "cliprange": 0.2, "cliprange_value": 0.2, "vf_coef": 0.1, "lr_scheduler_type": "constant",
    "warmup_steps": 0,
}  # fmt: skip
