"""Exact divergences between two causal language models at the scored tokens: over the whole vocabulary, without sampling.

Each model gives hidden states and the projection that makes logits of them. Logits of both exist for one tile of tokens
at a time, and are recomputed in the backward pass: no ``[M, V]`` tensor is ever held, except for a family that only supports
its own forward (``logits`` in ``rlhf.models.score``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rlhf.data.pack import PackedBatch
from rlhf.errors import ModelError
from rlhf.losses.distillation import distillation_loss
from rlhf.models.paths import groups_of
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import AdapterOffReference, ReferenceModel
from rlhf.models.score import OutputHead, base_model, check_batch, evaluating, hidden_at, padded_logits, split_head
from rlhf.models.vocabulary_tiles import tile_logits

WholeModel = PolicyModel | ReferenceModel | AdapterOffReference
"""References that have distributions to compare with; one that only reports log-probabilities has none."""


@dataclass(frozen=True, slots=True)
class Distributions:
    """A model's next-token distributions at the scored tokens, not yet spelled out."""

    rows: Tensor
    """[M, K] input of the logits: hidden states, or logits if a family gives only those."""
    logits: Callable[[Tensor], Tensor]
    """[T, K] -> [T, V], at the requested temperature, in float32 or wider."""
    vocabulary: int
    """V."""


def exact_kl_per_token(
    policy: PolicyModel,
    ref_model: object,
    batch: PackedBatch,
    *,
    temperature: float = 1.0,
    hidden: Tensor | None = None,
) -> Tensor:
    """KL(policy || reference) of the next-token distribution at every scored token, with gradient to the policy.

        sum over v of p(v) (log p(v) - log q(v))

    Args:
        policy: Whose distribution p is.
        ref_model: Whose q is: a ``PolicyModel``, ``ReferenceModel`` or ``AdapterOffReference``; see ``check_comparable``.
        batch: The packed batch.
        temperature: Divides the logits of both.
        hidden: [M, H] of the policy where ``score(..., with_hidden=True)`` has them already; None to compute them.

    Returns:
        [M] nats, in float32 or wider.

    Raises:
        ModelError: The reference has no distributions, or another vocabulary.
    """
    return teacher_divergence(policy, ref_model, batch, beta=1.0, temperature=temperature, hidden=hidden)


def teacher_divergence(
    student: PolicyModel,
    teacher: object,
    batch: PackedBatch,
    *,
    beta: float,
    temperature: float = 1.0,
    hidden: Tensor | None = None,
) -> Tensor:
    """``generalized_jsd`` between a teacher and a student at every scored token, with gradient to the student alone.

    Source: Agarwal et al. 2023 (GKD), arXiv:2306.13649.

    Args:
        student: Who learns.
        teacher: Whose distributions are learned, in evaluation mode and without gradient: a ``PolicyModel``,
            ``ReferenceModel`` or ``AdapterOffReference``.
        batch: The packed batch.
        beta: 0 forward KL(teacher || student), 1 reverse KL(student || teacher), between them a mixture.
        temperature: Divides the logits of both.
        hidden: [M, H] of the student where they are known already.

    Returns:
        [M] nats, in float32 or wider.

    Raises:
        ModelError: The teacher has no distributions, or another vocabulary.
    """
    batch = batch.to(student.device)
    theirs = distributions_of(teacher, batch, temperature=temperature)
    return divergence(distributions(student, batch, temperature=temperature, hidden=hidden), theirs, beta=beta)


