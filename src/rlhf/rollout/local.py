"""The rollout engine in this process: it samples from the very module that is trained, so weights are in step."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.config.training import SamplingConfig
from rlhf.data.pack import Branch, Group
from rlhf.errors import ConfigError, DataError, TrainingError
from rlhf.models.policy import evaluating
from rlhf.models.score import ScorePath, base_model
from rlhf.rollout.cache import KVCache
from rlhf.rollout.packed import PackedDecoder
from rlhf.rollout.padded import PaddedDecoder
from rlhf.rollout.sampling import draw, has_filters, uniforms
from rlhf.rollout.stopping import StopTexts, completion_texts, eos_ids
from rlhf.rollout.types import Completion, EngineHealth, FinishReason, PromptLike
from rlhf.seeds import derive_seed

logger = logging.getLogger(__name__)

COMPACT_FRAC = 1 / 16
"""Finished rows are dropped when they are this share of the rows; moving the cache costs more than a few idle rows."""
EOS, STOP = 1, 2
"""Marks of why a row ended."""


class SamplablePolicy(Protocol):
    """What the engine needs of a policy; ``rlhf.models.policy.PolicyModel`` is one."""

    model: Any
    tokenizer: Any

    @property
    def path(self) -> ScorePath | None:
        """How its batches are scored; None before that was found out."""
        ...

    def choose_path(self, groups: Sequence[Group]) -> object:
        """Find out."""
        ...

    def fingerprint(self) -> str:
        """Hash of the weights."""
        ...


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


class LocalEngine:
    """See ``rlhf.rollout.types.RolloutEngine`` for what it promises.

    A sample is the same in any batch up to the rounding of matrix products, whose order of additions depends on their
    shape: about one token in a million falls on the other side of its uniform number.
    """

    def __init__(
        self,
        policy: SamplablePolicy,
        *,
        max_rows: int = 256,
        max_prefill_tokens: int = 8192,
        autocast: Literal["none", "bfloat16", "float16"] = "none",
    ) -> None:
        """Wrap a policy.

        Args:
            policy: Sampled as it is at each call.
            max_rows: Completions sampled side by side; memory only, results do not depend on it.
            max_prefill_tokens: Prompt tokens in one forward pass; likewise.
            autocast: Type of the matrix products and of the cache.
        """
        if max_rows < 1 or max_prefill_tokens < 1:
            raise ConfigError(f"max_rows ({max_rows}) and max_prefill_tokens ({max_prefill_tokens}) must be 1 or more.")
        self.policy = policy
        self.max_rows = max_rows
        self.max_prefill_tokens = max_prefill_tokens
        self.autocast = autocast
        self._version = 0
        self._paused = False
        self._cache = KVCache()

    @property
    def weight_version(self) -> int:
        """See ``load_weights``."""
        return self._version

    def load_weights(self, version: int) -> None:
        """Note the version: engine and trainer share the module, so there is nothing to copy."""
        self._version = version

    def pause(self) -> None:
        """Refuse requests until ``resume``, and give the cache's memory back for training."""
        self._paused = True
        self._cache.release()

    def resume(self) -> None:
        """Take requests again."""
        self._paused = False

    def health(self) -> EngineHealth:
        """Never fails: what could be unwell is this process."""
        detail = "paused; call resume()" if self._paused else f"local, {self.policy.path or 'path not chosen yet'}"
        return EngineHealth(ok=not self._paused, weight_version=self._version, detail=detail)

    def fingerprint(self) -> str:
        """The policy's own."""
        return self.policy.fingerprint()

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[PromptLike], *, num_samples: int, sampling: SamplingConfig, seed: int, step: int
    ) -> list[list[Completion]]:
        """See ``RolloutEngine.generate``.

        Raises:
            ConfigError: ``num_samples`` below 1.
            DataError: A prompt without tokens, with an id that the model does not know, or too long for it.
            TrainingError: The engine is paused, or the model gave a number that is not finite.
        """
        if self._paused:
            raise TrainingError("The rollout engine is paused; call resume() before generate().")
        if num_samples < 1:
            raise ConfigError(f"num_samples is {num_samples}; wanted 1 or more.")
        if not prompts:
            return []
        model: PreTrainedModel = base_model(self.policy.model)
        _check_prompts(prompts, model, sampling)
        requests = _number_samples(prompts, num_samples)
        results: list[list[Completion]] = [[] for _ in prompts]
        device = next(model.parameters()).device
        with evaluating(model), self._precision(device):
            if self.policy.path is None:
                self.policy.choose_path(_rows_to_check(prompts))
            for chunk in _chunks(requests, self.max_rows):
                run = _Run(model, self.policy.tokenizer, self._decoder(model), prompts, chunk, sampling, seed, step)
                for (place, _), completion in zip(chunk, run.completions(self._version), strict=True):
                    results[place].append(completion)
        return results

    def _decoder(self, model: PreTrainedModel) -> Decoder:
        if self.policy.path == "packed":
            return PackedDecoder(model, self._cache, max_prefill_tokens=self.max_prefill_tokens)
        return PaddedDecoder(model)

    def _precision(self, device: torch.device) -> AbstractContextManager[object]:
        if self.autocast == "none":
            return nullcontext()
        return torch.autocast(device.type, dtype=getattr(torch, self.autocast))


