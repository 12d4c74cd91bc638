"""Continuous batching: a completion that ends makes room for the next one in the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.activity import doing
from rlhf.config.policy import SamplingConfig
from rlhf.errors import TrainingError
from rlhf.rollout.request_queue import Part, Waiting
from rlhf.rollout.sampling import Draw, draw, has_filters, uniforms
from rlhf.rollout.stopping import StopTexts, completion_texts, eos_ids
from rlhf.rollout.types import Completion, FinishReason, PromptLike
from rlhf.seeds import derive_seed

COMPACT_FRAC = 1 / 16
"""Finished rows are dropped when they are this share of the rows; moving the cache costs more than a few idle rows."""
EOS, STOP, LENGTH = 1, 2, 3
"""Marks of why a row ended."""


class Decoder(Protocol):
    """Runs the model over the tokens of many rows; independent of sampling."""

    def prefill(self, prompts: Sequence[Sequence[int]], group: np.ndarray, max_new_tokens: int) -> Tensor:
        """Logits [R, V] of each row's first token; rows that were there before are gone."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Logits [R, V] of the token after these, int64 [R]."""
        ...

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drop rows that are not alive, bool [R]; tells the former places of the rows that are left."""
        ...


@runtime_checkable
class RefillingDecoder(Decoder, Protocol):
    """One whose rows may be of different ages."""

    def join(self, prompts: Sequence[Sequence[int]], group: np.ndarray) -> Tensor:
        """Logits [R', V] of the first token of R' new rows, which come after the others; ``group`` counts the new prompts."""
        ...


class Drawer(Protocol):
    """See ``rlhf.rollout.sampling.draw``, which is one."""

    def __call__(
        self, logits: Tensor, uniform: Tensor, sampling: SamplingConfig, *, seen: Tensor | None = None
    ) -> Draw:
        """logits [R, V], uniform [R], seen [R, V] -> a token for each row."""
        ...


class SamplingRun:
    """Sampling of one request. S rows in all, R of them in the model."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        decoder: Decoder,
        prompts: Sequence[PromptLike],
        requests: list[tuple[int, int]],
        sampling: SamplingConfig,
        seed: int,
        rollout_index: int,
        *,
        waiting: Waiting,
        limits: np.ndarray,
        draw: Drawer = draw,
    ) -> None:
        """Prepare; ``completions`` does the work.

        Args:
            model: In evaluation mode.
            tokenizer: For stop texts and the completions' texts.
            decoder: Runs the model.
            prompts: All prompts of the request.
            requests: (place of the prompt, sample index) of each row; rows of one prompt are adjacent.
            sampling: How tokens are drawn.
            seed: The run's.
            rollout_index: Which rollout of the run.
            waiting: Says when each row begins.
            limits: int64 [S] most tokens of each row, none above ``sampling.max_new_tokens``.
            draw: From logits to tokens.
        """
        self.tokenizer, self.decoder, self.sampling = tokenizer, decoder, sampling
        self.prompts, self.requests, self.waiting, self.draw = prompts, requests, waiting, draw
        self.stop = StopTexts(tokenizer, sampling.stop)
        self.seeds = np.array(
            [derive_seed(seed, "rollout", rollout_index, prompts[place].id, sample) for place, sample in requests],
            dtype=np.uint64,
        )
        self.device = next(model.parameters()).device
        vocabulary = int(model.config.get_text_config().vocab_size)
        self.is_eos = torch.zeros(vocabulary, dtype=torch.bool, device=self.device)
        self.is_eos[[token for token in eos_ids(model, tokenizer) if token < vocabulary]] = True
        size, longest = len(requests), sampling.max_new_tokens
        self.tokens = torch.zeros(size, longest, dtype=torch.int64, device=self.device)
        self.logprobs = torch.zeros(size, longest, dtype=torch.float64, device=self.device)
        self.sampling_logprobs: Tensor | None = None
        if sampling.temperature > 0 and (has_filters(sampling) or sampling.repetition_penalty != 1):
            self.sampling_logprobs = torch.zeros_like(self.logprobs)
        self.lengths = limits.copy()
        self.ended = np.zeros(size, dtype=np.int8)
        """0 while a row continues, then LENGTH, EOS or STOP."""
        self.held_with = np.zeros(size, dtype=np.int64)
        """[S] tells apart the parts that the rows began in, each of which holds its prompt once."""
        self._hold(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        self.seen: Tensor | None = None
        """bool [R, V] tokens of prompt and completion, for a repetition penalty."""

    def completions(self, weight_version: int) -> list[Completion]:
        """Sample every row to its end."""
        logits = self._begin()
        while True:
            tokens = self._draw(logits)
            alive = self.ended[self.rows] == 0
            if alive.any():
                logits = self._refilled(self._step(self._without_ended(alive, tokens)))
            elif self.waiting:
                logits = self._begin()
            else:
                return self._collect(weight_version)

    def _step(self, tokens: Tensor) -> Tensor:
        """[R, V] logits of what follows each row's newest token, int64 [R]."""
        return self.decoder.step(tokens)

    def _begin(self) -> Tensor:
        """[R, V] logits of the first rows' first tokens."""
        none = np.zeros(0, dtype=np.int64)
        self._hold(none, none)
        self.seen = None
        return self._admit(
            self.waiting.take([], 0), lambda ids, group: self.decoder.prefill(ids, group, self.sampling.max_new_tokens)
        )

    def _refilled(self, logits: Tensor) -> Tensor:
        """The logits [R, V] of rows that are there, and behind them those of waiting rows for which there is room now."""
        decoder = self.decoder
        if not self.waiting or not isinstance(decoder, RefillingDecoder):
            return logits
        _, first = np.unique(self.held_with[self.rows], return_index=True)
        held = [len(self.prompts[self.requests[row][0]].ids) for row in self.rows[first].tolist()]
        parts = self.waiting.take(held, len(self.rows))
        return torch.cat([logits, self._admit(parts, decoder.join)]) if parts else logits

    def _admit(self, parts: list[Part], read: Callable[[list[Sequence[int]], np.ndarray], Tensor]) -> Tensor:
        """[R', V] logits of the new rows' first tokens."""
        ids = [self.prompts[part.place].ids for part in parts]
        group = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
        new = np.concatenate([np.asarray(part.rows) for part in parts])
        self.held_with[new] = new[0] + group  # no two parts begin with the same row
        with doing("rollout prefill", tokens=sum(map(len, ids))):
            logits = read(ids, group)
        self._hold(np.concatenate([self.rows, new]), np.concatenate([self.ages, np.zeros_like(new)]))
        if self.sampling.repetition_penalty != 1:
            seen = self._seen_tokens(ids, group, logits)
            self.seen = seen if self.seen is None else torch.cat([self.seen, seen])
        return logits

    def _draw(self, logits: Tensor) -> Tensor:
        """int64 [R] the next tokens, which are noted."""
        uniform = torch.from_numpy(uniforms(self.seeds[self.rows], self.ages)).to(self.device)
        drawn = self.draw(logits, uniform, self.sampling, seen=self.seen)
        where = (self.rows_there, self.ages_there)
        self.tokens[where] = drawn.tokens
        self.logprobs[where] = drawn.logprobs.double()
        if self.sampling_logprobs is not None and drawn.sampling_logprobs is not None:
            self.sampling_logprobs[where] = drawn.sampling_logprobs.double()
        self.ages += 1
        self.ages_there += 1
        self._note_ends(drawn.tokens, self.rows, self.ages)
        if self.seen is not None:
            self.seen.scatter_(1, drawn.tokens[:, None], True)
        return drawn.tokens

    def _without_ended(self, alive: np.ndarray, tokens: Tensor) -> Tensor:
        """The tokens of the rows that stay in the model, int64 [R]; all of them where it does not pay yet to drop the ended ones."""
        ended = ~alive
        spent = (
            self.ages[ended] >= self.sampling.max_new_tokens
        ).any()  # the cache holds no more of it, even computed idly
        if not ended.any() or (ended.sum() < COMPACT_FRAC * len(alive) and not spent):
            return tokens
        kept = self.decoder.keep(alive)
        if len(kept) == len(alive):
            return tokens
        self._hold(self.rows[kept], self.ages[kept])
        index = torch.from_numpy(kept).to(self.device)
        self.seen = self.seen.index_select(0, index) if self.seen is not None else None
        return tokens.index_select(0, index)

    def _hold(self, rows: np.ndarray, ages: np.ndarray) -> None:
        """Note which rows are in the model, int64 [R], and how many tokens each of them has, int64 [R]."""
        self.rows, self.ages = rows, ages
        self.rows_there, self.ages_there = (
            torch.tensor(rows, device=self.device),
            torch.tensor(ages, device=self.device),
        )

    def _note_ends(self, tokens: Tensor, rows: np.ndarray, ages: np.ndarray) -> None:
        """Mark rows that came to an end with this token; a row that had ended before is computed on, and ignored."""
        ends = self.is_eos[tokens].cpu().numpy() & (self.ended[rows] == 0)
        if ends.any():
            self.ended[rows[ends]] = EOS
            self.lengths[rows[ends]] = ages[ends]
        for place in self.stop.candidates(tokens.tolist()) if self.stop else ():
            row = rows[place]
            if self.ended[row] == 0 and self.stop.reached(self.tokens[row, : ages[place]].tolist()):
                self.ended[row] = STOP
                self.lengths[row] = ages[place]
        self.ended[rows[(self.ended[rows] == 0) & (self.lengths[rows] == ages)]] = LENGTH

    def _seen_tokens(self, ids: list[Sequence[int]], group: np.ndarray, logits: Tensor) -> Tensor:
        """bool [R', V] tokens of each new row's prompt."""
        seen = torch.zeros(len(ids), logits.shape[1], dtype=torch.bool, device=self.device)
        for number, prompt in enumerate(ids):
            seen[number, list(prompt)] = True
        return seen.index_select(0, torch.from_numpy(group).to(self.device))

    def _collect(self, weight_version: int) -> list[Completion]:
        tokens, logprobs = _cut(self.tokens, self.lengths), _cut(self.logprobs, self.lengths)
        sampled = _cut(self.sampling_logprobs, self.lengths) if self.sampling_logprobs is not None else None
        texts = self._texts(tokens)
        reasons: dict[int, FinishReason] = {LENGTH: "length", EOS: "eos", STOP: "stop"}
        completions = []
        for row, (place, sample) in enumerate(self.requests):
            prompt_id = self.prompts[place].id
            if not np.isfinite(logprobs[row]).all():
                raise TrainingError(
                    f"Sampling from prompt {prompt_id!r} gave a log-probability that is not finite: the weights hold "
                    "NaN or infinity, or overflowed in half precision. Go back to a checkpoint from before."
                )
            completions.append(
                Completion(
                    prompt_id=prompt_id,
                    sample=sample,
                    tokens=tokens[row],
                    logprobs=logprobs[row],
                    sampling_logprobs=sampled[row] if sampled is not None else None,
                    finish_reason=reasons[int(self.ended[row])],
                    weight_version=weight_version,
                    text=texts[row],
                )
            )
        return completions

    def _texts(self, tokens: list[list[int]]) -> list[str]:
        texts = [""] * len(tokens)
        rows_of: dict[int, list[int]] = {}
        for row, (place, _) in enumerate(self.requests):
            rows_of.setdefault(place, []).append(row)
        for place, rows in rows_of.items():
            decoded = completion_texts(self.tokenizer, self.prompts[place].ids, [tokens[row] for row in rows])
            for row, text in zip(rows, decoded, strict=True):
                texts[row] = text
        return texts


def _cut(table: Tensor, lengths: np.ndarray) -> list[list[Any]]:
    """Each row of [S, T] up to its length."""
    return [row[:length].tolist() for row, length in zip(table.cpu().numpy(), lengths, strict=True)]
