"""Families that are more than another wording of a prompt: a new one is one file and one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from rlhf.evaluation.adversarial.canary import probe_canary
from rlhf.evaluation.adversarial.option_shuffle import probe_option_shuffle
from rlhf.evaluation.adversarial.probe_result import ProbeResult
from rlhf.evaluation.suites.suite import Suite
from rlhf.models.policy import PolicyModel
from rlhf.rollout.types import RolloutEngine


class Probe(Protocol):
    """Asks a policy something, and scores it."""

    def __call__(
        self, policy: PolicyModel, suite: Suite, *, seed: int, build_engine: Callable[[PolicyModel], RolloutEngine]
    ) -> ProbeResult:
        """Ask.

        Args:
            policy: Asked.
            suite: That the policy is validated on; a probe may read its items.
            seed: Of whatever is drawn.
            build_engine: What samples from a policy.

        Raises:
            DataError: It can't be asked of this model or suite; the probe is missing then, with what this says.
        """
        ...


PROBES: Mapping[str, Probe] = {"canary": probe_canary, "option_shuffle": probe_option_shuffle}
"""Name -> probe."""
