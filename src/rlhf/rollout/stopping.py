"""When a completion ends: EOS ids and stop texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.errors import ModelError

MARGIN_TOKENS = 4
"""Tokens decoded before the place where a stop text could begin: what decoders do to a text's start must not matter."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every id that ends a completion: those of the generation config, of the model config and of the tokenizer.

    Raises:
        ModelError: None of them has one.
    """
    ids: set[int] = set()
    for owner in (getattr(model, "generation_config", None), model.config.get_text_config(), tokenizer):
        value: Any = getattr(owner, "eos_token_id", None)
        ids.update([value] if isinstance(value, int) else value or [])
    if not ids:
        raise ModelError(
            f"Nothing says which token ends a text for {type(model).__name__}: set eos_token in the tokenizer or "
            "eos_token_id in generation_config.json."
        )
    return sorted(ids)


class StopTexts:
    """Finds out, token by token, whether a completion has come to contain a stop text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stop = [text for text in stop if text]
        self._window = max((len(text.encode()) for text in self.stop), default=0) + MARGIN_TOKENS
        self._last_characters = {text[-1] for text in self.stop}
        self._may_finish: dict[int, bool] = {}

    def __bool__(self) -> bool:
        return bool(self.stop)

    def candidates(self, tokens: Sequence[int]) -> list[int]:
        """Places whose newest token could be the end of a stop text; the others need no decoding."""
        return [place for place, token in enumerate(tokens) if self._can_finish(token)]

    def reached(self, tokens: Sequence[int]) -> bool:
        """Whether the completion contains a stop text that its newest token completed."""
        tail = self.tokenizer.decode(list(tokens[-self._window :]), skip_special_tokens=False)
        return any(text in tail for text in self.stop)

    def _can_finish(self, token: int) -> bool:
        known = self._may_finish.get(token)
        if known is None:
            piece = self.tokenizer.decode([token], skip_special_tokens=False)
            # Nothing, part of a character, or white space that a decoder may drop at the start: only the context can
            # tell.
            unclear = not piece or REPLACEMENT in piece or any(last.isspace() for last in self._last_characters)
            known = self._may_finish[token] = unclear or any(last in piece for last in self._last_characters)
        return known


def completion_texts(
    tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int], completions: Sequence[Sequence[int]]
) -> list[str]:
    """What each completion adds to the text of its prompt.

    Decoded behind the prompt's last tokens, because a decoder may drop a space at the start of a text ("Once upon a" +
    "time").
    """
    context = list(prompt[-MARGIN_TOKENS:])
    before = str(tokenizer.decode(context, skip_special_tokens=True))
    texts: list[str] = tokenizer.batch_decode([[*context, *tokens] for tokens in completions], skip_special_tokens=True)
    if all(text.startswith(before) for text in texts) and not before.endswith(REPLACEMENT):
        return [text[len(before) :] for text in texts]
    return list(tokenizer.batch_decode([list(tokens) for tokens in completions], skip_special_tokens=True))
