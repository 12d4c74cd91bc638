"""From any file of a run, or a copy of one, back to the data files and the recipe it was made from, with their hashes.

What was recorded is held against what is there now: a tree says of every file whether it still has the content it had.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from rlhf.data.message_text import counted
from rlhf.errors import ConfigError, ModelError, RLHFError
from rlhf.files import sha256
from rlhf.models.adapter_base import base_folder, base_name, expected_weights, weights_hash
from rlhf.models.checks import ADAPTER_FILE
from rlhf.pipeline.archive import ENTRY, previous_of
from rlhf.pipeline.artifacts import RECORD, STAGE_INPUT, Artifact, Started, content_hash
from rlhf.pipeline.runs import run_folders
from rlhf.pipeline.trace_lists import trace_list

WEIGHTS = ("*.safetensors", "*.bin")


class State(StrEnum):
    """What is there now, held against what was recorded."""

    SAME = "as recorded"
    CHANGED = "CHANGED since"
    GONE = "NOT THERE any more"
    UNKNOWN = "content not recorded"


@dataclass(frozen=True, slots=True)
class Origin:
    """Something, and what it was made from."""

    what: str
    """file, stage, input, recipe, or base: the model that an adapter belongs to."""
    name: str
    state: State
    sha256: str = ""
    """Or the key of a stage."""
    about: str = ""
    """A few words more."""
    place: str = ""
    """The setting that names it."""
    made_from: list[Origin] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing in the tree was changed or is gone."""
        return self.state not in (State.CHANGED, State.GONE) and all(origin.is_whole for origin in self.made_from)

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "what": self.what,
            "name": self.name,
            "place": self.place,
            "state": str(self.state),
            "sha256": self.sha256,
            "about": self.about,
            "made_from": [origin.to_dict() for origin in self.made_from],
        }

    def to_text(self, indent: str = "") -> str:
        """A line each, what it was made from indented below."""
        place = f"{self.place}: " if self.place else ""
        digest = f"  {self.sha256[:16]}" if self.sha256 else ""
        about = f"  ({self.about})" if self.about else ""
        line = f"{indent}{place}{self.what} {self.name}{digest}  {self.state}{about}"
        return "\n".join([line, *(origin.to_text(f"{indent}    ") for origin in self.made_from)])


def lineage(path: Path | str, *, runs: Path | str = "runs") -> Origin:
    """Where a file or a folder came from.

    Args:
        path: In a run folder, or a copy of one of its files (found by content in ``runs``).
        runs: Where run folders lie.

    Raises:
        ConfigError: There is no such path, or no run recorded that content.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"There is no file or folder {path}; give one whose origin you want to know.")
    folder = stage_folder(path.resolve())
    if folder is None and (
        stages := [each for each in sorted(path.iterdir()) if stage_folder(each) == each] if path.is_dir() else []
    ):
        raise ConfigError(
            f"{path} is the folder of a run, which holds the results of several stages; give one of them: "
            f"{', '.join(str(stage) for stage in stages)}."
        )
    if folder is not None:
        inside = path.resolve().relative_to(folder).as_posix()
    else:
        folder, inside = _copy_of(path, Path(runs))
    artifact = record_of(folder)
    assert artifact is not None  # both ways of finding the folder read it
    run = run_of(folder)
    stage = _stage(run, folder, artifact, shown={})
    stage.made_from.append(_recipe(run))
    if inside == ".":
        return stage
    return _file(path, artifact, inside, stage)


def stage_folder(path: Path) -> Path | None:
    """The folder of the stage that a path lies in."""
    return next((folder for folder in (path, *path.parents) if record_of(folder) is not None), None)


def record_of(folder: Path) -> Artifact | None:
    """Of a stage's folder; of an unfinished stage, whose checkpoints have an origin too, what it is made from."""
    if (artifact := Artifact.read(folder)) is not None or (started := Started.read(folder)) is None:
        return artifact
    made = started.made_from
    return Artifact(
        stage=folder.name,
        kind=str(made.settings.get("kind", "")),
        key=made.key,
        seconds=0.0,
        headline="unfinished",
        metrics={},
        parents=made.parents,
        settings=made.settings,
        code=made.code,
        contents=started.contents,
    )


