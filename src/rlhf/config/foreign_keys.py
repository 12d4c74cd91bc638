"""What people bring from other libraries (TRL, OpenRLHF, verl, transformers), and what stands for it here.

No key is taken by two names: this only serves the answer to a key that is not there. The tables are those that
``rlhf config convert`` reads (``rlhf.config.foreign``), and the keys below, which no file has that is converted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rlhf.config.foreign import trl, trl_conversions
from rlhf.config.foreign.key_table import TOP, Entry, Reason, To, to
from rlhf.config.foreign.layouts import LAYOUTS
from rlhf.config.renamed_keys import RENAMED

LOSSES = "What TRL calls a loss_type is a method here, and `rlhf methods` says of each which stage it is."
OTHERS: Mapping[str, Entry] = {
    **{old: to(*new) for old, new in RENAMED.items()},
    "critic_lr": to("value_learning_rate"),
    "beta1": to("betas"),
    "beta2": to("betas"),
    "grad_clip": to("max_grad_norm"),
    "micro_batch_size": to("microbatch_tokens", note="It is counted in tokens."),
    "max_seq_len": to("max_length"),
    "cutoff_len": to("max_length"),
    "max_prompt_len": to("max_prompt_length"),
    "ewc_lambda": to("ewc.coef"),
    "mini_batch_size": to("minibatch_size", "batch_size"),
    "use_kl_in_reward": to("kl.where"),
    "use_kl": to("kl.coef", note="0 is none."),
    "use_ensemble": to("num_models"),
    "confidence_weighting": to("use_label_probability"),
    "clip_ratio_low": to("clip_low"),
    "clip_ratio_high": to("clip_high"),
    "lambda": to("gae_lambda", "coef"),
    "lmbda": to("on_policy_frac"),
    "gamma_beta_ratio": to("target_margin", note="The margin itself, beta times the ratio."),
    "n": to("num_samples", "group_size"),
    "num_return_sequences": to("num_samples", "group_size"),
    "whiten_adv": to("whiten_advantages"),
    "divide_by_std": to("advantage"),
    "clip_ratio_c": to("dual_clip"),
    "adv_estimator": to("advantage"),
    "norm_adv_by_std_in_grpo": to("advantage"),
    "loss_agg_mode": to("aggregation"),
    "filter_groups": to("dynamic_sampling"),
    "max_num_gen_batches": to("max_sampling_rounds"),
    "overlong_buffer": to("overlong"),
    "reward_fn": to("reward"),
    "type": to("kind"),
    "algorithm": to("kind"),
    "r": to("model.lora.rank"),
    "peft_config": to("model.lora"),
    "lora": to("model.lora"),
    "train_dataset": to("data", "prompts"),
    "loss_type": to(note=LOSSES),
    "value_head": to("head"),
    "max_length": to("sampling.max_new_tokens"),
}
"""Of verl, LLaMA-Factory, Axolotl and papers, and words next to keys of the tables."""
OF_RLHF_CONFIG: Mapping[str, Entry] = {
    "rm_model": to("reward_model"),
    "rm_dataset": to("reward_dataset"),
    "rm_learning_rate": to("reward_learning_rate"),
    "rm_epochs": to("reward_epochs"),
    "num_rollouts": to("ppo_rollouts"),
    "rollouts": to("ppo_rollouts"),
    "rm_batch_size": to("reward_batch_size"),
    "ppo_learning_rate": to("learning_rate"),
    "dpo_beta": to("beta"),
    "value_clip": to("value_clip_range"),
    "cliprange": to("clip_range"),
    "cliprange_value": to("value_clip_range"),
    "kl_penalty_coef": to("kl_coef"),
    "init_kl_coef": to("kl_coef"),
    "lam": to("gae_lambda"),
}
"""To fields of ``rlhf.RLHFConfig``, whose names say the stage."""

OF_REQUESTS: Mapping[str, Entry] = {"batch_size": to("request_size", "concurrency")}
"""Of what asks a server; last, because most sections mean another thing by it."""


def _entries() -> Iterator[tuple[str, Entry]]:
    yield from OTHERS.items()
    yield from OF_RLHF_CONFIG.items()
    for layout in LAYOUTS.values():
        for key, entries in layout.everything.items():
            if "." not in key:
                yield from ((key, entry) for entry in entries)
    yield from OF_REQUESTS.items()


def _with_tails(key: str) -> Iterator[str]:
    """`model.lora.rank`, and inside the sections `lora.rank` and `rank`; every stage has a `kind`, so no tail is that."""
    while key:
        yield key
        key = key.partition(".")[2]
        key = "" if key == "kind" else key


def _sentence(text: str) -> str:
    text = text.removeprefix("nothing to set: ")
    return f"{text[:1].upper()}{text[1:]}".removesuffix(".") + "."


def _theirs() -> dict[str, list[str]]:
    ours_by_key: dict[str, list[str]] = {}
    for key, entry in _entries():
        names = [tail for ours in getattr(entry, "ours", ()) if not ours.startswith(TOP) for tail in _with_tails(ours)]
        known = ours_by_key.setdefault(key, [])
        known += [name for name in names if name not in known]
    return {key: names for key, names in ours_by_key.items() if names}


def _remarks() -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    remarks: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for key, entry in _entries():
        text = str(entry) if isinstance(entry, Reason) else entry.note
        ours = entry.ours if isinstance(entry, To) else ()
        if text:
            needed = tuple(name.partition(".")[0] for name in ours if not name.startswith(TOP))
            remarks.setdefault(key, []).append((_sentence(text), needed))
    return remarks


def _values() -> dict[str, str]:
    tables: dict[str, Mapping[Any, Any]] = {
        "loss": {**trl_conversions.LOSS_OF_PAIRS, "apo_zero_unpaired": {"reference_point": "zero"}},
        "divergence": trl.DIVERGENCES,
    }
    settings_of = {}
    for key, table in tables.items():
        for word, ours in table.items():
            settings = ours if isinstance(ours, dict) else {key: ours}
            if not isinstance(ours, Reason) and settings.get(key) != word:
                settings_of[word] = ", ".join(f"{name}: {str(v).lower()}" for name, v in settings.items())
    return settings_of


THEIRS: Mapping[str, Sequence[str]] = _theirs()
"""Theirs, in lower case, to ours: dotted from the section that the key was written in; a section has some of them."""
REMARKS: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]] = _remarks()
"""Theirs to words next to our key, or instead of one, each with keys of which the section must have one; none for always."""
VALUES: Mapping[str, str] = _values()
"""Their values that no key of ours takes -> what stands for them here."""


def ours_for(name: str, known: Collection[str]) -> list[str]:
    """Of a section's keys, those that another library's stands for."""
    return [key for key in THEIRS.get(name.lower(), ()) if key.partition(".")[0] in known]


def remark_on(name: str, known: Collection[str]) -> str:
    """What to know about another library's key, where a section has these keys; empty where there is nothing."""
    remarks = REMARKS.get(name.lower(), ())
    return next((text for text, needed in remarks if not needed or set(needed) & set(known)), "")


def answer(name: str, known: Collection[str]) -> str:
    """' Did you mean 'kl.coef'? ...' for a key that a section does not have; empty where it is nobody's key.

    Args:
        name: The key.
        known: Those that the section has.
    """
    ours, remark = ours_for(name, known), remark_on(name, known)
    if ours:
        return f" Did you mean {' or '.join(map(repr, ours))}?{remark and f' {remark}'}"
    return remark and f" {remark}"


def elsewhere(name: str) -> str:
    """' It is ... in other places' for another library's key that this section has nothing for; empty for any other key."""
    ours = [key for key in THEIRS.get(name.lower(), ()) if key != name][:2]
    return f" In a stage that has it, it is {' or '.join(map(repr, ours))}." if ours else ""
