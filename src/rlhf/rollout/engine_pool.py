"""A rollout engine over a pool of engines: prompts are dealt to them in units, and each has the trainer's weights before its first prompt.

    the policy that is trained --- one copy in shared memory, or one file ---> every engine
                               <-- version, checksum of what it holds --------
    units of prompts, longest first ----------------------------------------> whichever engine is free
    completions, version, checksum <-----------------------------------------

Which engine samples a unit, and whether it is the first that was asked, changes nothing: a sample depends on the weights and its seed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rlhf.config.engines import EngineConfig
from rlhf.config.launch import EnginePoolConfig
from rlhf.config.policy import SamplingConfig
from rlhf.distributed.actor_calls import Cluster
from rlhf.distributed.actor_pool import ActorPool, Preparation
from rlhf.errors import ConfigError, TrainingError
from rlhf.models.score import base_model
from rlhf.rollout.engine_worker import AboutEngine, Held, SampledUnit
from rlhf.rollout.pool_sampler import PoolSampler, Turns
from rlhf.rollout.requests import check_prompts, check_request, rows_to_check
from rlhf.rollout.snapshot import Request
from rlhf.rollout.types import Completion, EngineHealth, PromptLike
from rlhf.rollout.weight_sending import SentWeights, WeightSender

logger = logging.getLogger(__name__)

WORKER = "rlhf.rollout.engine_worker:build_worker"
ROLE = "engines"
UNITS_PER_ENGINE = 2
"""Of a rollout, where the recipe does not say how many prompts a unit has: an engine that is done early takes another's second one."""
SMALLEST_UNIT = 32
"""Prompts: with fewer, what every call costs (weights made ready, a step for each token) outweighs a better balance."""


