"""From conversations to the weights that learned from them, and back.

A stage keeps, for each data file that it reads, the list of traces its rows were made from (``traces/HASH.json`` in its folder;
``rlhf.feedback.trace_files`` says where that list is from). A stage learned from a trace if one of its files has it, or if it
goes on from a stage that did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf.feedback.trace_files import Trace, read_trace_list, traces_of_file
from rlhf.files import make_folder, write_json
from rlhf.pipeline.artifacts import STAGE_INPUT, STARTED, Artifact

FOLDER = "traces"
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


def keep_trace_lists(folder: Path, parents: Mapping[str, str]) -> None:
    """Keep the lists of the files that a stage reads.

    Args:
        folder: Of the stage.
        parents: As in ``MadeFrom``.
    """
    for parent in dict.fromkeys(parents.values()):
        source, _, digest = parent.rpartition("@")
        if source.startswith(STAGE_INPUT):
            continue
        if traces := traces_of_file(Path(source)):
            make_folder(folder / FOLDER)
            write_json(
                folder / FOLDER / f"{digest}.json",
                {"file": source, "content": digest, "traces": [asdict(one) for one in traces]},
            )


def trace_list(folder: Path, parent: str) -> tuple[Path, int] | None:
    """The list that a stage keeps of one of its inputs, and how many traces it has; None where it keeps none."""
    path = folder / FOLDER / f"{parent.rpartition('@')[2]}.json"
    return (path, len(read_trace_list(path))) if path.is_file() else None


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
    from rlhf.pipeline.lineage import all_stage_folders, record_of

    wanted, contents = set(traces), {digest[:16] for digest in hashes if digest}
    unfinished = (file.parent for file in Path(runs).glob(f"*/*/{STARTED}"))  # whose checkpoints have weights, too
    folders = dict.fromkeys([*all_stage_folders(Path(runs)), *unfinished])
    stages = {folder: artifact for folder in folders if (artifact := record_of(folder)) is not None}
    found: dict[Path, Learned] = {}
    for folder, artifact in stages.items():
        for parent in artifact.parents.values():
            source, _, digest = parent.rpartition("@")
            listed = read_trace_list(folder / FOLDER / f"{digest}.json") if not source.startswith(STAGE_INPUT) else []
            number = sum(one in wanted or one.is_called(name) for one in listed)
            if number or digest in contents:
                found.setdefault(folder, Learned(folder, artifact.key, source, _weights(folder, artifact), number))
    reached = True
    while reached:
        reached = False
        for folder, artifact in stages.items():
            if folder not in found and (before := next(_from(artifact, folder, found), None)) is not None:
                found[folder] = Learned(folder, artifact.key, str(before.stage), _weights(folder, artifact))
                reached = True
    return list(found.values())


def _from(artifact: Artifact, folder: Path, found: Mapping[Path, Learned]) -> Iterator[Learned]:
    """Those among the stages found that a stage goes on from, in its run or in another one."""
    for parent in artifact.parents.values():
        source, _, digest = parent.rpartition("@")
        for one in found.values():
            if source.startswith(STAGE_INPUT):
                if digest == one.key and one.weights:
                    yield one
            elif one.stage.absolute() in (path := Path(source).absolute(), *path.parents):
                yield one


def _weights(folder: Path, artifact: Artifact) -> tuple[str, ...]:
    names = artifact.files or sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return tuple(name for name in names if name.endswith(WEIGHT_ENDS))
