"""Settings of learning from preferences without a reward model: DPO and its kin on pairs, KTO on single completions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from rlhf.config.base import BaseConfig, FilePath
from rlhf.config.formulas import PairFormula, VerdictFormula
from rlhf.config.offline_losses import KTO_LOSSES, named
from rlhf.config.pair_losses import OF_SOME_LOSSES, PAIR_FORMULAS, PairLossSettings
from rlhf.config.training import MOST_EPOCHS, OfflineConfig, Truncation

if TYPE_CHECKING:
    PairLoss = str
    KTOLoss = str
else:
    PairLoss = Literal[tuple(PAIR_FORMULAS)]
    KTOLoss = Literal[tuple(KTO_LOSSES)]


class AgainstReference(BaseConfig):
    """What every method has that measures rows against a frozen reference."""

    cache_reference: bool | Annotated[FilePath, Field(min_length=1)] = True
    """Keep what the reference said of the rows in files of at most 4 GiB, so that the next run on the same rows (another loss, beta,
    seed or order) need not ask it; the result does not depend on it. A path names their folder; true stands for `reference` in
    $RLHF_CACHE, by default ~/.cache/rlhf."""

    @field_validator("cache_reference")
    @classmethod
    def _folder_and_no_misspelled_word(cls, given: bool | str) -> bool | str:
        """A word such as `fasle` would quietly become a folder's name."""
        if (
            isinstance(given, str)
            and "/" not in given
            and not given.startswith((".", "~"))
            and not Path(given).is_dir()
        ):
            raise ValueError(f"{given!r} is not a folder here; give true, false or a folder such as ./cache")
        return given


class PairsConfig(OfflineConfig):
    """What every method on pairs has."""

    learning_rate: float = Field(5e-7, gt=0)
    """Peak learning rate; larger ones move far from the start quickly."""
    epochs: float | None = Field(1, gt=0, le=MOST_EPOCHS)
    """Passes over the pairs."""
    sft_coef: float = Field(0.0, ge=0)
    """Weight of the chosen completions' negative log-likelihood, each a mean per token (RPO, arXiv:2404.19733); 0 for none."""
    max_length: int | None = Field(1024, ge=2)
    """Longest sequence in tokens."""
    truncation: Truncation = "drop"
    """What happens to longer pairs."""


class DPOConfig(PairLossSettings, PairsConfig, AgainstReference):
    """Direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290) and the losses that share its margin."""

    beta: float = Field(0.1, gt=0)
    """Strength of the pull towards the reference policy."""
    loss: PairLoss = "sigmoid"
    """What is computed of a pair's margin; `rlhf methods` says of each choice what it is and who published it."""
    ipo_per_token: bool = False
    """IPO with log-ratios per token, as its authors' code has them, instead of the paper's per completion."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs believed to be labeled the wrong way round; for `sigmoid` (cDPO), `robust`, `aot`, `aot_unpaired`, and
    `exo`, which needs one above 0 (its authors have 0.001)."""
    divergence: Literal["reverse_kl", "forward_kl", "js", "alpha"] = "reverse_kl"
    """What holds the policy to the reference (f-DPO, Wang et al. 2023, arXiv:2309.16240); for losses on the margin."""
    divergence_alpha: float | None = Field(None, gt=0, lt=1)
    """Of the `alpha` divergence, between forward KL at 0 and reverse KL at 1, as in TRL 1.16; one minus the paper's, whose 0.25 is
    0.75 here."""
    length_normalized: bool = False
    """Log-ratios per token in place of per completion (arXiv:2310.05344 and TÜLU 3, 2411.15124); `beta` is then about ten times larger."""
    length_alpha: float | None = Field(None, ge=0, le=1)
    """What tokens beyond the shorter completion's length count (LD-DPO, arXiv:2409.06411); 1 is DPO, 0 cuts both to one length."""
    weight_by_policy: bool = False
    """Pairs that the policy could have written itself count more (WPO, arXiv:2406.11827); not for `aot`, which has no pairs of
    its own."""
    reference_free: bool = False
    """No reference: log-probabilities in place of log-ratios; for losses on the margin."""

    @property
    def pair_formula(self) -> PairFormula:
        """What computes the loss."""
        return PAIR_FORMULAS[self.loss]

    @model_validator(mode="after")
    def _options_of_the_loss(self) -> Self:
        fields = type(self).model_fields
        if undeclared := [name for name in self.pair_formula.settings if name.partition(".")[0] not in fields]:
            raise ValueError(
                f"the loss {self.loss!r} takes the setting {undeclared[0]!r}, which its method does not declare "
                "(`pair_settings`, see docs/extending.md)"
            )
        for name, losses in OF_SOME_LOSSES.items():
            if name in fields and getattr(self, name) != fields[name].default and self.loss not in losses:
                raise ValueError(f"{name} belongs to the loss {listed_losses(losses)}; the loss is {self.loss!r}")
        check_needs(self.loss, self)
        if self.reference_free and self.divergence != "reverse_kl":
            raise ValueError(
                "divergence is from a reference, and reference_free says that there is none; take one of the two"
            )
        if (self.divergence == "alpha") != (self.divergence_alpha is not None):
            raise ValueError("divergence: alpha and divergence_alpha go together; give both or none")
        if self.pair_formula.compares_pairs and self.batch_size == 1 and self.batch_tokens is None:
            raise ValueError(
                f"the loss {self.loss!r} compares the pairs of a step with each other, and batch_size is 1; give more, such as 32"
            )
        if self.length_alpha is not None and (self.length_normalized or self.ipo_per_token):
            raise ValueError("length_alpha weighs sums of tokens; take it or log-ratios per token, not both")
        return self