def divergence(student: Distributions, teacher: Distributions, *, beta: float) -> Tensor:
    """``generalized_jsd`` of given distributions; [M] nats, no gradient reaches the teacher.

    Raises:
        ModelError: They are over different vocabularies.
    """
    if student.vocabulary != teacher.vocabulary:
        raise ModelError(_other_vocabulary(student.vocabulary, teacher.vocabulary))
    tile = max(1, tile_logits(student.rows.device) // student.vocabulary)
    return distillation_loss(
        student.rows, teacher.rows.to(student.rows.device), student.logits, teacher.logits, beta=beta, tile_tokens=tile
    )


def distributions(
    policy: PolicyModel,
    batch: PackedBatch,
    *,
    temperature: float = 1.0,
    hidden: Tensor | None = None,
    head: OutputHead | None = None,
) -> Distributions:
    """A policy's distributions at the scored tokens, differentiable in its parameters.

    Args:
        policy: The model as it is, adapter and mode included.
        batch: The packed batch, on its device.
        temperature: Divides the logits.
        hidden: [M, H] where they are known already; of no use where the path is ``logits``.
        head: Another projection than the model's own, such as a frozen copy of it.

    Raises:
        ModelError: The temperature is not above 0.
    """
    if temperature <= 0:
        raise ModelError(f"The temperature is {temperature}; a distribution needs a number above 0.")
    base = base_model(policy.model)
    choice = policy.choice or policy.choose_path(groups_of(batch, limit=3))
    if choice.path == "logits":
        check_batch(base, batch)
        rows = padded_logits(base, batch)
        return Distributions(rows, lambda part: _wide(part) / temperature, rows.shape[1])
    backbone, own = split_head(base)
    used = own if head is None else head
    if hidden is None:
        hidden = hidden_at(backbone, batch, batch.score_at, batch.score_seq, path=choice.path)
    return Distributions(hidden, lambda part: _logits(used, part, temperature), _vocabulary(used))


@torch.no_grad()
def distributions_of(teacher: object, batch: PackedBatch, *, temperature: float = 1.0) -> Distributions:
    """Those of a teacher or a reference: in evaluation mode, without gradient, an adapter switched off where that is meant.

    Raises:
        ModelError: It reports log-probabilities and has no distributions.
    """
    model = _whole(teacher)
    off = model.adapter_off if isinstance(teacher, AdapterOffReference) else nullcontext
    with evaluating(model.model), off():
        with_adapter = distributions(model, batch.to(model.device), temperature=temperature)
    if not isinstance(teacher, AdapterOffReference) or type(_head(model).module) is nn.Linear:
        return with_adapter

    def without_adapter(rows: Tensor) -> Tensor:
        with off():  # a tile is made again in the backward pass, long after this function has returned
            return with_adapter.logits(rows)

    return replace(with_adapter, logits=without_adapter)


def frozen_head(policy: PolicyModel) -> OutputHead:
    """A copy of the output projection as it is now, for distributions of the policy that it soon will have been."""
    head = _head(policy)
    return replace(head, module=copy.deepcopy(head.module).requires_grad_(False))


def check_comparable(policy: PolicyModel, other: object, *, what: str) -> None:
    """Refuse at the door what could not be compared, or would be compared token by wrong token.

    Args:
        policy: Who learns.
        other: The teacher or the reference.
        what: What messages call the other, such as "The teacher".

    Raises:
        ModelError: It has no distributions; its tokenizer has other ids; or its vocabulary has another size.
    """
    model = _whole(other, what=what)
    if model is policy:
        return
    ours, theirs = policy.tokenizer.get_vocab(), model.tokenizer.get_vocab()
    if ours != theirs:
        different = sorted((ours.items() ^ theirs.items()), key=lambda item: (item[1], item[0]))
        token, number = different[0]
        owner = "the policy's" if (token, number) in ours.items() else "its"
        raise ModelError(
            f"{what} reads other token ids than the policy: {token!r} is {number} in {owner} tokenizer only. Distributions over "
            "different vocabularies can't be compared; take a model of the same family."
        )
    sizes = [int(base_model(m.model).config.get_text_config().vocab_size) for m in (policy, model)]
    if sizes[0] != sizes[1]:
        raise ModelError(f"{what}: {_other_vocabulary(*sizes)}")


def _whole(model: object, *, what: str = "The reference") -> PolicyModel:
    if isinstance(model, PolicyModel):
        return model
    if isinstance(model, ReferenceModel):
        return model.copy
    if isinstance(model, AdapterOffReference):
        return model.policy
    raise ModelError(
        f"{what} is a {type(model).__name__}, which only reports log-probabilities of tokens; a divergence over the whole "
        "vocabulary needs a model: a PolicyModel, a ReferenceModel, or the policy with its adapter off."
    )


def _head(policy: PolicyModel) -> OutputHead:
    return split_head(base_model(policy.model))[1]


def _vocabulary(head: OutputHead) -> int:
    weight: Tensor = head.module.weight  # type: ignore[assignment]
    return int(weight.shape[0])


def _logits(head: OutputHead, hidden: Tensor, temperature: float) -> Tensor:
    """Final logits."""
    return head.transform.applied(_wide(head.module(hidden)), temperature)


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _other_vocabulary(ours: int, theirs: int) -> str:
    return (
        f"the vocabularies have {ours} and {theirs} entries, and distributions over them can't be compared. Take a model of "
        "the same family, or resize the embeddings of one of them."
    )