class _Run:
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
    ) -> None:
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
        self.lengths = np.full(size, longest)
        self.ended = np.zeros(size, dtype=np.int8)
        """0 while a row goes on, then EOS or STOP."""

    def completions(self, weight_version: int) -> list[Completion]:
        """Sample every row to its end."""
        self._sample()
        return self._collect(weight_version)

    def _sample(self) -> None:
        ids = [prompt.ids for prompt in self.prompts.values()]
        group = np.array([self.group_of[place] for place, _ in self.chunk])
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
            if time + 1 == self.sampling.max_new_tokens or not alive.any():
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
        if not self.stop:
            return
        for place in self.stop.candidates(tokens.tolist()):
            row = rows[place]
            if self.ended[row] == 0 and self.stop.reached(self.tokens[row, : time + 1].tolist()):
                self.ended[row] = STOP
                self.lengths[row] = time + 1

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
        reasons: dict[int, FinishReason] = {0: "length", EOS: "eos", STOP: "stop"}
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
        for place, prompt in self.prompts.items():
            rows = [row for row, (of, _) in enumerate(self.chunk) if of == place]
            for row, text in zip(
                rows, completion_texts(self.tokenizer, prompt.ids, [tokens[r] for r in rows]), strict=True
            ):
                texts[row] = text
        return texts


def _number_samples(prompts: Sequence[PromptLike], num_samples: int) -> list[tuple[int, int]]:
    """(place of the prompt, sample index) of every completion; a prompt that comes again goes on counting."""
    given: Counter[str] = Counter()
    numbered = []
    for place, prompt in enumerate(prompts):
        first = given[prompt.id]
        given[prompt.id] += num_samples
        numbered += [(place, first + sample) for sample in range(num_samples)]
    return numbered


def _chunks(requests: list[tuple[int, int]], max_rows: int) -> list[list[tuple[int, int]]]:
    """Consecutive runs of at most ``max_rows``; a group is cut only where it is larger than that."""
    chunks: list[list[tuple[int, int]]] = []
    groups: dict[int, list[tuple[int, int]]] = {}
    for request in requests:
        groups.setdefault(request[0], []).append(request)
    for members in groups.values():
        for first in range(0, len(members), max_rows):
            part = members[first : first + max_rows]
            if not chunks or len(chunks[-1]) + len(part) > max_rows:
                chunks.append([])
            chunks[-1] += part
    return chunks


def _rows_to_check(prompts: Sequence[PromptLike]) -> list[Group]:
    """Rows for the path check where no batch was scored before: the longest prompts, own tokens as completions."""
    longest = sorted(prompts, key=lambda prompt: -len(prompt.ids))[:3]
    return [Group(list(p.ids), [Branch(list(p.ids[:8])), Branch(list(p.ids[-8:]))]) for p in longest]


def _check_prompts(prompts: Sequence[PromptLike], model: PreTrainedModel, sampling: SamplingConfig) -> None:
    config = model.config.get_text_config()
    vocabulary, limit = int(config.vocab_size), getattr(config, "max_position_embeddings", None)
    for prompt in prompts:
        if not len(prompt.ids):
            raise DataError(f"Prompt {prompt.id!r} has no tokens; give it at least one, such as BOS.")
        wrong = next((token for token in prompt.ids if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise DataError(
                f"Prompt {prompt.id!r} holds the token {wrong}, but the model's vocabulary has {vocabulary}; "
                "tokenise it with the model's own tokenizer."
            )
        if limit is not None and len(prompt.ids) + sampling.max_new_tokens > limit:
            raise DataError(
                f"Prompt {prompt.id!r} has {len(prompt.ids)} tokens and may grow by {sampling.max_new_tokens}, but the "
                f"model was made for {limit}; shorten the prompt or lower max_new_tokens."
            )
