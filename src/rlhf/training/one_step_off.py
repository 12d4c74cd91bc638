"""One step off: the next rollout is sampled during the training on this one, by the weights from before that training.

    rollout         0                     1                     2
    learns from     R0, by weights 0      R1, by weights 0      R2, by weights 1
    beside it       R1 is sampled         R2 is sampled         ...

The sampler takes its weights at one defined point, when a rollout is complete and nothing was learned from it, and has a copy of
its own from there on. So what it samples does not depend on how fast either side is, and a run can be repeated and resumed to
the bit. What waits is written into checkpoints; one that is written in the middle of sampling waits for its end, as the weights
that it would have to begin again from are gone.

Sources: Noukhovitch et al. 2024, section 3, arXiv:2410.18252 (one step off); Hilton et al. 2021, section 3, arXiv:2110.00641, and Fu
et al. 2025 (AReaL), eq. 5, arXiv:2505.24298 (the objective that keeps the sampling policy and the proximal one apart).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlhf.activity import doing
from rlhf.config.engines import LocalEngineConfig
from rlhf.config.policy import RLConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RLHFError, TrainingError
from rlhf.models.policy import PolicyModel
from rlhf.rollout.buffer import RolloutGroup, StalenessBuffer
from rlhf.rollout.sampler_process import Sampler, SamplerProcess
from rlhf.rollout.snapshot import Request
from rlhf.training.engine_calls import CHECKED_VERSIONS
from rlhf.training.rollouts import Rollout
from rlhf.training.start_checks import STALE

MAX_STALENESS = 1
"""Versions of the weights between sampling and learning: one step off."""


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads of the process's number each side has while both work."""

    all: int
    """The trainer's while nothing is sampled at the same time."""

    @property
    def sampler(self) -> int:
        """Half of them, rounded down."""
        return max(1, self.all // 2)

    @property
    def trainer(self) -> int:
        """The others."""
        return max(1, self.all - self.sampler)


@dataclass(frozen=True, slots=True)
class _UnderWay:
    prompt_ids: list[str]
    fingerprint: str | None
    """Of the weights that were passed to it, where it is compared."""
    version: int


class Ahead:
    """The next rollout, from the moment that it is begun until it is learned from."""

    def __init__(self, policy: PolicyModel, config: RLConfig, *, name: str) -> None:
        """Nothing begins yet.

        Args:
            policy: Whose weights sample.
            config: ``sampling``, ``group_size``, ``autocast``, ``seed``.
            name: What messages call the run.
        """
        self.policy = policy
        self.config = config
        self.name = name
        self.threads = Threads(torch.get_num_threads())
        self.buffer = StalenessBuffer(max_staleness=MAX_STALENESS)
        self.build: Callable[[], Sampler] = self._process
        self._sampler: Sampler | None = None
        self._under_way: _UnderWay | None = None
        self._rollout_index: int | None = None
        self.figures: dict[str, float] = {}
        """What the sampler reported with the newest rollout."""

    def has(self, rollout_index: int) -> bool:
        """Whether this rollout was begun."""
        return self._rollout_index == rollout_index

    def begin(self, prompts: Sequence[Prompt], *, rollout_index: int, version: int) -> None:
        """Sample a rollout with the weights as they are now; what they become is the sampler's business no more.

        Args:
            prompts: What it asks; may be none.
            rollout_index: Which one of the run.
            version: Of the weights as they are.
        """
        assert self._rollout_index is None, f"rollout {self._rollout_index} was not taken"
        if not prompts:
            return
        self._rollout_index = rollout_index
        self._divide_threads()
        config = self.config
        request = Request(
            prompts=prompts,
            num_samples=config.group_size,
            sampling=config.sampling,
            seed=config.seed,
            rollout_index=rollout_index,
        )
        compared = version < CHECKED_VERSIONS
        self._sampler = self._sampler or self.build()
        with doing("sampler wait"):  # the first starts its process, each waits until it has taken the weights
            self._sampler.begin(version, request, wants_fingerprint=compared)
        fingerprint = self.policy.fingerprint() if compared else None
        self._under_way = _UnderWay([prompt.id for prompt in prompts], fingerprint, version)

    def take(self, prompts: Sequence[Prompt], *, rollout_index: int) -> Rollout:
        """The completions of the rollout's prompts, to be learned from; waits for them where they are still sampled.

        Raises:
            TrainingError: They were sampled with other weights than those passed, or of other prompts.
        """
        assert self._rollout_index == rollout_index, f"rollout {self._rollout_index} is there, not {rollout_index}"
        self._wait()
        groups = self.buffer.take([prompt.id for prompt in prompts], weight_version=rollout_index)
        self._rollout_index = None
        self._divide_threads()
        return Rollout.of(prompts, groups)

    def close(self) -> None:
        """End the sampler and forget what waits."""
        if self._sampler is not None:
            self._sampler.close()
        self._sampler = self._under_way = self._rollout_index = None
        self.buffer.clear()
        self._divide_threads()

    def state_dict(self) -> dict[str, Any]:
        """What waits; asked for while it is sampled, it waits for the end of that."""
        self._wait()
        return {"rollout_index": self._rollout_index, "groups": self.buffer.state_dict(), "figures": self.figures}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken; what is under way is not wanted any more, and may as well have failed."""
        if self._under_way is not None:
            try:
                self._wait()
            except RLHFError:
                self.close()
        self.buffer.load_state_dict(state["groups"])
        self._rollout_index = state["rollout_index"]
        self.figures = dict(state.get("figures", {}))
        self._divide_threads()

    def _wait(self) -> None:
        """Until nothing is under way, and what was is in the buffer."""
        begun = self._under_way
        if begun is None:
            return
        assert self._sampler is not None
        try:
            with doing("sampler wait"):
                rollout = self._sampler.finish()
        except RLHFError:
            self._under_way = None  # that was the answer, and there will be no other; a signal leaves it under way
            raise
        if rollout.fingerprint != begun.fingerprint:
            self.close()  # nothing waits any more: anyone who asks again must not wait for an answer that was given
            raise TrainingError(
                f"{self.name}: the weights that sampled during training are not those that were passed at version "
                f"{begun.version}: {STALE}"
            )
        self.buffer.add([RolloutGroup(*pair) for pair in zip(begun.prompt_ids, rollout.groups, strict=True)])
        self.figures = rollout.figures
        self._under_way = None

    def _process(self) -> SamplerProcess:
        engine = self.config.engine
        assert isinstance(engine, LocalEngineConfig), "async_rollouts and another engine exclude each other"
        return SamplerProcess(self.policy, autocast=self.config.autocast, threads=self.threads.sampler, config=engine)

    def _divide_threads(self) -> None:
        """By whether a rollout waits, and not by whether it is done: the number of threads decides the order of additions."""
        wanted = self.threads.all if self._rollout_index is None else self.threads.trainer
        if self.policy.device.type == "cpu" and torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)


def build_ahead(policy: PolicyModel, config: RLConfig, *, own_engine: bool, name: str) -> Ahead | None:
    """What ``async_rollouts`` asks for; None where the policy is asked when its completions are needed.

    Raises:
        ConfigError: There is an engine that samples with the trainer's weights as they happen to be.
    """
    if config.async_rollouts is None:
        return None
    if not own_engine:
        raise ConfigError(
            f"{name}: `async_rollouts` samples with a copy of the policy in a process of its own, and this trainer was given an "
            "engine (an environment's, or another sampler). Leave one of the two out."
        )
    return Ahead(policy, config, name=name)
