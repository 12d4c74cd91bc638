"""Episodes: several turns of a policy and an environment as one completion; an engine that wraps an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, TrainingError
from rlhf.rollout.environments import (
    Environment,
    EnvironmentFactory,
    EnvironmentFailedError,
    TimedCalls,
    Turn,
    checked_turn,
)
from rlhf.rollout.stopping import completion_texts
from rlhf.rollout.turns import Turns
from rlhf.rollout.types import Completion, EngineHealth, FinishReason, PromptLike, RolloutEngine
from rlhf.seeds import derive_seed

MAX_HUNG = 3
"""Calls to environments that may hang in one rollout, each for the whole time limit, before the run is stopped."""


@dataclass(frozen=True, slots=True)
class SoFar:
    """An episode up to here, as a prompt for its next turn."""

    id: str
    ids: list[int]


@dataclass(slots=True)
class Episode:
    """The turns so far."""

    prompt: Prompt
    first: Completion
    """The policy's first turn; names the sample."""
    environment: Environment | None = None
    """None before it was first spoken to."""
    tokens: list[int] = field(default_factory=list)
    scored: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampling_logprobs: list[float] | None = None
    weight_version: int = 0
    turns: int = 0
    reward: float = 0.0
    info: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    finish_reason: FinishReason | None = None
    """None while it continues."""

    @property
    def context(self) -> list[int]:
        """All ids before the next turn."""
        return [*self.prompt.ids, *self.tokens]

    def say(self, completion: Completion) -> None:
        """The policy's turn."""
        self.weight_version = (
            min(self.weight_version, completion.weight_version) if self.turns else completion.weight_version
        )
        self.turns += 1
        self.tokens += completion.tokens
        self.scored += [True] * len(completion.tokens)
        self.logprobs += completion.logprobs
        if completion.sampling_logprobs is not None:
            self.sampling_logprobs = [*(self.sampling_logprobs or []), *completion.sampling_logprobs]

    def hear(self, ids: list[int]) -> None:
        """The environment's turn."""
        self.tokens += ids
        self.scored += [False] * len(ids)

    def completion(self, text: str) -> Completion:
        """The whole of it."""
        assert self.finish_reason is not None, "an episode that goes on is not a completion"
        return Completion(
            prompt_id=self.prompt.id,
            sample=self.first.sample,
            tokens=self.tokens,
            logprobs=self.logprobs,
            sampling_logprobs=self.sampling_logprobs,
            finish_reason=self.finish_reason,
            weight_version=self.weight_version,
            text=text,
            scored=None if all(self.scored) else self.scored,
            turns=self.turns,
            environment_reward=None if self.error is not None else self.reward,
            environment_error=self.error,
            environment_info=self.info,
        )


