"""Rollouts sampled ahead: the next k are sampled during the training on this one, by weights from before that training.

    rollout         0                     1                     2                     3
    learns from     R0, by weights 0      R1, by weights 0      R2, by weights 0      R3, by weights 1
    then begins     R2 (k = 2)            R3                    R4                    R5

Weights t are those that learned from t rollouts. When rollout t is complete and nothing was learned from it, rollout t + k begins, with
weights t; before the first, rollouts 0 to k - 1 begin with weights 0. So rollout t is by weights max(0, t - k), and min(t, k) versions
old. The sampler works on rollouts in their order, each with the weights of the point at which it was begun: it has a copy of its own
from there on, also of those that wait. So what it samples does not depend on how fast either side is, and a run can be repeated and
resumed to the bit. What waits is written into checkpoints; one that is written in the middle of sampling waits for its end, as the
weights that it would have to begin again from are gone.

Sources: Noukhovitch et al. 2024, section 3, arXiv:2410.18252 (k = 1); Hilton et al. 2021, section 3, arXiv:2110.00641, and Fu
et al. 2025 (AReaL), eq. 3 and 5, arXiv:2505.24298 (the bound k on staleness, and the objective that keeps the sampling policy and the
proximal one apart).
"""

from __future__ import annotations

from collections import deque
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
from rlhf.rollout.buffer import RolloutGroup, StalenessBuffer, WaitingRollout
from rlhf.rollout.sampler_process import Sampler, SamplerProcess
from rlhf.rollout.snapshot import Request, Sampled
from rlhf.training.engine_calls import CHECKED_VERSIONS
from rlhf.training.rollouts import Rollout
from rlhf.training.start_checks import STALE


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


class AsyncRollouts:
    """Rollouts from the moment that they are begun until they are learned from."""

    def __init__(self, policy: PolicyModel, config: RLConfig, *, name: str) -> None:
        """Nothing begins yet.

        Args:
            policy: Whose weights sample.
            config: ``async_rollouts``, ``sampling``, ``group_size``, ``autocast``, ``seed``.
            name: What messages call the run.
        """
        self.policy = policy
        self.config = config
        self.name = name
        self.threads = Threads(torch.get_num_threads())
        self.buffer = StalenessBuffer(max_staleness=config.max_staleness)
        self.build: Callable[[], Sampler] = self._process
        self._sampler: Sampler | None = None
        self._under_way: deque[WaitingRollout] = deque()
        """Those of the buffer that are sampled or wait for it, in their order."""
        self._answer: tuple[WaitingRollout, Sampled] | None = None
        """What the sampler gave last, and for which: a signal may raise before it is put there."""
        self.figures: dict[str, float] = {}
        """What the sampler reported with the rollout that was taken last."""

    def has(self, rollout_index: int) -> bool:
        """Whether this rollout was begun and not taken."""
        return any(rollout.rollout_index == rollout_index for rollout in self.buffer)

    def begin(self, prompts: Sequence[Prompt], *, rollout_index: int, version: int) -> None:
        """Sample a rollout with the weights as they are now; what they become is the sampler's business no more.

        Args:
            prompts: What it asks; may be none.
            rollout_index: Which one of the run; the one behind those that were begun.
            version: Of the weights as they are.
        """
        assert not self.has(rollout_index), f"rollout {rollout_index} was not taken"
        if not prompts:
            return
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
        self._use_threads(self.threads.trainer)
        with doing("sampler wait"):  # the first starts its process, each waits until it has taken the weights
            self._sampler.begin(version, request, wants_fingerprint=compared)
        rollout = WaitingRollout(
            rollout_index=rollout_index,
            version=version,
            prompt_ids=[prompt.id for prompt in prompts],
            fingerprint=self.policy.fingerprint() if compared else None,
        )
        self.buffer.add(rollout)
        self._under_way.append(rollout)

    def take(self, prompts: Sequence[Prompt], *, rollout_index: int) -> Rollout:
        """The completions of the rollout's prompts, to be learned from; waits for them where they are still sampled.

        Raises:
            TrainingError: They were sampled with other weights than those passed, or of other prompts.
        """
        self._wait_for([rollout for rollout in self.buffer if rollout.rollout_index == rollout_index])
        taken = self.buffer.take(rollout_index, [prompt.id for prompt in prompts])
        self.figures = taken.figures
        self._divide_threads()
        assert taken.groups is not None
        return Rollout.of(prompts, [group.completions for group in taken.groups])

    def close(self) -> None:
        """End the sampler and forget what waits."""
        if self._sampler is not None:
            self._sampler.close()
        self._sampler = None
        self._under_way.clear()
        self.buffer.clear()
        self._divide_threads()

    def deferred_state_dict(self) -> Callable[[], list[dict[str, Any]]]:
        """What waits now, to be asked for later, also when it was taken meanwhile: the result waits for what of it is still sampled."""
        waiting = list(self.buffer)

        def state() -> list[dict[str, Any]]:
            self._wait_for(waiting)
            return [rollout.state_dict() for rollout in waiting]

        return state

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Go on where a state was taken; what is under way is not wanted any more, and may as well have failed."""
        try:
            self._wait_for(list(self._under_way))
        except RLHFError:
            self.close()
        self.buffer.load_state_dict(state)
        self._divide_threads()

    def _wait_for(self, rollouts: Sequence[WaitingRollout]) -> None:
        """Until these are complete; the sampler answers in the order in which they were begun."""
        while any(rollout.groups is None for rollout in rollouts):
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        assert self._sampler is not None
        begun = self._under_way[0]
        try:
            if self._answer is None or self._answer[0] is not begun:
                with doing("sampler wait"):
                    self._answer = begun, self._sampler.finish()  # a signal that ends the wait leaves it under way
        except RLHFError:
            self.close()  # that was the answer: anyone who asks again must not wait for another one
            raise
        sampled = self._answer[1]
        if sampled.fingerprint != begun.fingerprint:
            self.close()
            raise TrainingError(
                f"{self.name}: the weights that sampled during training are not those that were passed at version "
                f"{begun.version}: {STALE}"
            )
        begun.figures = sampled.figures
        begun.groups = [RolloutGroup(*pair) for pair in zip(begun.prompt_ids, sampled.groups, strict=True)]
        self._under_way.popleft()
        self._answer = None

    def _process(self) -> SamplerProcess:
        engine = self.config.engine
        assert isinstance(engine, LocalEngineConfig), "async_rollouts and another engine exclude each other"
        return SamplerProcess(self.policy, autocast=self.config.autocast, threads=self.threads.sampler, config=engine)

    def _divide_threads(self) -> None:
        """By whether a rollout waits, and not by whether it is done: the number of threads decides the order of additions."""
        self._use_threads(self.threads.trainer if len(self.buffer) else self.threads.all)

    def _use_threads(self, count: int) -> None:
        if self.policy.device.type == "cpu" and torch.get_num_threads() != count:
            torch.set_num_threads(count)


def build_async_rollouts(policy: PolicyModel, config: RLConfig, *, own_engine: bool, name: str) -> AsyncRollouts | None:
    """What ``async_rollouts`` asks for; None where the policy is asked when its completions are needed.

    Raises:
        ConfigError: There is an engine that samples with the trainer's weights as they happen to be.
    """
    if config.max_staleness == 0:
        return None
    if not own_engine:
        raise ConfigError(
            f"{name}: `async_rollouts` samples with a copy of the policy in a process of its own, and this trainer was given an "
            "engine (an environment's, or another sampler). Leave one of the two out."
        )
    return AsyncRollouts(policy, config, name=name)
