"""Stages that leave a model: each method's settings, and where its inputs come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from rlhf.config.base import InputPath
from rlhf.config.formulas import Formula
from rlhf.config.model import ModelConfig
from rlhf.config.on_policy import DistillConfig, OnlineDPOConfig
from rlhf.config.policy import PPOConfig, TRPOConfig, VAPOConfig
from rlhf.config.preference import CPOConfig, DPOConfig, KTOConfig, ORPOConfig, SimPOConfig
from rlhf.config.reward_model import ProcessRewardModelConfig, RewardModelConfig
from rlhf.config.sft import SFTConfig
from rlhf.config.stage_inputs import (
    MEASURED_ON_PAIRS,
    OfflineStage,
    PolicyStage,
    PolicyTraining,
    PromptInputs,
    RowsFor,
    RowsInput,
    listed,
)


class SFTStage(SFTConfig, OfflineStage, PolicyTraining):
    """Supervised fine-tuning."""

    rows_for = "sft"
    kind: Literal["sft"]
    runs = "offline:run_sft"
    trainer = "rlhf.training.sft:SFTTrainer"
    measures = ("eval/loss", "eval/perplexity")

    @property
    def formulas(self) -> Mapping[str, Formula]:
        """That of ``loss``."""
        return {"loss": self.token_formula}


class RewardStage(RewardModelConfig, OfflineStage):
    """Train a reward model."""

    rows_for = "preference"
    kind: Literal["reward"]
    runs = "reward:run_reward"
    trainer = "rlhf.training.reward_model:RewardModelTrainer"
    leaves = "judge"
    judges = "completions"
    why_unwritten: ClassVar[Mapping[str, str]] = {
        "evaluation.json": "give it eval_data or eval_frac, and a loss that compares completions"
    }
    model: ModelConfig
    """Whose backbone to start from."""

    @property
    def rows_wanted(self) -> RowsFor:
        """Pairs, comparisons with ties, rankings, ratings or verdicts: the loss decides."""
        return self.judgment_formula.rows

    @property
    def formulas(self) -> Mapping[str, Formula]:
        """That of ``loss``."""
        return {"loss": self.judgment_formula}

    @property
    def measured(self) -> tuple[str, ...]:
        """The loss decides."""
        return ("eval/loss", *self.judgment_formula.measures)

    def files_written(self) -> dict[str, str | None]:
        """A model, and what it is worth on held-out pairs."""
        judges_pairs = self.has_held_out and self.rows_wanted not in ("rating", "kto")
        return {**super().files_written(), **({"evaluation.json": None} if judges_pairs else {})}


class ProcessRewardStage(ProcessRewardModelConfig, OfflineStage):
    """Train a process reward model: a judge of each step."""

    rows_for = "stepwise"
    kind: Literal["prm"]
    runs = "prm:run_prm"
    trainer = "rlhf.training.process_reward:ProcessRewardModelTrainer"
    leaves = "judge"
    judges = "steps"
    why_unwritten: ClassVar[Mapping[str, str]] = {
        "evaluation.json": "give it eval_data or eval_frac, and labeled steps"
    }
    model: ModelConfig
    """Whose backbone to start from."""

    @property
    def rows_wanted(self) -> RowsFor:
        """Labeled steps, or pairs."""
        return "preference" if self.loss == "pairs" else "stepwise"

    @property
    def measured(self) -> tuple[str, ...]:
        """The loss decides."""
        if self.loss == "pairs":
            labels = ("eval/step_loss", "eval/step_accuracy", "eval/wrong_found") if self.step_coef else ()
            return ("eval/loss", "eval/accuracy", "eval/margin", *labels)
        return ("eval/loss", "eval/accuracy", "eval/wrong_found", "eval/first_wrong", "eval/sound", "eval/f1")

    def files_written(self) -> dict[str, str | None]:
        """A model, and what it is worth on held-out steps."""
        judges_steps = self.has_held_out and self.loss == "steps"
        return {**super().files_written(), **({"evaluation.json": None} if judges_steps else {})}

    @model_validator(mode="after")
    def _layers_or_adapter(self) -> Self:
        if self.extra_layers and self.model.lora is not None:
            raise ValueError("extra_layers are trained as a whole, and lora freezes every layer; leave one of them out")
        return self


class DPOStage(DPOConfig, OfflineStage, PolicyTraining):
    """Direct preference optimization."""

    rows_for = "preference"
    kind: Literal["dpo"]
    runs = "offline:run_preference"
    trainer = "rlhf.training.dpo:DPOTrainer"
    measures = MEASURED_ON_PAIRS
    model: ModelConfig
    """Where to start; also the reference, unless one is named."""
    reference: ModelConfig | None = None
    """What the policy is measured against; the start by default. Iterated DPO names the first policy here."""

    @property
    def formulas(self) -> Mapping[str, Formula]:
        """That of ``loss``."""
        return {"loss": self.pair_formula}

    @property
    def asks_reference_once(self) -> bool:
        """Unless there is none."""
        return not self.reference_free

    @property
    def holds_reference(self) -> bool:
        """Where one is named; the policy as it is at the start needs no second model."""
        return self.reference is not None

    @property
    def compares_pairs(self) -> bool:
        """The loss decides."""
        return self.pair_formula.compares_pairs

    @model_validator(mode="after")
    def _one_reference_or_none(self) -> Self:
        if self.reference_free and self.reference is not None:
            raise ValueError("reference names one, and reference_free says that there is none; take one of the two")
        return self


class SimPOStage(SimPOConfig, OfflineStage, PolicyTraining):
    """Simple preference optimization: no reference."""

    rows_for = "preference"
    kind: Literal["simpo"]
    runs = "offline:run_preference"
    trainer = "rlhf.training.reference_free:SimPOTrainer"
    measures = MEASURED_ON_PAIRS


class CPOStage(CPOConfig, OfflineStage, PolicyTraining):
    """Contrastive preference optimization."""

    rows_for = "preference"
    kind: Literal["cpo"]
    runs = "offline:run_preference"
    trainer = "rlhf.training.reference_free:CPOTrainer"
    measures = (*MEASURED_ON_PAIRS, "eval/sft_loss")


class ORPOStage(ORPOConfig, OfflineStage, PolicyTraining):
    """Odds-ratio preference optimization."""

    rows_for = "preference"
    kind: Literal["orpo"]
    runs = "offline:run_preference"
    trainer = "rlhf.training.reference_free:ORPOTrainer"
    measures = (*MEASURED_ON_PAIRS, "eval/sft_loss")


class KTOStage(KTOConfig, OfflineStage, PolicyTraining):
    """Learning from single completions, good or bad: KTO and unpaired BCO."""

    rows_for = "kto"
    kind: Literal["kto"]
    runs = "offline:run_preference"
    trainer = "rlhf.training.kto:KTOTrainer"
    measures = (
        "eval/loss",
        "eval/accuracy",
        "eval/desirable_reward",
        "eval/undesirable_reward",
        "eval/reference_point",
    )
    reference: ModelConfig | None = None
    """What the policy is measured against; the start by default."""

    @property
    def formulas(self) -> Mapping[str, Formula]:
        """That of ``loss``."""
        return {"loss": self.verdict_formula}

    @property
    def asks_reference_once(self) -> bool:
        """Every row is measured against it."""
        return True

    @property
    def holds_reference(self) -> bool:
        """One that is named, or the copy on which the reference point is measured."""
        return self.reference is not None or (self.measures_reference_point and self.model.lora is None)


class CriticStage(PolicyStage):
    """What stages have whose policy learns with a critic."""

    why_unwritten: ClassVar[Mapping[str, str]] = {"critic/": "set save_critic"}
    save_critic: bool = False
    """Also leave the critic, in `critic/`, a second model of the policy's size: a value model for searches (docs/search.md)."""

    @model_validator(mode="after")
    def _critic_can_be_saved(self) -> Self:
        if self.save_critic and getattr(self, "value_model", None) == "shared":
            raise ValueError(
                "save_critic leaves a model, and a shared value_model is only a head on the policy's; take `separate`"
            )
        return self

    def files_written(self) -> dict[str, str | None]:
        """A model, what it said while it learned, and its critic."""
        return {**super().files_written(), **({"critic/": None} if self.save_critic else {})}


