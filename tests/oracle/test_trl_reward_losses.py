"""Supervised, reward and process losses against TRL's trainers, transformers' losses and torch's own.

TRL has no process reward trainer since 1.14; what it had took its loss from transformers' token classification, which
is still there. Losses that TRL never had are held against torch's where torch has them.
"""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf.losses import (
    binary_loss,
    bradley_terry_loss,
    centering_penalty,
    davidson_loss,
    dft_loss,
    hinge_margin_loss,
    label_smoothed_loss,
    neftune_noise,
    nll_loss,
    plackett_luce_loss,
    rating_loss,
    step_loss,
    token_mean,
)
from tests.oracle.conftest import CHOSEN, PROMPTS, preference_rows
from tests.oracle.test_trl_losses import compare

pytestmark = pytest.mark.numeric

ROWS, COLUMNS, VOCABULARY = 3, 7, 11
PROMPT_LENGTHS = torch.tensor([2, 1, 4])
LENGTHS = torch.tensor([7, 3, 6])
"""Of three padded rows, of which the prompts are not scored."""


class LanguageModel(torch.nn.Module):
    """A model of given logits, as TRL asks for them: whole, or as statistics of the labels from its fused head."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, *, labels: Tensor | None = None, fused_lm_head: bool = False, **_: Any) -> Any:
        if not fused_lm_head:
            return {"logits": self.logits}
        assert labels is not None
        scored = labels[:, 1:] != -100
        token = labels[:, 1:].clamp(min=0)
        logprobs = self.logits[:, :-1].log_softmax(-1).gather(-1, token[..., None]).squeeze(-1)
        zeros = torch.zeros_like(logprobs)
        return SimpleNamespace(
            log_probs=torch.where(scored, logprobs, zeros), label_mask=scored, entropy=zeros, is_top1=scored
        )


@pytest.fixture
def text() -> SimpleNamespace:
    """Random logits [rows, columns, vocabulary] with labels, and what our losses take of them, flat."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(ROWS, COLUMNS, VOCABULARY, dtype=torch.float64, generator=generator)
    logits.requires_grad_()
    ids = torch.randint(VOCABULARY, (ROWS, COLUMNS), generator=generator)
    column = torch.arange(COLUMNS)[None]
    scored = (column >= PROMPT_LENGTHS[:, None]) & (column < LENGTHS[:, None])
    flat = logits[:, :-1][scored[:, 1:]].log_softmax(-1)
    token = ids[:, 1:][scored[:, 1:]]
    return SimpleNamespace(
        logits=logits,
        inputs={
            "input_ids": ids,
            "attention_mask": (column < LENGTHS[:, None]).long(),
            "labels": ids.masked_fill(~scored, -100),
        },
        token=token,
        logprobs=flat.gather(-1, token[:, None]).squeeze(-1),
        mean_logprobs=flat.mean(-1),
    )


@pytest.fixture(scope="module")
def sft_trainer(build_trainer, policy):
    rows = [{"prompt": prompt, "completion": completion} for prompt, completion in zip(PROMPTS, CHOSEN, strict=True)]
    return build_trainer("SFT", copy.deepcopy(policy), rows)


def their_sft(trainer: Any, text: SimpleNamespace, loss_type: str, num_items: int | None, smoothing: float) -> Tensor:
    from transformers.trainer_pt_utils import LabelSmoother

    trainer.args.loss_type = loss_type
    trainer.label_smoother = LabelSmoother(epsilon=smoothing) if smoothing else None
    count = None if num_items is None else torch.tensor(num_items)
    loss: Tensor = trainer.compute_loss(LanguageModel(text.logits), dict(text.inputs), num_items_in_batch=count)
    return loss


