"""The kinds of stages that a recipe is made of.

    stage_inputs      what stages have in common: rows, prompts, models, who judges
    file_stages       those that leave files            reasoning_stages   those around problems that can be checked
    training_stages   those that leave a model          methods            a stage that a method declares, and the table of methods

A method's own settings are in ``sft``, ``reward_model``, ``preference``, ``policy``, ``grpo_settings``, ``on_policy``, or in the
method's module; a stage adds models, data and who judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from rlhf.config.capabilities import CapabilitiesStage
from rlhf.config.file_stages import BestOfNStage, CalculatorStage, EvaluateStage, PreferencesStage, WorldStage
from rlhf.config.gates import GateStage
from rlhf.config.judge_rows import JudgeRowsStage
from rlhf.config.methods import KIND_OF_METHOD, METHODS
from rlhf.config.reasoning_stages import PassAtKStage, ReasoningStage, StepLabelsStage
from rlhf.config.search_stages import SearchCompareStage
from rlhf.config.stage_inputs import (
    DataInputs,
    OfflineStage,
    PolicyStage,
    PolicyTraining,
    PromptInputs,
    RowsFor,
    StageConfig,
)
from rlhf.config.training_stages import (
    CPOStage,
    DistillStage,
    DPOStage,
    KTOStage,
    OnlineDPOStage,
    ORPOStage,
    PPOStage,
    ProcessRewardStage,
    RewardStage,
    SFTStage,
    SimPOStage,
    TRPOStage,
    VAPOStage,
)
from rlhf.errors import ConfigError


def declared_stages() -> Iterator[type[StageConfig]]:
    """The kinds of stages that methods declare; methods that are variants of another kind are not imported."""
    for name, kind in KIND_OF_METHOD.items():
        if name == kind and (stage := METHODS[name].stage) is not None:
            if not issubclass(stage, StageConfig):
                raise ConfigError(
                    f"The stage of the method {name!r} should be a class below StageConfig; got {stage.__name__}."
                )
            yield stage


STAGE_KINDS: tuple[type[StageConfig], ...] = (
    WorldStage,
    ReasoningStage,
    CalculatorStage,
    PreferencesStage,
    JudgeRowsStage,
    StepLabelsStage,
    SFTStage,
    RewardStage,
    ProcessRewardStage,
    DPOStage,
    SimPOStage,
    CPOStage,
    ORPOStage,
    KTOStage,
    PPOStage,
    VAPOStage,
    TRPOStage,
    *declared_stages(),
    OnlineDPOStage,
    DistillStage,
    BestOfNStage,
    EvaluateStage,
    PassAtKStage,
    SearchCompareStage,
    CapabilitiesStage,
    GateStage,
)
"""Every kind of stage; a line more is a kind more, and so is a line of ``KIND_OF_METHOD`` for a method that declares its stage. The order
is that of `rlhf config schema` and of errors."""
BY_KIND = {kind.kind_name(): kind for kind in STAGE_KINDS}
POLICY_KINDS = tuple(name for name, kind in BY_KIND.items() if kind.leaves == "policy")
"""Kinds that leave a policy."""
JUDGE_KINDS = tuple(name for name, kind in BY_KIND.items() if kind.leaves == "judge")
"""Kinds that leave a model which scores."""


def judge_kinds(judged: str) -> tuple[str, ...]:
    """Kinds that leave a model which scores whole completions, or steps."""
    return tuple(name for name, kind in BY_KIND.items() if kind.judges == judged)


MODEL_STAGES = (*POLICY_KINDS, *JUDGE_KINDS)
"""Kinds that leave a model."""
FILE_STAGES = tuple(name for name, kind in BY_KIND.items() if kind.leaves == "files")
"""Kinds that leave files."""


class _ByKind:
    """Validates the settings of a stage with the class of its kind alone; the classes of the other kinds are not built.

    A union of all classes that pydantic builds itself takes a third of a second, and a recipe has a few kinds.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler, /) -> CoreSchema:
        choices: dict[Any, CoreSchema] = {
            name: core_schema.no_info_plain_validator_function(partial(_validated, kind))
            for name, kind in BY_KIND.items()
        }
        as_it_is = core_schema.simple_ser_schema("any")  # a stage knows how it is written
        return core_schema.tagged_union_schema(choices, discriminator="kind", serialization=as_it_is)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> dict[str, Any]:
        for kind in STAGE_KINDS:
            kind.model_rebuild()
        choices = {name: kind.__pydantic_core_schema__ for name, kind in BY_KIND.items()}
        return handler(core_schema.tagged_union_schema(choices, discriminator="kind"))


def _validated(kind: type[StageConfig], value: Any) -> StageConfig:
    return kind.model_validate(value)


if TYPE_CHECKING:
    Stage = Any  # any StageConfig; mypy finds that none of them could be a TrainConfig, too
else:
    Stage = Annotated[reduce(or_, STAGE_KINDS), Field(discriminator="kind"), _ByKind()]


@cache
def stage_adapter() -> TypeAdapter[Any]:
    """Validates the settings of a stage of any kind."""
    return TypeAdapter(Stage)


__all__ = [
    "BY_KIND",
    "FILE_STAGES",
    "JUDGE_KINDS",
    "MODEL_STAGES",
    "POLICY_KINDS",
    "STAGE_KINDS",
    "BestOfNStage",
    "CPOStage",
    "CalculatorStage",
    "CapabilitiesStage",
    "DPOStage",
    "DataInputs",
    "DistillStage",
    "EvaluateStage",
    "GateStage",
    "KTOStage",
    "ORPOStage",
    "OfflineStage",
    "OnlineDPOStage",
    "PPOStage",
    "PassAtKStage",
    "PolicyStage",
    "PolicyTraining",
    "PreferencesStage",
    "ProcessRewardStage",
    "PromptInputs",
    "ReasoningStage",
    "RewardStage",
    "RowsFor",
    "SFTStage",
    "SearchCompareStage",
    "SimPOStage",
    "Stage",
    "StageConfig",
    "StepLabelsStage",
    "TRPOStage",
    "VAPOStage",
    "WorldStage",
    "judge_kinds",
    "stage_adapter",
]
