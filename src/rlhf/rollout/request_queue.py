"""Queue of completions to be sampled."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A prompt with some of its completions, which begin together."""

    place: int
    """Of the prompt among those of the request."""
    prompt_tokens: int
    rows: range
    """Numbers of the completions among those of the request."""


class Waiting:
    """A first-in, first-out queue of parts; the next one starts as soon as there is room."""

    def __init__(
        self,
        places: Sequence[int],
        prompt_lens: Sequence[int],
        *,
        max_rows: int,
        max_cache_tokens: int,
        max_new_tokens: int,
    ) -> None:
        """Queue completions up; those of a prompt are parted only where they alone are too many.

        Args:
            places: Of each completion's prompt; equal ones are adjacent.
            prompt_lens: Tokens of each prompt.
            max_rows: Completions sampled side by side.
            max_cache_tokens: Tokens whose keys and values are held at once.
            max_new_tokens: Most tokens of a completion; room for all of them is counted from the start.
        """
        self.max_rows, self.max_cache_tokens, self.max_new_tokens = max_rows, max_cache_tokens, max_new_tokens
        self._parts: deque[Part] = deque()
        first = 0
        while first < len(places):
            place = places[first]
            length = prompt_lens[place]
            most = min(max_rows, max(1, (max_cache_tokens - length) // max_new_tokens))
            last = first + 1
            while last < len(places) and places[last] == place and last - first < most:
                last += 1
            self._parts.append(Part(place, length, range(first, last)))
            first = last

    def __len__(self) -> int:
        return len(self._parts)

    def take(self, live_prompt_lens: Sequence[int], live_rows: int) -> list[Part]:
        """The next parts for which there is room; at least one where nothing is live.

        Args:
            live_prompt_lens: Tokens of each prompt that is held.
            live_rows: Completions that are held.
        """
        taken: list[Part] = []
        num_prompts, longest, rows = len(live_prompt_lens), max(live_prompt_lens, default=0), live_rows
        while self._parts:
            part = self._parts[0]
            num_prompts, longest, rows = num_prompts + 1, max(longest, part.prompt_tokens), rows + len(part.rows)
            # Prompts are held padded to the longest of them.
            cached = num_prompts * longest + rows * self.max_new_tokens
            if num_prompts > 1 and (rows > self.max_rows or cached > self.max_cache_tokens):
                break
            taken.append(self._parts.popleft())
        return taken
