"""The settings that decide which ids a row becomes, checked once against the tokenizer."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlhf.config.lost_fields import LOST_FIELDS, LostField
from rlhf.data.chat import ChatFormat, chat_format, special_tokens
from rlhf.data.truncate import TRUNCATIONS, Truncation
from rlhf.errors import ConfigError, ModelError, kind_of, look_up

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Score = Literal["completion", "assistant", "all"]
SCORES: Mapping[str, str] = {
    "completion": "what the row calls its completion; of a dialogue every turn of the assistant",
    "assistant": "every turn of the assistant, those in the prompt too",
    "all": "every token but the first",
}

_ALLOWED: contextvars.ContextVar[frozenset[LostField]] = contextvars.ContextVar("rlhf_lost_fields", default=frozenset())


@contextlib.contextmanager
def lost_fields_allowed(fields: Collection[LostField]) -> Iterator[None]:
    """Inside, data sets that say nothing of it let chat templates leave these fields out: a stage reads rows in many places, from its
    data to what a reward model is shown."""
    token = _ALLOWED.set(frozenset(fields))
    try:
        yield
    finally:
        _ALLOWED.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenization:
    """Everything that decides which ids a row becomes."""

    tokenizer: PreTrainedTokenizerBase
    chat: ChatFormat
    max_length: int | None
    """Tokens of prompt and completion together."""
    max_prompt_length: int | None
    truncation: Truncation
    train_on: Score
    add_eos: bool
    """Completions end in EOS, once, and it is scored: otherwise a model never learns to stop."""
    default_bos: int | None
    """What the tokenizer itself puts before plain text."""
    ends: frozenset[int]
    """Ids that end a turn: EOS and the other special tokens."""

    def ids(
        self, texts: Sequence[str], *, offsets: bool = False
    ) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
        """Ids of each text, nothing added by the tokenizer; where asked for, the characters of each id."""
        if not texts:
            return [], []
        encoded = self.tokenizer(
            list(texts),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=offsets,
            verbose=False,  # longer than the model's context is for max_length to say
        )
        return encoded["input_ids"], encoded["offset_mapping"] if offsets else []


def tokenization(
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    max_prompt_length: int | None = None,
    truncation: Truncation = "error",
    train_on: Score = "completion",
    chat_template: str | None = None,
    add_eos: bool = True,
    allow_lost_fields: Collection[LostField] | None = None,
) -> Tokenization:
    """Check the settings and settle what depends on the tokenizer.

    Raises:
        ConfigError: An unknown policy, or a length that leaves no room.
        ModelError: EOS is to be added and the tokenizer has none.
    """
    if not callable(tokenizer):
        raise ConfigError(
            f"tokenizer is {kind_of(tokenizer)}; expected a tokenizer of transformers, such as policy.tokenizer."
        )
    look_up(TRUNCATIONS, truncation, kind="truncation policy")
    look_up(SCORES, train_on, kind="value of train_on")
    for field in allow_lost_fields or ():
        look_up(dict.fromkeys(LOST_FIELDS), field, kind="field of a dialogue (allow_lost_fields)")
    allowed = _ALLOWED.get() if allow_lost_fields is None else allow_lost_fields
    for name, length, least in (("max_length", max_length, 2), ("max_prompt_length", max_prompt_length, 1)):
        if length is not None and length < least:
            raise ConfigError(f"{name} is {length}; wanted at least {least}, or None for no limit.")
    if add_eos and tokenizer.eos_token_id is None:
        raise ModelError(
            "The tokenizer has no EOS token, so completions can't be ended with one; set tokenizer.eos_token, "
            "or pass add_eos=False (the model then never learns to stop)."
        )
    special_ids = tokenizer.convert_tokens_to_ids(list(special_tokens(tokenizer)))
    assert isinstance(special_ids, list)
    begun = list(tokenizer("a")["input_ids"])
    bos = tokenizer.bos_token_id
    return Tokenization(
        tokenizer=tokenizer,
        chat=chat_format(tokenizer, chat_template, allow_lost_fields=allowed),
        max_length=max_length,
        max_prompt_length=max_prompt_length,
        truncation=truncation,
        train_on=train_on,
        add_eos=add_eos,
        default_bos=bos if bos is not None and begun[:1] == [bos] else None,
        ends=frozenset(special_ids),
    )
