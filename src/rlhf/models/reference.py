"""The policy that the trained one is held to: a frozen copy, the policy with its adapter off, or a moving average.

All three have one method, ``logprobs(batch, temperature=...) -> [M]``, without gradient and without dropout. A reference that never
changes needs to be asked once for each row: ``LogprobCache`` keeps what it said.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rlhf.data.pack import PackedBatch
from rlhf.errors import CheckpointError, ModelError
from rlhf.files import write_aside
from rlhf.models.folders import module_fingerprint
from rlhf.models.policy import PolicyModel


class Reference(Protocol):
    """What a loss asks of a reference."""

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
        policy: PolicyModel,
        *,
        dtype: torch.dtype | None = None,
        decay: float | None = None,
        update_every: int = 1,
    ) -> None:
        """Copy a policy as it is now, its adapter included.

        Args:
            policy: Stays as it is.
            dtype: Type of the copy's weights; bfloat16 halves its memory. None for the policy's.
            decay: Share of itself that a moving average keeps at an update, in [0, 1]; None for one that never moves.
            update_every: Calls of ``update`` between two moves.
        """
        super().__init__()
        if decay is not None and not 0 <= decay <= 1:
            raise ModelError(f"The reference's decay is {decay}; it is a share, between 0 and 1.")
        if update_every < 1:
            raise ModelError(f"The reference is updated every {update_every} steps; give 1 or more.")
        self.copy = copy.deepcopy(policy).requires_grad_(False).eval()
        if dtype is not None:
            self.copy.to(dtype)
        self.decay = decay
        self.update_every = update_every
        kept = next(self.copy.parameters()).dtype
        if decay is not None and kept not in (torch.float32, torch.float64):
            raise ModelError(f"A moving reference in {kept} would round its small steps away; keep it in float32.")
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
        current = dict(policy.named_parameters())
        for name, kept in self.copy.named_parameters():
            if current[name].requires_grad:  # the rest never changes
                kept.lerp_(current[name].to(kept), 1 - self.decay)
        return True

    def train(self, mode: bool = True) -> ReferenceModel:
        """Stays in evaluation mode: a reference with dropout would be another one at each call."""
        return super().train(False)

    def fingerprint(self) -> str:
        """Hex sha256 of the weights."""
        return module_fingerprint(self.copy)


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
        base = (item for item in self.policy.model.named_parameters() if not item[1].requires_grad)
        digest = hashlib.sha256()
        for name, value in base:
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def build_reference(policy: PolicyModel, *, dtype: torch.dtype | None = None) -> ReferenceModel | AdapterOffReference:
    """The cheapest frozen reference that is the policy as it is now."""
    if isinstance(policy.model, PeftModel) and adapter_is_zero(policy):
        return AdapterOffReference(policy)
    return ReferenceModel(policy, dtype=dtype)


def adapter_is_zero(policy: PolicyModel) -> bool:
    """Whether the adapter changes nothing yet: a fresh one has B = 0."""
    products = [
        value for name, value in policy.model.named_parameters() if ".lora_B." in name or ".lora_embedding_B." in name
    ]
    others = any(".modules_to_save." in name for name, _ in policy.model.named_parameters())
    return bool(products) and not others and not any(bool(value.detach().any()) for value in products)


class LogprobCache:
    """What a frozen reference said about each row, asked once.

    A row is a group of a batch: its branches' log-probabilities lie one after the other. An entry counts only for the same
    reference, the same temperature and the same tokens.
    """

    def __init__(self, fingerprint: str, *, temperature: float = 1.0) -> None:
        """Start empty.

        Args:
            fingerprint: Of the reference's weights.
            temperature: At which the rows are scored.
        """
        self.fingerprint = fingerprint
        self.temperature = temperature
        self._rows: dict[str, tuple[str, Tensor]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, ids: Sequence[str], batch: PackedBatch) -> Tensor | None:
        """[M] log-probabilities of a batch, or None where a row is missing.

        Args:
            ids: [G] the batch's rows.
            batch: Whose tokens must be the ones that were scored.
        """
        parts = []
        for row, digest in zip(ids, _row_digests(batch, len(ids)), strict=True):
            known = self._rows.get(row)
            if known is None or known[0] != digest:
                return None
            parts.append(known[1])
        return torch.cat(parts).to(batch.tokens.device)

    def put(self, ids: Sequence[str], batch: PackedBatch, logprobs: Tensor) -> None:
        """Keep the [M] log-probabilities of a batch's [G] rows."""
        if logprobs.shape != (batch.num_scored,):
            raise ModelError(f"{tuple(logprobs.shape)} log-probabilities for {batch.num_scored} scored tokens.")
        counts = torch.bincount(batch.group[batch.score_seq], minlength=batch.num_groups).tolist()
        digests = _row_digests(batch, len(ids))
        for row, digest, part in zip(ids, digests, logprobs.detach().float().cpu().split(counts), strict=True):
            self._rows[row] = (digest, part.clone())

    def logprobs(self, ids: Sequence[str], batch: PackedBatch, reference: Reference) -> Tensor:
        """[M] from the cache; the reference is asked, and its answer kept, where a row is missing."""
        known = self.get(ids, batch)
        if known is None:
            known = reference.logprobs(batch, temperature=self.temperature)
            self.put(ids, batch, known)
        return known

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors."""
        return {
            "fingerprint": self.fingerprint,
            "temperature": self.temperature,
            "ids": list(self._rows),
            "digests": [digest for digest, _ in self._rows.values()],
            "counts": [len(values) for _, values in self._rows.values()],
            "values": torch.cat([values for _, values in self._rows.values()]) if self._rows else torch.empty(0),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the rows.

        Raises:
            CheckpointError: They come from another reference or temperature.
        """
        for name, own in (("fingerprint", self.fingerprint), ("temperature", self.temperature)):
            if state[name] != own:
                raise CheckpointError(
                    f"These reference log-probabilities have the {name} {state[name]}, and the run has {own}."
                )
        parts = state["values"].split(state["counts"]) if state["ids"] else ()
        self._rows = {i: (d, v.clone()) for i, d, v in zip(state["ids"], state["digests"], parts, strict=True)}

    def save(self, path: Path | str) -> None:
        """Write everything to one safetensors file, in one step."""
        state = self.state_dict()
        meta = {key: json.dumps(value) for key, value in state.items() if key != "values"}
        with write_aside(path) as aside:
            save_file({"values": state["values"]}, aside, metadata=meta)

    def load(self, path: Path | str) -> None:
        """Read what ``save`` wrote.

        Raises:
            CheckpointError: The file is damaged, or from another reference or temperature.
        """
        try:
            with safe_open(path, framework="pt") as file:
                state = {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
                state["values"] = file.get_tensor("values")
        except Exception as err:  # safetensors' own error is no subclass of any
            raise CheckpointError(
                f"{path} holds no reference log-probabilities: {err}. Delete it; they are computed again."
            ) from err
        self.load_state_dict(state)


def _row_digests(batch: PackedBatch, num_rows: int) -> list[str]:
    """[G] short hashes of each row's tokens and of which are scored."""
    if num_rows != batch.num_groups:
        raise ModelError(f"{num_rows} row ids for a batch of {batch.num_groups} rows.")
    tokens = batch.tokens.cpu().numpy().astype("<i8")
    score_at = batch.score_at.cpu().numpy().astype("<i8")
    groups = batch.group.cpu()
    group_of_score = groups[batch.score_seq.cpu()].numpy()
    starts = batch.prefix_start.cpu().numpy()
    ends = (batch.start + batch.length).cpu().numpy()
    digests = []
    for number in range(num_rows):
        members = (groups == number).nonzero().flatten().numpy()
        first, last = int(starts[members[0]]), int(ends[members[-1]])
        digest = hashlib.blake2b(tokens[first:last].tobytes(), digest_size=8)
        digest.update((score_at[group_of_score == number] - first).tobytes())
        digests.append(digest.hexdigest())
    return digests