class PPOStage(PPOConfig, CriticStage):
    """Proximal policy optimization."""

    kind: Literal["ppo"]
    runs = "critic:run_with_critic"
    trainer = "rlhf.training.ppo:PPOTrainer"


class VAPOStage(VAPOConfig, CriticStage):
    """PPO for long reasoning."""

    kind: Literal["vapo"]
    runs = "critic:run_with_critic"
    trainer = "rlhf.training.ppo:VAPOTrainer"


class TRPOStage(TRPOConfig, CriticStage):
    """Trust-region policy optimization."""

    kind: Literal["trpo"]
    runs = "critic:run_with_critic"
    trainer = "rlhf.training.trpo:TRPOTrainer"

    @model_validator(mode="after")
    def _takes_no_other_rows(self) -> Self:
        if self.ptx is not None:
            raise ValueError(
                "ptx is not for TRPO, whose step is that of the rewards within max_kl; leave it out, or take `ppo`"
            )
        return self


class OnlineDPOStage(OnlineDPOConfig, PolicyStage):
    """DPO on the policy's own completions, judged by a reward."""

    kind: Literal["online_dpo"]
    runs = "rl:run_rl"
    trainer = "rlhf.training.online_dpo:OnlineDPOTrainer"

    @property
    def formulas(self) -> Mapping[str, Formula]:
        """That of ``loss``."""
        return {"loss": self.pair_formula}


class DistillStage(DistillConfig, PromptInputs, PolicyTraining):
    """On-policy distillation."""

    leaves = "policy"
    kind: Literal["distill"]
    runs = "distill:run_distill"
    trainer = "rlhf.training.distill:DistillTrainer"
    measures = (
        "eval/teacher_kl",
        "eval/divergence",
        "eval/ref_kl",
        "eval/length_mean",
        "eval/eos_frac",
        "eval/empty_frac",
        "eval/repetition",
    )
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

    def rows_read(self) -> list[RowsInput]:
        """Prompts, and demonstrations for those that the student does not complete itself."""
        if self.data is None:
            return super().rows_read()
        return [
            *super().rows_read(),
            RowsInput("data", listed(self.data), "sft", skips_bad_rows=self.on_bad_row == "skip"),
        ]
