"""Scores by replicas of Ray Serve, in the place of this process's own ``ScoringEngine``.

    routes -- rows of a request --> whichever replica has the least to do --> serve.batch: one forward pass for all rows that wait
                                    a replica that dies: Serve starts another one, and its rows are sent to the others again

The server keeps tokenizer and settings of each model, and lets go of its weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf.config.launch import RayLaunchConfig, resource_words
from rlhf.config.serving import RayServeConfig, ServingConfig
from rlhf.data.pack import Group, split_by_tokens
from rlhf.distributed.ray_cluster import RayCluster
from rlhf.errors import ConfigError, ModelError, require, text_of
from rlhf.serving.prometheus_metrics import ServingMetrics
from rlhf.serving.scheduler import ClosedError, QueueFullError
from rlhf.serving.served_scorer import ServedScorer

log = logging.getLogger(__name__)
POLL_SECONDS = 0.2
AGAIN_SECONDS = 0.5
"""Before rows of a replica that died are sent again."""
REQUESTS_OF_A_REPLICA = 256
"""At most so many are with a replica, computed or waiting for a batch; others wait in the server."""


@dataclass(slots=True, eq=False)
class _Job:
    tokens: int
    future: Future[Tensor]


class RayScoring:
    """See ``rlhf.serving.score_batching.Scoring``. Rows are taken first come, first served.

    Args:
        metrics: Told of everything.
        config: Of the server, with ``ray``.
    """

    def __init__(self, metrics: ServingMetrics, config: ServingConfig) -> None:
        assert config.ray is not None
        self._metrics, self._config = metrics, config
        self._settings: RayServeConfig = config.ray
        self._cluster = RayCluster(
            RayLaunchConfig.of({"launcher": "ray", "address": self._settings.address, "pools": {}})
        )
        self.applications: list[str] = []
        """Names, as `serve status` shows them: one for each model."""
        self._serve: Any = None
        self._is_owner = False
        """Whether the cluster began with this object."""
        self._handles: weakref.WeakKeyDictionary[ServedScorer, Any] = weakref.WeakKeyDictionary()
        self._endings: list[weakref.finalize[..., ServedScorer]] = []
        self._jobs: set[_Job] = set()
        self._changed = threading.Condition()
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to answer."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rlhf-ray-scoring", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Requests that no replica has taken: not told by Ray."""
        return 0

    @property
    def num_running(self) -> int:
        """Requests that are with Ray."""
        with self._changed:
            return len(self._jobs)

    def deploy(self, scorer: ServedScorer) -> None:
        """Start the replicas of a model, which lets go of its own weights here. They end with the last reference to the model.

        Raises:
            MissingExtraError: There is no Ray Serve in this environment.
            ConfigError: There is no cluster, it has no room, or the replicas were not ready in time.
            ModelError: A replica can't load the model.
        """
        name = f"rlhf-score-{scorer.fingerprint[:8]}-{secrets.token_hex(3)}"
        serve = self._opened()
        self._check_room(scorer)
        replica = importlib.import_module("rlhf.serving.score_replica").ScoreReplica
        settings, options = self._settings, {"num_cpus": self._settings.cpus, "num_gpus": self._settings.gpus}
        if settings.memory_gib is not None:
            options["memory"] = int(settings.memory_gib * 2**30)
        deployment = serve.deployment(replica).options(
            num_replicas=settings.replicas, ray_actor_options=options, max_ongoing_requests=REQUESTS_OF_A_REPLICA,
            graceful_shutdown_timeout_s=self._config.drain_seconds, max_constructor_retry_count=1,
        )  # fmt: skip
        bound = deployment.bind(
            scorer.source, scorer.fingerprint, is_process=scorer.kind == "process_reward",
            device="auto" if settings.gpus else "cpu", threads=max(1, int(settings.cpus)),
            max_tokens=scorer.reward.max_tokens, batch_wait_seconds=settings.batch_wait_seconds,
        )  # fmt: skip
        ending = weakref.finalize(scorer, _delete, self._cluster.ray, serve, name)
        try:
            serve.run_many([serve.RunTarget(bound, name=name, route_prefix=None)], wait_for_applications_running=False)
            self._wait_until_ready(name, scorer)
        except BaseException:
            ending()
            raise
        self._endings.append(ending)
        self.applications.append(name)
        self._handles[scorer] = serve.get_app_handle(name)
        for parameter in scorer.reward.model.parameters():
            parameter.data = torch.empty(0, dtype=parameter.dtype)

    def submit(
        self, scorer: ServedScorer, groups: Sequence[Group], *, client: str = "", is_part: bool = False
    ) -> Future[Tensor]:
        """Send rows that fit the model to a replica; arguments, result and errors are those of ``ScoringEngine.submit``."""
        tokens = sum(group.num_tokens for group in groups)
        with self._changed:
            if self._draining:
                raise ClosedError("The server is being stopped.")
            taken = sum(job.tokens for job in self._jobs)
            most = self._config.max_waiting_score_tokens
            if len(self._jobs) >= self._config.max_concurrent_requests or (self._jobs and taken + tokens > most):
                if not is_part:  # a search tries again
                    self._metrics.refused.inc()
                raise QueueFullError(f"{len(self._jobs)} requests of {taken:,} tokens are waiting already.")
            assert self._loop is not None, "start"
            future = asyncio.run_coroutine_threadsafe(self._scored(scorer, groups, tokens), self._loop)
            job = _Job(tokens, future)
            self._jobs.add(job)
        began = time.monotonic()
        future.add_done_callback(lambda done: self._over(job, began, is_part=is_part))
        return future

    def stop(self, seconds: float) -> bool:
        """Take no more, wait for what is there, and end; tells whether all was scored in time."""
        with self._changed:
            self._draining = True
            is_done = self._changed.wait_for(lambda: not self._jobs, timeout=max(0.0, seconds))
        self.close()
        return is_done

    def close(self) -> None:
        """End the replicas; requests that are not over fail."""
        with self._changed:
            self._draining = True
            left = list(self._jobs)
        for job in left:
            job.future.cancel()
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None
        for ending in self._endings:
            ending()
        if self._is_owner:
            with contextlib.suppress(Exception):  # the cluster may be gone
                self._serve.shutdown()  # forgets it, too: this process may start another
        self._is_owner = False
        self._cluster.close()

    # What follows runs in the thread of the event loop.

    async def _scored(self, scorer: ServedScorer, groups: Sequence[Group], tokens: int) -> Tensor:
        handle = self._handles[scorer]
        runs = split_by_tokens(groups, max_tokens=scorer.reward.max_tokens)
        parts = await asyncio.gather(*(self._asked(handle, run) for run in runs))
        self._metrics.scored_tokens.inc(tokens)
        return torch.cat(parts, dim=1) if parts else torch.zeros(1, 0)

    async def _asked(self, handle: Any, groups: Sequence[Group]) -> Tensor:
        """One run of rows, again where the replica that has it dies; a request that waits has a timeout."""
        ray, faults = self._cluster.ray, importlib.import_module("ray.serve.exceptions")
        while True:
            response = handle.score.remote(list(groups))
            try:
                answer = await response
            except asyncio.CancelledError:
                response.cancel()
                raise
            except (ray.exceptions.RayTaskError, faults.DeploymentUnavailableError) as err:
                raise RuntimeError(f"The replicas failed: {text_of(err)}") from None
            except (ray.exceptions.RayError, faults.RayServeException) as err:
                log.warning("a replica was lost, its rows are sent again: %s", type(err).__name__)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if answer.values is None:
                raise RuntimeError(answer.failure)
            values: Tensor = answer.values
            return values

    # What follows is called by any thread.

    def _over(self, job: _Job, began: float, *, is_part: bool) -> None:
        with self._changed:
            self._jobs.discard(job)
            self._changed.notify_all()
        if job.future.cancelled():
            return
        if job.future.exception() is not None:
            self._metrics.failures.labels(reason="crashed").inc()
        elif not is_part:
            self._metrics.request_seconds.observe(time.monotonic() - began)

    def _opened(self) -> Any:
        """Ray Serve, which listens nowhere: requests come through this process."""
        if self._serve is None:
            there = sys.modules.get("ray")
            self._is_owner = self._settings.address is None and (there is None or not there.is_initialized())
            self._cluster.open()
            self._serve = require("ray.serve", extra="scale", needed_for="Reward models in replicas")
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            self._serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        return self._serve

    def _check_room(self, scorer: ServedScorer) -> None:
        asked = {"CPU": self._settings.cpus, "GPU": self._settings.gpus}
        asked["memory"] = (self._settings.memory_gib or 0.0) * 2**30
        free = self._cluster.ray.available_resources()
        if any(amount * self._settings.replicas > free.get(name, 0.0) for name, amount in asked.items()):
            has = {name: free.get(name, 0.0) for name in asked if asked[name]}
            raise ConfigError(
                f"Ray has no room for {self._settings.replicas} replicas of {scorer.source}, each {resource_words(asked)}: free are "
                f"{resource_words(has)}. Lower ray.replicas, ray.cpus, ray.gpus or ray.memory_gib, or add nodes."
            )

    def _wait_until_ready(self, name: str, scorer: ServedScorer) -> None:
        deadline = time.monotonic() + self._settings.start_timeout_seconds
        while True:
            about = self._serve.status().applications[name]
            if about.status == "RUNNING":
                return
            said = "; ".join(filter(None, [about.message, *(each.message for each in about.deployments.values())]))
            if about.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise ModelError(f"The replicas of {scorer.source} can't be started: {said.strip().splitlines()[-1]}")
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"The replicas of {scorer.source} were not ready within {self._settings.start_timeout_seconds:g} seconds "
                    f"(ray.start_timeout_seconds). {said}"
                )
            time.sleep(POLL_SECONDS)


def _delete(ray: Any, serve: Any, name: str) -> None:
    """End the replicas of a model, those that still compute when they are done."""
    with contextlib.suppress(Exception):  # the cluster may be gone
        if ray.is_initialized():  # else Serve would start a cluster to look into
            serve.delete(name, _blocking=False)