def check_needs(loss: str, config: object) -> None:
    """Refuse a loss without a setting that it needs.

    Raises:
        ValueError: A setting that has to be above 0 is not.
    """
    for name, why in PAIR_FORMULAS[loss].needs.items():
        if not getattr(config, name):
            raise ValueError(f"the loss `{loss}` {why}")


def listed_losses(losses: Iterable[str]) -> str:
    """Names of losses in words."""
    return " or ".join(f"`{loss}`" for loss in losses)


class SimPOConfig(PairsConfig):
    """SimPO (Meng et al. 2024, arXiv:2405.14734): the mean log-probability is the reward, and wins by a margin; no reference."""

    beta: float = Field(2.0, gt=0)
    """Reward per nat per token; the paper has 2 to 10."""
    target_margin: float = Field(1.0, ge=0)
    """By how much the chosen completion's reward is to win (gamma); the paper has 0.3 to 1.6."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs believed to be labeled the wrong way round."""


class CPOConfig(PairsConfig):
    """Contrastive preference optimization (Xu et al. 2024, arXiv:2401.08417): DPO with a uniform reference, and a likelihood term."""

    beta: float = Field(0.1, gt=0)
    """Reward per nat of a whole completion."""
    sft_coef: float = Field(1.0, ge=0)
    """Weight of the chosen completions' negative log-likelihood, each a mean per token as in the authors' code, which has it at 1;
    the paper's is a sum over tokens."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs believed to be labeled the wrong way round."""


class ORPOConfig(PairsConfig):
    """ORPO (Hong et al. 2024, arXiv:2403.07691): fine-tuning and preference in one loss, straight from a base model."""

    learning_rate: float = Field(8e-6, gt=0)
    """Peak learning rate; the likelihood term allows larger ones than DPO's."""
    odds_coef: float = Field(0.1, gt=0)
    """Weight of the odds ratio (the paper's lambda, TRL's beta); the paper has 0.1 to 1."""
    sft_coef: float = Field(1.0, ge=0)
    """Weight of the chosen completions' negative log-likelihood, each a mean per token; the paper's loss has it at 1."""


class KTOConfig(OfflineConfig, AgainstReference):
    """Learning from single completions, each good or bad: KTO (Ethayarajh et al. 2024, arXiv:2402.01306) and unpaired BCO."""

    learning_rate: float = Field(5e-7, gt=0)
    """Peak learning rate; larger ones move far from the reference quickly."""
    epochs: float | None = Field(1, gt=0, le=MOST_EPOCHS)
    """Passes over the completions."""
    loss: KTOLoss = "kto"
    """KTO's own, or the binary classifier of BCO (Jung et al. 2024, arXiv:2404.04656)."""
    beta: float = Field(0.1, gt=0)
    """Strength of the pull towards the reference policy."""
    desirable_weight: float = Field(1.0, ge=0)
    """Weight of good completions; the paper keeps (weight times rows) of good over bad between 1 and 3/2. For `kto`."""
    undesirable_weight: float = Field(1.0, ge=0)
    """Weight of bad completions. For `kto`."""
    reference_point: Literal["step", "running", "zero"] = "step"
    """KTO's z0: measured in each step on completions of its other prompts (the paper; one more forward of policy and reference),
    a running average of the log-ratios of earlier steps, or 0 (APO-zero, unpaired). BCO has a running average of its own."""
    reference_point_decay: float = Field(0.9, ge=0, lt=1)
    """What the running average keeps of itself in a step, for `running` and `bco`."""
    max_length: int | None = Field(1024, ge=2)
    """Longest sequence in tokens."""
    truncation: Truncation = "drop"
    """What happens to longer rows."""

    @property
    def measures_reference_point(self) -> bool:
        """Whether each step compares its completions with those of its other prompts."""
        return self.verdict_formula.compares_with == "reference_point" and self.reference_point == "step"

    @property
    def verdict_formula(self) -> VerdictFormula:
        """What computes ``loss``."""
        return KTO_LOSSES[self.loss]

    @model_validator(mode="after")
    def _options_of_the_loss(self) -> Self:
        with_point = [name for name, formula in KTO_LOSSES.items() if formula.compares_with == "reference_point"]
        owners: dict[str, list[str]] = {}
        for loss, formula in KTO_LOSSES.items():
            for setting in formula.arguments.values():
                owners.setdefault(setting, []).append(loss)
        owners["reference_point"] = with_point
        for name, losses in owners.items():
            if self.loss not in losses and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} belongs to the loss {named(losses)}; the loss is {self.loss!r}")
        if self.loss in with_point and self.reference_point != "running" and self.reference_point_decay != 0.9:
            averaged = named([name for name in KTO_LOSSES if name not in with_point])
            raise ValueError(
                f"reference_point_decay is of a running average, which reference_point: running and the loss {averaged} have; "
                f"reference_point is {self.reference_point!r}"
            )
        if not self.desirable_weight and not self.undesirable_weight:
            raise ValueError("desirable_weight and undesirable_weight are both 0, so nothing would be learned")
        if self.measures_reference_point and self.batch_tokens is None and self.batch_size < 2:
            raise ValueError(
                "reference_point: step compares rows of a step with each other, and batch_size is 1; make it larger, or "
                "take reference_point: running"
            )
        return self
