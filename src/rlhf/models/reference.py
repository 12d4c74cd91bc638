"""Reference policies: a frozen copy, the policy with its adapter off, or a moving average.

All three have one method, ``logprobs(batch, temperature=...) -> [M]``, without gradient and without dropout. A reference that never
changes needs to be asked once for each row, by whatever run: ``LogprobCache`` keeps what it said.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Protocol

import torch
from peft import PeftModel
from torch import Tensor, nn

from rlhf.data.pack import PackedBatch
from rlhf.errors import ModelError, check_type
from rlhf.models.folders import weights_fingerprint
from rlhf.models.policy import PolicyModel


class Reference(Protocol):
    """The interface of a reference for a loss."""

    def logprobs(self, batch: PackedBatch, *, temperature: float = 1.0) -> Tensor:
        """[M] nats of the scored tokens, without gradient."""
        ...

    def fingerprint(self) -> str:
        """Another one for any other weights."""
        ...


class ReferenceModel(nn.Module):
    """A frozen copy of a policy, or, with ``decay``, a moving average of it.

    The average follows the policy every few steps (Gorbatovski et al. 2024, "soft update", arXiv:2404.09656):

        reference <- decay * reference + (1 - decay) * policy
    """

    num_steps: Tensor
    """int64 [] calls of ``update`` so far; part of the state, so a resumed run updates at the same steps."""

    def __init__(
        self,
        policy: PolicyModel | str | Path,
        *,
        dtype: torch.dtype | None = None,
        decay: float | None = None,
        update_every: int = 1,
    ) -> None:
        """Copy a policy as it is now, its adapter included.

        Args:
            policy: Stays as it is. A folder or hub name is loaded.
            dtype: Type of the copy's weights; bfloat16 halves its memory. None for the policy's.
            decay: Share of itself that a moving average keeps at an update, in [0, 1]; None for one that never moves.
            update_every: Calls of ``update`` between two moves.
        """
        super().__init__()
        if decay is not None and not 0 <= decay <= 1:
            raise ModelError(f"The reference's decay is {decay}; it is a share, between 0 and 1.")
        if update_every < 1:
            raise ModelError(f"The reference is updated every {update_every} steps; give 1 or more.")
        check_type(
            policy, (PolicyModel, str, Path), name="policy", expected="a PolicyModel, or the folder or hub name of one"
        )
        loaded = PolicyModel.from_pretrained(str(policy)) if isinstance(policy, str | Path) else copy.deepcopy(policy)
        self.copy = loaded.requires_grad_(False).eval()
        if dtype is not None:
            self.copy.to(dtype)
        self.decay = decay
        self.update_every = update_every
        if decay is not None:
            self.check_can_move()
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def logprobs(self, batch: PackedBatch, *, temperature: float = 1.0) -> Tensor:
        """[M] nats."""
        return self.copy.logprobs(batch, temperature=temperature)

    forward = logprobs

    @torch.no_grad()
    def update(self, policy: PolicyModel) -> bool:
        """Take one step of the run into account; returns whether the reference moved.

        Raises:
            ModelError: The reference is frozen.
        """
        if self.decay is None:
            raise ModelError("This reference is frozen; make it with decay=0.99 for one that follows the policy.")
        self.num_steps += 1
        if int(self.num_steps) % self.update_every:
            return False
        self.move(policy, decay=self.decay)
        return True

    def check_can_move(self) -> None:
        """Refuse a type whose numbers would swallow small steps.

        Raises:
            ModelError: The weights are in half precision.
        """
        kept = next(self.copy.parameters()).dtype
        if kept not in (torch.float32, torch.float64):
            raise ModelError(f"A moving reference in {kept} would round its small steps away; keep it in float32.")

    @torch.no_grad()
    def move(self, policy: PolicyModel, *, decay: float) -> None:
        """Once: ``reference <- decay * reference + (1 - decay) * policy``, of the weights that the policy trains."""
        current = dict(policy.named_parameters())
        for name, kept in self.copy.named_parameters():
            if current[name].requires_grad:  # the rest never changes
                kept.lerp_(current[name].to(kept), 1 - decay)

    def train(self, mode: bool = True) -> ReferenceModel:
        """Stays in evaluation mode: a reference with dropout would be another one at each call."""
        return super().train(False)

    def fingerprint(self) -> str:
        """Hex sha256 of the weights: that of a policy with the same ones."""
        return self.copy.fingerprint()


class AdapterOffReference:
    """The policy with its adapter switched off: no memory, and exact while the adapter's base is the starting policy."""

    def __init__(self, policy: PolicyModel) -> None:
        """Look at a policy from now on.

        Raises:
            ModelError: It has no adapter, or one that is trained already, so that switching it off would not give the policy
                as it is now.
        """
        if not isinstance(policy.model, PeftModel):
            raise ModelError("This policy has no adapter to switch off; use ReferenceModel, which copies it.")
        if not adapter_is_zero(policy):
            raise ModelError(
                "The policy's adapter was trained before: without it the policy is not the one that this run starts from. "
                "Load it with a new `lora`, which merges the old one, or use ReferenceModel, which copies it."
            )
        self.policy = policy

    @torch.no_grad()
    def logprobs(self, batch: PackedBatch, *, temperature: float = 1.0) -> Tensor:
        """[M] nats."""
        with self.policy.adapter_off():
            return self.policy.logprobs(batch, temperature=temperature)

    def fingerprint(self) -> str:
        """Hex sha256 of the base's weights."""
        return weights_fingerprint(item for item in self.policy.model.named_parameters() if not item[1].requires_grad)


def build_reference(policy: PolicyModel, *, dtype: torch.dtype | None = None) -> ReferenceModel | AdapterOffReference:
    """The cheapest frozen reference that is the policy as it is now."""
    if isinstance(policy.model, PeftModel) and adapter_is_zero(policy):
        return AdapterOffReference(policy)
    return ReferenceModel(policy, dtype=dtype)


def as_it_is_now(policy: PolicyModel) -> PolicyModel | AdapterOffReference:
    """A policy as its own reference, valid before the first step: needs no memory, and is the same for any new adapter."""
    return AdapterOffReference(policy) if policy.has_adapter and adapter_is_zero(policy) else policy


def adapter_is_zero(policy: PolicyModel) -> bool:
    """Whether the adapter changes nothing yet: a fresh one has B = 0."""
    products = [
        value for name, value in policy.model.named_parameters() if ".lora_B." in name or ".lora_embedding_B." in name
    ]
    others = any(
        ".modules_to_save." in name or (value.requires_grad and ".lora_" not in name)
        for name, value in policy.model.named_parameters()
    )
    return bool(products) and not others and not any(bool(value.detach().any()) for value in products)
