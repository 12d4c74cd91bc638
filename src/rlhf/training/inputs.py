"""What a trainer is given: one object for those that learn from their own completions, one for those that learn from files.

A trainer is called with the fields of its object, ``GRPOTrainer(policy, config, prompts, scorer, reference=reference)``, or with
the object itself, ``GRPOTrainer(RLInputs(...))``. The fields are listed here and nowhere else.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from rlhf.errors import did_you_mean

if TYPE_CHECKING:  # the key of a stage that learns from files does not depend on engines and rewards
    from rlhf.config.policy import RLConfig
    from rlhf.config.training import OfflineConfig
    from rlhf.data.contracts import Prompt
    from rlhf.data.pack import Group
    from rlhf.models.context_compressor import ContextCompressor
    from rlhf.models.policy import PolicyModel
    from rlhf.models.process_reward import ProcessRewardModel
    from rlhf.models.reference import Reference
    from rlhf.models.reward import RewardModel
    from rlhf.models.value import ValueModel
    from rlhf.rollout.types import RolloutEngine
    from rlhf.training.log import TrainingLogger
    from rlhf.training.ptx import LanguageModelTerm
    from rlhf.training.row_order import MapData, StreamData

P = ParamSpec("P")
TrainerT = TypeVar("TrainerT")
InputsT = TypeVar("InputsT")
ModelT = TypeVar("ModelT", bound="PolicyModel | RewardModel | ProcessRewardModel | ContextCompressor")
RLConfigT = TypeVar("RLConfigT", bound="RLConfig")
OfflineConfigT = TypeVar("OfflineConfigT", bound="OfflineConfig")


@dataclass(frozen=True, slots=True)
class RLInputs(Generic[RLConfigT]):
    """What a trainer needs whose policy learns from its own completions."""

    policy: PolicyModel
    """Changed in place."""
    config: RLConfigT
    prompts: Sequence[Prompt]
    """Sampled from in a shuffled, endless order; at least one."""
    scorer: Any = field(default=None, metadata={"asked_as": "reward"})
    """Scores completions: a ``Scorer``, a function, or what a recipe's ``reward`` takes (``as_scorer``); None
    only where nothing is learned from scores (distillation). Constructors of trainers take it as ``reward=``, too."""
    _: KW_ONLY
    judge: Any = None
    """Scores completions of ``eval_prompts`` now and then, and teaches nothing: detectors of reward hacking compare it with the
    scorer. Takes what ``scorer`` takes; None for none."""
    reference: Reference
    """Log-probabilities of the policy that the KL penalty pulls towards; usually the policy as it was."""
    value_model: ValueModel | None = None
    """Changed in place: the critic of PPO, VAPO and TRPO."""
    teacher: object = None
    """Whose distributions distillation learns: a ``PolicyModel``, ``ReferenceModel`` or ``AdapterOffReference`` with the policy's
    token ids."""
    demonstrations: Sequence[Group] = ()
    """Of distillation: rows of a ``SFTDataset``, one branch each, for the share of prompts that the policy does not complete itself;
    a row belongs to the prompt with the same ids."""
    ptx: LanguageModelTerm | None = None
    """Other rows whose language-model loss every step of the policy adds; None for none. Not for TRPO."""
    eval_prompts: Sequence[Prompt] = ()
    """Sampled from at each evaluation, with the same seeds; none for no evaluation."""
    engine: RolloutEngine | None = None
    """Samples completions; by default in this process from the same weights."""
    log: TrainingLogger | None = None
    """Where metrics and rollouts go."""
    checkpoint_dir: Path | None = None
    """Where checkpoints go; None for none."""
    name: str | None = None
    """What metrics, seeds and messages call the run; by default the trainer's own name."""


