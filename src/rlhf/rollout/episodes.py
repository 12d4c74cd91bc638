"""Episodes: several turns of a policy and an environment as one completion; an engine that wraps an engine."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from transformers import PreTrainedTokenizerBase

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.rollout.asked_turns import AskedTurns, FirstTurns, SoFar
from rlhf.rollout.environments import EnvironmentFactory, Turn
from rlhf.rollout.episode_environments import (
    Asked,
    EpisodeEnvironments,
    Event,
    LocalEnvironments,
    OpensEnvironments,
    Outcome,
)
from rlhf.rollout.stopping import completion_texts
from rlhf.rollout.turns import Turns
from rlhf.rollout.types import Completion, EngineHealth, FinishReason, PromptLike, RolloutEngine
from rlhf.seeds import derive_seed


@dataclass(slots=True)
class Episode:
    """The turns so far."""

    prompt: Prompt
    sample: int
    """Which of its prompt's."""
    number: int
    """In the rollout."""
    opening: list[int] = field(default_factory=list)
    """Ids of what the environment said before the policy did; the first of the tokens."""
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
    def name(self) -> str:
        """Of the prompt and the sample."""
        return f"{self.prompt.id}#{self.sample}"

    @property
    def context(self) -> list[int]:
        """All ids before the next turn."""
        return [*self.prompt.ids, *self.tokens]

    def asks(self, event: Event) -> Asked:
        """An event for its environment."""
        return Asked(self.number, self.prompt, self.sample, event)

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
            sample=self.sample,
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
    engine gives the beginning of the same sample under a lower limit, so an episode does not depend on the others, nor on how many are
    played at a time.

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
        speaks_first: bool = False,
        sessions: int | None = None,
        parallel: int = 1,
        environments: OpensEnvironments | None = None,
    ) -> None:
        """Wrap an engine.

        Args:
            engine: Samples the turns.
            environment: Makes the environment of one episode, in this process.
            tokenizer: The policy's.
            max_turns: Of the policy, in one episode.
            max_turn_tokens: Longest single turn; None for what ``max_new_tokens``, the limit of an episode, leaves.
            max_observation_tokens: A longer observation loses its end.
            role: Who says observations in a conversation.
            timeout_seconds: For one answer of an environment.
            speaks_first: The environment may say something before the policy does; conversations were cut there (``Turns.split``).
            sessions: Episodes at a time; None for all.
            parallel: Calls to environments at a time.
            environments: Gives those of a rollout in place of ``environment``; None for this process.
        """
        for name, limit in (("max_turns", max_turns), ("max_turn_tokens", max_turn_tokens or 1)):
            if limit < 1:
                raise ConfigError(f"{name} is {limit}; wanted 1 or more.")
        self.engine = engine
        self.environments = environments or partial(
            LocalEnvironments, environment, tokenizer, timeout_seconds=timeout_seconds, parallel=parallel
        )
        self.tokenizer = tokenizer
        self.max_turns = max_turns
        self.max_turn_tokens = max_turn_tokens
        self.speaks_first = speaks_first
        self.sessions = sessions
        self._turns = Turns(tokenizer, role=role, max_observation_tokens=max_observation_tokens)

    @property
    def weight_version(self) -> int:
        """The engine's."""
        return self.engine.weight_version

    def load_weights(self, version: int) -> None:
        """Sample with the trainer's weights of this version from now on."""
        self.engine.load_weights(version)

    def pause(self) -> None:
        """Take no more requests until ``resume``; those under way end first."""
        self.engine.pause()

    def resume(self) -> None:
        """Take requests again."""
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
        """Sample ``num_samples`` completions of each prompt; ``sampling.max_new_tokens`` is the limit of a whole episode.

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
        times = Counter(prompt.id for prompt in whole)
        seen: Counter[str] = Counter()
        groups: list[list[Episode]] = []
        numbers = itertools.count()
        for prompt in whole:  # one that comes twice goes on counting
            first = num_samples * seen[prompt.id]
            groups.append([Episode(prompt, sample, next(numbers)) for sample in range(first, first + num_samples)])
            seen[prompt.id] += 1
        episodes = [episode for group in groups for episode in group]
        longest = max((len(prompt.ids) for prompt in prompts), default=0)
        ask = AskedTurns(
            self.engine,
            self.tokenizer,
            sampling,
            fits=longest + sampling.max_new_tokens,
            seed=seed,
            rollout_index=rollout_index,
            max_turn_tokens=self.max_turn_tokens,
        )
        firsts = FirstTurns(ask, num_samples, times)
        with self.environments() as environments:
            for start in range(0, len(episodes), self.sessions or max(len(episodes), 1)):
                self._play(episodes[start : start + (self.sessions or len(episodes))], ask, firsts, environments)
        return [self._completions(prompt, group) for prompt, group in zip(whole, groups, strict=True)]

    def _play(
        self, episodes: Sequence[Episode], ask: AskedTurns, firsts: FirstTurns, environments: EpisodeEnvironments
    ) -> None:
        """Episodes from their start to their end, side by side."""
        limit = ask.sampling.max_new_tokens
        if self.speaks_first:
            words = environments.ask([episode.asks(Event("open")) for episode in episodes])
            for episode, outcome in zip(episodes, words, strict=True):
                self._open(episode, outcome, limit=limit)
        said = firsts.of(episodes)
        live = list(episodes)
        for turn in range(1, self.max_turns + 1):
            for episode, completion in zip(live, said, strict=True):
                episode.say(completion)
            answers = self._answers(live, said, environments)
            for episode, completion in zip(live, said, strict=True):
                self._go_on(
                    episode, completion, answers.get(episode.number), limit=limit, is_last=turn == self.max_turns
                )
            live = [episode for episode in live if episode.finish_reason is None]
            if not live:
                break
            rooms = [ask.room(episode) for episode in live]
            so_far = [SoFar(episode.name, episode.context) for episode in live]
            seed = derive_seed(ask.seed, "turn", turn)
            said = [one for (one,) in ask.turns(so_far, rooms, num_samples=1, seed=seed)]
        ends = environments.ask([one.asks(Event("end", failed=one.error is not None)) for one in episodes])
        for episode, outcome in zip(episodes, ends, strict=True):
            episode.error = episode.error or outcome.error
            episode.reward += outcome.value or 0.0

    def _open(self, episode: Episode, outcome: Outcome, *, limit: int) -> None:
        """Hear what the environment says first; where it fails, the episode goes on to its first turn without it."""
        episode.error = outcome.error
        ids = self._turns.opening(episode.prompt, outcome.value or "")
        if len(ids) >= limit:
            episode.error = f"the environment's reset said {len(ids)} tokens, and sampling.max_new_tokens, which counts them, is {limit}"
            ids = ids[: limit - 1]
        episode.opening = ids
        episode.hear(ids)

    def _answers(
        self, episodes: Sequence[Episode], said: Sequence[Completion], environments: EpisodeEnvironments
    ) -> dict[int, Turn]:
        """The environments' responses by the episodes' numbers; none where one failed, now or before, and the episode has the reason."""
        asked = [
            episode.asks(Event("answer", episode.turns, one.text, one.tokens))
            for episode, one in zip(episodes, said, strict=True)
            if episode.error is None
        ]
        outcomes = {one.episode: outcome for one, outcome in zip(asked, environments.ask(asked), strict=True)}
        for episode in episodes:
            if episode.number in outcomes:
                episode.error = outcomes[episode.number].error
        return {number: outcome.value for number, outcome in outcomes.items() if outcome.error is None}

    def _go_on(self, episode: Episode, said: Completion, answer: Turn | None, *, limit: int, is_last: bool) -> None:
        """The environment's response to a turn, or the end of the episode."""
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
            if answer.results:
                ids = self._turns.tool_ids(episode.prompt, answer.results, ended=said.finish_reason == "eos")
            else:
                ids = self._turns.ids(episode.prompt, answer.observation, last=episode.tokens[-1])
            if len(episode.tokens) + len(ids) < limit:
                episode.hear(ids)
            else:  # there would be no room for an answer
                episode.finish_reason = "length"

    def _completions(self, prompt: Prompt, group: Sequence[Episode]) -> list[Completion]:
        """Their texts begin with what the policy said first."""
        texts: list[str] = []
        for opening, those in itertools.groupby(group, key=lambda episode: episode.opening):
            after = [episode.tokens[len(opening) :] for episode in those]
            texts += completion_texts(self.tokenizer, [*prompt.ids, *opening], after)
        return [episode.completion(text) for episode, text in zip(group, texts, strict=True)]
