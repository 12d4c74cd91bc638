"""Who judges completions while a policy is trained. A text stands for the commonest settings:

stage:reward                   a reward model that an earlier stage trained
models/rm, org/name            a reward model in a folder or on the hub
package.module:function        a Python function; also path/to/file.py:function
http://host:8000/score         a reward service; also https
judge.yaml                     a judge, whose settings are in that file
rules                          the built-in rules with their defaults
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from rlhf.config.base import FUNCTION, BaseConfig
from rlhf.config.judge_reward import free_inside
from rlhf.config.kind_lines import classes_of_lines
from rlhf.config.reward_base import RewardBase


def settings_of_text(value: Any) -> Any:
    """The settings that a plain text stands for; anything else as it is."""
    if not isinstance(value, str):
        return value
    if value in {
        kind.kind_name() for kind in REWARD_KINDS if not any(f.is_required() for f in kind.model_fields.values())
    }:
        return {"kind": value}
    if value.startswith(("http://", "https://")):
        return {"kind": "service", "url": value}
    if value.endswith((".yaml", ".yml")):
        return {"kind": "judge", "judge": value}
    if not value.startswith("stage:") and FUNCTION.match(value):
        return {"kind": "function", "function": value}
    return {"kind": "learned", "source": value}


REWARD_KINDS: tuple[type[RewardBase], ...] = classes_of_lines(
    "REWARD_KINDS (rlhf/config/rewards.py)",
    RewardBase,
    "learned_rewards:LearnedRewardConfig",
    "learned_rewards:EnsembleRewardConfig",
    "learned_rewards:ProcessRewardConfig",
    "rule_rewards:RulesRewardConfig",
    "rule_rewards:LexiconRewardConfig",
    "function_reward:FunctionRewardConfig",
    "service_reward:ServiceRewardConfig",
    "verifier_rewards:ExactRewardConfig",
    "verifier_rewards:NumericRewardConfig",
    "verifier_rewards:MathRewardConfig",
    "verifier_rewards:PatternRewardConfig",
    "verdict_reward:VerdictRewardConfig",
    "verifier_rewards:JSONRewardConfig",
    "verifier_rewards:CodeRewardConfig",
    "constitution:ConstitutionRewardConfig",
    "judge_reward:JudgeRewardConfig",
)
"""Every kind of reward; one line more is one kind more. The order is that of `rlhf config schema` and of errors."""
FREE_OF_REWARDS = free_inside({key: free for kind in REWARD_KINDS for key, free in kind.free_to_change.items()})
"""Settings of rewards that a resumed run may change."""

if TYPE_CHECKING:
    RewardSpec = Any  # any RewardBase
else:
    RewardSpec = Annotated[reduce(or_, REWARD_KINDS), Field(discriminator="kind"), BeforeValidator(settings_of_text)]
    """One judge; a list of them is a weighted sum."""


def _on_one_scale(spec: Any) -> Any:
    if spec.needs_siblings:
        raise ValueError(
            f"mode: {spec.mode} compares completions of one prompt with each other, so scores of two policies could not be compared; "
            "take mode: points, or a `column` with a completion that each is compared with"
        )
    if spec.normalize or spec.length_debias:
        raise ValueError(
            "normalize and length_debias give the scores of every policy the same mean, so two policies could not be compared; leave it out"
        )
    return spec


JudgeSpec = Annotated[RewardSpec, AfterValidator(_on_one_scale)]
"""Who judges where policies are measured: one judge, whose scores mean the same whomever they are of."""


def validated_reward(value: Any) -> RewardBase:
    """Settings of any kind of reward that scores completions one by one; raises pydantic's error, so that a section names the place."""
    spec: RewardBase = TypeAdapter(JudgeSpec).validate_python(value)
    return spec


def _to_list(value: Any) -> Any:
    """One judge is a list of one."""
    return value if isinstance(value, list | tuple) else [value]


RewardSpecs = Annotated[list[RewardSpec], Field(min_length=1), BeforeValidator(_to_list)]
"""What a recipe's ``reward:`` holds: one judge or several; always a list once it was read."""

PerhapsRewardSpecs = Annotated[list[RewardSpec], BeforeValidator(_to_list)]
"""The same where something else may judge: maybe none."""


def rewards_of(stage: BaseConfig) -> list[tuple[str, RewardBase]]:
    """Key and settings of every reward and judge of a stage: ``reward.0``, ``judge``."""
    rewards: list[tuple[str, RewardBase]] = []
    for key in type(stage).model_fields:
        value = getattr(stage, key)
        places = (
            {f"{key}.{place}": item for place, item in enumerate(value)} if isinstance(value, list) else {key: value}
        )
        if not isinstance(value, RewardBase) and isinstance(inside := getattr(value, "reward", None), RewardBase):
            places = {f"{key}.reward": inside}  # of a search
        for place, item in places.items():
            if isinstance(item, RewardBase):
                rewards += [(place, item), *((f"{place}.{inner}", part) for inner, part in item.rewards_inside())]
    return rewards


def training_rewards_of(stage: BaseConfig) -> list[tuple[str, RewardBase]]:
    """Those of ``rewards_of`` that the stage learns from, or chooses by: all but its judge."""
    return [(place, item) for place, item in rewards_of(stage) if place.partition(".")[0] != "judge"]
