"""An engine in an actor: a copy of the policy, the weights that it was given, and what it says that it holds."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import safe_open

from rlhf.config.engines import EngineConfig
from rlhf.errors import TrainingError
from rlhf.models.folders import weights_fingerprint
from rlhf.rollout.engines import build_engine, engine_figures, exactly, is_exact
from rlhf.rollout.snapshot import Autocast, Request, read_weights
from rlhf.rollout.types import Completion

Sent: TypeAlias = Mapping[str, np.ndarray] | str
"""Weights as they arrive: uint8 bytes by the parameter's name, in shared memory, or the path of a safetensors file."""


@dataclass(frozen=True, slots=True)
class Held:
    """What an engine acknowledges."""

    version: int | None
    checksum: str
    """Of the parameters that training changes, computed from its own memory."""


@dataclass(frozen=True, slots=True)
class AboutEngine:
    """What an engine says of itself when it has started."""

    exact: bool
    context_length: int | None


@dataclass(frozen=True, slots=True)
class SampledUnit:
    """Completions of one unit of prompts."""

    groups: list[list[Completion]]
    held: Held
    """What sampled them."""
    figures: dict[str, float]


class EngineWorker:
    """What an actor of the pool `engines` is made of: an engine, and the copy of the policy that it samples from.

    Args:
        policy: What ``torch.save`` made of a copy of the policy, or the path of a file that holds it.
        changing: Names of the parameters that training changes.
        config: Of the engine; any kind.
        autocast: Type of the matrix products.
        device: Where the copy lies.
    """

    def __init__(
        self, policy: bytes | str, changing: Sequence[str], config: EngineConfig, autocast: Autocast, device: str
    ) -> None:
        source = io.BytesIO(policy) if isinstance(policy, bytes) else Path(policy)
        self.policy = torch.load(source, weights_only=False, map_location=device).eval()
        parameters = dict(self.policy.model.named_parameters())
        self.changing = {name: parameters[name] for name in changing}
        self.policy.requires_grad_(False)
        self.engine = build_engine(self.policy, config, autocast=autocast)
        self._held = Held(None, "")

    def started(self) -> AboutEngine:
        """The engine's own promises."""
        return AboutEngine(is_exact(self.engine), getattr(self.engine, "context_length", None))

    def take(self, version: int, checksum: str, sent: Sent) -> Held:
        """Overwrite the weights, unless they are the ones that it has, and say what it holds then."""
        if checksum != self._held.checksum:
            self._held = Held(None, "")  # of no known version, should one of the next lines fail
            self._read(sent)
        self.engine.load_weights(version)
        self._held = Held(version, weights_fingerprint(self.changing.items()))
        return self._held

    def sample(self, version: int, checksum: str, request: Request, exact: bool) -> SampledUnit:
        """Completions by the weights of this version and no other.

        Args:
            version: That it must hold.
            checksum: Of those weights.
            request: What to sample.
            exact: Sample with the policy's own weights, also where the engine has a copy of lower precision.
        """
        if self._held != Held(version, checksum):
            raise TrainingError(
                f"An engine was asked to sample with the weights of version {version} and holds version {self._held.version}."
            )
        with exactly(self.engine) if exact else nullcontext():
            groups = self.engine.generate(
                request.prompts,
                num_samples=request.num_samples,
                sampling=request.sampling,
                seed=request.seed,
                rollout_index=request.rollout_index,
            )
        return SampledUnit(groups, self._held, engine_figures(self.engine))

    def fingerprint(self) -> str:
        """Of all weights that the engine samples with."""
        return str(self.engine.fingerprint())

    def _read(self, sent: Sent) -> None:
        if isinstance(sent, str):
            with safe_open(sent, framework="pt") as file, torch.no_grad():
                for name, parameter in self.changing.items():
                    parameter.copy_(file.get_tensor(name))
            return
        parts = iter(self.changing)

        def read(buffer: memoryview) -> None:
            np.copyto(np.frombuffer(buffer, dtype=np.uint8), sent[next(parts)])

        read_weights(list(self.changing.values()), read)


def build_worker(
    policy: bytes | str, changing: Sequence[str], config: EngineConfig, autocast: Autocast, device: str
) -> Any:
    """The worker of these arguments."""
    return EngineWorker(policy, changing, config, autocast, device)