class PooledEngine:
    """A ``RolloutEngine`` whose prompts are sampled by engines in actors.

    Args:
        cluster: Where the engines live.
        settings: Of the pool.
        policy: Its weights as they are at each ``load_weights`` are what is sampled from.
        config: Of each engine.
        autocast: The trainer's.
        worker: What an actor is made of.
    """

    reopens = True

    def __init__(
        self,
        cluster: Cluster,
        settings: EnginePoolConfig,
        policy: Any,
        config: EngineConfig,
        *,
        autocast: Literal["none", "bfloat16", "float16"] = "none",
        worker: str = WORKER,
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self.policy = policy
        self.config = config
        self.autocast = autocast
        self.worker = worker
        self.figures: dict[str, float] = {}
        """What the engines reported of the newest rollout, as means over its units."""
        self._notify: Callable[[str], None] = logger.warning
        self._version = 0
        self._paused = False
        self._exact = False
        self.turns = Turns()
        """Of requests now and of rollouts that are sampled ahead."""
        self._rollouts_ahead = 1
        self._loaded: SentWeights | None = None
        """Those that ``generate`` samples with."""
        self._sender: WeightSender | None = None
        self._pool: ActorPool | None = None
        self._about: AboutEngine | None = None
        self._lengths = ExpectedLengths()

    @property
    def notify(self) -> Callable[[str], None]:
        """Called with a message when an engine is replaced."""
        return self._notify

    @notify.setter
    def notify(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        if self._pool is not None:
            self._pool.notify = notify

    @property
    def weight_version(self) -> int:
        """The last version passed to ``load_weights``."""
        return self._version

    @property
    def exact(self) -> bool:
        """As the engines have it."""
        return self._says().exact

    @property
    def context_length(self) -> int | None:
        """As the engines have it."""
        return self._says().context_length

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """Context in which engines sample from the policy's own weights, whatever their settings."""
        self._exact = True
        try:
            yield
        finally:
            self._exact = False

    def load_weights(self, version: int) -> None:
        """Put the policy's weights as they are now where the engines take them before the next prompt; raises as ``send_weights``."""
        self._loaded = self.send_weights(version)
        self._version = version

    def send_weights(self, version: int) -> SentWeights:
        """Put the policy's weights as they are now where the engines can take them.

        Raises:
            ModelError: The policy can't be copied into another process.
            ConfigError, StorageError: There is no place for its weights.
        """
        self._opened()
        assert self._sender is not None, "open"
        return self._sender.send(self.policy, version)

    def pause(self) -> None:
        """Refuse requests until ``resume``; the engines keep their memory."""
        self._paused = True

    def resume(self) -> None:
        """Take requests again."""
        self._paused = False

    def health(self) -> EngineHealth:
        """How many engines are there, without asking them."""
        alive = 0 if self._pool is None else self._pool.alive
        detail = f"{alive} of {self.settings.replicas} engines are there"
        if self._paused:
            detail = "paused; call resume()"
        return EngineHealth(ok=not self._paused, weight_version=self._version, detail=detail)

    def fingerprint(self) -> str:
        """That of every engine; where one has another than the policy's, its own."""
        own, loaded = self.policy.fingerprint(), self._newest()
        with self.turns.now():
            return next((theirs for theirs in self.fingerprints_of(loaded) if theirs != own), own)

    def fingerprints_of(self, sent: SentWeights) -> list[str]:
        """Of each engine, once it has these weights; in a turn."""
        return self._holding(sent).each("fingerprint")

    def sampler_ahead(self, *, rollouts_ahead: int) -> PoolSampler:
        """What samples so many rollouts ahead while the policy learns."""
        self._rollouts_ahead = rollouts_ahead
        return PoolSampler(self)

    def abandon(self) -> None:
        """What is under way is not wanted any more."""
        if self._pool is not None:
            self._pool.abandon()

    def restart(self) -> None:
        """End the engines; the next request starts them with the newest weights."""
        with self.turns.now():
            if self._pool is not None:
                self._pool.close()

    def close(self) -> None:
        """End the engines and forget what was sent to them; another request starts them again."""
        self.restart()
        if self._sender is not None:
            self._sender.close()
        self._pool = self._sender = self._loaded = None

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
            ConfigError: ``num_samples`` below 1, or a way of sampling that the engines refuse.
            DataError: A prompt without tokens, with an id that the model does not know, or too long for it.
            TrainingError: Paused; engines were lost too often; one does not have the weights that it was given.
        """
        check_request(num_samples, paused=self._paused)
        if complaint := self.config.complaint(sampling):
            raise ConfigError(f"{complaint}.")
        if not prompts:
            return []
        request = Request(
            prompts=prompts, num_samples=num_samples, sampling=sampling, seed=seed, rollout_index=rollout_index
        )
        self.check(request)
        loaded = self._newest()
        with self.turns.now():
            groups, self.figures = self.sample(request, loaded, exact=self._exact)
        return groups

    def check(self, request: Request) -> None:
        """Refuse prompts that engines can't sample; raises as ``generate`` does."""
        check_prompts(request.prompts, base_model(self.policy.model), request.sampling)
        if self.policy.path is None:  # all engines take the same one
            self.policy.choose_path(rows_to_check(request.prompts))

    def sample(
        self, request: Request, sent: SentWeights, *, exact: bool
    ) -> tuple[list[list[Completion]], dict[str, float]]:
        """Completions by these weights, and what the engines reported, as means over the units; in a turn.

        Args:
            request: What ``check`` has seen.
            sent: Weights of ``send_weights``.
            exact: Sample with the policy's own weights, also where the engines have a copy of lower precision.

        Raises:
            TrainingError: Engines were lost too often; one does not have the weights that it was given.
        """
        prompts, pool = request.prompts, self._holding(sent)
        units = self._units(prompts)
        requests = [
            Request(
                prompts=[prompts[place] for place in places], num_samples=request.num_samples, sampling=request.sampling,
                seed=request.seed, rollout_index=request.rollout_index,
            ).slim()
            for places in units
        ]  # fmt: skip
        costs = [self._lengths.cost(unit) for unit in requests]
        sampled: list[SampledUnit] = pool.run(
            "sample", [(sent.version, sent.checksum, unit, exact) for unit in requests], costs=costs
        )
        names = sorted({name for unit in sampled for name in unit.figures})
        figures = {name: sum(unit.figures.get(name, 0.0) for unit in sampled) / len(sampled) for name in names}
        return self._in_order(units, sampled, Held(sent.version, sent.checksum), count=len(prompts)), figures

    def _in_order(
        self, units: Sequence[Sequence[int]], sampled: Sequence[SampledUnit], held: Held, *, count: int
    ) -> list[list[Completion]]:
        groups: list[list[Completion]] = [[] for _ in range(count)]
        for places, unit in zip(units, sampled, strict=True):
            if unit.held != held:
                raise TrainingError(
                    f"An engine sampled with the weights of version {unit.held.version} ({unit.held.checksum[:12]}...), and was given "
                    f"version {held.version} ({held.checksum[:12]}...): stale weights."
                )
            for place, group in zip(places, unit.groups, strict=True):
                groups[place] = group
                self._lengths.record(group)
        return groups

    def _units(self, prompts: Sequence[PromptLike]) -> list[list[int]]:
        """Places of the prompts of each unit: prompts as they come, and all places of a prompt together.

        The cut depends on the request and the settings alone: it decides, by rounding, what log-probabilities are.
        """
        by_id: dict[str, list[int]] = {}
        for place, prompt in enumerate(prompts):
            by_id.setdefault(prompt.id, []).append(place)
        engines = self.settings.replicas
        several = engines > 1 and len(by_id) >= UNITS_PER_ENGINE * engines * SMALLEST_UNIT
        wanted = engines * (UNITS_PER_ENGINE if several else 1)
        size = self.settings.prompts_per_unit or -(-len(by_id) // wanted)
        together = list(by_id.values())
        return [
            [place for places in together[first : first + size] for place in places]
            for first in range(0, len(together), size)
        ]

    def _newest(self) -> SentWeights:
        """The weights that were loaded last; before any were, the policy is used as it is."""
        if self._loaded is None:
            self.load_weights(self._version)
        assert self._loaded is not None
        return self._loaded

    def _holding(self, sent: SentWeights) -> ActorPool:
        """The pool, whose engines take these weights before they do anything else."""
        pool = self._opened()
        given = Held(sent.version, sent.checksum)
        pool.preparation = Preparation(given, "take", (sent.version, sent.checksum, sent.argument), _check_of(given))
        return pool

    def _says(self) -> AboutEngine:
        if self._about is None:
            with self.turns.now():
                self._about = self._opened().about()
        return self._about

    def _opened(self) -> ActorPool:
        if self._pool is None:
            self._sender = WeightSender(
                self.cluster,
                self.settings,
                notify=lambda text: self._notify(text),
                versions_held=lambda: self._rollouts_ahead + 1,
            )
            device = "cuda" if self.settings.gpus and self.config.in_this_process else "cpu"
            arguments = (
                self._sender.send_policy(self.policy),
                tuple(self.policy.trainable_parameters()), self.config, self.autocast, device,
            )  # fmt: skip
            self._pool = ActorPool(
                self.cluster, ROLE, self.settings, self.worker, arguments, reissue_after=self.settings.reissue_after
            )
            self._pool.notify = self._notify
        return self._pool


class ExpectedLengths:
    """How long completions of a prompt were when it was sampled last; of others, as long as those of all."""

    def __init__(self) -> None:
        self._of_prompt: dict[str, float] = {}
        self._of_all: float | None = None

    def cost(self, request: Request) -> float:
        """Tokens that a request is expected to take."""
        unknown = self._of_all or float(request.sampling.max_new_tokens)
        return sum(
            len(prompt.ids) + request.num_samples * self._of_prompt.get(prompt.id, unknown)
            for prompt in request.prompts
        )

    def record(self, group: Sequence[Completion]) -> None:
        """Note a prompt's completions."""
        mean = sum(len(completion.tokens) for completion in group) / len(group)
        self._of_prompt[group[0].prompt_id] = mean
        self._of_all = mean if self._of_all is None else 0.9 * self._of_all + 0.1 * mean


def _check_of(given: Held) -> Callable[[Any], str | None]:
    """What is wrong with an engine's acknowledgment."""

    def check(held: Held) -> str | None:
        if held == given:
            return None
        return (
            f"was given the weights of version {given.version} ({given.checksum[:12]}...) and acknowledged version {held.version} "
            f"({held.checksum[:12]}...)"
        )

    return check


def build_pooled(
    cluster: Cluster, settings: EnginePoolConfig, policy: Any, config: EngineConfig, *, autocast: Any = "none"
) -> PooledEngine:
    """The pool of these settings."""
    return PooledEngine(cluster, settings, policy, config, autocast=autocast)