class EpisodeEngine:
    """See ``rlhf.rollout.types.RolloutEngine``; a completion is an episode, observations included.

    Every turn of every live episode goes to the engine inside in one call. Turn t of a sample has its own seed, and an
    engine gives the beginning of the same sample under a lower limit, so an episode does not depend on the others.

    An episode ends when the environment ends it ("done"); at a limit of tokens or turns ("length"); and, in plain text,
    when the policy ends its text ("eos"): in a conversation the same token only ends its turn. The environment hears every
    turn, the last one too. Where it fails, the episode ends as it is, without a reward and with the reason.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        environment: EnvironmentFactory,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_turns: int = 8,
        max_turn_tokens: int | None = None,
        max_observation_tokens: int = 256,
        role: str = "user",
        timeout_seconds: float = 60.0,
    ) -> None:
        """Wrap an engine.

        Args:
            engine: Samples the turns.
            environment: Makes the environment of one episode.
            tokenizer: The policy's.
            max_turns: Of the policy, in one episode.
            max_turn_tokens: Longest single turn; None for what ``max_new_tokens``, the limit of an episode, leaves.
            max_observation_tokens: A longer observation loses its end.
            role: Who says observations in a conversation.
            timeout_seconds: For one answer of an environment.
        """
        for name, limit in (("max_turns", max_turns), ("max_turn_tokens", max_turn_tokens or 1)):
            if limit < 1:
                raise ConfigError(f"{name} is {limit}; wanted 1 or more.")
        self.engine = engine
        self.environment = environment
        self.tokenizer = tokenizer
        self.max_turns = max_turns
        self.max_turn_tokens = max_turn_tokens
        self.timeout_seconds = timeout_seconds
        self._turns = Turns(tokenizer, role=role, max_observation_tokens=max_observation_tokens)

    @property
    def weight_version(self) -> int:
        """The engine's."""
        return self.engine.weight_version

    def load_weights(self, version: int) -> None:
        """See ``RolloutEngine``."""
        self.engine.load_weights(version)

    def pause(self) -> None:
        """See ``RolloutEngine``."""
        self.engine.pause()

    def resume(self) -> None:
        """See ``RolloutEngine``."""
        self.engine.resume()

    def health(self) -> EngineHealth:
        """The engine's."""
        return self.engine.health()

    def fingerprint(self) -> str:
        """The engine's."""
        return self.engine.fingerprint()

    def generate(
        self,
        prompts: Sequence[PromptLike],
        *,
        num_samples: int,
        sampling: SamplingConfig,
        seed: int,
        rollout_index: int,
    ) -> list[list[Completion]]:
        """See ``RolloutEngine.generate``; ``sampling.max_new_tokens`` is the limit of a whole episode.

        Args:
            prompts: Each a ``rlhf.data.contracts.Prompt``: environments are given the whole of it.
            num_samples: Episodes of each.
            sampling: How every turn is drawn.
            seed: The run's.
            rollout_index: Which rollout of the run.

        Raises:
            TrainingError: Environments hang, one after the other; names the last.
        """
        whole = [prompt for prompt in prompts if isinstance(prompt, Prompt)]
        if len(whole) < len(prompts):
            raise ConfigError("Environments are given whole prompts; ask with objects of rlhf.data.contracts.Prompt.")
        limit = sampling.max_new_tokens
        at_first = sampling.updated(max_new_tokens=min(limit, self.max_turn_tokens or limit))
        groups = [
            [Episode(prompt, completion) for completion in group]
            for prompt, group in zip(
                whole,
                self.engine.generate(
                    prompts, num_samples=num_samples, sampling=at_first, seed=seed, rollout_index=rollout_index
                ),
                strict=True,
            )
        ]
        live = [episode for group in groups for episode in group]
        said = [episode.first for episode in live]
        fits = max((len(prompt.ids) for prompt in prompts), default=0) + limit
        with TimedCalls(self.timeout_seconds) as calls:
            for turn in range(1, self.max_turns + 1):
                for episode, completion in zip(live, said, strict=True):
                    self._take_turns(episode, completion, calls, limit=limit, is_last=turn == self.max_turns)
                live = [episode for episode in live if episode.finish_reason is None]
                if not live:
                    break
                said = self._ask(
                    live, sampling, fits=fits, seed=derive_seed(seed, "turn", turn), rollout_index=rollout_index
                )
        return [self._completions(prompt, group) for prompt, group in zip(whole, groups, strict=True)]

    def _ask(
        self, live: Sequence[Episode], sampling: SamplingConfig, *, fits: int, seed: int, rollout_index: int
    ) -> list[Completion]:
        """The next turn of every live episode, each cut to its own limit.

        They go in one call under the largest limit. Those that would not fit into ``fits`` tokens, the longest prompt with
        its limit, which the engine has accepted, go in a further one under a lower limit.
        """
        rooms = {place: self._room(episode, sampling) for place, episode in enumerate(live)}
        said: dict[int, Completion] = {}
        while len(said) < len(live):
            waiting = [place for place in rooms if place not in said]
            limit = max(rooms[place] for place in waiting)
            together = [place for place in waiting if len(live[place].context) + limit <= fits]
            asked = [
                SoFar(f"{live[place].prompt.id}#{live[place].first.sample}", live[place].context) for place in together
            ]
            groups = self.engine.generate(
                asked,
                num_samples=1,
                sampling=sampling.updated(max_new_tokens=limit),
                seed=seed,
                rollout_index=rollout_index,
            )
            for place, (completion,) in zip(together, groups, strict=True):
                said[place] = self._cut(live[place], completion, rooms[place])
        return [said[place] for place in rooms]

    def _room(self, episode: Episode, sampling: SamplingConfig) -> int:
        """Tokens that an episode's next turn may have."""
        left = sampling.max_new_tokens - len(episode.tokens)
        return min(left, self.max_turn_tokens or left)

    def _cut(self, episode: Episode, completion: Completion, room: int) -> Completion:
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
            text=completion_texts(self.tokenizer, episode.context, [tokens])[0],
        )

    def _take_turns(self, episode: Episode, said: Completion, calls: TimedCalls, *, limit: int, is_last: bool) -> None:
        """The policy's turn and the environment's response, or the end of the episode."""
        episode.say(said)
        answer = self._answer(episode, said.text, calls)
        if answer is None:  # nothing is known of how it would have gone on
            episode.finish_reason = said.finish_reason
            return
        episode.reward += answer.reward or 0.0
        for name, number in answer.info.items():
            episode.info[name] = episode.info.get(name, 0.0) + number
        if answer.done:
            episode.finish_reason = "done"
        elif said.finish_reason == "eos" and episode.prompt.messages is None:
            episode.finish_reason = "eos"
        elif is_last or len(episode.tokens) >= limit:
            episode.finish_reason = "length"
        else:
            ids = self._turns.ids(episode.prompt, answer.observation, last=episode.tokens[-1])
            if len(episode.tokens) + len(ids) < limit:
                episode.hear(ids)
            else:  # there would be no room for an answer
                episode.finish_reason = "length"

    def _answer(self, episode: Episode, text: str, calls: TimedCalls) -> Turn | None:
        """None if the environment failed; the reason is recorded in the episode.

        Raises:
            TrainingError: Too many hung.
        """
        try:
            if episode.environment is None:
                environment: Environment = calls("making the environment", self.environment)
                calls("the environment's reset", lambda: environment.reset(episode.prompt))
                episode.environment = environment
            speaker, what = episode.environment, f"the environment's step, in turn {episode.turns},"
            return checked_turn(what, calls(what, lambda: speaker.step(text)))
        except EnvironmentFailedError as err:
            episode.error = str(err)
            if calls.num_hung < MAX_HUNG:
                return None
            raise TrainingError(
                f"{calls.num_hung} environments of one rollout hung; the last, of prompt {episode.prompt.id!r} (completion "
                f"{episode.first.sample}): {err}. Raise environment.timeout_seconds, or fix the environment."
            ) from err

    def _completions(self, prompt: Prompt, group: Sequence[Episode]) -> list[Completion]:
        texts = completion_texts(self.tokenizer, prompt.ids, [episode.tokens for episode in group])
        return [episode.completion(text) for episode, text in zip(group, texts, strict=True)]
