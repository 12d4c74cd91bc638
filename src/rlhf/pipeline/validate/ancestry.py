"""Ancestry of a model: through the stages of a recipe, and through the records of other runs if it is a folder.

A policy or a judge may be ``stage:NAME`` or the folder of a model. A folder that a run made has the record that
``rlhf lineage`` reads next to it; for a copy without one, the record is found by its weights in the available runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlhf.config.base import Names, named_things
from rlhf.config.file_stages import BestOfNStage
from rlhf.config.judge_base import JudgeBase
from rlhf.config.recipe import STAGE
from rlhf.config.reward_base import RewardBase
from rlhf.config.rewards import training_rewards_of
from rlhf.config.schema import stage_classes
from rlhf.config.stage_inputs import OfflineStage, PolicyStage, RowsInput
from rlhf.config.stage_union import Stage
from rlhf.config.stages import MODEL_STAGES
from rlhf.errors import ModelError, RLHFError
from rlhf.files import sha256
from rlhf.models.checks import AVERAGE_FILE
from rlhf.pipeline.validate.inputs import embedded_model, rows_inputs

EMBEDDED = "embedded"
NOT_OF_A_VERDICT = {"weight", "normalize", "length_debias", "name", "in_process", "timeout_seconds"}
"""Settings of a judge that change none of its verdicts, or only their scale."""
NOT_RECORDED = "no rlhf run recorded it"
LONGEST = 100
"""Models behind one another; more is a loop."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The files of a model by which it is known again; hashed only where another has files of the same sizes."""

    sizes: tuple[int, ...] = ()
    """Ascending."""
    hashes: frozenset[str] = frozenset()
    """As of ``content_hash``, where a record has them."""
    files: tuple[Path, ...] = ()
    """To be hashed, where none has."""

    def is_same(self, other: Weights) -> bool:
        """Whether both hold the same bytes; two models without files are not compared."""
        return bool(self.sizes) and self.sizes == other.sizes and self._hashed() == other._hashed()

    def _hashed(self) -> frozenset[str]:
        return self.hashes or frozenset(_content(file) for file in self.files)


@dataclass(frozen=True, slots=True)
class Root:
    """Where the records end: a model that no stage made."""

    name: str
    """As people wrote it."""
    is_known: bool = False
    """This package's own, or new: it was not trained on any user's rows."""
    weights: Weights = Weights()
    parts: tuple[Made | Root, ...] = ()
    """What its weights are the average of."""

    def is_same(self, other: Made | Root) -> bool:
        """Whether it is the same model."""
        if isinstance(other, Made):
            return self.weights.is_same(other.weights)
        return self.name == other.name != "" or self.weights.is_same(other.weights)


@dataclass(frozen=True, slots=True)
class Made:
    """What a stage made: one of the recipe in hand, or one that a record speaks of."""

    name: str
    """As messages call it, behind the word stage."""
    stage: Stage
    surroundings: Surroundings
    folder: Path | None = None
    """Where its files lie, if it has run."""
    key: str = ""
    parents: Mapping[str, str] = field(default_factory=dict)
    """As of ``rlhf.pipeline.artifacts.MadeFrom``; of a stage that has run."""
    contents: Mapping[str, str] = field(default_factory=dict)
    weights: Weights = Weights()

    def is_same(self, other: Made | Root) -> bool:
        """Whether it is the same stage, or made the same model."""
        if isinstance(other, Root):
            return other.is_same(self)
        same_stage = self.name == other.name and self.surroundings is other.surroundings
        return same_stage or (self.key == other.key != "") or self.weights.is_same(other.weights)

    def behind(self, source: str, place: str) -> Made | Root:
        """What an input of the stage is; ``place`` is its dotted key."""
        recorded, _, digest = self.parents.get(place.removesuffix(".path"), self.parents.get(place, "")).rpartition("@")
        if match := STAGE.match(source):
            return self.surroundings.stage(match["name"], digest)
        # where the embedded model lies differs between installations
        return self.surroundings.model(source if source == EMBEDDED else recorded or source)

    def rows(self) -> list[RowsInput]:
        """Everything that it learned from; a gate asks prompts, and nothing learns from them."""
        if self.stage.evaluates:
            return []
        return [rows for rows in rows_inputs(self.stage) if rows.key in ("data", "prompts")]

    def files(self, rows: RowsInput) -> list[Source]:
        """Where rows lie, one for each source."""
        return [self._source(rows, number, text) for number, text in enumerate(rows.sources)]

    def _source(self, rows: RowsInput, number: int, text: str) -> Source:
        place = next((p for p in (rows.key, f"{rows.key}.{number}") if p in self.parents), rows.key)
        recorded, _, digest = self.parents.get(place, "").rpartition("@")
        if match := STAGE.match(text):
            maker = self.surroundings.stage(match["name"], digest)
            folder = maker.folder / (match["file"] or "model") if isinstance(maker, Made) and maker.folder else None
            content = self.contents.get(place, "")
            return Source(
                text, folder if folder is not None and _holds(folder, content) else None, content, maker, match["file"]
            )
        path = Path(recorded or text).expanduser()
        if self.folder is None or self.surroundings.is_recipe:
            return Source(text, path if path.exists() else None, _content(path))
        return Source(str(path), path if _holds(path, digest) else None, digest)


