"""Completions that vLLM samples, in a process of its own: the scheduler's thread gives it requests and takes a step's tokens at a time.

vLLM batches, pages and shares beginnings by itself. Turns, limits, stop texts and ends are the server's, as with every other model. The
process holds one version's weights. Those of another are loaded when no request of the first is left, so a request ends on the
weights that it began with.
"""

from __future__ import annotations

import math
import tempfile
import threading
import weakref
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from rlhf.config.engines import VLLMEngineConfig
from rlhf.rollout.vllm_session import Session
from rlhf.rollout.vllm_weights import PushedWeights
from rlhf.seeds import derive_seed
from rlhf.serving.generation import Accepted, Event, Failed, Failure, GenerationRequest, TokenLogprobs
from rlhf.serving.live_row import Row, advanced
from rlhf.serving.served_policy import Joining, needed_tokens
from rlhf.serving.text_stream import TextStream


class VLLMHost:
    """vLLM's process, which versions of a model hold in turn.

    Args:
        config: Which vLLM, and how.
        dtype: That it computes in.
        options: Arguments of ``vllm.LLM`` beside those of ``config``.
    """

    def __init__(self, config: VLLMEngineConfig, *, dtype: str, options: Mapping[str, Any]) -> None:
        self.dtype = dtype
        self._folder = Path(tempfile.mkdtemp(prefix="rlhf-serve-vllm-"))
        self._remove = weakref.finalize(self, rmtree, self._folder, ignore_errors=True)
        self._session = Session(config, dtype=dtype, log=self._folder / "vllm.log", options=options)
        self._count = 0
        self._lock = threading.RLock()  # new versions are looked at while the scheduler's thread samples
        self.holder: VLLMBatch | None = None
        """Whose weights are loaded, or are next."""

    @property
    def vllm(self) -> str:
        """Version of vLLM."""
        return self._session.vllm

    @property
    def on_cpu(self) -> bool:
        """Whether it is a build for CPUs; starts the process."""
        with self._lock:
            self._session.open()
            return self._session.on_cpu

    def number(self) -> int:
        """Of a version that is new to the process."""
        self._count += 1
        return self._count

    def load(self, weights: PushedWeights, number: int) -> None:
        """Let the process hold these weights, and hear by their checksum that it does; raises as ``Session.push`` does."""
        with self._lock:
            self._session.push(weights, number)

    def step(self, add: Sequence[Mapping[str, Any]], abort: Sequence[str]) -> dict[str, Any]:
        """One step of vLLM's, of requests to the weights that were loaded last.

        Raises:
            TrainingError: The process was lost, and its requests with it, or it holds other weights.
        """
        with self._lock:
            return self._session.ask("step", repeats=False, add=list(add), abort=list(abort))

    def close(self) -> None:
        """End the process, and what is in it; the next request would start it again."""
        with self._lock:
            self._session.close()
            self.holder = None


