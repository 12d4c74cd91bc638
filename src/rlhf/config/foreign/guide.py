"""Layouts in sections: model / dataset / training / optimization / generation, and a section for each stage."""

from __future__ import annotations

from typing import Any

from rlhf.config.foreign import common, trl_conversions, trl_rewards
from rlhf.config.foreign.key_table import TOP, Entry, Given, Reason, Settings, converted, no, to

SECTIONS = (
    "model", "dataset", "data", "training", "optimization", "optimizer", "generation", "lora", "logging", "evaluation", "hardware", "output",
)  # fmt: skip
"""Sections that all stages share."""
REWARD_WORDS = ("rules", "exact", "numeric", "math", "verdict", "json", "code")
"""Kinds of reward without settings of their own that must be given, for a plain word."""
STAGES = {
    "sft": "sft", "sft_config": "sft", "supervised": "sft",
    "reward": "reward", "reward_model": "reward", "reward_model_config": "reward", "rm": "reward",
    "ppo": "ppo", "ppo_config": "ppo", "dpo": "dpo", "dpo_config": "dpo", "grpo": "grpo", "grpo_config": "grpo",
    "kto": "kto", "kto_config": "kto", "orpo": "orpo", "orpo_config": "orpo", "simpo": "simpo", "simpo_config": "simpo",
    "rloo": "rloo", "rloo_config": "rloo",
}  # fmt: skip
"""A stage's section to its kind; the order of stages is this one."""
RANKING_LOSSES: dict[str, Any] = {
    "bradley_terry": "bradley_terry", "bt": "bradley_terry", "pairwise": "bradley_terry", "logistic": "bradley_terry",
    "log_sigmoid": "bradley_terry", "sigmoid": "bradley_terry",
    "margin": "hinge", "hinge": "hinge", "margin_ranking": "hinge", "margin_ranking_loss": "hinge",
    "plackett_luce": "plackett_luce", "listwise": "plackett_luce", "mse": "rating", "regression": "rating",
    "label_smoothing": {"loss": "bradley_terry", "label_smoothing": 0.1},
}  # fmt: skip
COMPARISONS = {"pairwise": {}, "ranking": "plackett_luce", "rating": "rating", "binary": "binary"}
ESTIMATORS = {
    "k1": "k1", "kl": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3", "abs": "abs", "mse": "mse", "full": "exact", "exact": "exact",
    "fixed": {},
}  # fmt: skip
TARGETS = ("target_kl", "target_kl_divergence", "kl_target")


def batch(value: Any, given: Given) -> Settings | Reason:
    """Rows in a step, or prompts in a rollout."""
    accumulated = 1 if given.learns_from_rewards else given.number("gradient_accumulation_steps")
    per_device = given.theirs.get("per_device_train_batch_size") is not None
    total = value * accumulated * (given.processes if per_device else 1)
    note = f"{value} x {accumulated} x {given.processes}" if total != value else ""
    return Settings({"prompts_per_rollout" if given.learns_from_rewards else "batch_size": total}, note)


def accumulation(value: Any, given: Given) -> Settings | Reason:
    """Counted in the batch."""
    return Settings({}, "counted in batch_size") if not given.learns_from_rewards else Reason(common.MICRO)


