"""The table of methods, and looking one up."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from importlib import import_module

from rlhf.config.methods.method import Method
from rlhf.errors import ConfigError, UnknownNameError, folded, look_up

OWN_KINDS: Mapping[str, str] = {
    "grpo": "Learn from rewards in groups: rlhf grpo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    "dr_grpo": "GRPO without its biases by length and difficulty: rlhf dr_grpo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    "dapo": "GRPO that clips higher and skips what teaches nothing: rlhf dapo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    "gspo": "GRPO with one ratio for a whole completion: rlhf gspo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    "cispo": "GRPO that clips a token's weight and silences none: rlhf cispo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    "sapo": "GRPO with a soft gate in place of the clip: rlhf sapo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    "rloo": "REINFORCE against the mean of a completion's siblings: rlhf rloo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    "reinforce_pp": "REINFORCE, advantages whitened over the rollout: rlhf reinforce_pp model=PATH prompts=FILE reward=PATH",
    "remax": "REINFORCE against the greedy completion: rlhf remax model=PATH prompts=FILE reward=FILE.py:FUNCTION",
}
"""Methods that declare a kind of stage of their own, which has their name -> the help of its command; empty where there is none."""
KIND_OF_METHOD: Mapping[str, str] = {
    "sft": "sft",
    "dft": "sft",
    "neftune": "sft",
    "reward": "reward",
    "reward_hinge": "reward",
    "reward_graded": "reward",
    "reward_ties": "reward",
    "reward_rankings": "reward",
    "reward_ratings": "reward",
    "reward_binary": "reward",
    "reward_ensemble": "reward",
    "prm": "prm",
    "dpo": "dpo",
    "cdpo": "dpo",
    "robust_dpo": "dpo",
    "ipo": "dpo",
    "slic": "dpo",
    "exo": "dpo",
    "discopop": "dpo",
    "nca": "dpo",
    "bco": "dpo",
    "sppo": "dpo",
    "apo_zero": "dpo",
    "apo_down": "dpo",
    "aot": "dpo",
    "fdpo": "dpo",
    "ld_dpo": "dpo",
    "length_normalized_dpo": "dpo",
    "wpo": "dpo",
    "rpo": "dpo",
    "simpo": "simpo",
    "cpo": "cpo",
    "orpo": "orpo",
    "kto": "kto",
    "kto_bco": "kto",
    "iterative_dpo": "dpo",
    "online_dpo": "online_dpo",
    "best_of_n": "best_of_n",
    "distill": "distill",
    "ppo": "ppo",
    "vapo": "vapo",
    "trpo": "trpo",
    **{name: name for name in OWN_KINDS},
}
"""Method -> the kind of stage that it is; the module of that name declares it. A line more is a method more, here or, with the stage
that it declares, in ``OWN_KINDS``. In the order of tables: by family, then as one comes to them."""
MODULES: Mapping[str, str] = {"sft": "supervised", "reward": "reward_model"}
"""Methods whose module has another name, because too many files have theirs."""


class Methods(Mapping[str, Method]):
    """The methods by name; a method's module is imported when the method is looked up."""

    def __getitem__(self, name: str) -> Method:
        """Of that name.

        Raises:
            KeyError: There is none.
            ConfigError: Its module is missing or declares it wrongly.
        """
        if name not in KIND_OF_METHOD:
            raise KeyError(name)
        module = f"{__package__}.{MODULES.get(name, name)}"
        try:
            method: Method = import_module(module).METHOD
        except (ModuleNotFoundError, TypeError, AttributeError) as err:
            raise ConfigError(
                f"The method {name!r} has a line in KIND_OF_METHOD (rlhf/config/methods/table.py), and {module} does not declare it: "
                f"{type(err).__name__}: {err}. The module needs METHOD = Method(...); see docs/extending.md."
            ) from err
        if method.kind != KIND_OF_METHOD[name]:
            raise ConfigError(
                f"The method {name!r} is of kind {method.kind!r} in {module} and of kind {KIND_OF_METHOD[name]!r} in KIND_OF_METHOD "
                "(rlhf/config/methods/table.py); write the same kind in both."
            )
        if (method.stage is not None) != (name in OWN_KINDS):
            raise ConfigError(
                f"The method {name!r} {'declares no stage' if method.stage is None else 'declares a stage'} in {module}, and "
                f"{'a line' if name in OWN_KINDS else 'no line'} of OWN_KINDS (rlhf/config/methods/table.py) says that it does; a method "
                "that is a kind of stage of its own has `stage` there and its line here."
            )
        return method

    def __contains__(self, name: object) -> bool:
        return name in KIND_OF_METHOD

    def __iter__(self) -> Iterator[str]:
        return iter(KIND_OF_METHOD)

    def __len__(self) -> int:
        return len(KIND_OF_METHOD)


METHODS = Methods()
"""In the order of tables: by family, then as one comes to them."""


def methods_of_kind(kind: str) -> dict[str, Method]:
    """The methods that are stages of a kind; no other is imported."""
    return {name: METHODS[name] for name, of_kind in KIND_OF_METHOD.items() if of_kind == kind}


def method(name: str) -> Method:
    """The method of that name.

    Raises:
        UnknownNameError: There is none; the message holds what we call it, or the nearest names and all of them.
    """
    if name in METHODS:
        return METHODS[name]
    for ours, known in METHODS.items():
        for other, settings in known.other_names.items():
            if folded(name) == folded(other):
                meant = as_settings(replace(known, settings={**known.settings, **settings}))
                raise UnknownNameError(
                    f"No method is called {name!r} here: it is `{meant}`. See `rlhf methods {ours}`."
                )
    return look_up(METHODS, name, kind="method")


def method_behind(word: str, kinds: Collection[str]) -> tuple[str, Method] | None:
    """The method that somebody means who writes its name for a kind of stage; capitals and punctuation do not count.

    Args:
        word: What was written, such as ``ipo`` or ``Dr.GRPO``.
        kinds: Those that could be meant there.
    """
    for name, kind in KIND_OF_METHOD.items():
        if folded(name) == folded(word) and kind in kinds:
            return name, METHODS[name]
    return None


def as_settings(method: Method) -> str:
    """What makes a stage be the method, as YAML has it: ``kind: dpo, loss: ipo``."""
    shown = {"kind": method.kind, **method.settings}
    return ", ".join(
        f"{key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in shown.items()
    )


def recipe_of(name: str) -> str:
    """Where the method's recipe is in the repository."""
    return f"recipes/methods/{name}.yaml"


def page_of(name: str) -> str:
    """Where the method's page is in the repository."""
    return f"docs/methods/{name}.md"
