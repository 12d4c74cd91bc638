"""A problem of a recipe, and the review that collects them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlhf.config.recipe import RecipeConfig
from rlhf.config.stage_union import Stage
from rlhf.data.message_text import counted
from rlhf.errors import ConfigError, DataError, RLHFError
from rlhf.pipeline.leakage import named
from rlhf.pipeline.validate.inputs import written_key

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that will stop a run, or that its owner will wish to have known."""

    stage: str | None
    """None for what belongs to no stage."""
    key: str
    """Of the stage's settings, dotted; empty where no single one is to blame."""
    level: Level
    message: str
    kind: type[RLHFError] = ConfigError
    """The class that the run would have raised; of a warning, what it is about."""
    also: tuple[str, ...] = ()
    """Later stages of which the same is true."""

    @property
    def exit_code(self) -> int:
        """What a run that fails for this reason returns."""
        return self.kind.exit_code

    @property
    def line(self) -> str:
        """Place and message."""
        place = ".".join(part for part in (f"stages.{self.stage}" if self.stage else "", self.key) if part)
        return f"{place}: {self.message}{self.elsewhere}" if place else self.message

    @property
    def elsewhere(self) -> str:
        """The other stages, behind the message."""
        return f" (The same in {named(self.also)}.)" if self.also else ""

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "stage": self.stage,
            "also": list(self.also),
            "key": self.key,
            "level": self.level,
            "message": self.message,
            "error": self.kind.__name__,
            "exit_code": self.exit_code if self.level == "error" else 0,
        }


@dataclass(frozen=True, slots=True)
class Validation:
    """What was found in a recipe."""

    source: str
    """The file, or the recipe's name."""
    num_stages: int
    problems: list[Problem]
    """In the order of stages, errors before warnings; first what belongs to no stage."""
    notes: list[str]
    """Numbers worth knowing, such as how many steps a stage will take."""
    unchecked: list[str]
    """What could not be looked at, and why."""

    @property
    def errors(self) -> list[Problem]:
        """What will stop the run."""
        return [problem for problem in self.problems if problem.level == "error"]

    @property
    def exit_code(self) -> int:
        """That of the first error; 0 if there is none."""
        return self.errors[0].exit_code if self.errors else 0

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return {
            "source": self.source,
            "stages": self.num_stages,
            "errors": len(self.errors),
            "warnings": len(self.problems) - len(self.errors),
            "problems": [problem.to_dict() for problem in self.problems],
            "notes": self.notes,
            "unchecked": self.unchecked,
            "exit_code": self.exit_code,
        }

    def to_text(self) -> str:
        """Problems by stage, then the numbers, then one line that sums up."""
        lines: list[str] = []
        stage: str | None = ""
        for problem in self.problems:
            if problem.stage != stage:
                stage = problem.stage
                lines.append(f"{stage}:" if stage is not None else "recipe:")
            key = f"{problem.key}: " if problem.key else ""
            lines.append(f"  {problem.level:<7}  {key}{problem.message}{problem.elsewhere}")
        lines += self.notes
        return "\n".join([*lines, self._summary()])

    def _summary(self) -> str:
        num_errors = len(self.errors)
        num_warnings = len(self.problems) - num_errors
        counts = [counted(num, what) for num, what in ((num_errors, "error"), (num_warnings, "warning")) if num]
        counted_problems = " and ".join(counts) or "nothing wrong found"
        unchecked = f"; not checked: {'; '.join(self.unchecked)}" if self.unchecked else ""
        return f"{self.source}: {counted_problems} ({counted(self.num_stages, 'stage')}{unchecked})"


@dataclass(slots=True)
class Review:
    """Collects what the checks of one recipe find; a check that raises ends itself and no other."""

    recipe: RecipeConfig
    deep: bool = True
    stage: str | None = None
    """The one that is being looked at."""
    order: Sequence[str] = ()
    """Names of all stages, where the recipe holds only those that are valid."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    shared: dict[Any, Any] = field(default_factory=dict)
    """What one check found out and others may use: rows of a file, a model's headers, a tokenizer."""

    @property
    def is_whole(self) -> bool:
        """Whether every stage of the recipe is valid, and so among those that are looked at."""
        return len(self.recipe.stages) >= len(self.order)

    def error(self, key: str, message: str, kind: type[RLHFError] = ConfigError) -> None:
        """Note what will stop the run."""
        self._add(Problem(self.stage, self._written(key), "error", message, kind))

    def warn(self, key: str, message: str, kind: type[RLHFError] = ConfigError) -> None:
        """Note what may be meant so, and probably is not."""
        self._add(Problem(self.stage, self._written(key), "warning", message, kind))

    def note(self, text: str) -> None:
        """Report a number that is useful to the user."""
        self.notes.append(f"{self.stage}: {text}" if self.stage else text)

    def is_wrong(self, key: str) -> bool:
        """Whether there is an error about this key of the stage already."""
        key = self._written(key)
        return any((p.stage, p.key, p.level) == (self.stage, key, "error") for p in self.problems)

    def leave(self, what: str) -> None:
        """Say what was not looked at."""
        if what not in self.unchecked:
            self.unchecked.append(what)

    def each_stage(self) -> Iterator[tuple[str, Stage]]:
        """Every stage in order; inside, complaints are about it."""
        for name, stage in self.recipe.stages.items():
            self.stage = name
            yield name, stage
        self.stage = None

    @contextmanager
    def at(self, key: str, *, otherwise: type[RLHFError] = DataError) -> Iterator[None]:
        """Turn what is raised inside into an error of this key.

        Args:
            key: Of the stage's settings.
            otherwise: The class of an error that is the system's own, such as a file without permission to read.
        """
        try:
            yield
        except RLHFError as err:
            self.error(key, str(err), type(err))
        except OSError as err:
            self.error(key, f"{err.filename or 'A file'} can't be read: {err.strerror or err}.", otherwise)
        except ValueError as err:
            if "null" not in str(err):
                raise
            self.error(key, "The text holds a null character, which no file's name can.", otherwise)

    def sorted_problems(self) -> list[Problem]:
        """In order of stages; within one, errors first. A problem of several stages is reported once, for the first."""
        order = {name: place for place, name in enumerate(self.order or self.recipe.stages)}
        by_text: dict[Problem, Problem] = {}
        for problem in sorted(self.problems, key=lambda p: (-1 if p.stage is None else order[p.stage], p.level)):
            what = replace(problem, stage=None)
            first = by_text.setdefault(what, problem)
            if first is not problem and problem.stage is not None:
                by_text[what] = replace(first, also=(*first.also, problem.stage))
        return list(by_text.values())

    def _written(self, key: str) -> str:
        """A key of this stage as messages name it."""
        stage = self.recipe.stages.get(self.stage) if self.stage is not None else None
        return written_key(stage, key) if stage is not None else key

    def _add(self, problem: Problem) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
