"""What the trainers that learn from files share: rows in, micro-batches out, one optimiser step a phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.config.training import TrainConfig
from rlhf.data.pack import Group, PackedBatch, pack, split_by_tokens
from rlhf.training.checkpoint import CheckpointStore
from rlhf.training.log import RunLog
from rlhf.training.loop import Loop, TrainResult
from rlhf.training.metrics import Metrics
from rlhf.training.rows import MapData, Rows, StreamData, build_rows


class RowsOfStep:
    """The experience of an offline phase. It is gone after its only step, so a checkpoint has nothing to keep."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}


class OfflineTrainer:
    """The file-reading half of ``rlhf.training.loop.Algorithm``; a trainer adds ``modules``, ``loss`` and ``evaluate``."""

    name = "offline"
    steps_per_phase = 1

    def __init__(
        self,
        config: TrainConfig,
        train_data: MapData | StreamData,
        eval_data: MapData | None,
        log: RunLog | None,
        checkpoint_dir: Path | None,
    ) -> None:
        self.config = config
        self.eval_data = eval_data
        self.rows: Rows = build_rows(train_data, config)
        self.num_phases = self.rows.num_steps
        self.log = log
        self.checkpoint_dir = checkpoint_dir

    def train(self) -> TrainResult:
        """Train to the end, from the newest checkpoint where there is one."""
        store = None
        if self.checkpoint_dir is not None:
            store = CheckpointStore(
                self.checkpoint_dir, keep=self.config.keep_checkpoints, identity=self.config.model_dump_json()
            )
        return Loop(self, self.config, log=self.log, checkpoints=store).run()  # type: ignore[arg-type]

    def collect(self, phase: int, metrics: Metrics) -> RowsOfStep:
        """The next rows."""
        return RowsOfStep(self.rows.take(phase))

    def restore(self, state: Mapping[str, Any]) -> RowsOfStep:
        """Rows whose step is taken already."""
        return RowsOfStep([])

    def steps(self, phase: int, experience: RowsOfStep) -> Iterator[list[PackedBatch]]:
        """One step, in micro-batches."""
        yield self.batches(experience.groups)

    def batches(self, groups: Iterable[Group]) -> list[PackedBatch]:
        """Pack rows into micro-batches of at most ``tokens_per_microbatch`` distinct tokens, in order."""
        return [self.pack(run) for run in split_by_tokens(groups, max_tokens=self.config.tokens_per_microbatch)]

    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """One micro-batch; trainers that need columns add them here."""
        return pack(groups)

    def eval_batches(self) -> Iterator[PackedBatch]:
        """All held-out rows, shortest first so that attention buckets are even; nothing where there are none."""
        if self.eval_data is None or len(self.eval_data) == 0:
            return
        groups = sorted((self.eval_data[i] for i in range(len(self.eval_data))), key=lambda group: group.num_tokens)
        yield from self.batches(groups)

    def ends_phase_early(self, metrics: Mapping[str, float]) -> bool:
        """Never."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """The data cursor."""
        return {"rows": self.rows.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.rows.load_state_dict(state["rows"])
