"""Every preference loss that TRL has, against TRL's own code on log-probabilities of our choosing.

A stub stands where TRL expects a model. All in float64, but where TRL itself computes in float32.
"""

from __future__ import annotations

import copy
import functools
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf.losses.divergences import divergence_scores
from rlhf.losses.pair_losses import MARGIN_LOSSES, PAIR_LOSSES
from rlhf.losses.pair_tokens import (
    chosen_nll,
    length_desensitized_logprobs,
    log_collision_probs,
    wpo_weights,
)
from rlhf.losses.preference import length_normalized_dpo_loss
from rlhf.losses.reference_free import cpo_loss, odds_ratio_loss, simpo_loss
from rlhf.losses.segments import segment_count, segment_mean, segment_sum, split_pairs
from rlhf.losses.unpaired import kto_loss, kto_reference_point
from tests.oracle.conftest import CHOSEN, PROMPTS, REJECTED, preference_rows

pytestmark = pytest.mark.numeric

TRL_NAMES = {"exo": "exo_pair", "nca": "nca_pair", "bco": "bco_pair", "sppo": "sppo_hard"}
"""Where TRL's name of a loss is not ours."""
DIVERGENCES = {"forward_kl": "forward_kl", "js": "js_divergence", "alpha": "alpha_divergence"}
SMOOTHED = ("robust", "exo", "aot", "aot_unpaired")
LENGTHS = torch.tensor([6, 4, 2, 3, 1, 5])
"""Scored tokens of three pairs as packing lays them: chosen, rejected, chosen ..."""
PADDED, PROMPT = 6, 3
MASK = torch.arange(PADDED)[None] < LENGTHS[:, None]
SEQ = MASK.nonzero()[:, 0]
CHOSEN_FIRST = torch.tensor([0, 2, 4, 1, 3, 5])
"""TRL's order of rows."""


class Stub(torch.nn.Module):
    """Returns what it was given, call by call, in the shape of TRL's fused head."""

    def __init__(self, *logprobs: Tensor, log_collision: Tensor | None = None) -> None:
        super().__init__()
        self.queue = list(logprobs)
        self.log_collision = log_collision

    def forward(self, **_: Any) -> SimpleNamespace:
        logprobs = self.queue.pop(0)
        zeros = torch.zeros_like(logprobs)
        return SimpleNamespace(
            log_probs=logprobs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(), aux_loss=None,
            log_sum_sq_probs=self.log_collision,
        )  # fmt: skip


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return -4 * torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def close(theirs: Tensor, ours: Tensor, leaf: Tensor, tolerance: float = 1e-10) -> None:
    """Equal in value and in every gradient, and there is something to compare."""
    (their_gradient,) = torch.autograd.grad(theirs, leaf, retain_graph=True)
    (our_gradient,) = torch.autograd.grad(ours, leaf, retain_graph=True)
    assert their_gradient.abs().max() > 0
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * 1e-2)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=10 * tolerance, atol=tolerance)


def padded(values: Tensor) -> Tensor:
    """[M] tokens as TRL's rows [6, PROMPT - 1 + PADDED], zero where nothing is scored."""
    rows = values.new_zeros(MASK.shape).masked_scatter(MASK, values)[CHOSEN_FIRST]
    return torch.cat([values.new_zeros(len(rows), PROMPT - 1), rows], dim=1)


@pytest.fixture(scope="module")
def dpo_trainer(build_trainer, policy, reference):
    trainer = build_trainer("DPO", copy.deepcopy(policy), preference_rows(), ref_model=copy.deepcopy(reference))
    trainer.precompute_ref_logps = True
    return trainer


