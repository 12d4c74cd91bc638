"""What becomes of OpenRLHF's values where a flag is not just a key of ours."""

from __future__ import annotations

from typing import Any

from rlhf.config.foreign.key_table import Given, Reason, Settings

PER_TOKEN = {"policy_loss": "clip", "aggregation": "token"}
"""Their loss of every estimator: clipped ratios, a mean over all tokens."""
ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "gae": ("ppo", {}),
    "reinforce": ("reinforce_pp", {}),
    "reinforce_baseline": ("reinforce_pp", {"baseline": "group"}),
    "rloo": ("rloo", PER_TOKEN),
    "group_norm": ("grpo", {"aggregation": "token"}),
    "dr_grpo": ("grpo", {"advantage": "group_mean", "aggregation": "token"}),
}
"""Their estimator of advantages to a kind of stage and what it needs to be theirs."""


def estimator(value: Any, given: Given) -> Settings | Reason:
    """The kind is chosen already; what it needs besides."""
    if value not in ESTIMATORS:
        return Reason(f"no such estimator; known are {', '.join(ESTIMATORS)}")
    kind, values = ESTIMATORS[value]
    if "kl" in given.fields:  # in the reward unless use_kl_loss says otherwise, also for groups
        values = {**values, "kl.where": "loss" if given.theirs.get("use_kl_loss") else "reward"}
    return Settings(values, f"kind: {kind}")


def kl_estimator(value: Any, given: Given) -> Settings | Reason:
    """k1 has no gradient as a loss; theirs is then nearly k2."""
    if given.theirs.get("use_kl_loss") and value == "k1":
        return Settings({"kl.estimator": "k2"}, "as a loss k1 pulls nowhere on average; k2 has the gradient of the KL")
    return Settings({"kl.estimator": value})


def kl_coef(value: Any, given: Given) -> Settings | Reason:
    """A weight of 0 is not a penalty."""
    return Settings({"kl.coef": value, **({"kl.where": "none"} if not value else {})})


def other_rows(value: Any, given: Given) -> Settings | Reason:
    """`--pretrain_data`: rows whose language-model loss is added, as whole texts."""
    mixture = sources(value, given)
    return (
        mixture
        if isinstance(mixture, Reason)
        else Settings({"ptx.data": next(iter(mixture.values.values())), "ptx.train_on": "all"})
    )


def ptx_coef(value: Any, given: Given) -> Settings | Reason:
    """Their weight, which counts where there are rows."""
    if not given.get("pretrain_data"):
        return Reason("pretrain_data names the rows whose loss it weighs, and there are none")
    return Settings({"ptx.coef": value})


def group_size(value: Any, given: Given) -> Settings | Reason:
    """Completions of a prompt."""
    return Settings({"group_size": value})