@dataclass(frozen=True, slots=True)
class Source:
    """One file of rows."""

    name: str
    path: Path | None
    """Where it is now, with the content that was learned from; None where it is not."""
    content: str = ""
    """Its hash, where that is known."""
    maker: Made | Root | None = None
    """Of a file that a stage wrote."""
    file: str | None = None
    """Its name there."""

    def is_same(self, other: Source) -> bool:
        """Whether both are one file, or hold the same."""
        if self.content and other.content:
            return self.content == other.content
        if self.maker is not None and other.maker is not None:
            return self.file == other.file and self.maker.is_same(other.maker)
        return self.maker is other.maker is None and _resolved(self.name) == _resolved(other.name)


class Surroundings:
    """Where the names of stages and folders in a recipe, or in a record, lead.

    Args:
        run: Its run folder; None for a recipe that has not run.
        runs: Where copies of models are looked for.
        stages: Of a recipe in hand; of a run that is only recorded None.
        reads_records: Otherwise folders are taken for what they are called: nothing heavy is imported.
    """

    def __init__(
        self,
        run: Path | None = None,
        runs: Path | None = None,
        stages: Mapping[str, Stage] | None = None,
        *,
        reads_records: bool = True,
    ) -> None:
        self.run = run
        self.runs = runs
        self.stages = stages
        self.reads_records = reads_records

    @property
    def is_recipe(self) -> bool:
        """Whether it is a recipe in hand."""
        return self.stages is not None

    def stage(self, name: str, key: str = "") -> Made | Root:
        """A stage of this recipe; of a record, the attempt with that key."""
        if self.stages is None:
            return self._recorded_stage(name, key)
        stage = self.stages.get(name)
        if stage is None:
            return Root(f"stage {name}")
        made = Made(name, stage, self)
        if self.run is None:
            return made
        from rlhf.pipeline.artifacts import Artifact

        artifact = Artifact.read(self.run / name)
        if artifact is None:
            return made
        return replace(
            made, folder=self.run / name, key=artifact.key, parents=artifact.parents, contents=artifact.contents,
            weights=_recorded_weights(artifact.files, artifact.sizes),
        )  # fmt: skip

    def model(self, source: str | None) -> Made | Root:
        """What a folder or a name on the hub is, or an ``embedded`` or new (None) model."""
        if source is None:
            return Root("", is_known=True)
        path = embedded_model() if source == EMBEDDED else Path(source).expanduser()
        if not path.is_dir() or not self.reads_records:
            return Root(source, is_known=source == EMBEDDED)
        if path.resolve() == embedded_model().resolve():
            return Root(EMBEDDED, is_known=True, weights=_weights_in(path))
        from rlhf.pipeline.lineage import stage_folder

        folder = stage_folder(path.resolve())
        if folder is None:
            folder = self._copied_from(path)
        made = self._record(folder) if folder is not None else None
        parts = self._averaged(path) if made is None else ()
        return made or Root(str(path), bool(parts), _weights_in(path), parts)

    def _averaged(self, path: Path) -> tuple[Made | Root, ...]:
        """What a folder says that its weights are the average of: by the folders that are still as they were, else by content."""
        file = path / AVERAGE_FILE
        if not file.is_file():
            return ()
        try:
            sources = json.loads(file.read_text(encoding="utf-8"))["sources"]
            members = [
                (
                    str(source["folder"]),
                    Weights(
                        tuple(sorted(int(each["bytes"]) for each in source["weights"].values())),
                        frozenset(str(each["sha256"])[:16] for each in source["weights"].values()),
                    ),
                )
                for source in sources
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
            raise ModelError(f"{file} is damaged: {err!r}. Average the models again.") from None
        parts = []
        for folder, weights in members:
            is_there = os.path.isdir(folder) and weights.is_same(_weights_in(Path(folder)))
            parts.append(self.model(folder) if is_there else Root(folder, weights=weights))
        return tuple(parts)

    def _copied_from(self, path: Path) -> Path | None:
        """The stage of another run that made the same weights."""
        from rlhf.pipeline.artifacts import Artifact
        from rlhf.pipeline.lineage import all_stage_folders

        weights = _weights_in(path)
        if self.runs is None or not self.runs.is_dir() or not weights.sizes:
            return None
        for folder in all_stage_folders(self.runs):
            artifact = Artifact.read(folder)
            if artifact and weights.is_same(_recorded_weights(artifact.files, artifact.sizes)):
                return folder
        return None

    def _recorded_stage(self, name: str, key: str) -> Made | Root:
        from rlhf.pipeline.lineage import attempts

        assert self.run is not None  # a record lies in a run
        recorded = next((folder for folder, artifact in attempts(self.run, name) if artifact.key == key), None)
        made = self._record(recorded) if recorded is not None else None
        return made or Root(f"stage {name} of {self.run}")

    def _record(self, folder: Path) -> Made | None:
        """The record in a stage's folder; None if it is incomplete or of another version."""
        from rlhf.pipeline.artifacts import Artifact
        from rlhf.pipeline.lineage import run_of

        artifact = Artifact.read(folder)
        if artifact is None or not artifact.settings:
            return None
        try:
            stage: Any = stage_classes()[artifact.kind].of(dict(artifact.settings))
        except (RLHFError, KeyError):
            return None
        run = run_of(folder)
        return Made(
            f"{artifact.stage} of {run}", stage, Surroundings(run, self.runs or run.parent), folder, artifact.key,
            artifact.parents, artifact.contents, _recorded_weights(artifact.files, artifact.sizes),
        )  # fmt: skip


def ancestors(model: Made | Root) -> Iterator[Made | Root]:
    """A model and what it began as, newest first; the last is a ``Root``."""
    for _ in range(LONGEST):
        yield model
        if isinstance(model, Root):
            return
        if model.stage.kind not in MODEL_STAGES:
            yield Root(f"stage {model.name}")
            return
        path = model.stage.start.path
        model = model.behind(path, f"{model.stage.start_key}.path") if path is not None else Root("", is_known=True)


def models_of(spec: RewardBase | JudgeBase, place: str, owner: Made) -> list[Made | Root]:
    """The models that a reward or a judge uses, and those that one of them is the average of."""
    models = [owner.behind(source, f"{place}.{inner}") for inner, source in spec.models_asked()]
    return [one for model in models for one in (model, *(model.parts if isinstance(model, Root) else ()))]


def is_trained_against(made: Made, judge: RewardBase | JudgeBase, asked: Made) -> bool:
    """Whether a stage's reward, or a part of it, gives the verdicts of a judge (of the stage ``asked``); or the one that chose its
    rows did."""
    if isinstance(made.stage, PolicyStage | BestOfNStage):
        judges = models_of(judge, "judge", asked)
        for place, spec in training_rewards_of(made.stage):
            models = models_of(spec, place, made)
            if any(one.is_same(other) for one in models for other in judges):
                return True
            if not models and not judges and _verdicts(spec, place, made) == _verdicts(judge, "judge", asked):
                return True
        return False
    if not isinstance(made.stage, OfflineStage):
        return False
    makers = [source.maker for rows in made.rows() for source in made.files(rows)]
    return any(
        isinstance(maker, Made) and isinstance(maker.stage, BestOfNStage) and is_trained_against(maker, judge, asked)
        for maker in makers
    )


def _verdicts(spec: RewardBase | JudgeBase, place: str, owner: Made) -> dict[str, object]:
    """What decides a judge's verdicts; a function by its content where that is recorded, as paths differ between runs."""
    settings: dict[str, object] = spec.model_dump(exclude=NOT_OF_A_VERDICT)
    for inner, text, names in named_things(spec):
        if names is Names.FUNCTION and text.partition(":")[0].endswith(".py"):
            content = _content(Path(text.rpartition(":")[0])) or owner.parents.get(".".join((place, *inner)), "")
            if content:
                settings[".".join(inner)] = f"{content.rpartition('@')[2]}:{text.rpartition(':')[2]}"
    return settings


def _recorded_weights(files: Mapping[str, str], sizes: Mapping[str, int]) -> Weights:
    mine = [name for name in files if name.startswith("model/") and name.endswith((".safetensors", ".bin"))]
    if any(name not in sizes for name in mine):
        return Weights()
    return Weights(tuple(sorted(sizes[name] for name in mine)), frozenset(files[name][:16] for name in mine))


def _weights_in(folder: Path) -> Weights:
    files = tuple(file for pattern in ("*.safetensors", "*.bin") for file in sorted(folder.rglob(pattern)))
    return Weights(tuple(sorted(file.stat().st_size for file in files)), files=files)


def _holds(path: Path, content: str) -> bool:
    """Whether a file is there, with that content where it is known."""
    return path.exists() and (not content or _content(path) == content)


def _content(path: Path) -> str:
    """As of ``rlhf.pipeline.artifacts.content_hash``; empty where it can't be read."""
    try:
        if not path.is_dir():
            return sha256(path)[:16]
        from rlhf.pipeline.artifacts import content_hash

        return content_hash(path)
    except OSError:
        return ""


def _resolved(name: str) -> str:
    return os.path.realpath(os.path.expanduser(name)) if os.path.exists(os.path.expanduser(name)) else name