def their_dpo(
    trainer: Any,
    logprobs: Tensor,
    ref: Tensor,
    loss_type: str,
    *,
    beta: float,
    smoothing: float = 0.0,
    divergence: str = "reverse_kl",
    alpha: float = 0.5,
    tau: float = 0.05,
    ld_alpha: float | None = None,
    log_collision: Tensor | None = None,
) -> Tensor:
    """TRL's loss of the three pairs; ``ref`` are sums [S] in our order."""
    trainer.loss_types, trainer.loss_weights, trainer.beta = [loss_type], [1.0], beta
    trainer.label_smoothing, trainer.args.discopop_tau = smoothing, tau
    trainer.f_divergence_type, trainer.f_alpha_divergence_coef = divergence, alpha
    trainer.ld_alpha, trainer.use_weighting = ld_alpha, log_collision is not None
    mask = torch.cat([torch.zeros(6, PROMPT, dtype=torch.long), MASK.long()[CHOSEN_FIRST]], dim=1)
    inputs = {
        "input_ids": torch.ones_like(mask), "attention_mask": torch.ones_like(mask), "completion_mask": mask,
        "ref_chosen_logps": ref[0::2], "ref_rejected_logps": ref[1::2],
    }  # fmt: skip
    model = Stub(padded(logprobs), log_collision=None if log_collision is None else padded(log_collision))
    return trainer._compute_loss(model, inputs, return_outputs=False)


