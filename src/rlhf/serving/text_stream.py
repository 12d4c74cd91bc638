"""The text of a completion as it grows, up to a stop text."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from rlhf.rollout.stopping import MARGIN_TOKENS, REPLACEMENT


class TextStream:
    """Gives out text as soon as it can't change any more.

    A token may be part of a character, and a decoder may treat the beginning of a text in its own way, so what is new is the difference
    between two decoded texts that begin with the same tokens. Text that may be the beginning of a stop text is held back.

    Args:
        tokenizer: Of the model.
        prompt: Token ids that come before.
        stop: Texts of which the first to appear ends the completion.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-MARGIN_TOKENS:])
        self._first, self._read = 0, len(self._tokens)
        self._stop = [text for text in stop if text]
        self._held = ""
        """Decoded, and not given out."""
        self.is_stopped = False

    def push(self, token: int) -> str:
        """The text that is certain now, which may be empty; nothing comes after a stop text."""
        self._tokens.append(token)
        before = self._decoded(self._tokens[self._first : self._read])
        after = self._decoded(self._tokens[self._first :])
        if len(after) <= len(before) or after.endswith(REPLACEMENT):
            return ""
        self._first, self._read = self._read, len(self._tokens)
        if self._first > 64:  # what is behind is of no more use
            self._tokens, self._read, self._first = self._tokens[self._first :], self._read - self._first, 0
        return self._certain(after[len(before) :])

    def finish(self) -> str:
        """What was held back, when no more tokens come."""
        if self.is_stopped:
            return ""
        before = self._decoded(self._tokens[self._first : self._read])
        rest = self._held + self._decoded(self._tokens[self._first :])[len(before) :]
        self._held = ""
        place = self._stop_in(rest)
        return rest if place is None else rest[:place]

    def _certain(self, new: str) -> str:
        self._held += new
        place = self._stop_in(self._held)
        if place is not None:
            text, self._held, self.is_stopped = self._held[:place], "", True
            return text
        kept = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        text, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return text

    def _stop_in(self, text: str) -> int | None:
        places = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        return min(places, default=None)

    def _decoded(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of a text that are the beginning of a stop text, but not all of it."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