@pytest.mark.parametrize("parts", [None, 1, 3], ids=["alone", "whole_step", "a_third_of_a_step"])
@pytest.mark.parametrize(("loss_type", "ours"), [("nll", nll_loss), ("dft", dft_loss)])
def test_supervised_losses_are_trls(sft_trainer, text, loss_type: str, ours, parts: int | None):
    num_tokens = len(text.token) * (parts or 1)
    theirs = their_sft(sft_trainer, text, loss_type, num_tokens if parts else None, 0.0)
    compare(theirs, token_mean(ours(text.logprobs), num_tokens=num_tokens), text.logits)


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_smoothed_labels_are_trls_in_float32(sft_trainer, text, smoothing: float):
    theirs = their_sft(sft_trainer, text, "nll", None, smoothing)
    losses = label_smoothed_loss(text.logprobs, text.mean_logprobs, label_smoothing=smoothing)
    ours = token_mean(losses, num_tokens=len(text.token))
    (our_gradient,) = torch.autograd.grad(ours, text.logits, retain_graph=True)
    (their_gradient,) = torch.autograd.grad(theirs, text.logits)
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=0)
    scale = their_gradient.abs().max().item()
    torch.testing.assert_close(our_gradient, their_gradient, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothed_labels_are_torchs_to_rounding(text, smoothing: float):
    scored = text.inputs["labels"][:, 1:] != -100
    theirs = F.cross_entropy(text.logits[:, :-1][scored], text.token, label_smoothing=smoothing)
    losses = label_smoothed_loss(text.logprobs, text.mean_logprobs, label_smoothing=smoothing)
    compare(theirs, token_mean(losses, num_tokens=len(text.token)), text.logits)


def test_the_comparison_notices_smoothing_that_is_off_by_one_percent(text):
    scored = text.inputs["labels"][:, 1:] != -100
    theirs = F.cross_entropy(text.logits[:, :-1][scored], text.token, label_smoothing=0.1)
    losses = label_smoothed_loss(text.logprobs, text.mean_logprobs, label_smoothing=0.101)
    with pytest.raises(AssertionError, match="not close"):
        compare(theirs, token_mean(losses, num_tokens=len(text.token)), text.logits)


@pytest.fixture(scope="module")
def reward_trainer(build_trainer, reward_model):
    return build_trainer("Reward", copy.deepcopy(reward_model), preference_rows())


@pytest.fixture
def scores() -> Tensor:
    """[8]: with leads of a hundred both ways among them."""
    leaf = torch.tensor([0.3, 60.0, -50.0, 2.0, -1.0, -40.0, 50.0, 2.0], dtype=torch.float64)
    return leaf.requires_grad_()


@pytest.mark.parametrize("centering", [None, 0.01, 1.0])
@pytest.mark.parametrize("margins", [None, (0.0, 3.0, 0.5, 1.0), (-1.0, 200.0, 0.0, -2.0)])
def test_reward_losses_are_trls_where_scores_and_margins_are_extreme(reward_trainer, scores, margins, centering):
    reward_trainer.args.center_rewards_coefficient = centering
    margin = None if margins is None else torch.tensor(margins, dtype=torch.float64)
    inputs = {"attention_mask": torch.ones(8, 2)} | ({} if margin is None else {"margin": margin})
    theirs = reward_trainer.compute_loss(lambda **_: SimpleNamespace(logits=scores[:, None]), inputs)
    ours = bradley_terry_loss(scores[:4], scores[4:], margin=margin)
    if centering is not None:
        ours = ours + centering * centering_penalty(scores[:4], scores[4:])
    compare(theirs, ours.mean(), scores)


def test_the_comparison_notices_a_margin_that_is_off_by_one_percent(reward_trainer, scores):
    reward_trainer.args.center_rewards_coefficient = None
    margin = torch.ones(4, dtype=torch.float64)
    inputs = {"attention_mask": torch.ones(8, 2), "margin": margin}
    theirs = reward_trainer.compute_loss(lambda **_: SimpleNamespace(logits=scores[:, None]), inputs)
    with pytest.raises(AssertionError, match="not close"):
        compare(theirs, bradley_terry_loss(scores[:4], scores[4:], margin=1.01 * margin).mean(), scores)


@pytest.mark.parametrize("num_parts", [1, 4])
def test_step_losses_are_those_of_token_classification(num_parts: int):
    """Two logits per step become one score: their difference. Theirs is computed in float32."""
    from transformers.loss.loss_utils import ForTokenClassification

    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(ROWS, COLUMNS, 2, dtype=torch.float64, generator=generator)).requires_grad_()
    labels = torch.tensor(
        [[-100, -100, 1, -100, 0, -100, 0], [-100, 1, -100, -100, -100, -100, -100], [0, -100, 1, 1, -100, 0, -100]]
    )
    steps = labels != -100
    count = int(steps.sum()) * num_parts
    theirs = ForTokenClassification(
        logits, labels, SimpleNamespace(num_labels=2), num_items_in_batch=count if num_parts > 1 else None
    )
    step_scores = (logits[..., 1] - logits[..., 0])[steps]
    ours = step_loss(step_scores, labels[steps]).sum() / count
    (our_gradient,) = torch.autograd.grad(ours, logits)
    (their_gradient,) = torch.autograd.grad(theirs, logits)
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-4, atol=1e-8)
    off = step_loss(1.01 * step_scores, labels[steps]).sum() / count
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(off, theirs.double(), rtol=1e-5, atol=0)