def run_of(folder: Path) -> Path:
    """The run that a stage's folder belongs to."""
    return folder.parent.parent if ENTRY.match(folder.name) and folder.parent.name == ".previous" else folder.parent


def _copy_of(path: Path, runs: Path) -> tuple[Path, str]:
    """The stage folder that recorded this content, and the file's name there; of a folder its weights are looked for."""
    files = [path] if path.is_file() else [file for pattern in WEIGHTS for file in sorted(path.rglob(pattern))]
    wanted = {sha256(file) for file in files}
    for folder in all_stage_folders(runs):
        artifact = Artifact.read(folder)
        if artifact is not None and (name := next((n for n, h in artifact.files.items() if h in wanted), None)):
            return folder, name
    what = "holds no weight files" if not files else f"has a content that no run in {runs} recorded"
    raise ConfigError(f"{path} {what}. Give a file of a run folder, or give the folder of runs with --runs.")


def all_stage_folders(runs: Path) -> Iterator[Path]:
    """Of every run in a folder, what was moved aside included."""
    for run in run_folders(runs):
        yield from sorted(file.parent for file in run.glob(f"*/{RECORD}"))
        yield from (entry.folder for entry in previous_of(run))


def _file(path: Path, artifact: Artifact, inside: str, stage: Origin) -> Origin:
    if path.is_dir():
        digest, recorded = content_hash(path), artifact.content(inside)
        same = all(
            (path / name.removeprefix(f"{inside}/")).is_file()
            and sha256(path / name.removeprefix(f"{inside}/")) == file_hash
            for name, file_hash in artifact.files.items()
            if name.startswith(f"{inside}/")
        )
        state = (State.SAME if same else State.CHANGED) if recorded else State.UNKNOWN
        return Origin("folder", str(path), state, digest, made_from=[stage])
    digest = sha256(path)
    known = artifact.files.get(inside)
    state = State.UNKNOWN if known is None else State.SAME if known == digest else State.CHANGED
    copy = "" if path.resolve().as_posix().endswith(inside) else f"a copy of {inside}"
    return Origin("file", str(path), state, digest, about=copy, made_from=[stage])


def _stage(run: Path, folder: Path, artifact: Artifact, *, place: str = "", shown: dict[str, State]) -> Origin:
    """A stage with everything it was made from; one that was shown before (``shown``, by its key) without that."""
    name = artifact.stage if folder.parent == run else str(folder)
    if (known := shown.get(artifact.key)) is not None:
        return Origin("stage", name, known, artifact.key, "see above", place)
    changed = [name for name, digest in artifact.files.items() if not _has_content(folder / name, digest)]
    shown[artifact.key] = state = State.CHANGED if changed else State.SAME
    about = [artifact.kind, f"finished {artifact.finished}" if artifact.finished else artifact.headline]
    about += [f"rlhf {artifact.versions['rlhf']}" if "rlhf" in artifact.versions else ""]
    about += [f"changed: {', '.join(changed[:3])}" if changed else counted(len(artifact.files), "file")]
    origins = [
        _with_traces(_parent(run, place, parent, contents=artifact.contents, shown=shown), folder, parent)
        for place, parent in artifact.parents.items()
    ]
    return Origin(
        "stage",
        name,
        state,
        artifact.key,
        about=", ".join(word for word in about if word),
        place=place,
        made_from=[*origins, *_names_only(artifact), *_bases(run, folder, artifact)],
    )


