"""The environment of a stage: opened, its tools put into the prompts, and the engine that plays episodes with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from transformers import PreTrainedTokenizerBase

from rlhf.config.lost_fields import LostField
from rlhf.config.stage_inputs import PolicyStage
from rlhf.data.chat import chat_format, check_has_template, render_prompt
from rlhf.data.contracts import Prompt, RowError
from rlhf.data.message_text import counted
from rlhf.errors import ConfigError, DataError
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.stages.context import StageContext, resolved, seed_of
from rlhf.pipeline.stages.stage_pools import pooled_environments
from rlhf.rewards.functions import load_function
from rlhf.rollout.engines import build_engine
from rlhf.rollout.environments import EnvironmentContext, OpenedEnvironment, open_environment
from rlhf.rollout.episode_environments import Asked, Event, LocalEnvironments, OpensEnvironments
from rlhf.rollout.episodes import EpisodeEngine
from rlhf.rollout.turns import Turns

if TYPE_CHECKING:
    from rlhf.rollout.environment_pool import PooledEnvironments

TOOLS: Final = "tools"
"""Column that a chat template's tools stand in."""


@dataclass(frozen=True, slots=True)
class Episodes:
    """A stage's environment, and the policy that talks with it."""

    stage: PolicyStage
    policy: PolicyModel
    at: StageContext
    opened: OpenedEnvironment
    turns: Turns
    speaks_first: bool
    """Conversations are cut where the environment's first words stand."""
    pool: PooledEnvironments | None = None
    """Of actors that have the environments; None where they are in this process."""

    def close(self) -> None:
        """End the actors."""
        if self.pool is not None:
            self.pool.close()

    def prepared(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts with the tools in them, and cut where the environment speaks first.

        Raises:
            DataError: One is too long then, or brings tools of its own.
        """
        made = [self._prepared(prompt) for prompt in prompts]
        most = self.stage.max_prompt_length
        if most is None or self.opened.tools is None:
            return made
        long = [prompt for prompt in made if len(prompt.ids) > most]
        if long and self.stage.truncation != "drop":
            raise DataError(
                f"{long[0].id}: with the tools of the environment the prompt has {len(long[0].ids)} tokens, and max_prompt_length is "
                f"{most}. Raise it, or take `truncation: drop`."
            )
        if len(long) == len(made) and made:
            raise DataError(
                f"With the tools of the environment every prompt has more than max_prompt_length = {most} tokens, the first "
                f"{len(long[0].ids)}; raise it."
            )
        if long:
            self.at.log.write(
                "note",
                message=f"dropped with the tools in them: {counted(len(long), 'prompt')} of more than {most} tokens",
            )
        return [prompt for prompt in made if len(prompt.ids) <= most]

    def engine(self) -> EpisodeEngine:
        """Plays the episodes."""
        settings = self.stage.environment
        assert settings is not None, "episodes have an environment"
        return EpisodeEngine(
            build_engine(self.policy, self.stage.engine, autocast=self.stage.autocast),
            self.opened.make,
            self.policy.tokenizer,
            max_turns=settings.max_turns,
            max_turn_tokens=settings.max_turn_tokens,
            max_observation_tokens=settings.max_observation_tokens,
            role=settings.speaker,
            timeout_seconds=settings.timeout_seconds,
            speaks_first=self.speaks_first,
            sessions=self.opened.sessions,
            parallel=self.opened.parallel,
            environments=None if self.pool is None else self.pool.rollout,
        )

    def _prepared(self, prompt: Prompt) -> Prompt:
        if prompt.messages is None:
            return prompt
        if self.opened.tools is not None:
            if prompt.columns.get(TOOLS):
                raise RowError(
                    prompt.id,
                    f"the row has a column {TOOLS!r}, and the environment brings its own tools; drop one of the two.",
                )
            prompt = replace(prompt, columns={**prompt.columns, TOOLS: self.opened.tools(prompt.columns)})
        elif not self.speaks_first:
            return prompt
        assert prompt.messages is not None
        text = prompt_with_tools(self.policy.tokenizer, prompt, allowed=self.stage.allow_lost_fields)
        text = self.turns.split(prompt)[0] if self.speaks_first else text
        return replace(prompt, text=text, ids=self.turns.encode_prompt(text))


def prompt_with_tools(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, *, allowed: Collection[LostField]) -> str:
    """The text of a conversation that has the environment's tools in its column.

    Args:
        tokenizer: With the chat template.
        prompt: A conversation.
        allowed: What the template may leave out; never the tools, without which the policy would have to guess their names.

    Raises:
        RowError: The template leaves out something else.
        ConfigError: It leaves out a tool.
    """
    assert prompt.messages is not None
    chat = chat_format(tokenizer, allow_lost_fields={*allowed, TOOLS})
    text = render_prompt(chat, prompt.messages, columns=prompt.columns, where=prompt.id)
    for tool in prompt.columns.get(TOOLS, ()):
        if tool["function"]["name"] not in text:
            raise ConfigError(
                f"The chat template leaves out the tool {tool['function']['name']!r}; take a model whose template knows tools, or "
                "give another chat_template."
            )
    return text


def open_episodes(
    stage: PolicyStage, policy: PolicyModel, at: StageContext, prompts: Sequence[Prompt]
) -> Episodes | None:
    """A stage's environment, opened and asked once whether it speaks first; None where there is none.

    Raises:
        ConfigError: It can't be used, or the first row's ``reset`` fails.
    """
    settings = stage.environment
    if settings is None:
        return None
    has_messages = any(prompt.messages is not None for prompt in prompts)
    if has_messages:
        check_has_template(chat_format(policy.tokenizer), "prompts")
    context = EnvironmentContext(
        tokenizer=policy.tokenizer,
        load=load_function,
        arguments=resolved(getattr(settings, "arguments", {}), at),
        has_messages=has_messages,
        is_rewarded=bool(stage.reward),
        seed=seed_of(stage.seed),
    )
    with at.naming("environment", ConfigError, what="This is"):
        opened = open_environment(settings, context)
        pool = pooled_environments(settings, context, at)
        speaks_first = opened.speaks_first
        if speaks_first and prompts and (has_messages or opened.sessions is not None):
            here = partial(LocalEnvironments, opened.make, policy.tokenizer, timeout_seconds=settings.timeout_seconds)
            has_words = _has_first_words(here if pool is None else pool.rollout, prompts[0])
            speaks_first = has_words or not has_messages
    one_turn = None if has_messages else settings.why_one_turn(stage.sampling.stop)
    for note in (*opened.notes, *([one_turn] if one_turn is not None else [])):
        at.log.write("note", message=f"environment: {note}")
        at.log.say(f"  environment: {note}")
    turns = Turns(policy.tokenizer, role=settings.speaker, max_observation_tokens=settings.max_observation_tokens)
    return Episodes(stage, policy, at, opened, turns, speaks_first, pool)


def _has_first_words(environments: OpensEnvironments, prompt: Prompt) -> bool:
    """Whether ``reset`` of the first row gives a text: a conversation has one place for it, which all prompts share.

    Raises:
        ConfigError: ``reset`` fails.
    """
    with environments() as of_episodes:
        (opened,) = of_episodes.ask([Asked(0, prompt, 0, Event("open"))])
        of_episodes.ask([Asked(0, prompt, 0, Event("end", failed=True))])
    if opened.error is not None:
        raise ConfigError(f"The environment can't be started with the prompt {prompt.id!r}: {opened.error}.")
    return bool(opened.value)
