"""Searches on the server: strategies in threads of their own, which sample through the live batch and score through the scoring thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from torch import Tensor
from typing_extensions import override

from rlhf.config.policy import SamplingConfig
from rlhf.config.search import SearchSettings
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Group
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.model_reward import same_ids
from rlhf.rewards.steps import ProcessReward
from rlhf.rollout.types import Completion
from rlhf.search.configured_search import search_with
from rlhf.search.contract import SearchResult
from rlhf.serving.answer_waiting import answered
from rlhf.serving.api_errors import APIError
from rlhf.serving.generation import GenerationRequest
from rlhf.serving.inbox import Inbox
from rlhf.serving.live_sampler import RETRY_SECONDS, LiveSampler, SearchEndedError
from rlhf.serving.prometheus_metrics import ServingMetrics
from rlhf.serving.scheduler import QueueFullError, ServingEngine
from rlhf.serving.score_batching import Scoring
from rlhf.serving.search_requests import SearchBody
from rlhf.serving.served_policy import ServedPolicy
from rlhf.serving.served_scorer import ServedScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What is looked for."""

    body: SearchBody
    model: ServedPolicy
    scorer: ServedScorer | None
    prompt: Prompt
    sampling: SamplingConfig
    seed: int
    request: GenerationRequest
    """What the requests to the engine have in common."""


class SearchRunner:
    """Runs searches side by side.

    Args:
        engine: Samples.
        scoring: Scores.
        inbox: Where the engine's events arrive.
        metrics: Told how long each took.
        max_searches: At once; a further one is refused.
        max_tokens: That one search may sample.
        seconds: That one search may take.
    """

    def __init__(
        self,
        engine: ServingEngine,
        scoring: Scoring,
        inbox: Inbox,
        metrics: ServingMetrics,
        *,
        max_searches: int,
        max_tokens: int,
        seconds: float,
    ) -> None:
        self._engine, self._scoring, self._inbox, self._metrics = engine, scoring, inbox, metrics
        self._max_searches, self._max_tokens, self._seconds = max_searches, max_tokens, seconds
        # threads of its own: those of asyncio read prompts and keep completions for everybody
        self._threads = ThreadPoolExecutor(max_searches, thread_name_prefix="rlhf-search")
        self._changed = threading.Condition()
        self._running: set[LiveSampler] = set()
        self._closed = False
        self._same_ids: dict[tuple[str, str], bool] = {}
        """(fingerprints of policy and reward model) -> whether their tokenizers have the same ids."""

    async def run(self, asked: SearchRequest, http: Request) -> SearchResult:
        """The answer.

        Raises:
            APIError: Too many searches, the client left, or it took too long.
            RLHFError: The strategy or the scorer failed.
        """
        sampler = LiveSampler(
            self._engine, self._inbox, asked.model, asked.request, at_once=max(1, self._engine.max_batch_size // 4)
        )
        with self._changed:
            if self._closed:
                raise APIError(503, "The server is being stopped.", code="shutting_down", retry_after=5)
            if len(self._running) >= self._max_searches:
                message = f"{self._max_searches} searches are under way already. Send it again in a moment."
                raise APIError(429, message, code="queue_full", retry_after=1)
            self._running.add(sampler)
        began = time.monotonic()
        future = self._threads.submit(self._searched, asked, sampler)
        try:
            result = await answered(http, future, self._seconds)
            self._metrics.request_seconds.observe(time.monotonic() - began)
            return result
        except SearchEndedError as err:
            raise APIError(503, str(err), code="canceled") from None
        finally:
            sampler.end()
            if future.cancelled():  # before it began
                self._over(sampler)

    def stop(self, seconds: float) -> None:
        """Take no more, wait so long for those that are there, and end them."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._running, timeout=max(0.0, seconds))
            for sampler in self._running:
                sampler.end()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # What follows runs in the search's thread.

    def _searched(self, asked: SearchRequest, sampler: LiveSampler) -> SearchResult:
        body = asked.body
        wanted = body.budget
        budget = wanted.updated(
            policy_tokens=min(wanted.policy_tokens or self._max_tokens, self._max_tokens),
            seconds=min(wanted.seconds or self._seconds, self._seconds),
        )
        settings = SearchSettings(step_separator=body.step_separator, answer=body.answer, budget=budget)
        try:
            scorer = None if asked.scorer is None else self._scorer(asked, asked.scorer)
            (result,) = search_with(
                settings, body.strategy, [asked.prompt], engine=sampler, scorer=scorer, sampling=asked.sampling, seed=asked.seed
            ).results  # fmt: skip
            return result
        finally:
            self._over(sampler)

    def _over(self, sampler: LiveSampler) -> None:
        with self._changed:
            self._running.discard(sampler)
            self._changed.notify_all()

    def _scorer(self, asked: SearchRequest, scorer: ServedScorer) -> QueuedLearnedReward | QueuedProcessReward:
        pair = (asked.model.fingerprint, scorer.fingerprint)
        if pair not in self._same_ids:
            self._same_ids[pair] = same_ids(asked.model.tokenizer, scorer.tokenizer)
        tokenizer = scorer.tokenizer if self._same_ids[pair] else asked.model.tokenizer
        queue = _Queue(self._scoring, scorer, asked.request.client)
        if isinstance(scorer.reward, ProcessReward):
            return QueuedProcessReward(queue, scorer.reward.model, tokenizer=tokenizer)
        return QueuedLearnedReward(queue, scorer.reward.model, tokenizer=tokenizer)


@dataclass(frozen=True, slots=True)
class _Queue:
    """A client's way to the scoring thread."""

    scoring: Scoring
    scorer: ServedScorer
    client: str

    def outputs(self, groups: Sequence[Group]) -> Tensor:
        while True:
            try:
                return self.scoring.submit(self.scorer, groups, client=self.client, is_part=True).result()
            except QueueFullError:
                time.sleep(RETRY_SECONDS)


class QueuedLearnedReward(LearnedReward):
    """A served reward model; the scoring thread alone computes with it."""

    def __init__(self, queue: _Queue, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self._queue = queue

    @override
    def outputs(self, groups: Sequence[Group]) -> Tensor:
        return self._queue.outputs(groups)


class QueuedProcessReward(ProcessReward):
    """A served process reward model; the scoring thread alone computes with it."""

    def __init__(self, queue: _Queue, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self._queue = queue

    @override
    def outputs(self, groups: Sequence[Group]) -> Tensor:
        return self._queue.outputs(groups)


def text_before_stop(completion: Completion, stop: Sequence[str]) -> str:
    """A completion's text, without a stop text that ended it."""
    places = [place for text in stop if (place := completion.text.find(text)) >= 0]
    return completion.text[: min(places)] if places else completion.text
