"""An engine for searches: what a strategy samples joins the live batch, request by request, beside everybody else's."""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import NoReturn

from rlhf.config.policy import SamplingConfig
from rlhf.errors import ConfigError, RLHFError
from rlhf.rollout.requests import number_samples
from rlhf.rollout.stopping import completion_texts
from rlhf.rollout.types import Completion, EngineHealth, FinishReason, PromptLike
from rlhf.seeds import derive_seed
from rlhf.serving.generation import Failed, GenerationRequest, Piece
from rlhf.serving.inbox import Inbox
from rlhf.serving.scheduler import QueueFullError, ServingEngine
from rlhf.serving.served_policy import ServedPolicy

RETRY_SECONDS = 0.05
"""Between two tries to join a queue that is full."""


class SearchEndedError(RLHFError):
    """Nobody waits for the search any more, or the engine failed it."""


class LiveSampler:
    """See ``rlhf.rollout.types.RolloutEngine``; called from a thread of its own, while the loop runs in another.

    Log-probabilities are not computed: each is NaN.

    Args:
        engine: Samples.
        inbox: Where its events arrive.
        model: Who samples.
        request: What its requests have in common; prompt, sampling, seed and id are each one's own.
        at_once: Completions of the search that are in the queue or the batch at a time.
    """

    weight_version = 0

    def __init__(
        self, engine: ServingEngine, inbox: Inbox, model: ServedPolicy, request: GenerationRequest, *, at_once: int
    ) -> None:
        self._engine, self._inbox, self._model, self._request = engine, inbox, model, request
        self._at_once = at_once
        self._ended = threading.Event()
        self._call: Future[list[Completion]] | None = None

    def generate(
        self,
        prompts: Sequence[PromptLike],
        *,
        num_samples: int,
        sampling: SamplingConfig,
        seed: int,
        rollout_index: int,
    ) -> list[list[Completion]]:
        """Sample ``num_samples`` completions of each prompt.

        Raises:
            SearchEndedError: ``end`` was called, or the engine failed a request.
        """
        if self._ended.is_set():
            self._refuse("nobody waits for it any more")
        places = number_samples(prompts, num_samples)
        asked = [self._request_of(prompts[place], sample, sampling, seed) for place, sample in places]
        self._call = asyncio.run_coroutine_threadsafe(self._sampled(asked), self._inbox.loop)
        if self._ended.is_set():  # since it was asked above
            self._call.cancel()
        try:
            sampled = self._call.result()
        except CancelledError:
            self._refuse("nobody waits for it any more")
        groups: list[list[Completion]] = [[] for _ in prompts]
        for (place, sample), completion in zip(places, sampled, strict=True):
            groups[place].append(replace(completion, prompt_id=prompts[place].id, sample=sample))
        return groups

    def end(self) -> None:
        """Let go of what is being sampled; nothing more is."""
        self._ended.set()
        if self._call is not None:
            self._call.cancel()

    def pause(self) -> None:
        """Nothing to do: others use the engine, too."""

    def resume(self) -> None:
        """Nothing to do."""

    def load_weights(self, version: int) -> None:
        """Weights are the server's affair.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("The weights of a server are changed by its registry.")

    def health(self) -> EngineHealth:
        """Whether requests are taken."""
        return EngineHealth(ok=self._engine.is_taking, weight_version=0, detail=self._model.how)

    def fingerprint(self) -> str:
        """Hash of the weights."""
        return self._model.fingerprint

    def _request_of(self, prompt: PromptLike, sample: int, sampling: SamplingConfig, seed: int) -> GenerationRequest:
        room = self._model.context - len(prompt.ids)
        if room < 1:
            raise ConfigError(f"This model takes {self._model.context} tokens, and a beginning has {len(prompt.ids)}.")
        return replace(
            self._request,
            id=f"search-{secrets.token_hex(12)}",
            prompt=list(prompt.ids),
            sampling=sampling.updated(max_new_tokens=min(sampling.max_new_tokens, room)),
            seed=derive_seed(seed, "search", prompt.id, sample),
        )

    async def _sampled(self, asked: Sequence[GenerationRequest]) -> list[Completion]:
        room = asyncio.Semaphore(self._at_once)

        async def one(request: GenerationRequest) -> Completion:
            async with room:
                return await self._completion(request)

        tasks = [asyncio.create_task(one(request)) for request in asked]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _completion(self, request: GenerationRequest) -> Completion:
        self._inbox.expect(request.id)
        is_over = False
        tokens: list[int] = []
        try:
            while True:
                try:
                    self._engine.submit(self._model, request)
                    break
                except QueueFullError:
                    await asyncio.sleep(RETRY_SECONDS)
            async for event in self._inbox.events(request.id):
                if isinstance(event, Failed):
                    is_over = True
                    self._refuse(event.detail or event.failure.value)
                if isinstance(event, Piece):
                    tokens += event.tokens
                    if event.finish_reason is not None:
                        is_over = True
                        return self._made(request, tokens, event.finish_reason == "length")
        finally:
            if not is_over:
                self._engine.cancel(request.id)
            self._inbox.forget(request.id)
        raise AssertionError("events do not end by themselves")

    def _made(self, request: GenerationRequest, tokens: list[int], is_cut: bool) -> Completion:
        own_end = tokens[-1] in self._model.ends and not request.ignore_eos
        reason: FinishReason = "length" if is_cut else "eos" if own_end else "stop"
        (text,) = completion_texts(self._model.tokenizer, request.prompt, [tokens])
        return Completion(
            prompt_id="", sample=0, tokens=tokens, logprobs=[math.nan] * len(tokens), finish_reason=reason, weight_version=0,
            text=text,
        )  # fmt: skip

    def _refuse(self, why: str) -> NoReturn:
        raise SearchEndedError(f"The search was ended: {why}.")