def minibatch(value: Any, given: Given) -> Settings | Reason:
    """Completions in a step."""
    group = given.ours("group_size")
    whole = -(-value // group) * group
    return Settings(
        {"minibatch_size": whole},
        f"{value} is not a multiple of {group} completions a prompt" if whole != value else "",
    )


def early(value: Any, given: Given) -> Settings | Reason:
    """Target of the KL: of an adaptive weight, or an end of a rollout's passes."""
    adaptive = given.theirs.get("kl_penalty_method") == "adaptive" or given.theirs.get("adaptive_kl")
    return Settings(
        {"kl.target" if adaptive else "stop_at_kl": value},
        "the weight adapts to it" if adaptive else "passes over a rollout end there",
    )


def kl_method(value: Any, given: Given) -> Settings | Reason:
    """How the KL is estimated, or whether its weight is adapted."""
    if value != "adaptive":
        return converted(to("kl.estimator", by=ESTIMATORS), value, given)
    if any(given.theirs.get(key) is not None for key in TARGETS):
        return Settings({}, "the weight is adapted to the target")
    given.to_fill_in["kl.target"] = (
        "the KL that the weight adapts to, in nats a completion; 6 is Ziegler et al.'s (arXiv:1909.08593)"
    )
    return Settings({"kl.target": 6.0}, "the weight is adapted to it, and no target is given")


def held_out_split(value: Any, given: Given) -> Settings | Reason:
    """The share of the rows that is held out, or the name of a split."""
    is_share = isinstance(value, float) and 0 < value < 1
    return Settings({"eval_frac": value}) if is_share else Reason(common.SPLIT)


def reward_functions(value: Any, given: Given) -> Settings | Reason:
    """Names of rewards: of TRL's, with or without `_reward`; kinds of ours; functions."""
    judges: list[Any] = []
    for name in [value] if isinstance(value, str) else list(value):
        known = next(
            (trl_rewards.BUILT_IN[each] for each in (name, f"{name}_reward") if each in trl_rewards.BUILT_IN), None
        )
        if known is not None:
            judges.append(dict(known))
        elif name in REWARD_WORDS or not str(name).isidentifier():
            judges.append(common.importable(str(name)))
        else:
            return Reason(
                f"{name!r} names no reward here; write package.module:function, or a kind: {', '.join(sorted(REWARD_WORDS))}"
            )
    return Settings({"reward": judges[0] if len(judges) == 1 else judges}) if judges else Reason("names no reward")


def loss_type(value: Any, given: Given) -> Settings | Reason:
    """What TRL calls the loss: of pairs, or of groups."""
    if given.has("policy_loss"):
        return trl_conversions.group_loss(value, given)
    return trl_conversions.pair_loss(value, given) if given.kind == "dpo" else Settings({"loss": value})


def precision(value: Any, given: Given) -> Settings | Reason:
    """`mixed_precision: bf16`."""
    dtype = common.AUTOCASTS.get(str(value).lower())
    return Settings({"autocast": dtype}) if dtype else Reason("no such type; autocast takes none, bfloat16, float16")


def total_steps(value: Any, given: Given) -> Settings | Reason:
    """Of a policy that learns from rewards they are rollouts."""
    return (
        Settings({"rollouts": value}, "one rollout a step")
        if given.learns_from_rewards
        else common.max_steps(value, given)
    )


def turned_on(ours: str, switch: str) -> Any:
    """A setting of adapters, where they are not switched off."""

    def convert(value: Any, given: Given) -> Settings | Reason:
        return (
            Reason(f"{switch} is off") if given.theirs.get(switch) is False else Settings({f"model.lora.{ours}": value})
        )

    return convert


def data(value: Any, given: Given) -> Settings | Reason:
    """Rows, or prompts."""
    return Settings({"data" if given.has("data") else "prompts": value})


def data_for(kinds: str) -> Any:
    """Rows of some stages only."""

    def convert(value: Any, given: Given) -> Settings | Reason:
        return data(value, given) if given.kind in kinds.split() else Reason(f"for {kinds}")

    return convert


def trained_share(value: Any, given: Given) -> Settings | Reason:
    """A share of the rows that is trained on: the rest is held out."""
    return (
        Settings({"eval_frac": round(1 - value, 6)})
        if 0 < value < 1
        else Reason("all rows are trained on, as here by default")
    )


def lowest_rate(value: Any, given: Given) -> Settings | Reason:
    """Where the learning rate ends: a share of the peak here."""
    return Settings({"min_learning_rate_frac": round(value / given.ours("learning_rate"), 6)})


def shared_value(value: Any, given: Given) -> Settings | Reason:
    """A critic on the policy's own backbone."""
    return Settings({"value_model": "shared" if common.is_on(value) else "separate"})


def held_out(value: Any, given: Given) -> Settings | Reason:
    """Rows, or prompts, that are not trained on."""
    return Settings({"eval_data" if given.has("eval_data") else "eval_prompts": value})


def texts(value: Any, given: Given) -> Settings | Reason:
    """One text, or several."""
    return Settings({"sampling.stop": [value] if isinstance(value, str) else list(value)})


ADAMW = to(by={"adamw": {}, "adamw_torch": {}, "adam": {}}, note="AdamW is the optimizer.")
OF_LORA = "of LoRA there are rank, alpha, dropout, target_modules and quantize_4bit"
KEYS: dict[str, Entry] = {
    "model.name": to("model"), "model.path": to("model"), "model_name": to("model"),
    "model_name_or_path": to("model"), "base_model": to("model"),
    "pretrained_model": to("model"),
    "model_path": to("model"), "policy": to("model"), "policy_path": to("model"), "policy_model": to("model"),
    "revision": to("model.revision"), "sft_model": to("model"), "model": to("model"),
    "tokenizer": to("model.tokenizer"), "tokenizer_name": to("model.tokenizer"),
    "torch_dtype": to("model.dtype", by=common.DTYPES), "dtype": to("model.dtype", by=common.DTYPES),
    "gradient_checkpointing": to("model.gradient_checkpointing", by=common.switch("model.gradient_checkpointing")),
    "compile": to("model.compile", by=common.switch("model.compile")),
    "trust_remote_code": to("model.trust_remote_code", by=common.switch("model.trust_remote_code")),
    "use_lora": to("model.lora", by=common.switch("model.lora", {})), "use_peft": to("model.lora", by=common.switch("model.lora", {})),
    "lora_r": to("model.lora.rank", by=turned_on("rank", "use_lora")), "lora_rank": to("model.lora.rank", by=turned_on("rank", "use_lora")),
    "lora_alpha": to("model.lora.alpha", by=turned_on("alpha", "use_lora")),
    "lora_dropout": to("model.lora.dropout", by=turned_on("dropout", "use_lora")),
    "lora_target_modules": to("model.lora.target_modules", by=turned_on("target_modules", "use_lora")),
    "lora.r": to("model.lora.rank", by=turned_on("rank", "lora.enabled")),
    "lora.rank": to("model.lora.rank", by=turned_on("rank", "lora.enabled")),
    "lora.alpha": to("model.lora.alpha", by=turned_on("alpha", "lora.enabled")),
    "lora.dropout": to("model.lora.dropout", by=turned_on("dropout", "lora.enabled")),
    "lora.target_modules": to("model.lora.target_modules", by=turned_on("target_modules", "lora.enabled")),
    "lora.enabled": to("model.lora", by=common.switch("model.lora", {})),
    "load_in_4bit": to("model.lora.quantize_4bit", by=common.switch("model.lora.quantize_4bit")),
    "dataset.name": to("data", "prompts", by=data), "dataset.path": to("data", "prompts", by=data),
    "data.path": to("data", "prompts", by=data),
    "data.name": to("data", "prompts", by=data), "dataset_name": to("data", "prompts", by=data),
    "dataset_path": to("data", "prompts", by=data),
    "train_file": to("data", "prompts", by=data), "train_path": to("data", "prompts", by=data),
    "train_data": to("data", "prompts", by=data),
    "sft_data": to("data", by=data_for("sft")), "preference_data": to("data", by=data_for("reward dpo simpo orpo")),
    "dedup": to("row_filter.dedup"), "deduplicate": to("row_filter.dedup"), "dataset.min_length": to("row_filter.min_length"),
    "prompt_data": to("prompts", by=data_for("ppo grpo rloo")),
    "eval_file": to("eval_data", "eval_prompts", by=held_out), "eval_path": to("eval_data", "eval_prompts", by=held_out),
    "eval_dataset": to("eval_data", "eval_prompts", by=held_out), "validation_data": to("eval_data", "eval_prompts", by=held_out),
    "validation_file": to("eval_data", "eval_prompts", by=held_out), "eval_data": to("eval_data", "eval_prompts", by=held_out),
    "test_size": to("eval_frac"), "validation_split": to("eval_frac"), "val_split": to("eval_frac"), "eval_ratio": to("eval_frac"),
    "train_size": to("eval_frac", by=trained_share), "train_ratio": to("eval_frac", by=trained_share), "num_samples": to("limit"),
    "max_samples": to("limit"), "streaming": to("streaming", by=common.switch("streaming")),
    "max_length": to("max_length"), "max_seq_length": to("max_length"), "max_prompt_length": to("max_prompt_length"),
    "batch_size": to("batch_size", "prompts_per_rollout", by=batch),
    "train_batch_size": to("batch_size", "prompts_per_rollout", by=batch),
    "per_device_train_batch_size": to("batch_size", "prompts_per_rollout", by=batch),
    "gradient_accumulation_steps": to("batch_size", by=accumulation),
    "mini_batch_size": to("minibatch_size", by=minibatch, when=1),
    "micro_batch_size": Reason(common.MICRO), "per_device_eval_batch_size": Reason(common.MICRO), "eval_batch_size": Reason(common.MICRO),
    "num_epochs": to("epochs", "rollouts", by=common.epochs, when=1), "epochs": to("epochs", "rollouts", by=common.epochs, when=1),
    "num_train_epochs": to("epochs", "rollouts", by=common.epochs, when=1),
    "max_steps": to("max_steps", "rollouts", by=common.max_steps, when=1),
    "total_steps": to("max_steps", "rollouts", by=total_steps, when=1),
    "num_rollouts": to("rollouts"), "ppo.steps": to("rollouts"),
    "learning_rate": to("learning_rate"), "lr": to("learning_rate"), "critic_learning_rate": to("value_learning_rate"),
    "value_learning_rate": to("value_learning_rate"), "actor_learning_rate": to("learning_rate"),
    "lr_scheduler": to("schedule", by=common.SCHEDULES), "lr_scheduler_type": to("schedule", by=common.SCHEDULES),
    "scheduler": to("schedule", by=common.SCHEDULES),
    "warmup_ratio": to("warmup_frac"), "warmup_steps": to("warmup_frac", by=common.warmup_steps, when=2),
    "weight_decay": to("weight_decay"), "max_grad_norm": to("max_grad_norm"), "gradient_clipping": to("max_grad_norm"),
    "adam_beta1": to("betas", by=common.betas), "adam_beta2": to("betas", by=common.betas), "betas": to("betas"),
    "adam_epsilon": to("eps"), "eps": to("eps"), "optimization.epsilon": to("eps"), "optimizer.epsilon": to("eps"),
    "beta1": to("betas", by=common.betas), "beta2": to("betas", by=common.betas),
    "min_lr": to("min_learning_rate_frac", by=lowest_rate, when=1),
    "optimization.name": ADAMW, "optimization.type": ADAMW, "optimizer.name": ADAMW, "optimizer.type": ADAMW,
    "optimizer": ADAMW, "optim": ADAMW,
    "bf16": to("autocast", by=common.autocast("bfloat16")), "fp16": to("autocast", by=common.switch("autocast", "float16")),
    "mixed_precision": to("autocast", by=precision),
    "seed": to(TOP + "seed"), "device": to(TOP + "device"), "output_dir": to(TOP + "name", TOP + "output_dir", by=common.folder),
    "save_dir": to(TOP + "name", TOP + "output_dir", by=common.folder),
    "save_steps": to("save_every", by=common.every("save_every"), when=2),
    "eval_steps": to("eval_every", by=common.every("eval_every", if_strategy="eval_strategy"), when=2),
    "eval_strategy": to("eval_every", by=common.strategy, when=3),
    "evaluation_strategy": to("eval_every", by=common.strategy, when=3),
    "save_strategy": to("save_every", by=common.save_strategy, when=3), "save_total_limit": to("keep_checkpoints"),
    "metric_for_best_model": to("early_stopping.metric", by=common.best_metric, when=2),
    "greater_is_better": to("early_stopping.mode", by=common.counted),
    "load_best_model_at_end": to("early_stopping.keep_best", by=common.counted),
    "early_stopping_patience": to("early_stopping.patience", by=common.patience("patience"), when=1),
    "early_stopping_threshold": to("early_stopping.min_delta", by=common.patience("min_delta"), when=1),
    "report_to": to("log_to", by=common.loggers), "use_wandb": to("log_to", by=common.switch("log_to", ["wandb"])),
    "use_tensorboard": to("log_to", by=common.switch("log_to", ["tensorboard"])),
    "log_with": to("log_to", by=common.loggers),
    # generation
    "max_new_tokens": to("sampling.max_new_tokens"), "max_response_length": to("sampling.max_new_tokens"),
    "rollout_length": to("sampling.max_new_tokens"), "min_p": to("sampling.min_p", by=common.sampled("sampling.min_p")),
    "stop": to("sampling.stop", by=texts), "stop_sequences": to("sampling.stop", by=texts),
    "max_completion_length": to("sampling.max_new_tokens"),
    "temperature": to("sampling.temperature"), "top_p": to("sampling.top_p"),
    "top_k": to("sampling.top_k", by=common.sampled("sampling.top_k")), "repetition_penalty": to("sampling.repetition_penalty"),
    "num_return_sequences": to("group_size"), "num_generations": to("group_size"), "group_size": to("group_size"),
    # reward models and preferences
    "ranking_loss": to("loss", by=RANKING_LOSSES), "comparison_type": to("loss", by=COMPARISONS),
    "margin": to("margin"), "label_smoothing": to("label_smoothing"), "loss_type": to("loss", "policy_loss", "aggregation", by=loss_type),
    "beta": to("beta", "odds_coef", "kl.coef"),
    "num_models": to("num_models"), "ensemble_size": to("num_models"), "dropout": to("head_dropout"), "normalize_rewards": to("normalize"),
    "head_type": to("head", by={"linear": "linear", "mlp": "mlp"}), "desirable_weight": to("desirable_weight"),
    "undesirable_weight": to("undesirable_weight"), "gamma_beta_ratio": Reason("target_margin is the margin itself: beta times the ratio"),
    # policies
    "ppo_epochs": to("epochs_per_rollout"), "num_ppo_epochs": to("epochs_per_rollout"),
    "kl_coef": to("kl.coef"), "kl_penalty_coef": to("kl.coef"), "init_kl_coef": to("kl.coef"),
    "kl_penalty_method": to("kl.estimator", "kl.target", by=kl_method),
    "kl_estimator": to("kl.estimator", by=ESTIMATORS),
    "target_kl": to("kl.target", "stop_at_kl", by=early), "target_kl_divergence": to("kl.target", "stop_at_kl", by=early),
    "kl_target": to("kl.target"), "kl_horizon": to("kl.horizon"),
    "adaptive_kl": to("kl.target", by={True: {}, False: {}}, note="The weight is adapted where `kl.target` is given."),
    "clip_range": to("clip_low", "clip_high", by=common.clips), "cliprange": to("clip_low", "clip_high", by=common.clips),
    "clip_epsilon": to("clip_low", "clip_high", by=common.clips), "clip_ratio": to("clip_low", "clip_high", by=common.clips),
    "value_clip_range": to("clip_value"), "clip_range_value": to("clip_value"), "value_clip": to("clip_value"),
    "cliprange_value": to("clip_value"),
    "vf_coef": to("value_coef"), "value_loss_coef": to("value_coef"), "value_coef": to("value_coef"),
    "entropy_coef": to("entropy_coef"), "ent_coef": to("entropy_coef"), "gamma": to("gamma", "target_margin"),
    "gae_lambda": to("gae_lambda"), "lam": to("gae_lambda"),
    "train_on_completions": to("train_on", by={True: "completion", False: "all"}),
    "reward_score_clip": to("clip_score", by=common.widest), "reward_clip": to("clip_score", by=common.widest),
    "clip_reward": to("clip_score", by=common.widest), "whiten_rewards": to("whiten_rewards"),
    "normalize_advantages": to("whiten_advantages"), "advantage_normalization": to("whiten_advantages"),
    "whiten_advantages": to("whiten_advantages"),
    "score_clip": to("clip_score", by=common.widest), "rollout_batch_size": to("prompts_per_rollout"),
    "share_value_network": to("value_model", by=shared_value), "shared_value_network": to("value_model", by=shared_value),
    "sft_weight": to("sft_coef"), "reward_functions": to("reward", by=reward_functions),
    "model.reward": to("reward"), "reference": to("reference"),
    "reward_model": to("reward"), "reward_model_path": to("reward"), "reference_model": to("reference"), "ref_model": to("reference"),
    "ptx_coef": to("ptx.coef"), "ptx_data": to("ptx.data"), "pretrain_data": to("ptx.data"),
    "missing_eos_penalty": to("missing_eos_penalty"),
    **no("do_sample", "nothing to set: completions are sampled; temperature 0 is greedy, for evaluation"),
    **no("logging_steps log_interval", common.LOGGED),
    "preprocessing_num_workers": to("data_workers"), "num_proc": to("data_workers"), "dataset.num_workers": to("data_workers"),
    "data.num_workers": to("data_workers"),
    **no("num_workers dataloader_num_workers", common.LOADING),
    **no("packing padding_side padding pad_to_max_length", common.PACKED),
    **no("forward_batch_size", common.MICRO),
    **no("wandb_project project run_name level logging.metrics", common.LOGGED),
    **no("shuffle", "nothing to set: rows are shuffled, with the recipe's seed"),
    **no("prompt_template", common.TEMPLATE),
    **no("cache_dir", "nothing to set: $HF_HOME says where hub files are kept"),
    **no("use_8bit_adam", "AdamW is the optimizer, with states in float32; LoRA needs few of them"),
    **no("num_beams length_penalty no_repeat_ngram_size min_new_tokens", "no counterpart: completions are sampled, not searched"),
    **no("num_labels", "nothing to set: a reward model has one score"),
    **no("pooling", "nothing to set: the score is read at a sequence's last token"),
    **no("freeze_base num_layers_unfrozen freeze_layers", "no such switch: `model.lora` trains little of the model"),
    **no("regularization", "of reward models there are center_coef, l2_coef and weight_decay"),
    **no("use_gae", "nothing to set: advantages of PPO are GAE's; without a critic take `kind: rloo` or `grpo`"),
    **no("ppo.early_stopping", "stop_at_kl ends a rollout's passes at a KL; early_stopping is a section with a metric"),
    **no("lora.bias lora.task_type lora.use_rslora lora.modules_to_save lora.use_dora", OF_LORA),
    **no("evaluation.metrics evaluation.num_samples", "a stage `kind: evaluate` measures (docs/evaluation.md)"),
    **no(
        "use_deepspeed use_fsdp zero_stage cpu_offload device_map deepspeed deepspeed_config fsdp num_gpus world_size local_rank "
        "distributed", common.ONE_PROCESS),
    **no("use_flash_attention attn_implementation flash_attention tf32", common.CHOSEN),
    **no("resume_from_checkpoint", common.RESUMES),
    **no("push_to_hub hub_model_id hub_token", common.HUB),
    **no("split train_split subset dataset_config", common.SPLIT),
    "eval_split": to("eval_frac", by=held_out_split), "test_split": to("eval_frac", by=held_out_split),
    **no("text_field text_column prompt_column chosen_column rejected_column response_column", "write `columns: {THEIRS: OURS}`"),
    **no("hidden_size num_layers vocab_size model_type", "sizes of a new model go into `model.init`; a model that is loaded has its own"),
    **no("pad_token_id eos_token_id pad_token eos_token", "nothing to set: a model's own EOS ends a completion, and no row is padded"),
}  # fmt: skip
"""Their leaves, with the section in front where the leaf alone is not enough."""
