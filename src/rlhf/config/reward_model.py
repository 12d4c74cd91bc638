"""Settings of models that judge: reward models of whole completions, and of the steps of solutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from rlhf.config.formulas import JudgmentFormula
from rlhf.config.offline_losses import REWARD_LOSSES, named
from rlhf.config.training import MOST_EPOCHS, OfflineConfig, Truncation

if TYPE_CHECKING:
    RewardLoss = str
else:
    RewardLoss = Literal[tuple(REWARD_LOSSES)]
NO_FREE_MARGIN = (
    "where judgments say only what was passed, the loss falls with a margin of its own, which would shrink without end"
)


class RewardModelConfig(OfflineConfig):
    """A reward model from pairs, rankings, ratings or verdicts (Bradley-Terry on pairs by default)."""

    learning_rate: float = Field(1e-5, gt=0)
    """Peak learning rate."""
    epochs: float | None = Field(1, gt=0, le=MOST_EPOCHS)
    """Passes over the rows; a second one often overfits large models."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay on matrices."""
    loss: RewardLoss = "bradley_terry"
    """What the scores are to explain. Pairs: `bradley_terry` (arXiv:2203.02155, eq. 1), `hinge`; with strengths, `graded`
    (a learned margin for each); with ties, `rao_kupper` (1967) or `davidson` (1970). Rankings: `plackett_luce`. Single
    completions: `rating` (squared error), `binary` (good or bad)."""
    margin: Annotated[float, Field(gt=0)] | Literal["column", "learned"] | None = None
    """By how much a chosen completion's score should lead, for `bradley_terry` and `hinge`: a number for all pairs; `column` for each
    pair's own, in its column `margin` (Touvron et al. 2023, arXiv:2307.09288); null for 0, or 1 with `hinge`. `learned` is what `graded`
    (a margin for each strength) and `rao_kupper` (one that ties bound) do in any case; no other loss can learn one."""
    scalar_learning_rate: float = Field(1e-2, gt=0)
    """Peak learning rate of the numbers that a loss learns in addition to the scores: the margins of `graded`, the threshold of
    `rao_kupper`, the tie weight of `davidson`, the offset of `rating` and `binary`."""
    use_label_probability: bool = False
    """The column `label_probability` says how likely each label is to be right, from 0.5 (a guess) to 1 (certain): a soft label.
    With `label_smoothing` a label is wrong by either cause."""
    top_ranks: int | None = Field(None, ge=1)
    """`plackett_luce` learns only who took the first so many places, not the order of the rest; null for the whole ranking."""
    head: Literal["linear", "mlp"] = "linear"
    """`linear` is what transformers calls sequence classification; `mlp` has a hidden GELU layer."""
    head_hidden_size: int | None = Field(None, ge=1)
    """Width of the hidden layer of an `mlp` head; the model's by default."""
    head_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout before the head."""
    num_models: int = Field(1, ge=1)
    """An ensemble of this many backbones, each with a head drawn from its own seed, trained side by side."""
    num_heads: int = Field(1, ge=1)
    """An ensemble of heads on each backbone: cheaper than backbones, and less independent."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of labels believed to be wrong: pairs the wrong way round, good for bad."""
    center_coef: float = Field(0.0, ge=0)
    """Weight of (chosen + rejected)^2, which keeps scores around 0 (Eisenstein et al. 2023, arXiv:2312.09244: 0.01)."""
    normalize: bool = True
    """After training, shift and scale scores to mean 0 and deviation 1 over the training completions."""
    max_length: int | None = Field(512, ge=2)
    """Longest sequence in tokens."""
    truncation: Truncation = "drop"
    """What happens to longer rows."""

    @property
    def judgment_formula(self) -> JudgmentFormula:
        """What computes ``loss``."""
        return REWARD_LOSSES[self.loss]

    @model_validator(mode="after")
    def _head_has_a_hidden_layer(self) -> Self:
        if self.head_hidden_size is not None and self.head != "mlp":
            raise ValueError(f"head_hidden_size belongs to head 'mlp'; the head is {self.head!r}")
        return self

    @model_validator(mode="after")
    def _options_of_the_loss(self) -> Self:
        owners = {
            name: [loss for loss, formula in REWARD_LOSSES.items() if name in formula.settings]
            for name in dict.fromkeys(name for formula in REWARD_LOSSES.values() for name in formula.settings)
        }
        if self.margin == "learned":
            owners["margin"] = [
                loss for loss, formula in REWARD_LOSSES.items() if formula.learns in ("margins", "threshold")
            ]
        for name, losses in owners.items():
            if getattr(self, name) != type(self).model_fields[name].default and self.loss not in losses:
                why = f"; {NO_FREE_MARGIN}" if (name, self.margin) == ("margin", "learned") else ""
                given = f"{name} {self.margin!r}" if why else name
                raise ValueError(f"{given} belongs to the loss {named(losses)}; the loss is {self.loss!r}{why}")
        return self


class ProcessRewardModelConfig(OfflineConfig):
    """A model that judges each step of a solution (Lightman et al. 2023, arXiv:2305.20050)."""

    learning_rate: float = Field(1e-5, gt=0)
    """Peak learning rate."""
    epochs: float | None = Field(1, gt=0, le=MOST_EPOCHS)
    """Passes over the solutions."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay on matrices."""
    loss: Literal["steps", "pairs"] = "steps"
    """`steps`: cross-entropy of each step's label. `pairs`: Bradley-Terry on pairs of whole solutions, each scored by its
    steps brought together as `aggregate` says: labels of outcomes only."""
    step_coef: float = Field(0.0, ge=0)
    """Weight of the loss `steps` next to `pairs`, of pairs whose steps are labeled too: the columns `chosen_labels` and
    `rejected_labels` hold a label for each step; a completion without them counts in the pair alone."""
    until_first_error: bool = False
    """Learn from each solution's steps up to its first wrong one, as PRM800K is labeled; else from all."""
    wrong_weight: float = Field(1.0, gt=0)
    """Weight of a wrong step against a right one."""
    aggregate: Literal["min", "product", "mean", "last"] = "product"
    """How the probabilities of steps become that of a solution: in `pairs`, and where the model is a reward."""
    step_separator: str = Field("\n", min_length=1)
    """Ends a step; a step's score is read at its last token. Written behind steps that do not end with it, and where a whole
    completion is judged, it is cut here."""
    extra_layers: int = Field(0, ge=0)
    """Transformer layers of its own behind the backbone's, which pass everything on unchanged until they are trained (Wu et al.
    2024, arXiv:2401.02415); not with lora."""
    head_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout before the head."""
    lm_coef: float = Field(0.0, ge=0)
    """Weight of the language-model loss on the tokens of steps labeled right, which keeps the backbone's knowledge."""
    max_length: int | None = Field(1024, ge=2)
    """Longest solution in tokens, prompt included."""
    truncation: Truncation = "drop"
    """What happens to longer solutions; `keep_start` keeps the first steps."""

    @model_validator(mode="after")
    def _options_of_the_loss(self) -> Self:
        if self.loss == "steps" and self.step_coef:
            raise ValueError("step_coef weighs labels of steps next to the loss `pairs`; the loss is 'steps'")
        if self.loss == "pairs" and not self.step_coef:
            for name in ("until_first_error", "wrong_weight", "lm_coef"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name} needs labels of steps, which the loss `pairs` reads with a step_coef above 0"
                    )
        return self
