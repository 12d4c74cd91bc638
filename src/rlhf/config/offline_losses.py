"""The choices of ``loss`` of ``kind: sft``, ``kto`` and ``reward``; a line more is a choice more. Those of ``dpo`` are in
``rlhf.config.pair_losses``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rlhf.config.formulas import Formula, JudgmentFormula, TokenFormula, VerdictFormula

SFT_LOSSES: Mapping[str, TokenFormula] = {
    "nll": TokenFormula(
        function="losses.supervised:nll_loss",
        smoothed=Formula(
            function="losses.supervised:label_smoothed_loss", arguments={"label_smoothing": "label_smoothing"}
        ),
    ),
    "dft": TokenFormula(function="losses.supervised:dft_loss"),
}

KTO_LOSSES: Mapping[str, VerdictFormula] = {
    "kto": VerdictFormula(
        function="losses.unpaired:kto_loss",
        arguments={"desirable_weight": "desirable_weight", "undesirable_weight": "undesirable_weight"},
        compares_with="reference_point",
    ),
    "bco": VerdictFormula(function="losses.unpaired:bco_loss", compares_with="shift"),
}

UNSURE = ("label_smoothing", "use_label_probability")
REWARD_LOSSES: Mapping[str, JudgmentFormula] = {
    "bradley_terry": JudgmentFormula(
        function="losses.reward:bradley_terry_loss",
        rows="preference",
        options=(*UNSURE, "margin", "center_coef"),
    ),
    "hinge": JudgmentFormula(
        function="losses.reward:hinge_margin_loss",
        rows="preference",
        options=(*UNSURE, "margin", "center_coef"),
        default_margin=1.0,
        keeps_margin=True,
    ),
    "graded": JudgmentFormula(
        function="losses.tie_losses:graded_loss",
        rows="comparison",
        options=("label_smoothing", "center_coef"),
        learns="margins",
        start=(0.5, 1.5),
        needs_strength=True,
    ),
    "rao_kupper": JudgmentFormula(
        function="losses.tie_losses:rao_kupper_loss",
        rows="comparison",
        options=("label_smoothing", "center_coef"),
        learns="threshold",
        start=(0.5,),
        outcome_logprobs="losses.tie_losses:rao_kupper_logprobs",
        measures=("eval/accuracy", "eval/margin", "eval/outcome_accuracy"),
    ),
    "davidson": JudgmentFormula(
        function="losses.tie_losses:davidson_loss",
        rows="comparison",
        options=("label_smoothing", "center_coef"),
        learns="tie_weight",
        start=(1.0,),
        outcome_logprobs="losses.tie_losses:davidson_logprobs",
        measures=("eval/accuracy", "eval/margin", "eval/outcome_accuracy"),
    ),
    "plackett_luce": JudgmentFormula(
        function="losses.rankings:plackett_luce_loss",
        rows="ranking",
        options=("top_ranks",),
        measures=("eval/accuracy",),
    ),
    "rating": JudgmentFormula(
        function="losses.reward:rating_loss", rows="rating", learns="offset", start=(3.0,), measures=("eval/error",)
    ),
    "binary": JudgmentFormula(
        function="losses.reward:binary_loss",
        rows="kto",
        options=UNSURE,
        learns="offset",
        start=(0.0,),
        measures=("eval/accuracy",),
    ),
}
"""``rating`` begins at the middle of a scale from 1 to 5."""


def named(losses: Collection[str]) -> str:
    """Losses as messages list them: `nll` or `dft`."""
    return " or ".join(f"`{loss}`" for loss in losses)
