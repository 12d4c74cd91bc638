"""The layouts that are known: their tables, defaults and how one tells them apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf.config.foreign import guide, openrlhf, trl
from rlhf.config.foreign.key_table import Entry, Reason, Table
from rlhf.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Layout:
    """One project's keys."""

    title: str
    common: Table
    """Keys of every method."""
    methods: Mapping[str, Table]
    """Further keys by method."""
    defaults: Mapping[str, Mapping[str, Any]]
    """Their defaults by method."""
    plain: Callable[[str], str] = str
    """The key in the table's spelling."""
    fallback: Layout | None = None
    """Whose keys, without their sections, are known here too."""

    def entries(self, method: str) -> dict[str, Entry]:
        """All keys of a method."""
        return {**self.common, **self.methods.get(method, {})}

    @property
    def everything(self) -> dict[str, list[Entry]]:
        """Every key of every method, with what it may become."""
        by_key: dict[str, list[Entry]] = {}
        for table in (*self.methods.values(), self.common):
            for key, entry in table.items():
                entries = by_key.setdefault(key, [])
                entries += [entry] if entry not in entries else []
        return by_key

    def knows(self, key: str) -> bool:
        """Whether any method has the key."""
        names = self.everything
        return any(name in names for name in spellings(self.plain(key)))

    def entry(self, key: str, method: str) -> Entry | None:
        """What stands for a key, which may have sections in front; None where it is not known."""
        table, plain = self.entries(method), self.plain(key)
        entry = next((table[name] for name in spellings(plain) if name in table), None)
        if entry is not None:
            return entry
        sections = (plain.rsplit(".", cut)[0] for cut in range(1, plain.count(".") + 1))
        outer = next((table[name] for name in sections if name in table), None)
        if isinstance(outer, Reason):
            return outer
        return self.fallback.entry(plain.rpartition(".")[2], method) if self.fallback is not None else None

    def method_of(self, keys: Iterable[str]) -> list[str]:
        """The methods that most of these keys belong to; none where all belong to every method."""
        plain = [self.plain(key) for key in keys]
        counts = {
            method: sum(any(name in table and name not in self.common for name in spellings(key)) for key in plain)
            for method, table in self.methods.items()
        }
        most = max(counts.values(), default=0)
        return [method for method, count in counts.items() if count == most] if most else []


def spellings(key: str) -> Iterator[str]:
    """`a.b.c`, `b.c`, `c`."""
    while key:
        yield key
        key = key.partition(".")[2]


TRL = Layout("TRL", trl.COMMON, trl.METHODS, trl.DEFAULTS)
OPENRLHF = Layout(
    "OpenRLHF", openrlhf.FLAGS, {method: {} for method in openrlhf.DEFAULTS}, openrlhf.DEFAULTS, openrlhf.plain_flag
)
GUIDE = Layout("YAML in sections", guide.KEYS, {kind: {} for kind in guide.STAGES.values()}, {}, fallback=TRL)
LAYOUTS = {"trl": TRL, "openrlhf": OPENRLHF, "guide": GUIDE}
CLOSE = (("grpo", "rloo", "online_dpo"), ("cpo", "simpo"), ("dpo", "cpo", "simpo"))
"""Methods whose keys hardly differ: the first of them is taken."""
NAMED = {"gkd": "distill", "dpo_online": "online_dpo"}
"""What a trainer's script is called -> the kind of stage, where that is another word."""
OPENRLHF_SIGNS = {
    "ppo": ("actor_learning_rate", "rollout_batch_size", "init_kl_coef", "prompt_data", "advantage_estimator"),
    "kto": ("desirable_loss_weight", "undesirable_loss_weight"),
    "dpo": ("beta", "ipo", "ref_pretrain", "nll_loss_coef"),
    "reward": ("margin_loss", "loss", "compute_fp32_loss", "value_head_prefix"),
    "sft": ("output_key", "multiturn", "pretrain_mode"),
}
"""Flags that one trainer of OpenRLHF has, the most telling first."""


def find_method(layout: Layout, keys: Mapping[str, Any], named: str, hints: Iterable[str], source: str) -> str:
    """Which trainer the keys are for.

    Args:
        layout: Whose keys.
        keys: As they were read.
        named: By the user or the command line in the file; empty where nobody did.
        hints: Texts that may name it, such as the file's name; the best first.
        source: What errors call the file.

    Raises:
        ConfigError: It can't be told.
    """
    known, named = list(layout.methods), NAMED.get(named, named)
    if named:
        if named not in known:
            raise ConfigError(
                f"{layout.title} has no trainer {named!r} that can be converted; there are {', '.join(known)}."
            )
        return named
    if layout is OPENRLHF:
        plain = {layout.plain(key) for key in keys}
        likely = [method for method, signs in OPENRLHF_SIGNS.items() if plain & set(signs)][:1]
    else:
        likely = layout.method_of(keys)
    if len(likely) == 1:
        return likely[0]
    for hint in hints:
        text = re.sub(r"[^a-z]+", "_", hint.lower())
        spelled = sorted([*NAMED, *known], key=len, reverse=True)  # online_dpo before dpo
        named_there = [NAMED.get(name, name) for name in spelled if f"_{name}_" in f"_{text}_"]
        if fitting := [method for method in named_there if method in (likely or known)]:
            return fitting[0]
    if close := [group for group in CLOSE if likely and set(likely) <= set(group)]:
        return next(method for method in close[0] if method in likely)
    raise ConfigError(
        f"{source}: its keys are {layout.title}'s, and could be those of {', '.join(likely or known)}; say which with --method."
    )
