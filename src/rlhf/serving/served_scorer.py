"""A reward model in memory, ready to score."""

from __future__ import annotations

from typing import TypeAlias

import torch

from rlhf.data.pack import Branch, Group
from rlhf.models.device import placed_on
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.steps import ProcessReward

AnyReward: TypeAlias = LearnedReward | ProcessReward
PROBE_TOKENS = 48
"""Of the rows on which the ways to compute are compared."""


class ServedScorer:
    """One reward model.

    Args:
        model: In memory.
        source: Where it was loaded from.
        max_tokens: Distinct tokens in one forward pass.
    """

    def __init__(self, model: RewardModel | ProcessRewardModel, source: str, *, max_tokens: int = 16_384) -> None:
        model.requires_grad_(False).eval()
        self.source = source
        self.version: int | None = None  # in the registry; None for weights that are in none
        self.reward: AnyReward
        if isinstance(model, ProcessRewardModel):
            self.reward = ProcessReward(model, max_tokens=max_tokens, on_error="report")
        else:
            self.reward = LearnedReward(model, max_tokens=max_tokens, on_error="report")
        self.tokenizer = model.tokenizer
        self.fingerprint = model.fingerprint()
        """Hash of the weights."""
        self.context = self.reward.lengths.limit
        """Most tokens of a prompt with its completion; None where the model names no limit."""
        self.vocabulary = int(model.networks[0].config.get_text_config().vocab_size)
        self._choose_path()

    @classmethod
    def load(cls, source: str, *, is_process: bool, device: str = "auto", max_tokens: int = 16_384) -> ServedScorer:
        """Load by folder or hub name.

        Raises:
            ModelError: It is not available or damaged.
        """
        with placed_on(device):
            loaded = (ProcessRewardModel if is_process else RewardModel).from_pretrained(source)
            return cls(loaded, source, max_tokens=max_tokens)

    @property
    def kind(self) -> str:
        """`reward` or `process_reward`."""
        return "process_reward" if isinstance(self.reward, ProcessReward) else "reward"

    @property
    def how(self) -> str:
        """What it is, for people."""
        what = "process reward model" if isinstance(self.reward, ProcessReward) else "reward model"
        return f"{what}, {self.reward.model.path} path"

    def _choose_path(self) -> None:
        """Now, and not by whatever is scored first."""
        generator = torch.Generator().manual_seed(0)
        length = max(2, min(PROBE_TOKENS, (self.context or PROBE_TOKENS) // 2))
        probe = torch.randint(0, self.vocabulary, (length,), generator=generator).tolist()
        self.reward.model.choose_path([Group(probe, [Branch(probe[:8]), Branch(probe[-8:])])])
