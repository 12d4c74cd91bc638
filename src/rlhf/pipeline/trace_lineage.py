"""From conversations to the weights that learned from them, and back.

A stage learned from a trace if one of its files has it, or if it
goes on from a stage that did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf.feedback.trace_files import Trace, read_trace_list
from rlhf.pipeline.artifacts import STAGE_INPUT, STARTED, Artifact
from rlhf.pipeline.lineage import all_stage_folders, record_of
from rlhf.pipeline.trace_lists import FOLDER

WEIGHT_ENDS = (".safetensors", ".bin")


@dataclass(frozen=True, slots=True)
class Learned:
    """A stage that learned from a conversation."""

    stage: Path
    """Its folder."""
    key: str
    through: str
    """The data file, or the stage before."""
    weights: Sequence[str] = field(default_factory=tuple)
    """Files in its folder; none where it left no model."""
    num_traces: int = 0
    """Of those asked for, in its own files."""

    def words(self) -> str:
        """In a line."""
        left = ", ".join(self.weights) or "no weights"
        return f"{self.stage} ({left}), through {self.through}"

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {**asdict(self), "stage": str(self.stage), "weights": list(self.weights)}


def learned_from(
    runs: Path | str, *, name: str = "", traces: Collection[Trace] = (), hashes: Collection[str] = ()
) -> list[Learned]:
    """Stages that learned from conversations, those they go on from first.

    Args:
        runs: Where run folders lie.
        name: The id of a trace or of a message.
        traces: Or traces.
        hashes: Or sha256 of data files, whatever traces they have.
    """
    wanted, contents = set(traces), {digest[:16] for digest in hashes if digest}
    unfinished = (file.parent for file in Path(runs).glob(f"*/*/{STARTED}"))  # whose checkpoints have weights, too
    folders = dict.fromkeys([*all_stage_folders(Path(runs)), *unfinished])
    stages = {folder: artifact for folder in folders if (artifact := record_of(folder)) is not None}
    by_folder: dict[Path, Learned] = {}
    for folder, artifact in stages.items():
        for parent in artifact.parents.values():
            source, _, digest = parent.rpartition("@")
            listed = read_trace_list(folder / FOLDER / f"{digest}.json") if not source.startswith(STAGE_INPUT) else []
            number = sum(one in wanted or one.is_called(name) for one in listed)
            if number or digest in contents:
                by_folder.setdefault(folder, Learned(folder, artifact.key, source, _weights(folder, artifact), number))
    reached = True
    while reached:
        reached = False
        for folder, artifact in stages.items():
            if folder not in by_folder and (before := next(_from(artifact, folder, by_folder), None)) is not None:
                by_folder[folder] = Learned(folder, artifact.key, str(before.stage), _weights(folder, artifact))
                reached = True
    return list(by_folder.values())


def _from(artifact: Artifact, folder: Path, by_folder: Mapping[Path, Learned]) -> Iterator[Learned]:
    """Those among the stages found that a stage goes on from, in its run or in another one."""
    for parent in artifact.parents.values():
        source, _, digest = parent.rpartition("@")
        for one in by_folder.values():
            if source.startswith(STAGE_INPUT):
                if digest == one.key and one.weights:
                    yield one
            elif one.stage.absolute() in (path := Path(source).absolute(), *path.parents):
                yield one


def _weights(folder: Path, artifact: Artifact) -> tuple[str, ...]:
    names = artifact.files or sorted(
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
    )
    return tuple(name for name in names if name.endswith(WEIGHT_ENDS))
