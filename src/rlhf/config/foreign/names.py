"""Classes, functions and arguments of constructors that people look for, and what takes their place."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any

from pydantic import BaseModel

from rlhf.config.foreign_keys import answer, ours_for
from rlhf.errors import UnknownArgumentError, did_you_mean

NAMES: Mapping[str, str] = {
    "RLHFPipeline": "RLHFOrchestrator runs stages from Python; Pipeline(load_recipe(...)) runs those of a recipe.",
    "DistributedRLHFTrainer": "RLHFOrchestrator or Pipeline; started by `torchrun`, the ranks of a run share each step (docs/ranks.md).",
    "RLHFStage": "TrainingStage says where a pipeline is; a stage itself is a section of a recipe (`rlhf config schema`).",
    "RolloutBatch": "RolloutBuffer keeps rollouts and gives minibatches of them.",
    "PPOMemory": "RolloutBuffer keeps rollouts and gives minibatches of them.",
    "BaseTrainer": "There is no base class to inherit from; docs/extending.md says how a method is added.",
    "TrainOutput": "TrainResult is what a trainer's train() returns.",
    "ActorCriticLM": "`value_model: shared` of PPO is a value head on the policy; in Python, ValueModel.",
    "PPOModel": "`value_model: shared` of PPO is a value head on the policy; in Python, PolicyModel and ValueModel.",
    "AutoModelForCausalLMWithValueHead": "PolicyModel and ValueModel; `value_model: shared` puts the head on the policy's backbone.",
    "RewardModelWithMargin": "RewardModelConfig(margin=0.5, or 'column' for each pair's own); loss='graded' learns one for each strength.",
    "ReferenceModelManager": "`moving_reference: {every: ..., decay: ...}` of a stage moves its reference; without it the reference stays.",
    "BradleyTerryLoss": "rlhf.losses.bradley_terry_loss; in a stage `kind: reward`.",
    "PlackettLuceLoss": "rlhf.losses.plackett_luce_loss; in a stage `kind: reward, loss: plackett_luce`.",
    "MarginRankingLoss": "rlhf.losses.hinge_margin_loss; in a stage `kind: reward, loss: hinge`.",
    "LabelSmoothingPreferenceLoss": "bradley_terry_loss of rlhf.losses takes label_smoothing; so do the stages `reward` and `dpo`.",
    "DPOLoss": "rlhf.losses.dpo_loss; in a stage `kind: dpo`.",
    "IPOLoss": "rlhf.losses.ipo_loss; in a stage `kind: dpo, loss: ipo`.",
    "KTOLoss": "rlhf.losses.kto_loss; in a stage `kind: kto`.",
    "ORPOLoss": "rlhf.losses.odds_ratio_loss; in a stage `kind: orpo`.",
    "compute_gae_advantage_return": "rlhf.losses.gae",
    "compute_policy_loss": "rlhf.losses.clipped_policy_loss",
    "compute_value_loss": "rlhf.losses.clipped_value_loss",
    "compute_rewards_with_kl_penalty": "`kl: {where: reward}` of a stage; rlhf.losses has the estimators kl_k1, kl_k2, kl_k3, kl_abs.",
    "get_entropy": "`entropy_coef` of a stage weighs the exact entropy; models.score gives it for each token.",
    "BaseRewardModel": "A reward is any object with the method of rlhf.rewards.types.Scorer; models that judge are RewardModel.",
    "GenerationSampler": "SamplingConfig(temperature=..., top_p=...); `sampling` of a stage.",
    "setup_gradient_checkpointing": "`model: {gradient_checkpointing: true}`; in Python, ModelConfig(gradient_checkpointing=True).",
    "RLHFMemoryOptimizer": "`estimate_memory` and `recommend_strategy` go by a size alone; `rlhf plan recipe.yaml` by a recipe.",
    "RewardModelService": "A reward of `kind: service` asks a server over HTTP (docs/rewards.md).",
    "PretrainedLLM": "PolicyModel.from_pretrained(...)",
    "SupervisedFineTuner": "SFTTrainer; `rlhf sft model=PATH data=FILE`.",
    "LearnedRewardModel": "LearnedReward",
    "EnsembleRewardModel": "EnsembleReward of several rewards, or RewardModelConfig(num_models=3) for a model with several members.",
}
"""Names that are looked for in ``rlhf`` and are not there -> what to use."""

ARGUMENTS: Mapping[str, Sequence[str]] = {
    "model": ("policy", "policies", "inputs"),
    "base_model": ("model", "policy", "members", "member"),
    "backbone": ("model", "members", "member"),
    "policy": ("model",),
    "policy_model": ("policy", "model"),
    "actor": ("policy", "model"),
    "critic": ("value_model",),
    "args": ("config",),
    "training_args": ("config",),
    "train_dataset": ("train_data", "prompts", "inputs"),
    "dataset": ("train_data", "prompts", "source", "inputs"),
    "data": ("train_data", "prompts", "source"),
    "eval_dataset": ("eval_data", "eval_prompts"),
    "reward_funcs": ("reward", "scorer"),
    "reward_function": ("reward", "scorer"),
    "reward_fn": ("reward", "scorer"),
    "reward": ("scorer",),
    "judge": ("scorer",),
    "reward_model": ("reward", "scorer", "model"),
    "reward_models": ("scorers", "reward", "scorer"),
    "models": ("scorers", "members"),
    "ref_model": ("reference",),
    "reference_model": ("reference",),
    "output_dir": ("checkpoint_dir", "folder"),
    "log_dir": ("folder", "output_dir"),
    "logging_dir": ("folder", "output_dir"),
    "save_total_limit": ("keep",),
    "max_checkpoints": ("keep",),
    "lr": ("learning_rate",),
    "dropout": ("head_dropout",),
    "value_head": ("head",),
    "weights": ("components",),
    "clip_range": ("config",),
}
"""Of constructors and functions: theirs to ours; each has some of them."""

OF_LORA: Mapping[str, str] = {
    "r": "rank",
    "rank": "rank",
    "lora_r": "rank",
    "alpha": "alpha",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "target_modules": "target_modules",
}
"""Of functions that take ``lora``: theirs to its settings."""
TOKENIZER = "A model carries its tokenizer, and rows are tokenized by the data set."
ABSENT_ARGUMENTS: Mapping[str, str] = {
    "processing_class": TOKENIZER,
    "tokenizer": TOKENIZER,
    "reward_processing_classes": TOKENIZER,
    "peft_config": "PolicyModel.from_pretrained(ModelConfig(path=..., lora={'rank': 16})) has an adapter.",
    "quantization_config": "PolicyModel.from_pretrained(ModelConfig(path=..., lora={'quantize_4bit': True})) is quantized.",
    "callbacks": "A log takes their place: `log=` is given every event.",
    "data_collator": "Rows are packed, not padded; there is nothing to collate.",
    "optimizers": "AdamW and its schedule are settings of the config.",
    "compute_metrics": "evaluation of a config says what is measured on held-out prompts.",
    "formatting_func": "A data set takes `columns`, theirs to ours.",
    "device": "A model is where it was loaded; a recipe has `device`.",
}
"""Arguments that have no counterpart -> why."""


LOADERS = ("from_pretrained", "from_policy")
"""Class methods that make an object."""


def explain_arguments(cls: type) -> None:
    """Make the constructor of a class, and its ``from_pretrained`` and ``from_policy``, answer a wrong keyword with the right one."""
    if issubclass(cls, BaseModel | Enum):
        return  # settings answer wrong keys themselves
    setattr(cls, "__init__", _explained(cls.__init__, cls))  # noqa: B010
    for name in LOADERS:
        if (loads := inspect.getattr_static(cls, name, None)) and isinstance(loads, classmethod):
            setattr(cls, name, classmethod(_explained(loads.__func__, cls)))


def explained_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that answers a wrong keyword with the right one."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_keywords(function, function.__name__, kwargs, known, [])
        return function(*args, **kwargs)

    return checked


def _check_keywords(
    function: Callable[..., Any],
    call: str,
    kwargs: Collection[str],
    known: Collection[str],
    configs: Sequence[type[BaseModel]],
) -> None:
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    wrong = [name for name in kwargs if name not in known]
    if wrong:
        lines = [f"{call} takes no argument {name!r}.{_right_one(name, known, configs)}" for name in wrong]
        raise UnknownArgumentError("\n".join(lines))


def _explained(function: Callable[..., Any], cls: type) -> Callable[..., Any]:
    known = list(inspect.signature(function).parameters)[1:]

    @functools.wraps(function)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= set(known):
            owner = self if isinstance(self, type) else type(self)
            call = owner.__name__ if function.__name__ == "__init__" else f"{owner.__name__}.{function.__name__}"
            _check_keywords(function, call, kwargs, known, _settings_of(cls, function))
        return function(self, *args, **kwargs)

    return checked


def _right_one(name: str, known: Collection[str], configs: Sequence[type[BaseModel]]) -> str:
    ours = [argument for argument in ARGUMENTS.get(name, ()) if argument in known]
    if ours:
        return f" It is {ours[0]!r} here."
    if name in ABSENT_ARGUMENTS:
        return f" {ABSENT_ARGUMENTS[name]}"
    if "lora" in known and name in OF_LORA:
        return f" It is a setting: lora=LoRAConfig({OF_LORA[name]}=...)."
    if "config" in known and (setting := _as_setting(name, configs)):
        return f" It is a setting:{setting}"
    near = did_you_mean(name, known)
    return answer(name, known) or near or f" It takes {', '.join(known)}."


def _settings_of(cls: type, function: Callable[..., Any]) -> list[type[BaseModel]]:
    """What a class takes as its config: a trainer names it, and others in the annotation."""
    named = getattr(cls, "config_class", None)
    try:
        annotation = typing.get_type_hints(function).get("config") if named is None else None
    except NameError:  # of a name that only type checkers see
        annotation = None
    classes = (named, *typing.get_args(annotation), annotation)
    return [kind for kind in classes if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _as_setting(name: str, configs: Sequence[type[BaseModel]]) -> str:
    """' config=DPOConfig(beta=...)', where the config of a class has the key, or one that stands for it."""
    for config in configs:
        if name in config.model_fields:
            return f" config={config.__name__}({name}=...)."
        ours = ours_for(name, config.model_fields)
        if len(ours) == 1:
            section, _, key = ours[0].partition(".")
            return f" config={config.__name__}({section}={f'{{{key!r}: ...}}' if key else '...'})."
        if remark := answer(name, config.model_fields):
            return f" config={config.__name__}(...).{remark}"
    return ""
