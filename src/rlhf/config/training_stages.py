"""Stages that leave a model: each method's settings, and where its inputs come from."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from rlhf.config.base import InputPath
from rlhf.config.groups import (
    CISPOConfig,
    DAPOConfig,
    DrGRPOConfig,
    GRPOConfig,
    GSPOConfig,
    ReinforcePPConfig,
    ReMaxConfig,
    RLOOConfig,
    SAPOConfig,
)
from rlhf.config.model import ModelConfig
from rlhf.config.on_policy import DistillConfig, OnlineDPOConfig
from rlhf.config.policy import PPOConfig, TRPOConfig, VAPOConfig
from rlhf.config.preference import CPOConfig, DPOConfig, KTOConfig, ORPOConfig, SimPOConfig
from rlhf.config.reward_model import ROWS_OF_LOSS, ProcessRewardModelConfig, RewardModelConfig
from rlhf.config.sft import SFTConfig
from rlhf.config.stage_inputs import OfflineStage, PolicyStage, PolicyTraining, PromptInputs, RowsFor


class SFTStage(SFTConfig, OfflineStage, PolicyTraining):
    """Supervised fine-tuning."""

    rows_for = "sft"
    kind: Literal["sft"]


class RewardStage(RewardModelConfig, OfflineStage):
    """Train a reward model."""

    rows_for = "preference"
    kind: Literal["reward"]
    model: ModelConfig
    """Whose backbone to start from."""

    @property
    def rows_wanted(self) -> RowsFor:
        """Pairs, comparisons with ties, rankings, ratings or verdicts: the loss decides."""
        return ROWS_OF_LOSS[self.loss]


class ProcessRewardStage(ProcessRewardModelConfig, OfflineStage):
    """Train a process reward model: a judge of each step."""

    rows_for = "stepwise"
    kind: Literal["prm"]
    model: ModelConfig
    """Whose backbone to start from."""

    @property
    def rows_wanted(self) -> RowsFor:
        """Labelled steps, or pairs."""
        return "preference" if self.loss == "pairs" else "stepwise"

    @model_validator(mode="after")
    def _layers_or_adapter(self) -> Self:
        if self.extra_layers and self.model.lora is not None:
            raise ValueError("extra_layers are trained as a whole, and lora freezes every layer; leave one of them out")
        return self


class DPOStage(DPOConfig, OfflineStage, PolicyTraining):
    """Direct preference optimisation."""

    rows_for = "preference"
    kind: Literal["dpo"]
    model: ModelConfig
    """Where to start; also the reference, unless one is named."""
    reference: ModelConfig | None = None
    """What the policy is measured against; the start by default. Iterated DPO names the first policy here."""

    @model_validator(mode="after")
    def _one_reference_or_none(self) -> Self:
        if self.reference_free and self.reference is not None:
            raise ValueError("reference names one, and reference_free says that there is none; take one of the two")
        return self


class SimPOStage(SimPOConfig, OfflineStage, PolicyTraining):
    """Simple preference optimisation: no reference."""

    rows_for = "preference"
    kind: Literal["simpo"]


class CPOStage(CPOConfig, OfflineStage, PolicyTraining):
    """Contrastive preference optimisation."""

    rows_for = "preference"
    kind: Literal["cpo"]


class ORPOStage(ORPOConfig, OfflineStage, PolicyTraining):
    """Odds-ratio preference optimisation."""

    rows_for = "preference"
    kind: Literal["orpo"]


class KTOStage(KTOConfig, OfflineStage, PolicyTraining):
    """Learning from single completions, good or bad: KTO and unpaired BCO."""

    rows_for = "kto"
    kind: Literal["kto"]
    reference: ModelConfig | None = None
    """What the policy is measured against; the start by default."""


class PPOStage(PPOConfig, PolicyStage):
    """Proximal policy optimisation."""

    kind: Literal["ppo"]


class VAPOStage(VAPOConfig, PolicyStage):
    """PPO for long reasoning."""

    kind: Literal["vapo"]


class TRPOStage(TRPOConfig, PolicyStage):
    """Trust-region policy optimisation."""

    kind: Literal["trpo"]


class GRPOStage(GRPOConfig, PolicyStage):
    """Group-relative policy optimisation."""

    kind: Literal["grpo"]


class DrGRPOStage(DrGRPOConfig, PolicyStage):
    """GRPO without its biases."""

    kind: Literal["dr_grpo"]


class DAPOStage(DAPOConfig, PolicyStage):
    """Decoupled clip and dynamic sampling."""

    kind: Literal["dapo"]


class GSPOStage(GSPOConfig, PolicyStage):
    """Group sequence policy optimisation."""

    kind: Literal["gspo"]


class CISPOStage(CISPOConfig, PolicyStage):
    """Clipped importance weights."""

    kind: Literal["cispo"]


class SAPOStage(SAPOConfig, PolicyStage):
    """Soft adaptive policy optimisation."""

    kind: Literal["sapo"]


class RLOOStage(RLOOConfig, PolicyStage):
    """REINFORCE, each completion against its siblings."""

    kind: Literal["rloo"]


class ReinforcePPStage(ReinforcePPConfig, PolicyStage):
    """REINFORCE++."""

    kind: Literal["reinforce_pp"]


class ReMaxStage(ReMaxConfig, PolicyStage):
    """REINFORCE against the greedy completion."""

    kind: Literal["remax"]


class OnlineDPOStage(OnlineDPOConfig, PolicyStage):
    """DPO on the policy's own completions, judged by a reward."""

    kind: Literal["online_dpo"]


class DistillStage(DistillConfig, PromptInputs, PolicyTraining):
    """On-policy distillation."""

    kind: Literal["distill"]
    teacher: ModelConfig
    """Whose distributions to learn; the same vocabulary as the student's."""
    data: InputPath | list[InputPath] | None = None
    """Demonstrations, for the share of prompts that the student does not complete itself; those of other prompts are not used."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Stop at a bad row of `data`, or count and list it."""

    @model_validator(mode="after")
    def _somebody_writes(self) -> Self:
        if (self.data is None) != (self.on_policy_frac == 1):
            raise ValueError(
                "data is for the share of prompts that the student does not complete itself: give it with an on_policy_frac "
                "below 1, or neither"
            )
        return self
