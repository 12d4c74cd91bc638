"""What a value model expects behind the beginning of a completion."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, pack, split_by_tokens
from rlhf.errors import ModelError
from rlhf.models.score import base_model, evaluating
from rlhf.models.value import ValueModel
from rlhf.rewards.types import CompletionLike, ScoreResult
from rlhf.rollout.types import SamplablePolicy

MAX_TOKENS = 16_384
"""Distinct tokens in one forward pass; memory only."""


class ValueScores:
    """A critic, such as PPO leaves, as a scorer: the expected return behind each candidate's last token.

    Args:
        model: With a backbone of its own.
        policy: Whose ids it is to read.

    Raises:
        ModelError: It is only a head on its policy's hidden states, or was made for another vocabulary.
    """

    name = "value"

    def __init__(self, model: ValueModel, policy: SamplablePolicy) -> None:
        if model.is_shared:
            raise ModelError(
                "This value model is only a head on the hidden states of the policy that it was trained with; train one with a backbone "
                "of its own (value_model: separate)."
            )
        networks = (policy.model, model.networks[0])
        sizes = [int(base_model(network).config.get_text_config().vocab_size) for network in networks]
        if sizes[0] != sizes[1]:
            raise ModelError(
                f"The value model reads {sizes[1]:,} different tokens and the policy writes {sizes[0]:,}; a value model has no tokenizer "
                "of its own, so take one that was trained with a policy of this tokenizer."
            )
        self.model = model

    @torch.no_grad()
    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion; ids are read as they were sampled."""
        rows = zip(prompts, completions, strict=True)
        groups = [Group(prompt.ids, [Branch(completion.tokens)], {"id": prompt.id}) for prompt, completion in rows]
        values: list[float] = []
        with evaluating(self.model):
            for part in split_by_tokens(groups, max_tokens=MAX_TOKENS):
                values += self.model.values(pack(part), at="final").float().cpu().tolist()
        return ScoreResult(values)
