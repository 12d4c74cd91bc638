"""How far a policy's hidden states moved from its reference on fixed prompts.

A warning that decides nothing: training that helps moves hidden states, too. The number is given next to a null, what rounding the
reference's weights to bfloat16 does to its own hidden states, so that "nothing moved" can be told from "a little did".
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf.data.contracts import Text
from rlhf.data.pack import pack, split_by_tokens
from rlhf.errors import DataError
from rlhf.models.policy import PolicyModel, text_groups
from rlhf.models.score import evaluating

TOKENS_PER_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Drift:
    """In units of how much the reference's own hidden states differ between prompts."""

    value: float
    """Mean over prompts of |h_policy - h_reference|^2, over the mean over pairs of prompts of |h_reference - h'_reference|^2."""
    null: float
    """The same for the reference with weights rounded to bfloat16."""
    num_prompts: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def hidden_drift(policy: PolicyModel, reference: PolicyModel, prompts: Sequence[Text]) -> Drift:
    """Compare the last hidden states at the end of each prompt.

        drift = mean_i |h_i - r_i|^2 / mean_{i < j} |r_i - r_j|^2,   h of the policy, r of the reference

    Args:
        policy: After training.
        reference: Before; the same tokenizer and width.
        prompts: At least two different ones.

    Raises:
        DataError: There are too few prompts, or the two models don't have hidden states of one width.
    """
    if len(prompts) < 2:
        raise DataError("A drift needs at least two prompts: it is measured against how much prompts differ.")
    before, after = last_states(reference, prompts), last_states(policy, prompts)
    if before.shape != after.shape:
        raise DataError(f"Hidden states of {after.shape[1]} and {before.shape[1]} numbers can't be compared.")
    rounded = copy.deepcopy(reference.model)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    coarse = last_states(PolicyModel(rounded, reference.tokenizer), prompts)
    spread = squared_spread(before)
    if spread == 0:
        raise DataError("The reference has one hidden state for all prompts; give prompts that differ.")
    return Drift(
        float((after - before).square().sum(1).mean()) / spread,
        float((coarse - before).square().sum(1).mean()) / spread,
        len(prompts),
    )


def squared_spread(states: Tensor) -> float:
    """Mean of |r_i - r_j|^2 over pairs of different rows, which is twice the variance with n - 1.

    Args:
        states: [n, H].
    """
    return 2 * float(states.var(dim=0, unbiased=True).sum())


@torch.no_grad()
def last_states(model: PolicyModel, prompts: Sequence[Text]) -> Tensor:
    """[n, H] float64, of the last token of each prompt."""
    groups = text_groups(model.tokenizer, prompts, ["."] * len(prompts))
    states = []
    with evaluating(model.model):
        for part in split_by_tokens(groups, max_tokens=TOKENS_PER_BATCH):
            batch = pack(part)
            hidden = model.score(batch, with_hidden=True).hidden
            assert hidden is not None
            first = torch.searchsorted(batch.score_seq.contiguous(), torch.arange(len(part)))
            states.append(
                hidden[first].double().cpu()
            )  # what predicts the completion's first token is the prompt's last
    return torch.cat(states)