def tokens(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Log-probabilities [M] of policy and reference."""
    logprobs = draw(len(SEQ), seed=0, dtype=dtype)
    ref = logprobs + 0.5 * draw(len(SEQ), seed=1, dtype=dtype) + 1
    return logprobs.requires_grad_(), ref.detach()


def sums(logprobs: Tensor) -> Tensor:
    return segment_sum(logprobs, SEQ, len(LENGTHS))


def lengths() -> dict[str, Tensor]:
    chosen, rejected = split_pairs(segment_count(SEQ, len(LENGTHS)))
    return {"chosen_lengths": chosen, "rejected_lengths": rejected}


@pytest.mark.parametrize("beta", [0.05, 0.7])
@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_losses_on_pairs_are_trls(dpo_trainer, name: str, beta: float):
    logprobs, ref = tokens()
    options: dict[str, Any] = lengths() if name == "ipo" else {}
    smoothing = 0.2 if name in SMOOTHED else 0.0
    if smoothing:
        options["label_smoothing"] = smoothing
    ours = PAIR_LOSSES[name](*split_pairs(sums(logprobs)), *split_pairs(sums(ref)), beta=beta, **options).mean()
    theirs = their_dpo(dpo_trainer, logprobs, sums(ref), TRL_NAMES.get(name, name), beta=beta, smoothing=smoothing)
    # EXO's smoothing is a float32 tensor there
    close(theirs, ours, logprobs, tolerance=1e-7 if name == "exo" else 1e-10)


def test_length_normalized_dpo_is_trls(dpo_trainer):
    logprobs, ref = tokens()
    ours = length_normalized_dpo_loss(*split_pairs(sums(logprobs)), *split_pairs(sums(ref)), beta=3, **lengths())
    close(their_dpo(dpo_trainer, logprobs, sums(ref), "sigmoid_norm", beta=3), ours.mean(), logprobs)


@pytest.mark.parametrize("tau", [0.2, 1.0])
def test_discopops_temperature_is_trls(dpo_trainer, tau: float):
    logprobs, ref = tokens()
    ours = PAIR_LOSSES["discopop"](*split_pairs(sums(logprobs)), *split_pairs(sums(ref)), beta=0.3, tau=tau)
    close(their_dpo(dpo_trainer, logprobs, sums(ref), "discopop", beta=0.3, tau=tau), ours.mean(), logprobs)


@pytest.mark.parametrize("name", sorted(MARGIN_LOSSES - {"ipo"}))
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_divergences_are_trls(dpo_trainer, divergence: str, name: str):
    # TRL's alpha divergence refuses float64
    exact = divergence != "alpha"
    logprobs, ref = tokens(torch.float64 if exact else torch.float32)
    alpha = None if exact else 0.3
    scores = divergence_scores(sums(logprobs), sums(ref), divergence=divergence, alpha=alpha)
    options = {"label_smoothing": 0.2} if name in SMOOTHED else {}
    zeros = split_pairs(torch.zeros_like(scores))
    ours = PAIR_LOSSES[name](*split_pairs(scores), *zeros, beta=0.1, **options).mean()
    theirs = their_dpo(
        dpo_trainer, logprobs, sums(ref), TRL_NAMES.get(name, name), beta=0.1,
        smoothing=options.get("label_smoothing", 0.0), divergence=DIVERGENCES[divergence], alpha=alpha or 0.5,
    )  # fmt: skip
    close(theirs, ours, logprobs, tolerance=1e-5 if not exact else 1e-7 if name == "exo" else 1e-10)


@pytest.mark.parametrize("loss_type", ["ipo", "sigmoid_norm"])
def test_divergences_per_token_are_trls(dpo_trainer, loss_type: str):
    logprobs, ref = tokens()
    scores = divergence_scores(sums(logprobs), sums(ref), divergence="js")
    loss = PAIR_LOSSES["ipo"] if loss_type == "ipo" else length_normalized_dpo_loss
    ours = loss(*split_pairs(scores), *split_pairs(torch.zeros_like(scores)), beta=0.4, **lengths()).mean()
    close(their_dpo(dpo_trainer, logprobs, sums(ref), loss_type, beta=0.4, divergence="js_divergence"), ours, logprobs)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("name", ["sigmoid", "apo_zero"])
def test_length_desensitized_losses_are_trls(dpo_trainer, name: str, alpha: float):
    logprobs, ref = tokens()
    policy, reference = (length_desensitized_logprobs(x, SEQ, len(LENGTHS), alpha=alpha) for x in (logprobs, ref))
    ours = PAIR_LOSSES[name](*split_pairs(policy), *split_pairs(reference), beta=0.2).mean()
    close(their_dpo(dpo_trainer, logprobs, reference, name, beta=0.2, ld_alpha=alpha), ours, logprobs)


@pytest.mark.parametrize("name", ["sigmoid", "sppo"])
def test_weighted_losses_are_trls(dpo_trainer, name: str):
    logprobs, ref = tokens()
    log_collision = log_collision_probs(3 * draw(len(SEQ), 9, seed=5))
    weights = wpo_weights(logprobs, log_collision, SEQ, len(LENGTHS))
    ours = (PAIR_LOSSES[name](*split_pairs(sums(logprobs)), *split_pairs(sums(ref)), beta=0.2) * weights).mean()
    theirs = their_dpo(
        dpo_trainer, logprobs, sums(ref), TRL_NAMES.get(name, name), beta=0.2, log_collision=log_collision
    )
    close(theirs, ours, logprobs)


def by_token(nll: Tensor, lengths: Tensor) -> Tensor:
    """TRL's mean over all tokens of the micro-batch, which depends on the split, from ours per completion."""
    return (nll * lengths).sum() / lengths.sum()


def test_the_likelihood_term_is_trls_but_for_its_mean(dpo_trainer):
    logprobs, ref = tokens()
    ours = by_token(chosen_nll(logprobs, SEQ, len(LENGTHS)), LENGTHS[0::2])
    close(their_dpo(dpo_trainer, logprobs, sums(ref), "sft", beta=0.1), ours, logprobs)


@pytest.mark.parametrize("what", ["loss", "divergence", "kto"])
def test_the_comparison_notices_a_beta_that_is_off_by_one_percent(dpo_trainer, kto_trainer, what: str):
    logprobs, ref = tokens()
    if what == "kto":
        theirs, ours = both_kto(kto_trainer, "kto", logprobs, ref, beta=0.1, our_beta=0.101)
    else:
        divergence = "js" if what == "divergence" else "reverse_kl"
        scores = divergence_scores(sums(logprobs), sums(ref), divergence=divergence)
        zeros = split_pairs(torch.zeros_like(scores))
        ours = PAIR_LOSSES["sigmoid"](*split_pairs(scores), *zeros, beta=0.101).mean()
        theirs = their_dpo(
            dpo_trainer, logprobs, sums(ref), "sigmoid", beta=0.1, divergence=DIVERGENCES.get(divergence, divergence)
        )
    with pytest.raises(AssertionError, match="not close"):
        close(theirs, ours, logprobs, tolerance=1e-5)


def test_trls_forward_kl_is_not_a_number_where_ours_is(dpo_trainer):
    logprobs = torch.full([len(SEQ)], -100.0)
    ref = torch.tensor([0.0, -20] * 3)
    theirs = their_dpo(dpo_trainer, logprobs, ref, "sigmoid", beta=0.1, divergence="forward_kl")
    assert not theirs.isfinite()
    scores = divergence_scores(sums(logprobs), ref, divergence="forward_kl")
    assert PAIR_LOSSES["sigmoid"](*split_pairs(scores), *torch.zeros(2, 3), beta=0.1).isfinite().all()


def test_smoothing_that_trl_ignores_in_its_sigmoid_loss_is_not_ignored_in_ours(dpo_trainer):
    logprobs, ref = tokens()
    theirs = [their_dpo(dpo_trainer, logprobs, sums(ref), "sigmoid", beta=0.3, smoothing=s).item() for s in (0, 0.3)]
    four = (*split_pairs(sums(logprobs)), *split_pairs(sums(ref)))
    ours = [PAIR_LOSSES["sigmoid"](*four, beta=0.3, label_smoothing=s).mean().item() for s in (0, 0.3)]
    assert theirs[0] == theirs[1] == pytest.approx(ours[0])
    assert ours[1] != pytest.approx(ours[0], rel=1e-3)


# --- unpaired -------------------------------------------------------------------------------------------------------

DESIRABLE = torch.tensor([True, False, True, True, False, False])


@pytest.fixture(scope="module")
def kto_trainer(trl, build_trainer, policy, reference):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trl.KTOTrainer, trl.KTOConfig  # noqa: B018  loaded on first use
    rows = [
        {"prompt": prompt, "completion": completion, "label": label}
        for label, completions in ((True, CHOSEN), (False, REJECTED))
        for prompt, completion in zip(PROMPTS, completions, strict=True)
    ]
    trainer = build_trainer("KTO", copy.deepcopy(policy), rows, ref_model=copy.deepcopy(reference))
    trainer.precompute_ref_logps = True
    return trainer


def both_kto(
    trainer: Any,
    loss_type: str,
    logprobs: Tensor,
    ref: Tensor,
    *,
    beta: float,
    our_beta: float | None = None,
    weights: tuple[float, float] = (1.0, 1.0),
    drift: float = 0.4,
) -> tuple[Tensor, Tensor]:
    """TRL's loss and ours of the same six rows and the same mismatched rows."""
    mismatched = draw(len(SEQ), seed=7)
    ref_mismatched = sums(mismatched) - drift - draw(len(LENGTHS), seed=8) / 4
    trainer.loss_type, trainer.calculate_KL, trainer.beta = loss_type, loss_type == "kto", beta
    trainer.desirable_weight, trainer.undesirable_weight = weights
    order = CHOSEN_FIRST
    mask = torch.cat([torch.zeros(6, PROMPT, dtype=torch.long), MASK.long()[order]], dim=1)
    ones = torch.ones_like(mask)
    inputs = {
        "input_ids": ones, "attention_mask": ones, "completion_mask": mask, "label": DESIRABLE[order],
        "KL_input_ids": ones, "KL_attention_mask": ones, "KL_completion_mask": mask,
        "ref_logps": sums(ref)[order], "ref_KL_logps": ref_mismatched[order],
    }  # fmt: skip
    calls = [padded(mismatched), padded(logprobs)] if loss_type == "kto" else [padded(logprobs)]
    theirs = trainer._compute_loss(Stub(*calls), inputs, return_outputs=False)
    z0 = kto_reference_point(sums(mismatched), ref_mismatched) if loss_type == "kto" else 0.0
    ours = kto_loss(
        sums(logprobs), sums(ref), DESIRABLE, beta=our_beta or beta, reference_point=z0,
        desirable_weight=weights[0], undesirable_weight=weights[1],
    )  # fmt: skip
    return theirs, ours.mean()


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.3, 0.7)])
@pytest.mark.parametrize("drift", [0.4, -2.0])  # z0 above 0, and cut at it
@pytest.mark.parametrize("loss_type", ["kto", "apo_zero_unpaired"])
def test_kto_is_trls(kto_trainer, loss_type: str, drift: float, weights: tuple[float, float]):
    logprobs, ref = tokens()
    theirs, ours = both_kto(kto_trainer, loss_type, logprobs, ref, beta=0.3, weights=weights, drift=drift)
    close(theirs, ours, logprobs)


