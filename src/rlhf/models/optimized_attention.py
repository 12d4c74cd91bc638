"""Which attention a policy computes with, chosen by name or by measuring, with the reason and what was passed over."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Literal, Self

import torch
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

from rlhf.data.pack import Branch, Group, PackedBatch, pack
from rlhf.errors import ModelError, look_up
from rlhf.models.attention import native_attention
from rlhf.models.paths import NOISY_TOLERANCE, TOLERANCE, PathChoice
from rlhf.models.policy import PolicyModel
from rlhf.models.score import ScorePath, base_model, evaluating, score
from rlhf.models.sources import first_line

Implementation = Literal["auto", "flash_attention_2", "sdpa", "eager"]
NAMED: tuple[str, ...] = ("flash_attention_2", "sdpa", "eager")
"""What transformers has for the padded path, the fastest first: each one's fallback is the next."""


class OptimizedAttention:
    """Chooses how a policy computes attention and says why.

    ``auto`` takes the packed path where it agrees with the model's own code: one row of distinct tokens without padding, by
    FlexAttention on a GPU and by tiles or compiled C on a CPU; else a padded path. A named implementation is transformers' own on
    the padded path, one row for each sequence; where it can't run here, or gives other log-probabilities than the model's eager
    code on single rows, the next of ``flash_attention_2``, ``sdpa``, ``eager`` is taken.

        attention = OptimizedAttention("flash_attention_2").install(policy)
        print(attention.chosen, attention.reason)

    Args:
        implementation: ``auto``, ``flash_attention_2`` (half-precision weights on a CUDA GPU, and the package flash-attn),
            ``sdpa`` or ``eager``.

    Raises:
        UnknownNameError: There is no such implementation.
    """

    def __init__(self, implementation: Implementation = "auto") -> None:
        look_up(dict.fromkeys(typing.get_args(Implementation)), implementation, kind="attention implementation")
        self.implementation = implementation
        self.chosen: str | None = None
        """``packed``, ``flash_attention_2``, ``sdpa`` or ``eager``; None before ``install``."""
        self.path: ScorePath | None = None
        """How batches are scored then."""
        self.passed_over: dict[str, str] = {}
        """Implementations that were tried first, and why they were not taken."""
        self.reason = ""
        """One line."""

    def __repr__(self) -> str:
        return f"OptimizedAttention({self.implementation!r}, chosen={self.chosen!r})"

    def install(self, policy: PolicyModel, groups: Sequence[Group] | None = None) -> Self:
        """Set the policy to the attention that is chosen; a later ``policy.choose_path``, as stages call it, chooses again.

        Args:
            policy: Changed in place.
            groups: A few rows to compare on, best of the real data; by default two short ones.

        Raises:
            ModelError: Not even the model's eager code gives the same for padded rows as for single ones.
        """
        if not isinstance(policy, PolicyModel):
            raise ModelError(
                f"install takes a PolicyModel; got {type(policy).__name__}. Wrap it: PolicyModel(model, tokenizer)."
            )
        base = base_model(policy.model)
        rows = list(groups) if groups is not None else _short_rows(base)
        self.passed_over = {}
        if self.implementation == "auto":
            choice = policy.choose_path(rows)
            self.chosen = "packed" if choice.path == "packed" else str(base.config._attn_implementation)
            self.path, self.reason = choice.path, choice.reason
            return self
        batch = pack(rows).to(policy.device)
        with evaluating(base), torch.no_grad(), native_attention(base):
            expected = _single_rows(base, batch, rows)
        for name in NAMED[NAMED.index(self.implementation) :]:
            obstacle, difference = _try(base, name, batch, expected)
            if obstacle is None:
                self.chosen, self.path = name, "padded"
                notes = [f"{other}: {why}" for other, why in self.passed_over.items()]
                self.reason = "; ".join([*notes, f"{name}: within {difference:.1e} nats of eager on single rows"])
                policy.choice = PathChoice("padded", difference, self.reason)
                return self
            self.passed_over[name] = obstacle
        raise ModelError(
            f"No attention of {type(base).__name__} scores padded rows as it does single ones: "
            + "; ".join(f"{name}: {why}" for name, why in self.passed_over.items())
            + '. OptimizedAttention("auto") may find another path.'
        )


def _try(base: PreTrainedModel, name: str, batch: PackedBatch, expected: torch.Tensor) -> tuple[str | None, float]:
    """What keeps an implementation from being used, and the largest difference in nats; the model keeps the one tried last."""
    dtype = next(p.dtype for p in base.parameters() if p.is_floating_point())
    if name == "flash_attention_2" and (obstacle := _flash_obstacle(base, dtype)) is not None:
        return obstacle, 0.0
    try:
        base.set_attn_implementation(name)
        with evaluating(base), torch.no_grad():
            difference = float((score(base, batch, path="padded").logprobs - expected).abs().max())
    except (ImportError, ValueError, RuntimeError) as err:
        return first_line(err), 0.0
    tolerance = NOISY_TOLERANCE.get(dtype) or TOLERANCE.get(dtype, TOLERANCE[torch.float32])
    if difference <= tolerance:
        return None, difference
    return f"differs by {difference:.1e} nats, more than {tolerance:.1e}", difference


def _flash_obstacle(base: PreTrainedModel, dtype: torch.dtype) -> str | None:
    if next(base.parameters()).device.type != "cuda":
        return "needs a CUDA GPU"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"needs float16 or bfloat16 weights, and these are {str(dtype).removeprefix('torch.')}"
    return None if is_flash_attn_2_available() else "the package flash-attn is not installed"


def _single_rows(base: PreTrainedModel, batch: PackedBatch, groups: Sequence[Group]) -> torch.Tensor:
    """[M] nats of each sequence by itself, in the batch's order."""
    alone = [pack([Group(group.prefix, [branch])]) for group in groups for branch in group.branches]
    return torch.cat([score(base, one.to(batch.tokens.device), path="logits").logprobs for one in alone])


def _short_rows(base: PreTrainedModel) -> list[Group]:
    """Two rows of different lengths, of tokens that every model has."""
    size = min(24, int(base.config.get_text_config().vocab_size))
    ids = [(5 * place + 1) % size for place in range(24)]
    return [Group(ids[:9], [Branch(ids[9:16])]), Group(ids[:3], [Branch(ids[3:6])])]
