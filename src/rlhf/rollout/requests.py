"""Requests to an engine: the index of every sample, and checks that the model can process the prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from transformers import PreTrainedModel

from rlhf.config.policy import SamplingConfig
from rlhf.data.pack import Branch, Group
from rlhf.errors import ConfigError, DataError, TrainingError
from rlhf.rollout.types import PromptLike


def number_samples(prompts: Sequence[PromptLike], num_samples: int) -> list[tuple[int, int]]:
    """(place of the prompt, sample index) of every completion; a repeated prompt continues the count."""
    given: Counter[str] = Counter()
    numbered = []
    for place, prompt in enumerate(prompts):
        first = given[prompt.id]
        given[prompt.id] += num_samples
        numbered += [(place, first + sample) for sample in range(num_samples)]
    return numbered


def context_length_of(model: PreTrainedModel) -> int | None:
    """Tokens that a model was made for; None where its config does not say."""
    limit: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit


def check_request(num_samples: int, *, paused: bool) -> None:
    """Refuse what no engine can do.

    Raises:
        TrainingError: The engine is paused.
        ConfigError: ``num_samples`` below 1.
    """
    if paused:
        raise TrainingError("The rollout engine is paused; call resume() before generate().")
    if num_samples < 1:
        raise ConfigError(f"num_samples is {num_samples}; wanted 1 or more.")


def check_prompts(prompts: Sequence[PromptLike], model: PreTrainedModel, sampling: SamplingConfig) -> None:
    """Refuse what the model can't continue.

    Raises:
        DataError: A prompt without tokens, with an id that the model does not know, or too long for it.
    """
    vocabulary, limit = int(model.config.get_text_config().vocab_size), context_length_of(model)
    for prompt in prompts:
        if not len(prompt.ids):
            raise DataError(f"Prompt {prompt.id!r} has no tokens; give it at least one, such as BOS.")
        wrong = next((token for token in prompt.ids if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise DataError(
                f"Prompt {prompt.id!r} holds the token {wrong}, but the model's vocabulary has {vocabulary}; "
                "tokenize it with the model's own tokenizer."
            )
        if limit is not None and len(prompt.ids) + sampling.max_new_tokens > limit:
            raise DataError(
                f"Prompt {prompt.id!r} has {len(prompt.ids)} tokens and may grow by {sampling.max_new_tokens}, but the "
                f"model was made for {limit}; shorten the prompt or lower max_new_tokens."
            )


def rows_to_check(prompts: Sequence[PromptLike]) -> list[Group]:
    """Rows for the path check where no batch was scored before: the longest prompts, own tokens as completions."""
    longest = sorted(prompts, key=lambda prompt: -len(prompt.ids))[:3]
    return [Group(list(p.ids), [Branch(list(p.ids[:8])), Branch(list(p.ids[-8:]))]) for p in longest]
