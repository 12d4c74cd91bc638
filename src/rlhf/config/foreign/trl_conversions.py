"""What becomes of TRL's values where a key of theirs is not just a key of ours."""

from __future__ import annotations

from typing import Any

from rlhf.config.foreign import common
from rlhf.config.foreign.key_table import Given, Reason, Settings


def batch(value: Any, given: Given) -> Settings | Reason:
    """Rows, or completions, in an optimizer step, and the prompts of a rollout."""
    per_device = given.number("per_device_train_batch_size")
    step = per_device * given.number("gradient_accumulation_steps") * given.processes
    said = f"{per_device} x {given.number('gradient_accumulation_steps')} x {given.processes} process{'es' * (given.processes > 1)}"
    if not given.learns_from_rewards:
        return Settings({"batch_size": step}, said)
    if "num_ppo_epochs" in given.theirs:  # PPOTrainer of 0.12 to 1.12
        minibatches = given.number("num_mini_batches")
        return Settings(
            {"prompts_per_rollout": step * minibatches, "minibatch_size": step},
            f"{said}; {minibatches} mini-batches a rollout",
        )
    group = given.number("num_generations", given.ours("group_size"))
    generated = given.number("generation_batch_size", 0)
    per_generation = given.number("steps_per_generation", given.number("gradient_accumulation_steps"))
    generated = generated or per_device * given.processes * per_generation
    whole = -(-step // group) * group
    prompts = max(1, -(-generated // group))
    note = f"{said}; {generated} completions a rollout, {group} to a prompt"
    if whole != step:
        note += f"; {step} is not a multiple of {group}, so {whole} completions are in a step"
    return Settings(
        {"group_size": group, "prompts_per_rollout": max(prompts, whole // group), "minibatch_size": whole}, note
    )


def prompt_batch(value: Any, given: Given) -> Settings | Reason:
    """Prompts in an optimizer step of a trainer that samples before every one."""
    per_device, accumulated = given.number("per_device_train_batch_size"), given.number("gradient_accumulation_steps")
    prompts = per_device * accumulated * given.processes
    return Settings(
        {"prompts_per_rollout": prompts, "minibatch_size": prompts * given.ours("group_size")},
        f"{per_device} x {accumulated} x {given.processes} process{'es' * (given.processes > 1)}; sampled before every step",
    )


def demonstrations(value: Any, given: Given) -> Settings | Reason:
    """Rows whose prompts are asked, and whose completions the share has that the student does not write."""
    return Settings({"prompts": value, **({"data": value} if given.get("lmbda", 0.5) != 1 else {})})


def moving_reference(value: Any, given: Given) -> Settings | Reason:
    """`sync_ref_model` and its two numbers: every so many steps, ref <- (1 - alpha) ref + alpha policy."""
    if not common.is_on(given.theirs.get("sync_ref_model")):
        return Reason("sync_ref_model is off")
    if not given.has("moving_reference"):
        return Reason(f"the reference of a stage of kind {given.kind} stays; `online_dpo` has one that moves")
    steps, alpha = given.number("ref_model_sync_steps", 512), float(given.get("ref_model_mixup_alpha", 0.6))
    per_rollout = given.steps_per_rollout
    return Settings(
        {"moving_reference.every": max(1, round(steps / per_rollout)), "moving_reference.decay": round(1 - alpha, 12)},
        f"{steps} steps, {per_rollout} on each rollout; decay is 1 - alpha",
    )


def beta(value: Any, given: Given) -> Settings | Reason:
    """The pull towards the reference: of the preference losses, or the weight of the KL penalty."""
    for ours in ("odds_coef", "divergence_beta", "beta"):
        if given.has(ours):
            return Settings({ours: value})
    if not given.has("kl"):
        return Reason(f"a stage of kind {given.kind} has no reference")
    if value == 0:
        return Settings({"kl.where": "none", "kl.coef": 0.0}, "the KL is measured and weighs nothing")
    # RLOO's default here is the reward and k1, GRPO's the loss and k3, as in TRL.
    exact = {"kl.unbiased": True} if common.is_on(given.theirs.get("use_bias_correction_kl")) else {}
    return Settings({"kl.coef": value, **exact})


def first_beta(value: Any, given: Given) -> Settings | Reason:
    """`beta` of online DPO, which theirs may be a list of, one for each epoch."""
    betas = list(value) if isinstance(value, list | tuple) else [value]
    if len(set(betas)) > 1:
        return Reason("one beta for the whole stage; a second stage from `stage:NAME` may have another")
    return Settings({"beta": betas[0]})


def group_loss(value: Any, given: Given) -> Settings | Reason:
    """`loss_type` of GRPO: what an advantage does to a token, and how tokens are averaged."""
    per_token = {"aggregation": "token"}
    known: dict[str, dict[str, Any]] = {
        "grpo": {"aggregation": "sequence"},
        "dapo": per_token,
        "bnpo": per_token,
        "dr_grpo": {"aggregation": "constant"},
        "cispo": {"policy_loss": "cispo", "clip_low": 1.0, **per_token},
        "sapo": {"policy_loss": "sapo", "aggregation": "sequence"},
    }
    if value not in known:
        return Reason(f"no such loss here; there are {', '.join(known)}")
    return Settings(known[value], "over the whole step, however it is split" if value == "bnpo" else "")


def ratio_bounds(value: Any, given: Given) -> Settings | Reason:
    """`epsilon` and `epsilon_high`: distances from 1, but for CISPO, whose bound is the weight itself."""
    loss = given.theirs.get("loss_type")
    if given.kind == "rloo":
        return Reason(
            "policy_loss is `reinforce`, which has no ratio; with several steps on a rollout take `policy_loss: clip`"
        )
    if loss == "sapo":
        return Reason("a soft gate takes the place of the clip; it has gate_temperatures")
    low = given.get("epsilon", 0.2)
    high = given.get("epsilon_high", low)
    if loss != "cispo":
        return Settings({"clip_low": low, "clip_high": high})
    if high <= 1:
        return Settings(
            {"clip_high": 4.0},
            f"TRL caps a token's weight at {high}, which scales even on-policy gradients; here 5, as TRL recommends",
        )
    return Settings({"clip_high": high - 1}, f"a weight of at most {high}")


def vllm(ours: str) -> Any:
    """A setting of vLLM, which counts where it samples."""

    def convert(value: Any, given: Given) -> Settings | Reason:
        if not common.is_on(given.theirs.get("use_vllm")):
            return Reason("use_vllm is off")
        return Settings({ours: value})

    return convert


def correction(value: Any, given: Given) -> Settings | Reason:
    """`vllm_importance_sampling_*`."""
    if not common.is_on(given.theirs.get("use_vllm")):
        return Reason("use_vllm is off")
    if not common.is_on(given.theirs.get("vllm_importance_sampling_correction", True)):
        return Settings({"importance": None})
    mode = str(given.get("vllm_importance_sampling_mode", "sequence_mask"))
    level, _, bound = mode.partition("_")
    values: dict[str, Any] = {
        "importance.level": level,
        "importance.bound": bound,
        "importance.high": given.get(
            "vllm_importance_sampling_cap", given.get("vllm_importance_sampling_clip_max", 3.0)
        ),
    }
    if (low := given.get("vllm_importance_sampling_clip_min")) is not None:
        values["importance.low"] = low
    return Settings(values)


def gates(value: Any, given: Given) -> Settings | Reason:
    """Both temperatures of SAPO."""
    if given.theirs.get("loss_type") != "sapo":
        return Reason("belongs to the loss_type that it is named after")
    return Settings(
        {"gate_temperatures": [given.get("sapo_temperature_pos", 1.0), given.get("sapo_temperature_neg", 1.05)]}
    )


def episodes(value: Any, given: Given) -> Settings | Reason:
    """`total_episodes` of PPO: completions in the whole run."""
    per_rollout = given.ours("prompts_per_rollout") * given.ours("group_size")
    return Settings({"rollouts": max(1, value // per_rollout)}, f"{value:,} episodes / {per_rollout}")


def datasets(value: Any, given: Given) -> Settings | Reason:
    """A mixture of data sets."""
    paths = [entry.get("path") for entry in value if isinstance(entry, dict) and entry.get("path")]
    if not paths:
        return Reason("no entry has a path")
    extra = sorted({key for entry in value for key in entry} - {"path"})
    note = f"not {', '.join(extra)}: {common.SPLIT}" if extra else ""
    return Settings({"data" if given.has("data") else "prompts": paths}, note)


LOSS_OF_PAIRS: dict[str, Any] = {
    "sigmoid": "sigmoid", "hinge": "hinge", "robust": "robust", "discopop": "discopop", "apo_zero": "apo_zero", "apo_down": "apo_down",
    "aot": "aot", "aot_unpaired": "aot_unpaired",
    "ipo": {"loss": "ipo", "ipo_per_token": True},
    "exo_pair": {"loss": "exo", "label_smoothing": 0.1}, "nca_pair": {"loss": "nca"}, "bco_pair": {"loss": "bco"},
    "aot_pair": {"loss": "aot"}, "sppo_hard": {"loss": "sppo"}, "sigmoid_norm": {"length_normalized": True},
    "sft": Reason("an sft stage of its own, or sft_coef with another loss"),
}  # fmt: skip


def pair_loss(value: Any, given: Given) -> Settings | Reason:
    """`loss_type` of DPO: one, or a list with weights, of which `sft` is a term of its own here."""
    names = list(value) if isinstance(value, list | tuple) else [value]
    weights = list(given.get("loss_weights", [1.0] * len(names)))
    if len(names) > 1 and "sft" in names and len(names) == 2 and len(weights) == 2:
        (other,) = (name for name in names if name != "sft")
        scale = weights[names.index(other)]
        rest = pair_loss(other, given)
        if isinstance(rest, Reason) or not scale:
            return rest
        return Settings({**rest.values, "sft_coef": weights[names.index("sft")] / scale}, "sft as a second term")
    if len(names) != 1:
        return Reason("losses are not mixed, except `sft` with one other, which is sft_coef")
    loss = LOSS_OF_PAIRS.get(names[0])
    if loss is None:
        return Reason(f"no such loss; known are {', '.join(LOSS_OF_PAIRS)}")
    return loss if isinstance(loss, Reason) else Settings(loss if isinstance(loss, dict) else {"loss": loss})
