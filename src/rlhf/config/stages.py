"""The kinds of stages that a recipe is made of.

    stage_inputs      what stages have in common: rows, prompts, models, who judges
    file_stages       those that leave files            problems   those around problems that can be checked
    training_stages   those that leave a model

What a method's own settings are stands in ``sft``, ``reward_model``, ``preference``, ``policy``, ``groups`` and
``on_policy``; a stage adds models, data and who judges.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlhf.config.file_stages import BestOfNStage, CalculatorStage, EvaluateStage, PreferencesStage, WorldStage
from rlhf.config.problems import PassAtKStage, ReasoningStage, StepLabelsStage
from rlhf.config.stage_inputs import DataInputs, OfflineStage, PolicyStage, PolicyTraining, PromptInputs, RowsFor
from rlhf.config.training_stages import (
    CISPOStage,
    CPOStage,
    DAPOStage,
    DistillStage,
    DPOStage,
    DrGRPOStage,
    GRPOStage,
    GSPOStage,
    KTOStage,
    OnlineDPOStage,
    ORPOStage,
    PPOStage,
    ProcessRewardStage,
    ReinforcePPStage,
    ReMaxStage,
    RewardStage,
    RLOOStage,
    SAPOStage,
    SFTStage,
    SimPOStage,
    TRPOStage,
    VAPOStage,
)

Stage = Annotated[
    WorldStage
    | ReasoningStage
    | CalculatorStage
    | PreferencesStage
    | StepLabelsStage
    | SFTStage
    | RewardStage
    | ProcessRewardStage
    | DPOStage
    | SimPOStage
    | CPOStage
    | ORPOStage
    | KTOStage
    | PPOStage
    | VAPOStage
    | TRPOStage
    | GRPOStage
    | DrGRPOStage
    | DAPOStage
    | GSPOStage
    | CISPOStage
    | SAPOStage
    | RLOOStage
    | ReinforcePPStage
    | ReMaxStage
    | OnlineDPOStage
    | DistillStage
    | BestOfNStage
    | EvaluateStage
    | PassAtKStage,
    Field(discriminator="kind"),
]
POLICY_KINDS = (
    "sft",
    "dpo",
    "simpo",
    "cpo",
    "orpo",
    "kto",
    "ppo",
    "vapo",
    "trpo",
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
    "sapo",
    "rloo",
    "reinforce_pp",
    "remax",
    "online_dpo",
    "distill",
)
"""Kinds that leave a policy."""
JUDGE_KINDS = ("reward", "prm")
"""Kinds that leave a model which scores."""
MODEL_STAGES = (*POLICY_KINDS, *JUDGE_KINDS)
"""Kinds that leave a model."""
FILE_STAGES = ("world", "calculator", "preferences", "best_of_n", "evaluate", "reasoning", "step_labels", "pass_at_k")
"""Kinds that leave files."""

__all__ = [
    "FILE_STAGES",
    "JUDGE_KINDS",
    "MODEL_STAGES",
    "POLICY_KINDS",
    "BestOfNStage",
    "CISPOStage",
    "CPOStage",
    "CalculatorStage",
    "DAPOStage",
    "DPOStage",
    "DataInputs",
    "DistillStage",
    "DrGRPOStage",
    "EvaluateStage",
    "GRPOStage",
    "GSPOStage",
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
    "RLOOStage",
    "ReMaxStage",
    "ReasoningStage",
    "ReinforcePPStage",
    "RewardStage",
    "RowsFor",
    "SAPOStage",
    "SFTStage",
    "SimPOStage",
    "Stage",
    "StepLabelsStage",
    "TRPOStage",
    "VAPOStage",
    "WorldStage",
]
