"""Inputs and outputs of an engine: the contract between the training loops and samplers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from rlhf.config.policy import SamplingConfig

if TYPE_CHECKING:
    from rlhf.data.pack import Group
    from rlhf.models.score import ScorePath

FinishReason = Literal["eos", "stop", "length", "done"]
"""Its own end, a stop text, a limit of tokens or turns, or the word of the environment that it talked with."""


class PromptLike(Protocol):
    """What an engine needs of a prompt; ``rlhf.data.contracts.Prompt`` is one."""

    @property
    def id(self) -> str:
        """Names the prompt in seeds and in messages."""
        ...

    @property
    def ids(self) -> Sequence[int]:
        """Token ids, at least one."""
        ...


class SamplablePolicy(Protocol):
    """What the engine needs of a policy; ``rlhf.models.policy.PolicyModel`` is one."""

    model: Any
    tokenizer: Any

    @property
    def path(self) -> ScorePath | None:
        """How its batches are scored; None before that was found out."""
        ...

    def choose_path(self, groups: Sequence[Group]) -> object:
        """Find out."""
        ...

    def fingerprint(self) -> str:
        """Hash of the weights."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled completion, as the trainer takes it: ids and numbers, nothing is decoded and encoded again."""

    prompt_id: str
    sample: int
    """Which of the prompt's samples this is, from 0."""
    tokens: list[int]
    """Sampled ids, at least one; the EOS or the stop text that ended it included. In an episode of several turns also the
    ids of the observations between them."""
    logprobs: list[float]
    """Nats, one for each token that was sampled: under the model's whole distribution at the sampling temperature (at temperature 1
    where sampling was greedy), which is what ``rlhf.models.score`` computes. Filters and penalties do not enter."""
    sampling_logprobs: list[float] | None = None
    """Nats under the distribution that was drawn from; None where it is the one above, or sampling was greedy."""
    finish_reason: FinishReason
    weight_version: int
    """Version of the weights that sampled it."""
    text: str
    """What the tokens add to the prompt's text; special tokens left out."""
    scored: list[bool] | None = None
    """Which of the tokens the policy sampled; None for all. The others are the environment's: nothing is learned from them."""
    turns: int = 1
    """How often the policy spoke."""
    environment_reward: float | None = None
    """What the environment gave, all turns together; None without an environment, or where it failed."""
    environment_error: str | None = None
    """Why the environment gave nothing."""
    environment_info: dict[str, float] = field(default_factory=dict)
    """Numbers that the environment reported, all turns together."""

    @property
    def truncated(self) -> bool:
        """Cut by a limit, so it did not end itself."""
        return self.finish_reason == "length"

    @property
    def sampled_tokens(self) -> list[int]:
        """The policy's own tokens, one for each log-probability."""
        return (
            self.tokens if self.scored is None else [t for t, own in zip(self.tokens, self.scored, strict=True) if own]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """Whether an engine is ready for requests."""

    ok: bool
    weight_version: int
    detail: str
    """What is wrong, or what the engine is."""


@runtime_checkable
class RolloutEngine(Protocol):
    """Anything that samples completions: in this process, in another, on another machine.

    ``rlhf.testing`` has the checks that every engine must pass.

    An engine may have more, which ``rlhf.rollout.engines`` and the trainers look for: ``exact`` (whether its log-probabilities are the
    trainer's up to the order of additions), ``exactly()`` (a context in which they are), ``figures`` (metrics of the newest rollout),
    ``keeping()`` (a context in which beginnings that prompts of one ``tree`` share are read once over all calls; it gives ``KeptTrees``),
    ``notify`` (called with messages of another process), ``restart()`` (of that process), ``sampler_ahead()``
    (what samples rollouts ahead, see ``rlhf.rollout.sampler_process.Sampler``), and ``reopens = True`` with ``close()``: it is
    closed when a run needs it no more, and the next request starts it again.
    """

    @property
    def weight_version(self) -> int:
        """Version of the weights that the next completion is sampled with."""
        ...

    def generate(
        self,
        prompts: Sequence[PromptLike],
        *,
        num_samples: int,
        sampling: SamplingConfig,
        seed: int,
        rollout_index: int,
    ) -> list[list[Completion]]:
        """Sample ``num_samples`` completions of each prompt.

        A sample depends on the weights, ``sampling``, and (seed, rollout_index, prompt id, sample index), and on nothing else:
        not on the other prompts, their order, or how the engine batches. Under a lower limit of tokens it begins the same.

        Args:
            prompts: Each with an id and token ids. An id that comes twice goes on counting its samples.
            num_samples: Completions for each prompt.
            sampling: How they are drawn.
            seed: The run's seed.
            rollout_index: Which rollout of the run this is.

        Returns:
            One list for each prompt, in order, of ``num_samples`` completions.
        """
        ...

    def pause(self) -> None:
        """Take no more requests until ``resume``; those under way end first."""
        ...

    def resume(self) -> None:
        """Take requests again."""
        ...

    def load_weights(self, version: int) -> None:
        """Sample with the trainer's weights of this version from now on."""
        ...

    def health(self) -> EngineHealth:
        """Answer at once, without sampling."""
        ...

    def fingerprint(self) -> str:
        """Hash of the weights in use; equal to the trainer's when they are in step."""
        ...
