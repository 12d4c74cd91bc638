"""The completions of one model that are being sampled: requests join and leave between two decoding steps.

A row is a completion. Rows of one request share their prompt, prompts that begin alike are read once (``rlhf.rollout.prefix_prefill``), and
each row has its own seed, so that it is the same whatever else is in the batch, up to the rounding of matrix products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.config.policy import SamplingConfig
from rlhf.rollout.continuous_batching import Decoder, RefillingDecoder
from rlhf.rollout.prefix_prefill import PrefixDecoder
from rlhf.rollout.sampling import draw, uniforms
from rlhf.rollout.stopping import eos_ids
from rlhf.seeds import derive_seed
from rlhf.serving.generation import Event, GenerationRequest, TokenLogprobs
from rlhf.serving.live_row import Row, advanced
from rlhf.serving.served_policy import Joining, needed_tokens
from rlhf.serving.text_stream import TextStream


class LiveBatch:
    """Rows in a decoder.

    Args:
        model: In evaluation mode.
        tokenizer: Its own.
        decoder: Runs it.
        max_new_tokens: Most tokens of any completion.
        draw: From logits to tokens; see ``rlhf.rollout.continuous_batching.Drawer``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        decoder: Decoder,
        *,
        max_new_tokens: int,
        draw: Any = draw,
    ) -> None:
        self._tokenizer, self._decoder, self._draw = tokenizer, decoder, draw
        self._max_new_tokens = max_new_tokens
        self._device = next(model.parameters()).device
        self._eos = frozenset(eos_ids(model, tokenizer))
        self._rows: list[Row] = []
        self._logits: Tensor | None = None
        """[R, V] of each row's next token."""
        self._sampled_tokens = np.zeros(0, dtype=np.int64)
        """[R] that are to be fed."""

    @property
    def num_rows(self) -> int:
        """Live completions."""
        return len(self._rows)

    @property
    def can_join(self) -> bool:
        """Whether rows may join now; a model that takes no rows midway begins again when all have ended."""
        return not self._rows or isinstance(self._decoder, RefillingDecoder)

    @property
    def shared(self) -> Hashable:
        """Nothing that another batch uses."""
        return self

    @property
    def cached_tokens(self) -> int:
        """Room that live rows may come to need in the tables of keys and values."""
        if not self._rows:
            return 0
        requests = {row.request.id: row.request for row in self._rows}
        return sum(map(needed_tokens, requests.values()))

    def begin(self, request: GenerationRequest) -> Joining:
        """Look for what is known of a prompt."""
        reading = self._decoder.begin(request.prompt) if isinstance(self._decoder, PrefixDecoder) else None
        return Joining(request, reading, reading.from_cache if reading is not None else 0)

    def read_ahead(self, joining: Joining, num_tokens: int) -> int:
        """Read some of a prompt; tells how many tokens."""
        assert isinstance(self._decoder, PrefixDecoder)
        assert joining.reading is not None
        before = joining.reading.num_unread
        self._decoder.read_ahead(joining.reading, num_tokens)
        return before - joining.reading.num_unread

    def forget(self, joining: Joining) -> None:
        """Of a request that is over before its prompt was read."""
        if joining.reading is not None and isinstance(self._decoder, PrefixDecoder):
            self._decoder.forget(joining.reading)

    def join(self, several: list[Joining]) -> None:
        """Read what is left of the prompts, and let their rows live."""
        prompts = [one.reading if one.reading is not None else one.request.prompt for one in several]
        group = np.repeat(np.arange(len(several)), [one.request.num_samples for one in several])
        decoder = self._decoder
        if self._rows:
            assert isinstance(decoder, RefillingDecoder)
            assert self._logits is not None
            new = decoder.join(prompts, group)
            self._logits = torch.cat([self._logits, new.to(self._logits.dtype)])
        else:
            self._logits = decoder.prefill(prompts, group, self._max_new_tokens)
        for one in several:
            self._rows += self._rows_of(one.request)

    def drop(self, request_id: str) -> None:
        """Let a request's rows end without a further word."""
        for row in self._rows:
            if row.request.id == request_id:
                row.is_over = True

    def sample(self) -> list[tuple[GenerationRequest, Event]]:
        """A token for each row, which may end it; ``feed`` comes next."""
        assert self._logits is not None
        tokens, logprobs = self._sampled(self._logits)
        self._logits, self._sampled_tokens = None, tokens
        return [
            (row.request, advanced(row, int(tokens[place]), logprobs.get(place), self._eos))
            for place, row in enumerate(self._rows)
            if not row.is_over
        ]

    def feed(self) -> None:
        """What follows from the tokens in the model; rows that are over leave it."""
        alive = np.array([not row.is_over for row in self._rows])
        if not alive.any():
            self._rows = []
            return
        fed = torch.from_numpy(self._sampled_tokens.clip(min=0)).to(self._device)
        if not alive.all():
            kept = self._decoder.keep(alive)
            self._rows = [self._rows[place] for place in kept.tolist()]
            fed = fed.index_select(0, torch.from_numpy(kept).to(self._device))
        self._logits = self._decoder.step(fed)

    def _rows_of(self, request: GenerationRequest) -> list[Row]:
        rows = []
        for index in range(request.num_samples):
            row = Row(
                request=request,
                index=index,
                stream=TextStream(self._tokenizer, request.prompt, request.sampling.stop),
                constraint=request.constraint() if request.constraint is not None else None,
                seed=np.uint64(derive_seed(request.seed, "serving", index)),
            )
            if request.sampling.repetition_penalty != 1:
                assert self._logits is not None
                row.seen = torch.zeros(self._logits.shape[1], dtype=torch.bool, device=self._device)
                row.seen[list(request.prompt)] = True
            rows.append(row)
        return rows

    def _sampled(self, logits: Tensor) -> tuple[np.ndarray, dict[int, TokenLogprobs]]:
        """int64 [R] tokens, and the log-probabilities of the rows that report them; a row whose numbers are not finite gets -1."""
        ages = np.array([row.age for row in self._rows])
        uniform = torch.from_numpy(uniforms(np.array([row.seed for row in self._rows]), ages)).to(self._device)
        plain, reported = self._shaped(logits)
        tokens = np.empty(len(self._rows), dtype=np.int64)
        kinds: dict[str, list[int]] = {}
        for place, row in enumerate(self._rows):
            kinds.setdefault(_kind_of(row.request.sampling), []).append(place)
        for places in kinds.values():
            index = torch.tensor(places, device=self._device)
            whole = len(places) == len(self._rows)
            some = plain if whole else plain.index_select(0, index)
            rows = [self._rows[place] for place in places]
            seen = torch.stack([row.seen for row in rows if row.seen is not None]) if rows[0].seen is not None else None
            drawn = self._draw(
                some, uniform if whole else uniform.index_select(0, index), rows[0].request.sampling, seen=seen
            )
            tokens[places] = torch.where(torch.isfinite(drawn.logprobs), drawn.tokens, -1).cpu().numpy()
        return tokens, {
            place: _logprobs_of(of_row, int(tokens[place]), self._rows[place].request.top_logprobs or 0)
            for place, of_row in reported.items()
        }

    def _shaped(self, logits: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """Logits with biases and constraints, and [V] log-probabilities at temperature 1 of the rows that report them."""
        shaping = [row for row in self._rows if row.request.logit_bias or row.constraint is not None]
        if shaping:
            logits = logits.float()
        for place, row in enumerate(self._rows):
            if row.is_over:
                continue
            for token, bias in row.request.logit_bias.items():
                logits[place, token] += bias
            if row.constraint is not None:
                row.constraint.mask(logits[place])
        reported = {
            place: logits[place].float().log_softmax(-1)
            for place, row in enumerate(self._rows)
            if row.request.top_logprobs is not None and not row.is_over
        }
        return logits, reported


def _kind_of(sampling: SamplingConfig) -> str:
    """Rows of one kind are drawn together."""
    return repr((sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty))


def _logprobs_of(row: Tensor, token: int, most: int) -> TokenLogprobs:
    """Of a token and of the likeliest, from log-probabilities [V]."""
    top = row.topk(min(most, len(row))) if most else None
    listed = list(zip(top.indices.tolist(), top.values.tolist(), strict=True)) if top is not None else []
    return TokenLogprobs(
        logprob=float(row[token]) if token >= 0 else math.nan,
        top=list(itertools.islice(((int(t), float(value)) for t, value in listed if value > -math.inf), most)),
    )
