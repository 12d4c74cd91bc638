"""A sampled share of what the server answers: how good a reward model finds it, and whether it still looks like the evaluation set.

Nothing waits for this. An answer that is sampled goes into a queue of bounded length, and is dropped and counted where that is full. A
thread of low priority scores a few at a time when nothing is being answered, or after some seconds if something always is. Only
numbers are kept; texts are gone once they are scored.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary
from transformers import PreTrainedTokenizerBase

from rlhf.data.contracts import CompletionRow
from rlhf.data.datasets import GRPODataset
from rlhf.data.read import read_rows
from rlhf.errors import ConfigError, RLHFError
from rlhf.evaluation.traffic_drift import DriftWatch, UnigramSurprise, WindowTest
from rlhf.rewards.types import TextCompletion
from rlhf.serving.asked_requests import Asked
from rlhf.serving.completion_memory import Answer
from rlhf.serving.generate_api import Completed
from rlhf.serving.prompt_reading import lower_priority
from rlhf.serving.served_scorer import ServedScorer

log = logging.getLogger(__name__)
MAX_QUEUED = 256
BATCH = 16
"""Completions scored in one go, which is as long as a stream that begins just then may be slowed down."""
PATIENCE_SECONDS = 5.0
"""For the server to have nothing to do."""
LENGTH, SURPRISE, REWARD = "prompt_tokens", "prompt_surprise", "reward"


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion with its prompt as a row for training has it."""

    prompt: Any
    completion: str = ""
    ended: bool = True
    model: str = ""


class LiveTraffic:
    """Scores and watches sampled completions.

    Args:
        registry: Where its numbers are shown.
        tokenizer: Reads prompts.
        vocabulary: Of the tokenizer.
        share: Of the completions, in [0, 1].
        scorer: The reward model; None for prompts alone.
        reference: The evaluation set; None for rewards without a comparison.
        window: Values that are compared with the evaluation set at once.
        false_alarms: Probability of an alarm in a week in which nothing changed.
        is_idle: Whether nothing is being answered.

    Raises:
        ConfigError: The evaluation set is too small.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        tokenizer: PreTrainedTokenizerBase,
        *,
        vocabulary: int,
        share: float,
        scorer: ServedScorer | None = None,
        reference: Sequence[Sample] | None = None,
        window: int = 200,
        false_alarms: float = 0.05,
        is_idle: Callable[[], bool] = lambda: True,
    ) -> None:
        self.share, self.window, self.false_alarms = share, window, false_alarms
        self._tokenizer, self._vocabulary, self._scorer = tokenizer, vocabulary, scorer
        self._reference, self._is_idle = reference, is_idle
        self._draw = random.Random()
        self._queue: queue.Queue[Sample] = queue.Queue(MAX_QUEUED)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rlhf-live-traffic", daemon=True)
        self.metrics = LiveMetrics(registry, self._queue.qsize)
        self.watch: DriftWatch | None = None
        self.tests: dict[str, WindowTest] = {}
        """The newest window of each number."""
        self.without_reward = "no evaluation set was named (--reference)"
        """Why drift of the reward is not measured; empty where it is."""
        if reference is not None:
            prompts = self._token_ids([sample.prompt for sample in reference])
            # every second one says which tokens are usual, and the others are what traffic is compared with: a text that had
            # been counted itself would look more usual than any new one
            self._surprise = UnigramSurprise(prompts[::2], vocabulary=vocabulary)
            self._values = {
                LENGTH: [float(len(ids)) for ids in prompts],
                SURPRISE: list(map(self._surprise, prompts[1::2])),
            }
            DriftWatch(self._values)  # refused now, and not by the thread
            self.without_reward = ""
            if scorer is None:
                self.without_reward = "no reward model was named (--reward)"
            elif not any(sample.completion for sample in reference):
                self.without_reward = "the evaluation set has no completions"

    def start(self) -> None:
        """Begin to score."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is in the queue is not scored."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=PATIENCE_SECONDS)

    def offer(self, sample: Sample) -> None:
        """Take a completion with the probability ``share``; returns at once."""
        if self._draw.random() >= self.share:
            return
        try:
            self._queue.put_nowait(sample)
        except queue.Full:
            self.metrics.dropped.inc()
        else:
            self.metrics.sampled.inc()

    # What follows runs in the thread.

    def _work(self) -> None:
        lower_priority()
        try:
            self._begin_watch()
        except Exception:  # as below
            log.exception("the evaluation set could not be scored, so drift is not measured")
        while not self._over.is_set():
            samples = self._next()
            self._wait_for_rest()
            if not samples or self._over.is_set():
                continue
            try:
                self._take(samples)
            except Exception:  # whatever it is, the server goes on
                log.exception("sampled completions could not be measured")
                self.metrics.failed.inc(len(samples))

    def _begin_watch(self) -> None:
        """Score the evaluation set, and be ready to compare."""
        if self._reference is None:
            return
        values = dict(self._values)
        if not self.without_reward:
            scores: list[float] = []
            with_completion = [sample for sample in self._reference if sample.completion]
            for start in range(0, len(with_completion), BATCH):
                self._wait_for_rest()
                if self._over.is_set():
                    return
                scores += self._scores(with_completion[start : start + BATCH])
            values[REWARD] = [score for score in scores if math.isfinite(score)]
        try:
            self.watch = DriftWatch(values, window=self.window, false_alarms=self.false_alarms)
        except ConfigError as err:
            self.without_reward = str(err)
            self.watch = DriftWatch(self._values, window=self.window, false_alarms=self.false_alarms)
            log.warning("drift of the reward is not measured: %s", err)

    def _next(self) -> list[Sample]:
        samples: list[Sample] = []
        with contextlib.suppress(queue.Empty):
            samples.append(self._queue.get(timeout=1.0))
            while len(samples) < BATCH:
                samples.append(self._queue.get_nowait())
        return samples

    def _wait_for_rest(self) -> None:
        limit = time.monotonic() + PATIENCE_SECONDS
        while not self._is_idle() and time.monotonic() < limit:
            if self._over.wait(0.05):
                return

    def _take(self, samples: Sequence[Sample]) -> None:
        if self.watch is not None:
            for ids in self._token_ids([sample.prompt for sample in samples]):
                self._watched(LENGTH, float(len(ids)))
                self._watched(SURPRISE, self._surprise(ids))
        if self._scorer is None:
            return
        for sample, score in zip(samples, self._scores(samples), strict=True):
            if not math.isfinite(score):
                self.metrics.failed.inc()
                continue
            self.metrics.reward.labels(model=sample.model).observe(score)
            if self.watch is not None and REWARD in self.watch.names:
                self._watched(REWARD, score)

    def _watched(self, name: str, value: float) -> None:
        assert self.watch is not None
        test = self.watch.add(name, value)
        if test is None:
            return
        self.tests[name] = test
        self.metrics.told(test)
        if test.is_alarm:
            log.warning(
                "drift: %s of the last %d sampled completions is unlike the evaluation set's (distance %.2f, p = %.1e, alarms below %.1e)",
                name, self.window, test.statistic, test.p_value, test.threshold,
            )  # fmt: skip

    def _scores(self, samples: Sequence[Sample]) -> list[float]:
        """NaN for a sample that the reward model does not take, such as one that is too long."""
        try:
            return self._scores_of_all(samples)
        except RLHFError as err:
            if len(samples) == 1:
                log.info("a sampled completion was not scored: %s", err)
                return [math.nan]
            return [score for sample in samples for score in self._scores([sample])]

    def _scores_of_all(self, samples: Sequence[Sample]) -> list[float]:
        assert self._scorer is not None
        prompts = list(GRPODataset([{"prompt": sample.prompt} for sample in samples], self._scorer.tokenizer))
        completions = [TextCompletion(sample.completion, truncated=not sample.ended) for sample in samples]
        return list(self._scorer.reward.score(prompts, completions).scores)

    def _token_ids(self, prompts: Sequence[Any]) -> list[list[int]]:
        return [prompt.ids for prompt in GRPODataset([{"prompt": prompt} for prompt in prompts], self._tokenizer)]