def step(value: Any, given: Given) -> Settings | Reason:
    """`train_batch_size` is global: rows, or completions, in an optimizer step."""
    if not given.learns_from_rewards:
        return Settings({"batch_size": value}, "over all devices, as here")
    group = given.number("n_samples_per_prompt")
    whole = -(-value // group) * group
    note = (
        f"{value} is not a multiple of {group} samples a prompt, so {whole}"
        if whole != value
        else "over all devices, as here"
    )
    return Settings({"minibatch_size": whole}, note)


def rewards(value: Any, given: Given) -> Settings | Reason:
    """A reward model, several of them, a service or a file of Python."""
    sources = str(value).split(",")
    judges: list[Any] = []
    for source in sources:
        if source.startswith("http"):
            judges.append({"kind": "service", "url": source, "format": "openrlhf"})
        else:
            judges.append(f"{source}:reward_func" if source.endswith(".py") else source)
    note = (
        "write it as reward(prompts, completions, **columns) -> scores"
        if any(s.endswith(".py") for s in sources)
        else ""
    )
    # their critic starts from the reward model, where there is one
    starts = (
        {"value_init": "reward"} if given.has("value_init") and not note and not sources[0].startswith("http") else {}
    )
    return Settings({"reward": judges[0] if len(judges) == 1 else judges, **starts}, note)


def sources(value: Any, given: Given) -> Settings | Reason:
    """Data sets in one text, with commas between them."""
    named = [part.strip() for part in str(value).split(",")]
    key = "data" if given.has("data") else "prompts"
    return Settings({key: named[0] if len(named) == 1 else named})


def held_out(value: Any, given: Given) -> Settings | Reason:
    """`eval_dataset`."""
    return Settings({"eval_data" if given.has("eval_data") else "eval_prompts": value})


def whole_length(value: Any, given: Given) -> Settings | Reason:
    """`max_len`: of a row; of a prompt and its completion together where the stage samples."""
    if not given.learns_from_rewards:
        return Settings(
            {"max_length": value, "truncation": "keep_start"} if given.kind == "sft" else {"max_length": value}
        )
    if given.theirs.get("generate_max_len") or given.theirs.get("max_new_tokens"):
        return Reason("max_prompt_length and sampling.max_new_tokens have bounds of their own")
    return Settings(
        {"max_prompt_length": value // 2, "sampling.max_new_tokens": value - value // 2},
        "one bound for both of theirs is two here: half of it for each",
    )


def correction(value: Any, given: Given) -> Settings | Reason:
    """`enable_vllm_is_correction` and what belongs to it."""
    if not given.theirs.get("enable_vllm_is_correction"):
        return Reason("enable_vllm_is_correction is off")
    low, high = given.get("vllm_is_truncated_threshold", [0.5, 5.0])
    how = "icepop" if given.theirs.get("use_icepop") else given.get("is_correction_type", "tis")
    level, bound = {"tis": ("token", "truncate"), "icepop": ("token", "mask")}.get(how, ("geometric", "mask"))
    return Settings(
        {"importance.level": level, "importance.bound": bound, "importance.low": low, "importance.high": high}
    )


def with_vllm(ours: str) -> Any:
    """A setting of vLLM, which counts where there are engines."""

    def convert(value: Any, given: Given) -> Settings | Reason:
        return Settings({ours: value}) if given.theirs.get("vllm_num_engines") else Reason("there is no vLLM engine")

    return convert


def engines(value: Any, given: Given) -> Settings | Reason:
    """How many vLLM engines."""
    return (
        Settings({"engine.kind": "vllm"}, "one engine" if value > 1 else "")
        if value > 0
        else Reason("none, as here by default")
    )


def ema(value: Any, given: Given) -> Settings | Reason:
    """The moving average of the weights."""
    return (
        Settings({"ema_decay": given.get("ema_beta", 0.992)})
        if given.theirs.get("enable_ema")
        else Reason("enable_ema is off")
    )


def policy_loss(value: Any, given: Given) -> Settings | Reason:
    """`ppo` or `gspo`."""
    if value == "gspo":
        return Settings(
            {"policy_loss": "sequence_token" if given.has("gamma") else "sequence", "aggregation": "sequence"}
        )
    return Settings({}) if value == "ppo" else Reason("no such loss; known are ppo and gspo")


def tracked(name: str) -> Any:
    """A flag that turns a service on, with its key as the value."""

    def convert(value: Any, given: Given) -> Settings | Reason:
        return (
            Settings({"log_to": [name]}, "the key comes from the service's own login")
            if value
            else Reason("off, as here by default")
        )

    return convert


def label(value: Any, given: Given) -> Settings | Reason:
    """A column of verdicts, or of what a reward compares with."""
    if given.learns_from_rewards:
        return Reason("every column of the prompts reaches a reward function by its name; rules take `column`")
    return Reason("as here") if value == "label" else Settings({"columns": {str(value): "label"}})


def critic_first(value: Any, given: Given) -> Settings | Reason:
    """`freezing_actor_steps`, -1 for none."""
    return Settings({"value_warmup_rollouts": value}) if value > 0 else Reason("none, as here by default")


def overlong(value: Any, given: Given) -> Settings | Reason:
    """The buffer before the length limit, and its weight."""
    buffer = given.theirs.get("overlong_buffer_len")
    if not buffer:
        return Reason("there is no buffer")
    return Settings(
        {"overlong.buffer_tokens": int(buffer), "overlong.weight": given.get("overlong_penalty_factor", 1.0)}
    )