TARGETS = torch.tensor([1.0, 0.0, 0.3, 1.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


def _torchs_davidson(scores: Tensor) -> Tensor:
    """A tie's logit is the mean of the scores plus log nu: cross-entropy over win, tie, loss."""
    first, second = scores[:4], scores[4:]
    logits = torch.stack([first, (first + second) / 2 + math.log(0.6), second], dim=1)
    return F.cross_entropy(logits, torch.tensor([0, 1, 1, 0]))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        pytest.param(
            lambda s: F.margin_ranking_loss(s[:4], s[4:], torch.ones(4), margin=0.7),
            lambda s: hinge_margin_loss(s[:4], s[4:], margin=0.7).mean(),
            id="hinge",
        ),
        pytest.param(
            lambda s: F.mse_loss(s[:4], TARGETS),
            lambda s: rating_loss(s[:4], TARGETS).mean(),
            id="rating",
        ),
        pytest.param(
            lambda s: F.binary_cross_entropy_with_logits(s[:4], TARGETS, pos_weight=torch.tensor(0.25)) * 4,
            lambda s: binary_loss(s[:4], TARGETS, negative_weight=4.0).mean(),
            id="binary",
        ),
        pytest.param(
            lambda s: F.cross_entropy(s.view(2, 4), torch.tensor([2, 0])),
            lambda s: plackett_luce_loss(s, torch.tensor([2, 2, 1, 2, 1, 2, 2, 2]), GROUPS, 2).mean(),
            id="best_of_four",
        ),
        pytest.param(
            _torchs_davidson,
            lambda s: davidson_loss(s[:4], s[4:], torch.tensor([False, True, True, False]), tie_weight=0.6).mean(),
            id="davidson",
        ),
    ],
)
def test_losses_that_torch_has_are_torchs(theirs, ours, scores):
    compare(theirs(scores), ours(scores), scores)


def test_noise_of_one_sequence_is_transformers_noise():
    from transformers.integrations.neftune import neftune_post_forward_hook

    embeddings = torch.randn(9, 16, generator=torch.Generator().manual_seed(1))
    module = torch.nn.Embedding(2, 16)
    module.neftune_noise_alpha = 5.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        theirs = neftune_post_forward_hook(module, None, embeddings[None])[0]
    generator = torch.Generator().manual_seed(3)
    noise = neftune_noise(embeddings, torch.zeros(9, dtype=torch.int64), alpha=5.0, generator=generator)
    assert noise.abs().max() > 0.3
    torch.testing.assert_close(embeddings + noise, theirs, rtol=0, atol=1e-6)
