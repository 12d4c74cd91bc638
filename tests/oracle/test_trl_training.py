"""Whole models: TRL's trainer and ours, on the same weights and the same token ids.

Loss and the gradient of every parameter are the same. Theirs runs padded rows, each prompt once for every completion;
ours one packed row without padding, each prompt once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlhf.data.pack import Branch, Group, PackedBatch, pack
from rlhf.losses import (
    bradley_terry_loss,
    centering_penalty,
    clipped_policy_loss,
    dpo_loss,
    kl_k3,
    nll_loss,
    segment_sum,
    split_pairs,
    token_mean,
)
from rlhf.models.attention import install_attention
from rlhf.models.score import hidden_at, score
from tests.oracle.conftest import CHOSEN, PROMPTS, REJECTED, first_batch, preference_rows

pytestmark = pytest.mark.numeric

SPLITS = pytest.mark.parametrize("num_parts", [1, 3], ids=["one_batch", "three_micro_batches"])


def real_ids(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Rows of a padded batch without their padding, whichever side it is on."""
    return [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]


def gradients_of(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def compare_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Per parameter, relative to its largest entry: 1e-5 of float32, over another order of summation."""
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        scale = gradient.abs().max().item()
        assert scale > 0, name
        torch.testing.assert_close(
            ours[name], gradient, rtol=0, atol=1e-5 * scale, msg=lambda text, name=name: f"{name}: {text}"
        )


def our_copy(model: nn.Module) -> Any:
    """Made before TRL patches the model's forward."""
    ours = copy.deepcopy(model)
    assert install_attention(ours)
    return ours


def our_step(
    model: nn.Module, groups: Sequence[Group], num_parts: int, loss_of: Callable[[PackedBatch, slice], Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients accumulated over consecutive parts; ``loss_of`` gets the part and which groups it holds."""
    model.zero_grad()
    total = 0.0
    size = len(groups) // num_parts
    for first in range(0, len(groups), size):
        where = slice(first, first + size)
        loss = loss_of(pack(groups[where]), where)
        loss.backward()
        total += loss.item()
    return total, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@SPLITS
def test_supervised_fine_tuning_is_trls(build_trainer, policy, num_parts: int):
    ours = our_copy(policy)
    rows = [{"prompt": p, "completion": c} for p, c in zip(PROMPTS, CHOSEN, strict=True)]
    trainer = build_trainer("SFT", copy.deepcopy(policy), rows)
    batch = first_batch(trainer)
    ids = real_ids(batch["input_ids"], batch["attention_mask"])
    scored = (batch["labels"] != -100).sum(1).tolist()
    groups = [Group(row[: len(row) - n], [Branch(row[len(row) - n :])]) for row, n in zip(ids, scored, strict=True)]
    num_tokens = sum(group.num_scored for group in groups)
    theirs = trainer.compute_loss(trainer.model, batch)

    loss, gradients = our_step(
        ours, groups, num_parts, lambda part, _: token_mean(nll_loss(score(ours, part).logprobs), num_tokens=num_tokens)
    )
    assert loss == pytest.approx(theirs.item(), rel=1e-5)
    compare_gradients(gradients, gradients_of(trainer.model, theirs))


@SPLITS
def test_dpo_is_trls(build_trainer, policy, reference, num_parts: int):
    ours, our_reference = our_copy(policy), our_copy(reference)
    trainer = build_trainer(
        "DPO", copy.deepcopy(policy), preference_rows(), ref_model=copy.deepcopy(reference), beta=0.1
    )
    batch = first_batch(trainer)
    groups = pairs_of(batch)
    theirs = trainer.compute_loss(trainer.model, dict(batch))

    def loss_of(part: PackedBatch, _: slice) -> Tensor:
        with torch.no_grad():
            ref_logprobs = score(our_reference, part).logprobs
        summed = [
            split_pairs(segment_sum(logprobs, part.score_seq, part.num_sequences))
            for logprobs in (score(ours, part).logprobs, ref_logprobs)
        ]
        return dpo_loss(*summed[0], *summed[1], beta=0.1).sum() / len(groups)

    loss, gradients = our_step(ours, groups, num_parts, loss_of)
    assert loss == pytest.approx(theirs.item(), rel=1e-5)
    compare_gradients(gradients, gradients_of(trainer.model, theirs))


def pairs_of(batch: dict[str, Tensor]) -> list[Group]:
    """Pairs of TRL's padded batch (all chosen rows, then all rejected rows): one prefix, two branches."""
    rows = real_ids(batch["input_ids"], batch["attention_mask"])
    scored = batch["completion_mask"].sum(1).tolist()
    half = len(rows) // 2
    prefixes = [row[: len(row) - count] for row, count in zip(rows, scored, strict=True)]
    assert prefixes[:half] == prefixes[half:]
    branches = [Branch(row[len(row) - count :]) for row, count in zip(rows, scored, strict=True)]
    return [Group(prefixes[i], [branches[i], branches[i + half]]) for i in range(half)]


@SPLITS
@pytest.mark.parametrize("with_margin", [False, True])
def test_reward_modeling_is_trls(build_trainer, reward_model, with_margin: bool, num_parts: int):
    ours = our_copy(reward_model)
    margin = torch.tensor([0.5, 0.0, 2.0])
    rows: list[dict[str, Any]] = [
        {"chosen": p + c, "rejected": p + r} | ({"margin": float(m)} if with_margin else {})
        for p, c, r, m in zip(PROMPTS, CHOSEN, REJECTED, margin, strict=True)
    ]
    trainer = build_trainer("Reward", copy.deepcopy(reward_model), rows, center_rewards_coefficient=0.01)
    batch = first_batch(trainer)
    if with_margin:
        margin = batch["margin"]  # in the order of TRL's sampler
    ids = real_ids(batch["input_ids"], batch["attention_mask"])
    groups = [shared(chosen, rejected) for chosen, rejected in zip(ids[:3], ids[3:], strict=True)]
    theirs = trainer.compute_loss(trainer.model, batch)

    def loss_of(part: PackedBatch, where: slice) -> Tensor:
        hidden = hidden_at(ours.model, part, part.last, torch.arange(part.num_sequences))
        chosen, rejected = split_pairs(ours.score(hidden).squeeze(-1))
        losses = bradley_terry_loss(chosen, rejected, margin=margin[where] if with_margin else None)
        return (losses + 0.01 * centering_penalty(chosen, rejected)).sum() / len(groups)

    loss, gradients = our_step(ours, groups, num_parts, loss_of)
    assert loss == pytest.approx(theirs.item(), rel=1e-5)
    compare_gradients(gradients, gradients_of(trainer.model, theirs))


def shared(chosen: list[int], rejected: list[int]) -> Group:
    """Two texts with all that they begin alike as the prefix."""
    size = next(i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b)
    return Group(chosen[:size], [Branch(chosen[size:]), Branch(rejected[size:])])


def test_grpo_on_groups_that_share_a_prompt_is_trls(build_trainer, policy, reference, tokenizer):
    ours, our_reference = our_copy(policy), our_copy(reference)
    trainer = build_trainer(
        "GRPO", copy.deepcopy(policy), [{"prompt": p} for p in PROMPTS[:2]],
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        per_device_train_batch_size=6, num_generations=3, max_completion_length=16, loss_type="dapo",
    )  # fmt: skip
    trainer.beta, trainer.args.use_bias_correction_kl, trainer.args.steps_per_generation = 0.04, False, 1
    prompts = [tokenizer(p)["input_ids"] for p in PROMPTS[:2]]
    completions = [tokenizer(text)["input_ids"][:16] for text in (*CHOSEN, *REJECTED)]
    groups = [Group(prompts[i], [Branch(ids) for ids in completions[3 * i : 3 * i + 3]]) for i in range(2)]
    batch = pack(groups)
    advantages = torch.tensor([1.2, -0.7, 0.4, -1.5, 0.1, 2.0])
    with torch.no_grad():
        ref = score(our_reference, batch).logprobs
        old = score(ours, batch).logprobs + 0.05 * ref  # any other policy near ours

    def padded(values: Tensor) -> Tensor:
        rows = values.split([len(ids) for ids in completions])
        return nn.utils.rnn.pad_sequence(list(rows), batch_first=True)

    def as_rows(rows: list[list[int]], side: str) -> tuple[Tensor, Tensor]:
        tensors = [torch.tensor(row) for row in rows]
        ids = nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=2, padding_side=side)
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(t) for t in tensors], batch_first=True, padding_side=side)
        return ids, mask

    prompt_ids, prompt_mask = as_rows([prompts[i // 3] for i in range(6)], "left")
    completion_ids, completion_mask = as_rows(completions, "right")
    theirs = trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": prompt_ids, "prompt_mask": prompt_mask,
            "completion_ids": completion_ids, "completion_mask": completion_mask,
            "advantages": advantages, "old_per_token_logps": padded(old), "ref_per_token_logps": padded(ref),
            "num_items_in_batch": completion_mask.sum(),
        },
    )  # fmt: skip

    logprobs = score(ours, batch).logprobs
    losses = clipped_policy_loss(logprobs, old, advantages[batch.score_seq]) + 0.04 * kl_k3(logprobs, ref)
    loss = token_mean(losses, num_tokens=batch.num_scored)
    assert batch.num_tokens < (prompt_mask.sum() + completion_mask.sum()).item(), "the prompts are in it once"
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-5)
    compare_gradients(gradients_of(ours, loss), gradients_of(trainer.model, theirs))
