"""Sampling a set of rows side by side, from the first token to the last row's end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.activity import doing
from rlhf.config.policy import SamplingConfig
from rlhf.errors import TrainingError
from rlhf.rollout.sampling import draw, has_filters, uniforms
from rlhf.rollout.stopping import StopTexts, completion_texts, eos_ids
from rlhf.rollout.types import Completion, FinishReason, PromptLike
from rlhf.seeds import derive_seed

COMPACT_FRAC = 1 / 16
"""Finished rows are dropped when they are this share of the rows; moving the cache costs more than a few idle rows."""
EOS, STOP, LENGTH = 1, 2, 3
"""Marks of why a row ended."""


class Decoder(Protocol):
    """Runs the model over the tokens of many rows; knows nothing of sampling."""

    def prefill(self, prompts: Sequence[Sequence[int]], group: np.ndarray, max_new_tokens: int) -> Tensor:
        """Logits [R, V] of each row's first token."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Logits [R, V] of the token after these, int64 [R]."""
        ...

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drop rows that are not alive, bool [R]; tells the former places of the rows that are left."""
        ...


class SamplingRun:
    """Sampling of one chunk of rows, side by side. S rows at the start, R of them still in the model."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        decoder: Decoder,
        prompts: Sequence[PromptLike],
        chunk: list[tuple[int, int]],
        sampling: SamplingConfig,
        seed: int,
        step: int,
        *,
        limits: np.ndarray,
    ) -> None:
        """Prepare; ``completions`` does the work.

        Args:
            model: In evaluation mode.
            tokenizer: For stop texts and the completions' texts.
            decoder: Fresh; runs the model.
            prompts: All prompts of the request.
            chunk: (place of the prompt, sample index) of each row; rows of one prompt stand together.
            sampling: How tokens are drawn.
            seed: The run's.
            step: Which rollout of the run.
            limits: int64 [S] most tokens of each row, none above ``sampling.max_new_tokens``.
        """
        self.tokenizer, self.decoder, self.sampling = tokenizer, decoder, sampling
        self.chunk = chunk
        self.prompts = {place: prompts[place] for place, _ in chunk}
        self.group_of = {place: number for number, place in enumerate(self.prompts)}
        self.stop = StopTexts(tokenizer, sampling.stop)
        self.seeds = np.array(
            [derive_seed(seed, "rollout", step, prompts[place].id, sample) for place, sample in chunk], dtype=np.uint64
        )
        self.device = next(model.parameters()).device
        vocabulary = int(model.config.get_text_config().vocab_size)
        self.is_eos = torch.zeros(vocabulary, dtype=torch.bool, device=self.device)
        self.is_eos[[token for token in eos_ids(model, tokenizer) if token < vocabulary]] = True
        size, longest = len(chunk), sampling.max_new_tokens
        self.tokens = torch.zeros(size, longest, dtype=torch.int64, device=self.device)
        self.logprobs = torch.zeros(size, longest, dtype=torch.float64, device=self.device)
        self.sampling_logprobs: Tensor | None = None
        if sampling.temperature > 0 and (has_filters(sampling) or sampling.repetition_penalty != 1):
            self.sampling_logprobs = torch.zeros_like(self.logprobs)
        self.lengths = limits.copy()
        self.ended = np.zeros(size, dtype=np.int8)
        """0 while a row goes on, then LENGTH, EOS or STOP."""

    def completions(self, weight_version: int) -> list[Completion]:
        """Sample every row to its end."""
        self._sample()
        return self._collect(weight_version)

    def _sample(self) -> None:
        ids = [prompt.ids for prompt in self.prompts.values()]
        group = np.array([self.group_of[place] for place, _ in self.chunk])
        with doing("rollout prefill", tokens=sum(map(len, ids))):
            logits = self.decoder.prefill(ids, group, self.sampling.max_new_tokens)
        rows = np.arange(len(self.chunk))  # which row of the chunk each row of the decoder is
        rows_there = torch.from_numpy(rows).to(self.device)
        seen = self._seen_tokens(ids, group, logits) if self.sampling.repetition_penalty != 1 else None
        for time in range(self.sampling.max_new_tokens):
            uniform = torch.from_numpy(uniforms(self.seeds[rows], time)).to(self.device)
            drawn = draw(logits, uniform, self.sampling, seen=seen)
            self.tokens[rows_there, time] = drawn.tokens
            self.logprobs[rows_there, time] = drawn.logprobs.double()
            if self.sampling_logprobs is not None and drawn.sampling_logprobs is not None:
                self.sampling_logprobs[rows_there, time] = drawn.sampling_logprobs.double()
            self._note_ends(rows, drawn.tokens, time)
            alive = self.ended[rows] == 0
            if not alive.any():
                break
            tokens = drawn.tokens
            if seen is not None:
                seen.scatter_(1, tokens[:, None], True)
            if len(rows) - alive.sum() >= max(1, COMPACT_FRAC * len(rows)):
                kept = self.decoder.keep(alive)
                if len(kept) < len(rows):
                    rows, index = rows[kept], torch.from_numpy(kept).to(self.device)
                    rows_there = torch.from_numpy(rows).to(self.device)
                    tokens = tokens.index_select(0, index)
                    seen = seen.index_select(0, index) if seen is not None else None
            logits = self.decoder.step(tokens)

    def _note_ends(self, rows: np.ndarray, tokens: Tensor, time: int) -> None:
        """Mark rows that came to an end with this token; a row that had ended before is computed on, and ignored."""
        ends = self.is_eos[tokens].cpu().numpy() & (self.ended[rows] == 0)
        if ends.any():
            self.ended[rows[ends]] = EOS
            self.lengths[rows[ends]] = time + 1
        for place in self.stop.candidates(tokens.tolist()) if self.stop else ():
            row = rows[place]
            if self.ended[row] == 0 and self.stop.reached(self.tokens[row, : time + 1].tolist()):
                self.ended[row] = STOP
                self.lengths[row] = time + 1
        self.ended[rows[(self.ended[rows] == 0) & (self.lengths[rows] == time + 1)]] = LENGTH

    def _seen_tokens(self, ids: list[Sequence[int]], group: np.ndarray, logits: Tensor) -> Tensor:
        """bool [S, V] tokens of each row's prompt."""
        seen = torch.zeros(len(ids), logits.shape[1], dtype=torch.bool, device=self.device)
        for number, prompt in enumerate(ids):
            seen[number, list(prompt)] = True
        return seen.index_select(0, torch.from_numpy(group).to(self.device))

    def _collect(self, weight_version: int) -> list[Completion]:
        tokens, logprobs = self.tokens.tolist(), self.logprobs.tolist()
        sampled = self.sampling_logprobs.tolist() if self.sampling_logprobs is not None else None
        lengths = self.lengths.tolist()
        texts = self._texts([row[:length] for row, length in zip(tokens, lengths, strict=True)])
        reasons: dict[int, FinishReason] = {LENGTH: "length", EOS: "eos", STOP: "stop"}
        completions = []
        for row, (place, sample) in enumerate(self.chunk):
            length, prompt_id = lengths[row], self.prompts[place].id
            if not np.isfinite(logprobs[row][:length]).all():
                raise TrainingError(
                    f"Sampling from prompt {prompt_id!r} gave a log-probability that is not finite: the weights hold "
                    "NaN or infinity, or overflowed in half precision. Go back to a checkpoint from before."
                )
            completions.append(
                Completion(
                    prompt_id=prompt_id,
                    sample=sample,
                    tokens=tokens[row][:length],
                    logprobs=logprobs[row][:length],
                    sampling_logprobs=sampled[row][:length] if sampled is not None else None,
                    finish_reason=reasons[int(self.ended[row])],
                    weight_version=weight_version,
                    text=texts[row],
                )
            )
        return completions

    def _texts(self, tokens: list[list[int]]) -> list[str]:
        texts = [""] * len(tokens)
        rows_of: dict[int, list[int]] = {}
        for row, (place, _) in enumerate(self.chunk):
            rows_of.setdefault(place, []).append(row)
        for place, rows in rows_of.items():
            found = completion_texts(self.tokenizer, self.prompts[place].ids, [tokens[row] for row in rows])
            for row, text in zip(rows, found, strict=True):
                texts[row] = text
        return texts
