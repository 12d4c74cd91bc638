"""Turns of episodes asked of an engine: many in one call, each with a limit of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.rollout.stopping import completion_texts
from rlhf.rollout.types import Completion, PromptLike, RolloutEngine


class Started(Protocol):
    """What of an episode decides its next turn."""

    prompt: Prompt
    sample: int
    opening: list[int]
    tokens: list[int]

    @property
    def context(self) -> list[int]:
        """All ids before the next turn."""
        ...


@dataclass(frozen=True, slots=True)
class SoFar:
    """An episode up to here, as a prompt for its next turn."""

    id: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class AskedTurns:
    """The engine inside, asked for turns that have limits of their own."""

    engine: RolloutEngine
    tokenizer: PreTrainedTokenizerBase
    sampling: SamplingConfig
    fits: int
    """Tokens of the longest prompt with its limit, which the engine has accepted."""
    seed: int
    rollout_index: int
    max_turn_tokens: int | None

    def room(self, episode: Started) -> int:
        """Tokens that an episode's next turn may have."""
        left = self.sampling.max_new_tokens - len(episode.tokens)
        return min(left, self.max_turn_tokens or left)

    def turns(
        self, prompts: Sequence[PromptLike], rooms: Sequence[int], *, num_samples: int, seed: int
    ) -> list[list[Completion]]:
        """Samples of each prompt, each cut to its prompt's room.

        They go in one call under the largest limit. Those that would not fit go in a further one under a lower limit.
        """
        said: dict[int, list[Completion]] = {}
        while len(said) < len(prompts):
            waiting = [place for place in range(len(prompts)) if place not in said]
            limit = max(rooms[place] for place in waiting)
            together = [place for place in waiting if len(prompts[place].ids) + limit <= self.fits]
            groups = self.engine.generate(
                [prompts[place] for place in together],
                num_samples=num_samples,
                sampling=self.sampling.updated(max_new_tokens=limit),
                seed=seed,
                rollout_index=self.rollout_index,
            )
            for place, group in zip(together, groups, strict=True):
                said[place] = [self._cut(prompts[place], one, rooms[place]) for one in group]
        return [said[place] for place in range(len(prompts))]

    def _cut(self, prompt: PromptLike, completion: Completion, room: int) -> Completion:
        """A turn as it would have come under its own limit."""
        if len(completion.tokens) <= room:
            return completion
        tokens, sampling_logprobs = completion.tokens[:room], completion.sampling_logprobs
        return Completion(
            prompt_id=completion.prompt_id,
            sample=completion.sample,
            tokens=tokens,
            logprobs=completion.logprobs[:room],
            sampling_logprobs=None if sampling_logprobs is None else sampling_logprobs[:room],
            finish_reason="length",
            weight_version=completion.weight_version,
            text=completion_texts(self.tokenizer, prompt.ids, [tokens])[0],
        )


@dataclass(frozen=True, slots=True)
class FirstTurns:
    """First turns, sampled for all of a prompt's episodes when the first of them needs its own.

    Those that are played later, or that heard the same words before they began, are the same samples then: what is sampled does not
    depend on how many episodes are played at a time.
    """

    ask: AskedTurns
    num_samples: int
    times: Mapping[str, int]
    """How often each prompt comes."""
    known: dict[tuple[str, tuple[int, ...]], list[Completion]] = field(default_factory=dict)

    def of(self, episodes: Sequence[Started]) -> list[Completion]:
        """The first turn of each episode."""
        keys = [(episode.prompt.id, tuple(episode.context)) for episode in episodes]
        new = {key: episode for key, episode in zip(keys, episodes, strict=True) if key not in self.known}
        asked, rooms, whose = [], [], []
        for key, episode in new.items():
            prompt = SoFar(episode.prompt.id, episode.context) if episode.opening else episode.prompt
            many = self.times[episode.prompt.id]
            asked += [prompt] * many
            rooms += [self.ask.room(episode)] * many
            whose += [key] * many
        if asked:
            turns = self.ask.turns(asked, rooms, num_samples=self.num_samples, seed=self.ask.seed)
            for key, group in zip(whose, turns, strict=True):
                self.known.setdefault(key, []).extend(group)
        return [self.known[key][episode.sample] for key, episode in zip(keys, episodes, strict=True)]
