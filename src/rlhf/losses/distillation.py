"""Divergences between a student's and a teacher's whole next-token distributions, on tokens the student sampled.

If only the teacher's log-probabilities of the sampled tokens are available, the reverse KL has a sampled form: the
token reward -kl_k1(logprobs, teacher_logprobs), with ``reinforce_loss``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlhf.errors import ConfigError
from rlhf.losses.kl import exact_kl

LOWEST_LOGPROB = -1e4
"""Nats below which a probability is 0 in float64 too; finite, so that barred tokens make no inf - inf."""


def generalized_jsd(student_logits: Tensor, teacher_logits: Tensor, *, beta: float) -> Tensor:
    """Generalized Jensen-Shannon divergence between teacher P and student Q.

        M = beta P + (1 - beta) Q
        beta KL(P || M) + (1 - beta) KL(Q || M)         for 0 < beta < 1;  at most log 2
        KL(P || Q) at beta = 0 (forward, covers the teacher),   KL(Q || P) at beta = 1 (reverse, seeks its modes)

    The formula itself is 0 at both ends; they are replaced by its limits divided by beta, or by
    1 - beta. So the size jumps at the ends: a learning rate tuned at 0.1 is not right at 0.

    Source: Agarwal et al. 2023 (GKD), eq. 1, arXiv:2306.13649, for student and teacher of one vocabulary.

    Args:
        student_logits: [..., V] at the temperature meant; the only input with gradient. -inf bars a token.
        teacher_logits: [..., V].
        beta: Between 0 and 1.

    Returns:
        [...] nats, in float32 or wider. At the ends inf where one bars a token that the other may choose.

    Raises:
        ConfigError: ``beta`` is out of range, or the vocabularies differ in size.
    """
    if not 0 <= beta <= 1:
        raise ConfigError(f"beta of the generalized JSD is {beta}; it must lie in [0, 1]: 0 forward KL, 1 reverse KL.")
    if student_logits.shape != teacher_logits.shape:
        raise ConfigError(
            f"Student and teacher logits have shapes {list(student_logits.shape)} and {list(teacher_logits.shape)}; "
            "distillation over the vocabulary needs the same tokens and the same vocabulary for both."
        )
    teacher_logits = teacher_logits.detach()
    if beta == 0:
        return exact_kl(teacher_logits, student_logits)
    if beta == 1:
        return exact_kl(student_logits, teacher_logits)
    student, teacher = _bounded_logprobs(student_logits), _bounded_logprobs(teacher_logits)
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    from_teacher = (teacher.exp() * (teacher - mixture)).sum(-1)
    from_student = (student.exp() * (student - mixture)).sum(-1)
    return beta * from_teacher + (1 - beta) * from_student


def distillation_loss(
    student_hidden: Tensor,
    teacher_hidden: Tensor,
    student_head: Callable[[Tensor], Tensor],
    teacher_head: Callable[[Tensor], Tensor],
    *,
    beta: float,
    tile_tokens: int = 512,
) -> Tensor:
    """``generalized_jsd`` of every scored token from hidden states, never holding [M, V].

    Logits exist for one tile of tokens at a time, and are made again in the backward pass.

    Args:
        student_hidden: [M, H] hidden states that predict the scored tokens.
        teacher_hidden: [M, H'] the same tokens under the teacher.
        student_head: [T, H] -> [T, V] logits at the temperature meant; gradients reach its parameters.
        teacher_head: [T, H'] -> [T, V]; nothing reaches it.
        beta: As in ``generalized_jsd``.
        tile_tokens: T, tokens whose logits are held together.

    Returns:
        [M] loss per token. The caller divides by the token count of the whole optimizer step.
    """
    if tile_tokens < 1:
        raise ConfigError(f"tile_tokens is {tile_tokens}; a tile holds at least one token.")
    if len(student_hidden) != len(teacher_hidden):
        raise ConfigError(
            f"The student has {len(student_hidden)} hidden states and the teacher {len(teacher_hidden)}; both must be "
            "those that predict the same scored tokens."
        )

    def one_tile(student_rows: Tensor, teacher_rows: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_logits = teacher_head(teacher_rows)
        return generalized_jsd(student_head(student_rows), teacher_logits, beta=beta)

    tiles = zip(student_hidden.split(tile_tokens), teacher_hidden.split(tile_tokens), strict=True)
    return torch.cat([checkpoint(one_tile, *tile, use_reentrant=False) for tile in tiles])


def _bounded_logprobs(logits: Tensor) -> Tensor:
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(wide).log_softmax(-1).clamp(min=LOWEST_LOGPROB)