class LiveMetrics:
    """What Prometheus reads of it.

    Args:
        registry: Of the server.
        queued: How many wait.
    """

    def __init__(self, registry: CollectorRegistry, queued: Callable[[], int]) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"rlhf:{name}", text, labels, registry=registry)

        self.sampled = counter("live_sampled", "Completions that were sampled from traffic.")
        self.dropped = counter("live_dropped", "Sampled completions that were dropped, because too many waited.")
        self.failed = counter("live_failed", "Sampled completions that could not be measured.")
        self.reward = Summary(
            "rlhf:live_reward", "Reward of sampled completions, by model.", ["model"], registry=registry
        )
        self.windows = counter(
            "drift_windows", "Windows of sampled completions compared with the evaluation set.", "of"
        )
        self.alarms = counter("drift_alarms", "Windows that were unlike the evaluation set.", "of")
        self.distance = Gauge(
            "rlhf:drift_distance", "Kolmogorov-Smirnov distance of the last window, 0 to 1.", ["of"], registry=registry
        )
        self.p_value = Gauge("rlhf:drift_p_value", "p-value of the last window.", ["of"], registry=registry)
        Gauge("rlhf:live_waiting", "Sampled completions that wait.", registry=registry).set_function(queued)

    def told(self, test: WindowTest) -> None:
        """A window was compared."""
        self.windows.labels(of=test.name).inc()
        self.alarms.labels(of=test.name).inc(int(test.is_alarm))
        self.distance.labels(of=test.name).set(test.statistic)
        self.p_value.labels(of=test.name).set(test.p_value)


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """The completions of one request on their way to be kept and sampled; of several completions of a prompt the first."""

    live: LiveTraffic
    answer: Answer | None
    """Keeps them for feedback; None where they are not kept."""
    asked: Sequence[Asked]
    prompts: Sequence[Any] = field(default_factory=list)

    async def keep(self, completed: Mapping[int, Completed]) -> None:
        """Take completions by their places among all of the request."""
        if self.answer is not None:
            await self.answer.keep(completed)
        for index, one in completed.items():
            number, sample = divmod(index, self.asked[0].num_samples)
            if sample == 0:
                ended = one.finish_reason != "length"
                self.live.offer(Sample(self.prompts[number], one.text, ended, self.asked[number].name))


def reference_samples(path: Path | str) -> list[Sample]:
    """An evaluation set: rows with prompts, and completions where `rlhf generate` wrote them.

    Raises:
        DataError: It can't be read.
        ConfigError: A row has no prompt.
    """
    samples = []
    for row in read_rows(str(path)):
        prompt = getattr(row, "prompt", None)
        if prompt is None:
            raise ConfigError(
                f"{row.where} has no prompt; wanted an evaluation set: rows with prompt, and completion where there is one."
            )
        ended = row.columns.get("finish_reason") != "length"
        completion = row.completion if isinstance(row, CompletionRow) and isinstance(row.completion, str) else ""
        samples.append(Sample(prompt, completion, ended))
    return samples
