"""Prompt lookup: drafts the next tokens of a completion from what followed the same tokens before, in its prompt, in itself, or in
another completion of the same prompt.

Source: Saxena 2023, "Prompt lookup decoding", github.com/apoorvumang/prompt-lookup-decoding, which looks in the prompt and in the text
itself. The samples of a group are similar, so they are searched too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from rlhf.rollout.speculation import DraftedRun


class LookupDrafter:
    """See ``rlhf.rollout.speculation.Drafter``; of the prompts of one request."""

    probs: Tensor | None = None

    def __init__(self, prompts: Sequence[Sequence[int]], *, ngram_tokens: int) -> None:
        self._prompts, self._ngram_tokens = prompts, ngram_tokens
        self._lookups: dict[int, GroupLookup] = {}
        """By the place of the prompt."""

    def propose(self, run: DraftedRun, most: np.ndarray) -> list[list[int]]:
        """What followed the same tokens before."""
        rows = zip(run.rows.tolist(), most.tolist(), strict=True)
        return [self._lookup(run, row).guess(row, count) if count else [] for row, count in rows]

    def note(self, run: DraftedRun, row: int, tokens: list[int]) -> None:
        """They are found from now on."""
        self._lookup(run, row).extend(row, tokens)

    def _lookup(self, run: DraftedRun, row: int) -> GroupLookup:
        place = run.requests[row][0]
        if place not in self._lookups:
            self._lookups[place] = GroupLookup(self._prompts[place], ngram_tokens=self._ngram_tokens)
        return self._lookups[place]


class GroupLookup:
    """The words of one prompt and its completions, found by the few before them; of several places the newest counts.

    It contains only this group's completions of this call of the engine, so that drafts, and with them the shape of every matrix
    product, are the same when a run is repeated or resumed.
    """

    def __init__(self, prompt: Sequence[int], *, ngram_tokens: int) -> None:
        """Read the prompt.

        Args:
            prompt: Token ids, at least one.
            ngram_tokens: So many tokens must agree.
        """
        self.ngram_tokens = ngram_tokens
        self._places: dict[tuple[int, ...], tuple[list[int], int]] = {}
        """A sequence of tokens -> the text that contains it and the position after it."""
        self._texts: dict[int, list[int]] = {}
        """Of each completion, with as much of the prompt before it as a run of tokens can reach back."""
        self._prompt = list(prompt)
        self._note(self._prompt, 0)

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        """A completion, whatever number it has, went on by these tokens."""
        text = self._texts.get(row)
        if text is None:
            text = self._texts[row] = self._prompt[max(0, len(self._prompt) - self.ngram_tokens) :]
        noted = max(0, len(text) - self.ngram_tokens)
        text.extend(tokens)
        self._note(text, noted)

    def guess(self, row: int, most: int) -> list[int]:
        """What may follow a completion's newest tokens; nothing where these were not seen before.

        Args:
            row: The number of a completion that was extended.
            most: So many tokens at most.
        """
        text = self._texts[row]
        place = self._places.get(tuple(text[-self.ngram_tokens :]))
        return [] if place is None or most < 1 else place[0][place[1] : place[1] + most]

    def _note(self, text: list[int], first: int) -> None:
        """Remember the runs that begin at the place ``first`` or later; the last one of a text has nothing behind it yet."""
        width = self.ngram_tokens
        for start in range(first, len(text) - width):
            self._places[tuple(text[start : start + width])] = (text, start + width)
