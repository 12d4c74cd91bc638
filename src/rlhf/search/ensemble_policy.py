"""Several policies as one: their distributions averaged token by token, or their answers put to the vote."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, ModelError, kind_of, look_up
from rlhf.models.score import base_model, evaluating
from rlhf.rewards.model_reward import same_ids
from rlhf.rollout.cache import KVCache
from rlhf.rollout.continuous_batching import Decoder
from rlhf.rollout.fused import FusedModel
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.packed import PackedDecoder
from rlhf.rollout.padded import PaddedDecoder
from rlhf.rollout.requests import rows_to_check
from rlhf.rollout.speculation import Drafter
from rlhf.rollout.types import Completion, PromptLike, SamplablePolicy
from rlhf.search.answer_key import AnswerOf, answer_reader
from rlhf.search.contract import Choice
from rlhf.search.strategies.votes_on_answers import elected

Average = Literal["logits", "probabilities"]
AVERAGES = ("logits", "probabilities")


class EnsemblePolicy(LocalEngine):
    """An engine that samples from the average of several policies; any strategy of search may use it.

    ``logits`` averages log-probabilities and normalizes: the distribution closest to all members in mean KL(average || member), low
    wherever one of them is. ``probabilities`` is the mixture, redrawn at every token. The members must read the same ids from the same
    texts. Each step costs a forward pass of every member.

    Args:
        policies: At least two.
        average: What is averaged.
        settings: Limits as of ``LocalEngine``: ``max_rows``, ``max_cache_tokens``, ``max_prefill_tokens``.

    Raises:
        ConfigError: There are fewer than two, or one is no policy.
        ModelError: Two members have different vocabularies.
    """

    def __init__(self, policies: Sequence[SamplablePolicy], *, average: Average = "logits", **settings: Any) -> None:
        if len(policies) < 2:
            raise ConfigError(f"An ensemble of {len(policies)} is none; give at least two policies.")
        look_up(dict.fromkeys(AVERAGES), average, kind="average of policies")
        for place, policy in enumerate(policies, 1):
            if not hasattr(policy, "tokenizer"):
                raise ConfigError(
                    f"Policy {place} of the ensemble is {kind_of(policy)}; expected a PolicyModel, as PolicyModel.from_pretrained gives."
                )
        first = policies[0]
        for place, other in enumerate(policies[1:], 2):
            sizes = [int(base_model(each.model).config.get_text_config().vocab_size) for each in (first, other)]
            if sizes[0] != sizes[1] or not same_ids(first.tokenizer, other.tokenizer):
                raise ModelError(
                    f"Policy {place} of the ensemble has another vocabulary than the first ({sizes[1]:,} and {sizes[0]:,} tokens), so "
                    "their distributions can't be averaged; take models with one tokenizer, or votes (EnsemblePolicy.vote), which need none."
                )
        super().__init__(first, fused=False, **settings)
        self.policies = list(policies)
        self.average: Average = average
        self._caches = [KVCache() for _ in policies]

    @property
    def num_policies(self) -> int:
        """Forward passes of one step, by which a search multiplies its tokens."""
        return len(self.policies)

    def fingerprint(self) -> str:
        """Of all members."""
        parts = [self.average, *(policy.fingerprint() for policy in self.policies)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def pause(self) -> None:
        """As of any engine in this process; the members' caches are given back, too."""
        super().pause()
        for cache in self._caches:
            cache.release()

    def generate(
        self,
        prompts: Sequence[PromptLike],
        *,
        num_samples: int,
        sampling: SamplingConfig,
        seed: int,
        rollout_index: int,
    ) -> list[list[Completion]]:
        """Sample ``num_samples`` completions of each prompt; log-probabilities are those of the average."""
        with ExitStack() as stack:
            for policy in self.policies[1:]:
                stack.enter_context(evaluating(base_model(policy.model)))
            for policy in self.policies:
                if policy.path is None and prompts:
                    policy.choose_path(rows_to_check(prompts))
            return super().generate(
                prompts, num_samples=num_samples, sampling=sampling, seed=seed, rollout_index=rollout_index
            )

    def _decoder(self, model: PreTrainedModel, fused: FusedModel | None, drafter: Drafter | None = None) -> Decoder:
        members: list[Decoder] = []
        for policy, cache in zip(self.policies, self._caches, strict=True):
            own = base_model(policy.model)
            if all(each.path == "packed" for each in self.policies):
                members.append(PackedDecoder(own, cache, max_prefill_tokens=self.max_prefill_tokens, fused=None))
            else:
                members.append(PaddedDecoder(own))
        return _AveragingDecoder(members, self.average)

    @staticmethod
    def vote(
        policies: Sequence[SamplablePolicy],
        prompts: Sequence[Prompt],
        *,
        num_samples: int = 1,
        answer_of: AnswerOf | None = None,
        sampling: SamplingConfig | None = None,
        seed: int = 0,
    ) -> list[Choice]:
        """Let members vote: each samples ``num_samples`` completions of each prompt, and the commonest answer wins.

        Args:
            policies: Of any vocabularies; ``prompts`` are tokenized for the first, and again, from their texts, for others.
            prompts: To be answered.
            num_samples: Of each member.
            answer_of: What two completions must have in common to be one answer; by default the boxed or last number.
            sampling: How completions are drawn.
            seed: Same seed, same votes; members draw independently.

        Raises:
            ConfigError: There is no policy.
        """
        if not policies:
            raise ConfigError("There is no policy to vote; give at least one.")
        from rlhf.data.datasets import GRPODataset

        read, groups = answer_of or answer_reader(), []
        for place, policy in enumerate(policies):
            asked: Sequence[PromptLike] = prompts
            if not same_ids(policies[0].tokenizer, policy.tokenizer):
                asked = list(
                    GRPODataset([{"id": p.id, "prompt": p.messages or p.text} for p in prompts], policy.tokenizer)
                )
            groups.append(
                LocalEngine(policy).generate(
                    asked,
                    num_samples=num_samples,
                    sampling=sampling or SamplingConfig(),
                    seed=seed,
                    rollout_index=place,
                )
            )
        together = [
            [completion for group in of_prompt for completion in group] for of_prompt in zip(*groups, strict=True)
        ]
        return [elected(candidates, [1.0] * len(candidates), read) for candidates in together]


class _AveragingDecoder:
    """The decoders of all members in step."""

    def __init__(self, members: Sequence[Decoder], average: Average) -> None:
        self.members = members
        self.average = average

    def prefill(self, prompts: Sequence[Sequence[int]], group: np.ndarray, max_new_tokens: int) -> Tensor:
        """As of any decoder."""
        return self._averaged([member.prefill(prompts, group, max_new_tokens) for member in self.members])

    def step(self, tokens: Tensor) -> Tensor:
        """As of any decoder."""
        return self._averaged([member.step(tokens) for member in self.members])

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """As of any decoder; members must drop the same rows."""
        first, *others = [member.keep(alive) for member in self.members]
        if any(not np.array_equal(first, other) for other in others):
            raise ModelError(
                "One member of the ensemble can drop rows from its cache and another can't; take models of one family."
            )
        return first

    def _averaged(self, logits: Sequence[Tensor]) -> Tensor:
        logprobs = torch.stack([each.float().log_softmax(-1) for each in logits])
        if self.average == "logits":
            return logprobs.mean(0)
        return logprobs.logsumexp(0) - math.log(len(logits))
