"""Speculative sampling: several drafted tokens of a completion are checked in one pass of the model, and the right ones kept.

A row's t-th token is drawn with the t-th uniform number of its own stream, whatever came before it. So a draft needs no acceptance test:
the same token is drawn at every drafted position, and the first that differs from the draft ends it. The samples and their
log-probabilities are those of sampling without drafts, up to the rounding of products of another shape. Where a drafter gives the
probabilities that it drew from, drafts are accepted at random (``rlhf.rollout.rejection_sampling``), which keeps the distribution alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlhf.rollout.continuous_batching import SamplingRun
from rlhf.rollout.draft_decoder import DraftingDecoder
from rlhf.rollout.rejection_sampling import ACCEPTING, NO_GUESS, draw_or_accept
from rlhf.rollout.sampling import Draw, uniforms


@dataclass(slots=True)
class DraftCounts:
    """What guessing brought."""

    forwards: int = 0
    """Decoding passes of the model."""
    row_steps: int = 0
    """Living rows in them, all passes together."""
    drafted: int = 0
    """Tokens that were guessed."""
    accepted: int = 0
    """Those that were right."""

    def figures(self) -> dict[str, float]:
        """As metrics; empty where no pass was made."""
        if not self.row_steps:
            return {}
        figures = {"rollout/tokens_per_forward": 1 + self.accepted / self.row_steps}
        return figures | ({"rollout/draft_accept_frac": self.accepted / self.drafted} if self.drafted else {})


class Drafter(Protocol):
    """Guesses at what comes next."""

    probs: Tensor | None
    """[R, K, V] what the newest guesses were drawn from, where they are to be accepted by rejection sampling; None where the same
    tokens are to be drawn as without them."""

    def propose(self, run: DraftedRun, most: np.ndarray) -> list[list[int]]:
        """Guesses for each row of the model.

        Args:
            run: Its rows and what they hold.
            most: int64 [R] most tokens that may be guessed for each row, 0 for those that have ended.
        """
        ...

    def note(self, run: DraftedRun, row: int, tokens: list[int]) -> None:
        """Completion ``row`` went on by these tokens."""
        ...


class DraftedRun(SamplingRun):
    """A ``SamplingRun`` that guesses."""

    decoder: DraftingDecoder

    def __init__(
        self, *args: Any, drafter: Drafter, draft_tokens: int, max_rows: int, counts: DraftCounts, **how: Any
    ) -> None:
        """Prepare.

        Args:
            args: See ``SamplingRun``.
            drafter: Guesses.
            draft_tokens: Most tokens guessed at once.
            max_rows: Guess only while at most so many rows are in the model.
            counts: Is added to.
            how: See ``SamplingRun``.
        """
        super().__init__(*args, **how)
        self.drafter, self.draft_tokens, self.max_rows = drafter, draft_tokens, max_rows
        self.counts = counts
        self._drafts: list[list[int]] = []
        """What was fed behind the newest token of each of the first rows; those that came after that step were fed nothing."""

    def _step(self, tokens: Tensor) -> Tensor:
        """[N, V] logits of what follows each row's newest token, and each guess behind it."""
        self._drafts = self._guesses()
        counts = np.array([1 + len(draft) for draft in self._drafts])
        fed = [token for newest, draft in zip(tokens.tolist(), self._drafts, strict=True) for token in (newest, *draft)]
        self.counts.forwards += 1
        self.counts.row_steps += int((self.ended[self.rows] == 0).sum())
        self.counts.drafted += len(fed) - len(self._drafts)
        return self.decoder.step_drafted(torch.tensor(fed, device=self.device), counts, self.ages - 1)

    def _guesses(self) -> list[list[int]]:
        """None of them lies beyond its row's limit."""
        if len(self.rows) > self.max_rows:
            return [[] for _ in self.rows]
        most = np.minimum(self.draft_tokens, self.lengths[self.rows] - self.ages - 1)
        return self.drafter.propose(self, np.where(self.ended[self.rows], 0, most))

    def _draw(self, logits: Tensor) -> Tensor:
        """int64 [R] each row's newest token; all that were drawn in the places of right guesses, and behind them, are noted."""
        drafts = self._drafts + [[]] * (len(self.rows) - len(self._drafts))
        self._drafts = []
        counts = np.array([1 + len(draft) for draft in drafts])
        of_row = np.repeat(np.arange(len(counts)), counts)
        starts = np.cumsum(counts) - counts
        offsets = np.arange(len(of_row)) - starts[of_row]
        uniform = uniforms(self.seeds[self.rows[of_row]], self.ages[of_row] + offsets)
        seen = self._seen_behind(drafts, of_row) if self.seen is not None else None
        drawn = self._drawn(logits, torch.from_numpy(uniform).to(self.device), seen, drafts, of_row, offsets)
        tokens = drawn.tokens.tolist()
        new = np.array([1 + _agreeing(draft, tokens[s:]) for draft, s in zip(drafts, starts.tolist(), strict=True)])
        self.counts.accepted += int((new - 1).sum())
        valid = np.flatnonzero(offsets < new[of_row])
        self._note(drawn.tokens, drawn.logprobs, drawn.sampling_logprobs, valid, of_row, offsets)
        alive = self.ended[self.rows] == 0
        for depth in range(int(new.max())):
            at = np.flatnonzero(new > depth)
            places = self._to_device(starts[at] + depth)
            self._note_ends(drawn.tokens.index_select(0, places), self.rows[at], self.ages[at] + depth + 1)
        for place in np.flatnonzero(alive).tolist():
            start = int(starts[place])
            self.drafter.note(self, int(self.rows[place]), tokens[start : start + int(new[place])])
        self.ages = self.ages + new
        self.ages_there = self._to_device(self.ages)
        return drawn.tokens.index_select(0, self._to_device(starts + new - 1))

    def _drawn(
        self,
        logits: Tensor,
        uniform: Tensor,
        seen: Tensor | None,
        drafts: list[list[int]],
        of_row: np.ndarray,
        offsets: np.ndarray,
    ) -> Draw:
        """A token for each of N places."""
        probs = self.drafter.probs
        if probs is None or not any(drafts):
            return self.draw(logits, uniform, self.sampling, seen=seen)
        guesses = [token for draft in drafts for token in (*draft, NO_GUESS)]
        rows = np.minimum(of_row, len(probs) - 1)  # those that came after the guesses have none
        depths = np.minimum(offsets, probs.shape[1] - 1)
        return draw_or_accept(
            logits,
            uniform,
            self.sampling,
            seen=seen,
            guesses=torch.tensor(guesses, device=self.device),
            probs=probs[self._to_device(rows), self._to_device(depths)],
            accepting=torch.from_numpy(
                uniforms(self.seeds[self.rows[of_row]] ^ ACCEPTING, self.ages[of_row] + offsets)
            ),
        )

    def _note(
        self,
        tokens: Tensor,
        logprobs: Tensor,
        sampling_logprobs: Tensor | None,
        valid: np.ndarray,
        of_row: np.ndarray,
        offsets: np.ndarray,
    ) -> None:
        """Write down what was drawn in valid places."""
        index = self._to_device(valid)
        rows = self._to_device(of_row[valid])
        where = (self.rows_there[rows], self.ages_there[rows] + self._to_device(offsets[valid]))
        self.tokens[where] = tokens[index]
        self.logprobs[where] = logprobs[index].double()
        if self.sampling_logprobs is not None and sampling_logprobs is not None:
            self.sampling_logprobs[where] = sampling_logprobs[index].double()
        if self.seen is not None:
            self.seen[rows, tokens[index]] = True

    def _seen_behind(self, drafts: list[list[int]], of_row: np.ndarray) -> Tensor:
        """bool [N, V] tokens that occur before each position, provided that the drafts before it are right."""
        assert self.seen is not None
        seen = self.seen.index_select(0, self._to_device(of_row))
        place = 0
        for draft in drafts:
            for depth in range(1, len(draft) + 1):
                seen[place + depth, draft[:depth]] = True
            place += 1 + len(draft)
        return seen

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def _agreeing(draft: list[int], tokens: list[int]) -> int:
    """How many guesses came true before the first that did not."""
    for place, token in enumerate(draft):
        if tokens[place] != token:
            return place
    return len(draft)