def _with_traces(origin: Origin, folder: Path, parent: str) -> Origin:
    """The same, with the conversations that a data file was made from, where the stage keeps their list."""
    if (listed := trace_list(folder, parent)) is None:
        return origin
    path, number = listed
    return replace(origin, about=f"{counted(number, 'trace')}: {path}")


def _parent(run: Path, place: str, parent: str, *, contents: Mapping[str, str], shown: dict[str, State]) -> Origin:
    source, _, digest = parent.rpartition("@")
    if source.startswith(STAGE_INPUT):
        name, _, file = source.removeprefix(STAGE_INPUT).partition("/")
        attempt = next(((f, a) for f, a in attempts(run, name) if a.key == digest), None)
        if attempt is None:
            return Origin("stage", name, State.GONE, digest, place=place)
        folder, artifact = attempt
        origin = _stage(run, folder, artifact, place=place, shown=shown)
        held = artifact.content(file or None)
        if contents.get(place) and held != contents[place]:
            return Origin(
                "stage", name, State.CHANGED, digest, "it was done again with another outcome", place, [origin]
            )
        return origin
    path = Path(source)
    if not path.exists():
        return Origin("input", source, State.GONE, digest, place=place)
    return Origin("input", source, State.SAME if content_hash(path) == digest else State.CHANGED, digest, place=place)


def attempts(run: Path, name: str) -> Iterator[tuple[Path, Artifact]]:
    """What a stage made: in its place, and before."""
    for folder in (run / name, *(entry.folder for entry in previous_of(run, name))):
        if (artifact := Artifact.read(folder)) is not None:
            yield folder, artifact


def _bases(run: Path, folder: Path, artifact: Artifact) -> Iterator[Origin]:
    """The models that a stage's adapters belong to, compared with the hash that was kept next to each adapter."""
    for path in artifact.files:
        place, _, file = path.rpartition("/")
        if file != ADAPTER_FILE or not (folder / path).is_file():
            continue
        try:
            called, expected = base_name(folder / place), expected_weights(folder / place)
        except ModelError:
            continue  # the stage is reported as changed
        base = base_folder(run / artifact.stage / place, called or "")  # from where it was made, if it was moved aside
        name = str(base or called or "")
        if expected is None:
            yield Origin("base", name, State.UNKNOWN, place=place)
        elif base is None or not base.is_dir():  # a hash is kept of a folder only, so there was one
            yield Origin("base", name, State.GONE, expected, place=place)
        else:
            weights = weights_hash(base)
            yield Origin("base", name, State.SAME if weights == expected else State.CHANGED, weights, place=place)


def _names_only(artifact: Artifact) -> list[Origin]:
    """Inputs that were no files of this machine, such as names on a hub: only the name is known."""
    names = artifact.names if artifact.names is not None else _names_by_settings(artifact)
    return [Origin("input", text, State.UNKNOWN, place=place) for place, text in names.items()]


def _names_by_settings(artifact: Artifact) -> Mapping[str, str]:
    """Of a stage that is unfinished, or whose record is older than ``Artifact.names``."""
    from rlhf.config.schema import stage_classes  # here: the settings of all kinds take longer than the rest
    from rlhf.pipeline.provenance import inputs_by_name

    try:
        stage = stage_classes()[artifact.kind].of(artifact.settings or {})
    except (RLHFError, KeyError):
        return {}
    return inputs_by_name(stage, artifact.parents)


def _recipe(run: Path) -> Origin:
    path = run / "recipe.yaml"
    if not path.is_file():
        return Origin("recipe", str(path), State.GONE)
    digest = sha256(path)
    return Origin("recipe", str(path), _recipe_state(run, digest), digest)


def _recipe_state(run: Path, digest: str) -> State:
    """Held against the manifest; a stage's own record has the settings, not the file."""
    try:
        recorded = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["recipe"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return State.UNKNOWN
    return State.SAME if recorded == digest else State.CHANGED


def _has_content(path: Path, digest: str) -> bool:
    return path.is_file() and sha256(path) == digest
