"""A reward model in a replica of Ray Serve: rows of the requests that arrive together go into one forward pass (``serve.batch``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf.data.pack import Group
from rlhf.errors import ModelError, require
from rlhf.serving.served_scorer import ServedScorer

serve = require("ray.serve", extra="scale", needed_for="Reward models in replicas")
log = logging.getLogger(__name__)
UNLIMITED = 2**31 - 1
"""Tokens of a batch until a replica has its settings."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a replica says of the rows of one request."""

    values: Tensor | None
    """[K, C], see ``rlhf.rewards.model_reward.ModelReward``."""
    failure: str = ""
    """Why there are none."""


class ScoreReplica:
    """One copy of a reward model.

    Args:
        source: Folder or hub name, as all nodes find it.
        fingerprint: Of the weights that the server found there.
        is_process: Whether it judges steps.
        device: Where it computes.
        threads: Of torch.
        max_tokens: Distinct tokens in one forward pass.
        batch_wait_seconds: For further rows.

    Raises:
        ModelError: The weights are not there, or others.
    """

    def __init__(
        self, source: str, fingerprint: str, *, is_process: bool, device: str, threads: int, max_tokens: int,
        batch_wait_seconds: float,
    ) -> None:  # fmt: skip
        torch.set_num_threads(threads)
        self.scorer = ServedScorer.load(source, is_process=is_process, device=device, max_tokens=max_tokens)
        if self.scorer.fingerprint != fingerprint:
            raise ModelError(
                f"{source} has the weights {self.scorer.fingerprint[:10]} on this node, and {fingerprint[:10]} where the server runs."
            )
        self.score.set_max_batch_size(max_tokens)
        self.score.set_batch_wait_timeout_s(batch_wait_seconds)

    @serve.batch(  # type: ignore[untyped-decorator]
        max_batch_size=UNLIMITED, batch_size_fn=lambda requests: _batch_tokens(requests)
    )
    async def score(self, requests: list[list[Group]]) -> list[Outputs]:
        """What the model says of each request's rows. Where the pass of all fails, each has its own, so that only those fail that are to
        blame."""
        return await asyncio.to_thread(self._outputs, requests)

    def _outputs(self, requests: Sequence[Sequence[Group]]) -> list[Outputs]:
        try:
            return self._pass(requests)
        except Exception as err:  # such as no memory
            log.exception("scoring with %s failed", self.scorer.source)
            if len(requests) == 1:
                return [Outputs(None, f"{type(err).__name__}: {err}")]
            return [outputs for request in requests for outputs in self._outputs([request])]

    def _pass(self, requests: Sequence[Sequence[Group]]) -> list[Outputs]:
        reward = self.scorer.reward
        with torch.inference_mode():
            together = reward.outputs([group for groups in requests for group in groups])
        parts = together.split([sum(map(reward.num_outputs, groups)) for groups in requests], dim=1)
        return [Outputs(part.clone()) for part in parts]


def _batch_tokens(requests: Sequence[Sequence[Group]]) -> int:
    """Tokens of a batch; a request is never too large to be one by itself (its rows are cut into passes)."""
    if len(requests) == 1:
        return 1
    return sum(group.num_tokens for groups in requests for group in groups)
