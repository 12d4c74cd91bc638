"""An engine outside of the trainer, for a policy in shards: rank 0 alone asks it, and all ranks have what it says.

shards of all ranks -- gathered tensor by tensor --> rank 0's copy on the CPU --> the engine, as in one process
completions of all prompts <-- exchanged by all ranks ------------------------------ the engine
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch

from rlhf.config.engines import EngineConfig
from rlhf.config.policy import SamplingConfig
from rlhf.distributed.current_cluster import pool_of
from rlhf.distributed.ranks import current_ranks
from rlhf.distributed.sharding import whole
from rlhf.rollout.engines import build_engine, close_engine, engine_figures, exactly, is_exact, listen_to
from rlhf.rollout.types import Completion, EngineHealth, PromptLike, RolloutEngine

ResultT = TypeVar("ResultT")


class MainRankEngine:
    """See ``rlhf.rollout.types.RolloutEngine`` for what it promises. All ranks make the same calls, each of which waits for the others.

    Args:
        policy: Whole on every rank now; at each ``load_weights`` it may lie in shards. Rank 0 keeps a copy of it on the CPU.
        build: Policy -> engine; called on rank 0 with its copy.
    """

    reopens = True

    def __init__(self, policy: Any, build: Callable[[Any], RolloutEngine]) -> None:
        self.policy = policy
        self.figures: dict[str, float] = {}
        """What the engine reported of the newest rollout."""
        self._version = 0
        self._copied: Any = None
        self._asked: RolloutEngine | None = None
        if current_ranks().is_main:
            self._copied = copy.deepcopy(policy).to("cpu")
            self._asked = build(self._copied)

    @property
    def notify(self) -> Callable[[str], None] | None:
        """Called on rank 0 with a message about the engine's processes."""
        return getattr(self._asked, "notify", None)

    @notify.setter
    def notify(self, notify: Callable[[str], None]) -> None:
        if self._asked is not None:
            listen_to(self._asked, notify)

    @property
    def weight_version(self) -> int:
        """The last version passed to ``load_weights``."""
        return self._version

    @property
    def exact(self) -> bool:
        """As the engine has it."""
        return self._of_main(is_exact)

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """Context in which the engine samples from the policy's own weights, whatever its settings."""
        if self._asked is None:
            yield
            return
        with exactly(self._asked):
            yield

    @torch.no_grad()
    def load_weights(self, version: int) -> None:
        """Gather what is trained into rank 0's copy, and give that to the engine."""
        own = {} if self._copied is None else dict(self._copied.named_parameters())
        for name, parameter in self.policy.named_parameters():
            if parameter.requires_grad:
                value = whole(parameter.detach())
                if own:
                    own[name].copy_(value)
        self._version = version
        self._of_main(lambda engine: engine.load_weights(version))

    def generate(
        self,
        prompts: Sequence[PromptLike],
        *,
        num_samples: int,
        sampling: SamplingConfig,
        seed: int,
        rollout_index: int,
    ) -> list[list[Completion]]:
        """Sample ``num_samples`` completions of each prompt, as the engine does."""

        def sample(engine: RolloutEngine) -> tuple[list[list[Completion]], dict[str, float]]:
            groups = engine.generate(
                prompts, num_samples=num_samples, sampling=sampling, seed=seed, rollout_index=rollout_index
            )
            return groups, engine_figures(engine)

        groups, self.figures = self._of_main(sample)
        return groups

    def pause(self) -> None:
        """Refuse requests until ``resume``."""
        self._of_main(lambda engine: engine.pause())

    def resume(self) -> None:
        """Take requests again."""
        self._of_main(lambda engine: engine.resume())

    def health(self) -> EngineHealth:
        """That of the engine."""
        return self._of_main(lambda engine: engine.health())

    def fingerprint(self) -> str:
        """That of the engine."""
        return self._of_main(lambda engine: engine.fingerprint())

    def restart(self) -> None:
        """Restart what the engine has outside of this process, where it can be."""
        self._of_main(lambda engine: getattr(engine, "restart", lambda: None)())

    def close(self) -> None:
        """Stop what the engine has started, on whichever rank this is called."""
        if self._asked is not None:
            close_engine(self._asked)

    def _of_main(self, ask: Callable[[RolloutEngine], ResultT]) -> ResultT:
        """What ``ask`` gives on rank 0, on every rank."""
        value = None if self._asked is None else ask(self._asked)
        answer: Any = current_ranks().gather(value)[0]
        return answer


def build_trainer_engine(
    policy: Any, config: EngineConfig, *, autocast: Literal["none", "bfloat16", "float16"]
) -> RolloutEngine:
    """The engine of a trainer: over several ranks one for all where it is outside of the trainer, else one of each process."""
    build = functools.partial(build_engine, config=config, autocast=autocast)
    outside = pool_of("engines") is not None or not config.in_this_process
    engine: RolloutEngine = MainRankEngine(policy, build) if outside and current_ranks().size > 1 else build(policy)
    return engine