@dataclass(frozen=True, slots=True)
class OfflineInputs(Generic[ModelT, OfflineConfigT]):
    """What a trainer needs that learns from rows of a file."""

    model: ModelT
    """Changed in place: a policy, a reward model or a process reward model."""
    config: OfflineConfigT
    train_data: MapData | StreamData
    """Rows that can be counted, or a stream."""
    eval_data: MapData | None = None
    """Held-out rows of the same kind."""
    _: KW_ONLY
    reference: Reference | None = None
    """What DPO and KTO measure the policy against; None for the policy as it is given."""
    log: TrainingLogger | None = None
    """Where metrics go."""
    checkpoint_dir: Path | None = None
    """Where checkpoints go; None for none."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An input of trainers."""

    parts: tuple[str, ...]
    """Attributes that it has; a model of one's own is as good as ours."""
    expected: str
    """How to make one."""


INPUTS: Mapping[str, Wanted] = {
    "policy": Wanted(("score", "model"), "a PolicyModel; PolicyModel.from_pretrained(folder) loads one"),
    "value_model": Wanted(("values",), "a ValueModel; ValueModel.from_policy(policy) makes one"),
    "reward_model": Wanted(("raw_scores",), "a RewardModel; RewardModel.from_policy(policy) makes one"),
    "process_reward_model": Wanted(
        ("step_scores",), "a ProcessRewardModel; ProcessRewardModel.from_policy(policy) makes one"
    ),
    "compressor": Wanted(("encode",), "a ContextCompressor; ContextCompressor(policy, num_vectors=4) makes one"),
    "reference": Wanted(
        ("logprobs",), "a model with logprobs(batch), such as ReferenceModel(policy); ReferenceModel(folder) loads one"
    ),
    "teacher": Wanted(("score",), "a PolicyModel; PolicyModel.from_pretrained(folder) loads one"),
    "scorer": Wanted(
        ("name", "score"),
        "a scorer, such as LearnedReward(folder); RewardFunctionFactory().from_function(f) makes one of a function",
    ),
}
"""Parameter of a constructor -> what it takes; ``model`` of trainers that learn from files by the kind of model."""


def built_from(
    inputs: Callable[P, InputsT],
) -> Callable[[Callable[[TrainerT, InputsT], None]], Callable[Concatenate[TrainerT, P], None]]:
    """Make a constructor that takes an inputs object one that can also be called with the object's fields.

    Args:
        inputs: The dataclass; metadata ``asked_as`` of a field is a second keyword for it.

    Raises:
        TypeError: When the constructor is called with a keyword that is not a field, or gives a field twice or not at all; names the
            trainer and the field.
    """
    every: tuple[Field[Any], ...] = fields(inputs)  # type: ignore[arg-type]
    known = [each.name for each in every]
    required = [each.name for each in every if each.default is MISSING and each.default_factory is MISSING]
    second = {each.metadata["asked_as"]: each.name for each in every if "asked_as" in each.metadata}

    def decorate(init: Callable[[TrainerT, InputsT], None]) -> Callable[Concatenate[TrainerT, P], None]:
        @functools.wraps(init)
        def __init__(self: TrainerT, /, *args: P.args, **named: P.kwargs) -> None:
            if len(args) == 1 and not named and isinstance(args[0], inputs):  # type: ignore[arg-type]
                init(self, cast("InputsT", args[0]))
                return
            owner, by_name = type(self).__name__, cast("dict[str, object]", named)
            for key in by_name.keys() & second:
                if second[key] in by_name or known.index(second[key]) < len(args):
                    raise TypeError(f"{owner} was given both {second[key]!r} and {key!r}, which are one argument.")
                by_name[second[key]] = by_name.pop(key)
            for key in by_name:
                if key not in known:
                    raise TypeError(f"{owner} takes no argument {key!r}.{did_you_mean(key, [*known, *second])}")
            missing = [name for name in required if name not in by_name and name not in known[: len(args)]]
            if missing:
                said = [f"{name}={f' ({INPUTS[name].expected})' if name in INPUTS else ''}" for name in missing]
                raise TypeError(f"{owner} needs {', '.join(said)}.")
            init(self, inputs(*args, **named))

        own, given = inspect.signature(init), inspect.signature(inputs)
        first = next(iter(own.parameters.values()))
        also = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in second]
        __init__.__signature__ = given.replace(  # type: ignore[attr-defined]
            parameters=[first, *given.parameters.values(), *also]
        )
        return __init__

    return decorate
