"""Services and tools that show metrics, besides events.jsonl."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from rlhf.errors import require


class Tracker(Protocol):
    """Somewhere else that metrics go."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take the metrics of one step."""
        ...

    def close(self) -> None:
        """Flush."""
        ...


class TensorBoardTracker:
    """Scalars to ``<run>/tensorboard/<stage>``; on a resume, what was shown from ``first_step`` on is taken back."""

    def __init__(self, folder: Path | None, stage: str, first_step: int) -> None:
        require("tensorboard", extra="track", needed_for="Logging to TensorBoard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str((folder or Path()) / "tensorboard" / stage), purge_step=first_step)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take the metrics of one step."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush."""
        self.writer.close()


class ServiceTracker:
    """Weights & Biases, or trackio, which has the same three calls."""

    def __init__(self, package: str, folder: Path | None, stage: str, first_step: int) -> None:
        self.module = require(package, extra="track", needed_for=f"Logging to {package}")
        run = folder.name if folder else "run"
        self.module.init(project="rlhf", name=f"{run}/{stage}" if stage else run)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take the metrics of one step."""
        self.module.log(dict(metrics), step=step)

    def close(self) -> None:
        """Flush."""
        self.module.finish()


TRACKERS: dict[str, Callable[[Path | None, str, int], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": partial(ServiceTracker, "wandb"),
    "trackio": partial(ServiceTracker, "trackio"),
}
"""By the name a recipe uses: (run folder, stage, first step still to come) -> tracker."""