# --- reference-free: whole losses, from logits ----------------------------------------------------------------------

VOCABULARY = 11


@pytest.fixture(scope="module")
def experimental(trl) -> SimpleNamespace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.cpo import CPOTrainer
        from trl.experimental.orpo import ORPOTrainer
    return SimpleNamespace(CPO=CPOTrainer, ORPO=ORPOTrainer)


def their_whole_loss(trainer_class: type, logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    """TRL's loss with its likelihood term, by its own code from logits [6, T, V] in our order on; labels chosen first."""
    batch = {"concatenated_input_ids": labels.clamp(min=0), "concatenated_attention_mask": (labels != -100).long()}
    batch["concatenated_attention_mask"][:, 0] = 1  # the prompt: one token, which nothing predicts
    batch |= {"concatenated_labels": labels, "chosen_labels": labels[:3]}
    trainer = SimpleNamespace(
        is_encoder_decoder=False, aux_loss_enabled=False, pad_token_id=0, padding_value=0, alpha=0.0,
        accelerator=SimpleNamespace(device=torch.device("cpu"), gather_for_metrics=lambda value: value),
        concatenated_inputs=lambda batch, **_: batch, get_batch_logps=trainer_class.get_batch_logps, **settings,
    )  # fmt: skip
    for method in ("concatenated_forward", "cpo_loss", "odds_ratio_loss"):
        if hasattr(trainer_class, method):
            setattr(trainer, method, functools.partial(getattr(trainer_class, method), trainer))
    model = lambda *_, **__: SimpleNamespace(logits=logits[CHOSEN_FIRST])  # noqa: E731
    return trainer_class.get_batch_loss_metrics(trainer, model, batch)[0]


def rows_of_logits(scored: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [6, T, V] with gradient, labels [6, T] (chosen first), and our log-probabilities [M] of ``scored`` rows."""
    logits = draw(6, 1 + PADDED, VOCABULARY, seed=11).requires_grad_()
    drawn = torch.randint(1, VOCABULARY, (6, PADDED), generator=torch.Generator().manual_seed(12))
    labels = torch.cat([torch.full((6, 1), -100), drawn.masked_fill(~scored, -100)], dim=1)
    logprobs = logits[:, :-1].log_softmax(-1).gather(-1, drawn[..., None])[..., 0][scored]
    return logits, labels[CHOSEN_FIRST], logprobs


@pytest.mark.parametrize("nll_coef", [0.0, 1.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cpo_is_trls(experimental, smoothing: float, nll_coef: float):
    logits, labels, logprobs = rows_of_logits(MASK)
    settings = {"loss_type": "sigmoid", "beta": 0.3, "label_smoothing": smoothing, "cpo_alpha": nll_coef}
    theirs = their_whole_loss(experimental.CPO, logits, labels, **settings)
    ours = cpo_loss(*split_pairs(sums(logprobs)), beta=0.3, label_smoothing=smoothing).mean()
    ours = ours + nll_coef * by_token(chosen_nll(logprobs, SEQ, 6), LENGTHS[0::2])
    close(theirs, ours, logits)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_simpo_is_trls_where_the_likelihood_term_that_it_adds_is_turned_off(experimental, smoothing: float):
    logits, labels, logprobs = rows_of_logits(MASK)
    settings = {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.7, "label_smoothing": smoothing}
    means = split_pairs(segment_mean(logprobs, SEQ, 6))
    ours = simpo_loss(*means, beta=2.0, target_margin=0.7, label_smoothing=smoothing).mean()
    without = their_whole_loss(experimental.CPO, logits, labels, **settings, cpo_alpha=0.0)
    close(without, ours, logits)
    by_default = their_whole_loss(experimental.CPO, logits, labels, **settings, cpo_alpha=1.0)
    close(by_default, ours + by_token(chosen_nll(logprobs, SEQ, 6), LENGTHS[0::2]), logits)
    assert by_default.item() > ours.item() + 1


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_orpo_is_trls_where_all_chosen_completions_are_of_one_length(experimental, beta: float):
    # TRL's likelihood term is a mean over the tokens of the micro-batch, the paper's one per completion; and its odds
    # are in float32
    scored = MASK.clone()
    scored[0::2] = torch.arange(PADDED) < 4
    logits, labels, logprobs = rows_of_logits(scored)
    means = split_pairs(segment_mean(logprobs, scored.nonzero()[:, 0], 6))
    theirs = their_whole_loss(experimental.ORPO, logits, labels, beta=beta)
    ours = chosen_nll(logprobs, scored.nonzero()[:, 0], 6) + beta * odds_ratio_loss(*means)
    close(theirs, ours.mean(), logits, tolerance=1e-6)
