"""What a run would do with each stage, and why, in words for people. Planning changes nothing on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from rlhf.config.base import BaseConfig
from rlhf.config.recipe import RecipeConfig, stage_references
from rlhf.errors import ConfigError, look_up
from rlhf.pipeline.archive import Previous, previous_of
from rlhf.pipeline.artifacts import Artifact, MadeFrom, Started
from rlhf.pipeline.provenance import inputs_of, made_from
from rlhf.pipeline.reasons import Differences, differences
from rlhf.training.checkpoint_names import PREFIX, step_of

REQUEST = ".request.json"
"""What ``--force`` or ``--from`` asked for, until all of it is done: the same command goes on with it."""


class Action(StrEnum):
    """What happens with a stage."""

    KEPT = "kept"
    BACK = "brought back"
    """What it made before with these settings is there still, moved aside."""
    ON = "goes on"
    AGAIN = "done again"
    NEW = "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the caller of a run may ask for."""

    from_stage: str | None = None
    """This stage and everything that depends on it are rerun."""
    until: str | None = None
    """Stop after this stage."""
    only_for: str | None = None
    """Only this stage and what it needs; the others stay as they are."""
    force: bool = False
    """Everything is rerun."""
    force_because: str = "asked for by --force"
    """The reason to report where the user did not ask for it."""
    ignore_code: bool = False
    """A stage is kept where only the code of this library has changed."""
    brief: bool = False
    """Stages that are kept are not listed."""
    profile: bool = False
    """Measure where the time of training stages goes; no result depends on it."""

    @property
    def request(self) -> str:
        """The part that must be remembered until it is done; empty where nothing is asked to begin again."""
        if not self.force and self.from_stage is None:
            return ""
        words = ["--force" if self.force else f"--from {self.from_stage}"]
        return " ".join(words + ([f"--until {self.until}"] if self.until else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """What a run would do with one stage."""

    name: str
    kind: str
    key: str
    """Of what will be there afterwards."""
    action: Action
    reasons: tuple[str, ...] = ()
    made_from: MadeFrom
    contents: Mapping[str, str]
    """Input from an earlier stage to the hash of what it holds; empty where that stage is still to be done."""
    asked: str = ""
    """Which request it answers."""
    artifact: Artifact | None = None
    """The record of what is kept or brought back."""
    previous: Previous | None = None
    """What is brought back."""

    @property
    def is_there(self) -> bool:
        """Whether nothing has to be made."""
        return self.artifact is not None

    @property
    def line(self) -> str:
        """For people."""
        why = f": {'; '.join(self.reasons)}" if self.reasons else ""
        return f"{self.name:<12} {self.action}{why}"

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "stage": self.name,
            "kind": self.kind,
            "key": self.key,
            "action": str(self.action),
            "reasons": list(self.reasons),
        }


class Planner:
    """Plans one stage after another.

    Args:
        recipe: What is asked for.
        run_dir: What is there.
        options: What the caller asks for besides.
    """

    def __init__(self, recipe: RecipeConfig, run_dir: Path, options: RunOptions) -> None:
        self.recipe = recipe
        self.run_dir = run_dir
        self.options = options
        self.stages = selected_stages(recipe, options)
        self.asked = asked_stages(recipe, options, self.stages)
        self.request = pending_request(run_dir, options.request) or new_request()
        self.keys: dict[str, str] = {}
        self.artifacts: dict[str, Artifact | None] = {}
        """Stages planned so far; None where it is still to be made."""
        self.redone: set[str] = set()

    def plan(self) -> list[PlannedStage]:
        """All selected stages, none of them run."""
        plans = []
        for name in self.stages:
            plans.append(self.plan_stage(name))
            self.take(name, plans[-1].key, plans[-1].artifact)
        return plans

    def take(self, name: str, key: str, artifact: Artifact | None) -> None:
        """Take note of a stage that is there, has been made, or (None) is still to be made."""
        self.keys[name], self.artifacts[name] = key, artifact

    def plan_stage(self, name: str) -> PlannedStage:
        """One stage; all that it reads from must have been taken note of."""
        return self._decide(name, made_from(name, self.recipe, self.keys), self._contents(name))

    def settle(self, plan: PlannedStage) -> PlannedStage:
        """The plan of a stage whose parents are all there now: the same, unless an input is not what it was when it was planned."""
        contents, inputs = self._contents(plan.name), inputs_of(plan.name, self.recipe, self.keys)
        if contents == plan.contents and inputs == plan.made_from.parents:
            return plan
        return self._decide(plan.name, replace(plan.made_from, parents=inputs), contents)

    def _contents(self, name: str) -> dict[str, str]:
        """Input from an earlier stage -> hash of what it holds; empty where it is still to be made."""
        contents = {}
        for place, parent, file in stage_references(self.recipe.stages[name]):
            artifact = self.artifacts[parent]
            contents[place] = artifact.content(file) if artifact is not None else ""
        return contents

    def _decide(self, name: str, wanted: MadeFrom, contents: Mapping[str, str]) -> PlannedStage:
        """Keep it, bring it back, go on with it, or make it."""
        plan = (
            self._in_place(name, wanted, contents)
            or self._aside(name, wanted, contents)
            or self._anew(name, wanted, contents)
        )
        self.redone.discard(name)
        if plan.action in (Action.AGAIN, Action.NEW):
            self.redone.add(name)
        return plan

    def _in_place(self, name: str, wanted: MadeFrom, contents: Mapping[str, str]) -> PlannedStage | None:
        """Keep what is in the stage's folder, or go on with it."""
        folder, asked = self.run_dir / name, name in self.asked
        artifact = Artifact.read(folder)
        if artifact is not None:
            if asked and artifact.asked != self.request:
                return None
            changes = self._differences(name, artifact.made_from, artifact.contents, wanted, contents)
            if artifact.damage(folder) is not None or not self._acceptable(changes):
                return None
            return self._planned(
                name, Action.KEPT, wanted, contents, self._notes(name, changes), key=artifact.key, artifact=artifact
            )
        started = Started.read(folder)
        if started is None or (asked and started.asked != self.request):
            return None
        changes = self._differences(name, started.made_from, started.contents, wanted, contents)
        if not self._acceptable(changes) or (not asked and self._finished_aside(name, wanted, contents) is not None):
            return None
        notes = (_where(folder), *self._notes(name, changes))
        return self._planned(name, Action.ON, wanted, contents, notes)

    def _aside(self, name: str, wanted: MadeFrom, contents: Mapping[str, str]) -> PlannedStage | None:
        """Bring back what was made of the same before."""
        if name in self.asked:
            return None
        if (finished := self._finished_aside(name, wanted, contents)) is not None:
            previous, artifact = finished
            made = (f"made from the same before, {artifact.finished or 'some time ago'}",)
            return self._planned(name, Action.BACK, wanted, contents, made, artifact=artifact, previous=previous)
        for previous in previous_of(self.run_dir, name):
            started = Started.read(previous.folder) if not previous.finished else None
            if started is None:
                continue
            if not self._differences(name, started.made_from, started.contents, wanted, contents):
                why = ("begun from the same before", _where(previous.folder))
                return self._planned(name, Action.ON, wanted, contents, why, previous=previous)
        return None

    def _finished_aside(
        self, name: str, wanted: MadeFrom, contents: Mapping[str, str]
    ) -> tuple[Previous, Artifact] | None:
        for previous in previous_of(self.run_dir, name):
            artifact = Artifact.read(previous.folder)
            if artifact is None or artifact.damage(previous.folder) is not None:
                continue
            if not self._differences(name, artifact.made_from, artifact.contents, wanted, contents):
                return previous, artifact
        return None

    def _anew(self, name: str, wanted: MadeFrom, contents: Mapping[str, str]) -> PlannedStage:
        """Make it from nothing; what is there, or was there last, gives the reasons."""
        folders = [self.run_dir / name, *(p.folder for p in previous_of(self.run_dir, name))]
        records = [(folder, Artifact.read(folder) or Started.read(folder)) for folder in folders]
        folder, record = next(((f, r) for f, r in records if r is not None), (folders[0], None))
        if record is None:
            there = folder.is_dir()
            why = ("its folder says nothing of what it was made from",) if there else ()
            return self._planned(name, Action.AGAIN if there else Action.NEW, wanted, contents, why)
        reasons: list[str] = []
        if isinstance(record, Artifact) and folder == folders[0] and (damage := record.damage(folder)) is not None:
            reasons.append(damage)
        changes = self._differences(name, record.made_from, record.contents, wanted, contents)
        reasons += changes.reasons + changes.code
        if name in self.asked and not changes.reasons:
            reasons = [*self._asked_because(name), *reasons]
        if folder != folders[0] and not reasons:
            reasons.append("what it made before is damaged, and was moved aside")
        return self._planned(name, Action.AGAIN, wanted, contents, tuple(reasons))

    def _asked_because(self, name: str) -> list[str]:
        options = self.options
        if options.force or name == options.from_stage:
            return [options.force_because if options.force else f"asked for by --from {name}"]
        parents = parents_of(self.recipe.stages[name])
        return [f"stage {parent} is done again" for parent in parents if parent in self.asked]

    def _differences(
        self,
        name: str,
        was: MadeFrom | None,
        was_contents: Mapping[str, str],
        wanted: MadeFrom,
        contents: Mapping[str, str],
    ) -> Differences:
        changes = differences(was, wanted, stage=self.recipe.stages[name], redone=self.redone)
        if was is None:
            return changes
        for place, content in contents.items():
            before = was_contents.get(place, "")
            if content and before and content != before and was.parents.get(place) == wanted.parents[place]:
                parent = wanted.parents[place].removeprefix("stage:").partition("@")[0].partition("/")[0]
                changes.reasons.append(f"stage {parent} was done again since, and {place} is not what it was")
        return changes

    def _acceptable(self, changes: Differences) -> bool:
        return not changes.reasons and (not changes.code or self.options.ignore_code)

    def _notes(self, name: str, changes: Differences) -> tuple[str, ...]:
        notes = [f"{reason}, which --ignore-code lets pass" for reason in changes.code]
        parents = parents_of(self.recipe.stages[name])
        return (
            *notes,
            *(f"if stage {parent} comes out as it was" for parent in parents if self.artifacts[parent] is None),
        )

    def _planned(
        self,
        name: str,
        action: Action,
        wanted: MadeFrom,
        contents: Mapping[str, str],
        reasons: tuple[str, ...],
        *,
        key: str | None = None,
        artifact: Artifact | None = None,
        previous: Previous | None = None,
    ) -> PlannedStage:
        return PlannedStage(
            name=name,
            kind=self.recipe.stages[name].kind,
            key=key or wanted.key,
            action=action,
            reasons=tuple(dict.fromkeys(reasons)),
            made_from=wanted,
            contents=contents,
            asked=self.request if name in self.asked else "",
            artifact=artifact,
            previous=previous,
        )


def parents_of(stage: BaseConfig) -> list[str]:
    """Names of the stages that it reads from, each once."""
    return list(dict.fromkeys(parent for _, parent, _ in stage_references(stage)))


def selected_stages(recipe: RecipeConfig, options: RunOptions) -> list[str]:
    """Names of the stages that a run looks at, in order.

    Raises:
        ConfigError: An option names no stage of the recipe, or two options leave nothing to do.
    """
    names = list(recipe.stages)
    for name in (options.from_stage, options.until, options.only_for):
        if name is not None:
            look_up(recipe.stages, name, kind="stage of this recipe")
    if options.only_for is not None:
        needed = {options.only_for}
        for name in reversed(names):
            if name in needed:
                needed.update(parents_of(recipe.stages[name]))
        names = [name for name in names if name in needed]
    if options.until is not None and options.until in names:
        names = names[: names.index(options.until) + 1]
    if options.from_stage is not None and options.from_stage not in names:
        raise ConfigError(
            f"--from {options.from_stage} and --until {options.until} leave nothing to do: {options.until} comes first in the "
            "recipe. Name a later stage for --until, or leave it out."
        )
    return names


def asked_stages(recipe: RecipeConfig, options: RunOptions, stages: list[str]) -> set[str]:
    """Stages to rerun even if they are finished."""
    if options.force:
        return set(stages)
    asked = {options.from_stage} if options.from_stage is not None else set()
    for name in stages:
        if any(parent in asked for parent in parents_of(recipe.stages[name])):
            asked.add(name)
    return asked


def pending_request(run_dir: Path, request: str) -> str | None:
    """The number of the same request in an earlier run that did not come to its end."""
    try:
        earlier = json.loads((run_dir / REQUEST).read_text(encoding="utf-8"))
        return str(earlier["number"]) if request and earlier["request"] == request else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def new_request() -> str:
    """A number that no request had before."""
    return str(time.time_ns())


def _where(folder: Path) -> str:
    """From where an unfinished stage goes on."""
    steps = [step for path in folder.glob(f"{PREFIX}*") if (step := step_of(path)) is not None]
    return f"unfinished, from step {max(steps)}" if steps else "unfinished, without a checkpoint"
