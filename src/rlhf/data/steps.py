"""Where the steps of a solution end, found in its token ids.

Rows of data say what their steps are. A completion that was sampled does not: there a step ends with a separator, such
as a line break, and the ids stay as they were sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rlhf.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What a part of a character decodes to."""


@dataclass(frozen=True, slots=True)
class CutSolution:
    """A completion in steps."""

    tokens: list[int]
    """As it was sampled, without the tokens that end a text, and with a separator behind the last step."""
    ends: list[int]
    """Place of each step's last token, at least one."""


class StepCutter:
    """Cuts completions into steps where their text has a separator.

    A step ends at the token with the separator's last character, wherever a tokenizer may have merged that with its
    neighbors: the same token as in training rows, whose steps end with the separator too. Blank steps are none: an
    empty line counts to the step behind it, and what is blank behind the last separator is left out.

    Args:
        tokenizer: What the ids are of.
        separator: At least one character.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, separator: str) -> None:
        if not separator:
            raise ConfigError("The separator of steps is empty; give the text that ends a step, such as a line break.")
        self.tokenizer: Any = tokenizer
        self.separator = separator
        self.separator_ids = _ids_behind_text(tokenizer, separator)
        self._ends_of_text = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id, *self.separator_ids}
        self._may_end = lru_cache(maxsize=None)(self._look_at)

    def __call__(self, tokens: Sequence[int]) -> CutSolution:
        """Cut one completion.

        Args:
            tokens: Ids of the completion, without its prompt; may be empty, and then is one empty step.
        """
        size = len(tokens)
        while size and tokens[size - 1] in self._ends_of_text:
            size -= 1
        kept = list(tokens[:size])
        begin, ends = 0, []
        for place, token in enumerate(kept):
            if self._may_end(token) and self.separator in (text := self._text(kept[begin : place + 1])):
                if text.replace(self.separator, "").strip():
                    ends.append(place)
                begin = place + 1
        tail = self._text(kept[begin:])
        if tail.strip() or not ends:
            kept += self.separator_ids
            ends.append(len(kept) - 1)
        return CutSolution(kept, ends)

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _look_at(self, token: int) -> bool:
        """Whether a token may hold the separator's last character; a part of a character may."""
        text = self._text([token])
        return self.separator[-1] in text or BROKEN in text


def _ids_behind_text(tokenizer: PreTrainedTokenizerBase, separator: str) -> list[int]:
    """The separator's ids where text stands before it; alone, some tokenizers put a space in front."""
    alone, behind = (list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in ("a", "a" + separator))
    if behind[: len(alone)] == alone and len(behind) > len(alone):
        return behind[len(alone) :]
    return list(tokenizer(separator, add_special_tokens=False)["input_ids"])