class VLLMBatch:
    """Rows of one version of a model. See ``rlhf.serving.served_policy.Batch``.

    Args:
        host: The process.
        weights: Of this version.
        number: Of this version in the process.
        fingerprint: Of this version.
        tokenizer: Of the model.
        ends: Tokens that end a completion.
    """

    def __init__(
        self,
        host: VLLMHost,
        weights: PushedWeights,
        number: int,
        fingerprint: str,
        tokenizer: PreTrainedTokenizerBase,
        ends: Sequence[int],
    ) -> None:
        self._host, self._weights, self._number, self._fingerprint = host, weights, number, fingerprint
        self._tokenizer, self._ends = tokenizer, frozenset(ends)
        self._begun: dict[str, bool] = {}
        """Requests that hold the process: begun, and not over; and whether their rows joined."""
        self._rows: dict[str, Row] = {}
        self._new: list[Row] = []
        """Rows that vLLM was not told of."""
        self._to_abort: list[str] = []
        self._accepted: set[str] = set()

    @property
    def num_rows(self) -> int:
        """Live completions."""
        return len(self._rows)

    @property
    def can_join(self) -> bool:
        """Whether no other version holds the process."""
        holder = self._host.holder
        return holder is None or holder is self or not holder._begun

    @property
    def shared(self) -> Hashable:
        """The process."""
        return self._host

    @property
    def cached_tokens(self) -> int:
        """Keys and values that live rows may come to hold."""
        return sum(map(needed_tokens, {row.request.id: row.request for row in self._rows.values()}.values()))

    def begin(self, request: GenerationRequest) -> Joining:
        """Hold the process for a request."""
        self._host.holder = self
        self._begun[request.id] = False
        return Joining(request, None, None)

    def read_ahead(self, joining: Joining, num_tokens: int) -> int:
        """Nothing: vLLM reads long prompts in parts."""
        return 0

    def forget(self, joining: Joining) -> None:
        """Of a request that ended before it was sent to vLLM."""
        self._begun.pop(joining.request.id, None)

    def join(self, several: list[Joining]) -> None:
        """Let rows live; the next step begins them. Weights of another version are changed for this one's now."""
        self._host.load(self._weights, self._number)
        for joining in several:
            request = joining.request
            self._begun[request.id] = True
            for index in range(request.num_samples):
                stream = TextStream(self._tokenizer, request.prompt, request.sampling.stop)
                seed = np.uint64(derive_seed(request.seed, "serving", index))
                row = Row(request=request, index=index, stream=stream, constraint=None, seed=seed)
                self._rows[_name(row)] = row
                self._new.append(row)

    def drop(self, request_id: str) -> None:
        """Let a request's rows end without a further word."""
        for row in self._rows.values():
            if row.request.id == request_id:
                row.is_over = True

    def sample(self) -> list[tuple[GenerationRequest, Event]]:
        """What one step brought."""
        new = [row for row in self._new if not row.is_over]
        self._new, abort, self._to_abort = [], self._to_abort, []
        answer = self._host.step([self._told(row) for row in new], abort)
        events: list[tuple[GenerationRequest, Event]] = []
        for name, why in answer["refused"].items():
            self._rows[name].is_over = True
            events.append((self._rows[name].request, Failed(Failure.CRASHED, f"vLLM refused the request: {why}")))
        for name, tokens, logprobs, reason, cached in answer["outputs"]:
            row = self._rows.get(name)
            if row is None or row.is_over:
                continue
            if row.request.id not in self._accepted:
                self._accepted.add(row.request.id)
                events.append((row.request, Accepted(cached, self._fingerprint)))
            events += self._events(row, tokens, logprobs, reason)
        return events

    def feed(self) -> None:
        """Rows that are over leave; vLLM hears of it with the next step, or now where there is none."""
        for name, row in list(self._rows.items()):
            if row.is_over:
                del self._rows[name]
                self._to_abort.append(name)  # one that ended by itself is unknown there, which is no error
        alive = {row.request.id for row in self._rows.values()}
        self._accepted &= alive
        self._begun = {name: joined for name, joined in self._begun.items() if not joined or name in alive}
        if not self._rows and self._to_abort:
            self._host.step([], self._to_abort)
            self._to_abort = []

    def _told(self, row: Row) -> dict[str, Any]:
        """A row as vLLM takes it; seeds are those of the local engine, of which vLLM makes other random numbers."""
        sampling = row.request.sampling
        settings = {
            "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k or 0, "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty, "max_tokens": sampling.max_new_tokens, "seed": int(row.seed),
            "stop_token_ids": [] if row.request.ignore_eos else sorted(self._ends),
            "logit_bias": dict(row.request.logit_bias),
        }  # fmt: skip
        name, prompt = _name(row), list(map(int, row.request.prompt))
        return {"id": name, "prompt": prompt, "sampling": settings, "logprobs": row.request.top_logprobs}

    def _events(
        self, row: Row, tokens: Sequence[int], logprobs: Sequence[Any] | None, reason: str | None
    ) -> list[tuple[GenerationRequest, Event]]:
        events: list[tuple[GenerationRequest, Event]] = []
        for place, token in enumerate(tokens):
            listed = _logprobs_of(row, logprobs[place]) if logprobs is not None else None
            is_finite = listed is None or not math.isnan(listed.logprob)
            event = advanced(row, token if is_finite else -1, listed, self._ends)
            events.append((row.request, event))
            if row.is_over:
                break
        if reason is not None and not row.is_over:
            row.is_over = True
            events.append((row.request, Failed(Failure.CRASHED, f"vLLM ended the completion with {reason!r}.")))
        return events


def _name(row: Row) -> str:
    return f"{row.request.id}/{row.index}"


def _logprobs_of(row: Row, listed: Sequence[Any]) -> TokenLogprobs:
    own, likeliest = listed
    top = [(int(token), float(value)) for token, value in likeliest if value > -math.inf]
    return TokenLogprobs(float(own), top[: row.request.top_logprobs])
