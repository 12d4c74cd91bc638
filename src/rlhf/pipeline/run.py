"""Runs a recipe: stage after stage, each skipped where its artifact is already what the recipe asks for."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from rlhf.config.base import Names, named_things
from rlhf.config.recipe import RecipeConfig
from rlhf.config.stage_inputs import PolicyStage
from rlhf.config.stage_union import Stage
from rlhf.config.threads import check_threads
from rlhf.config.yaml_text import yaml_of
from rlhf.data.tokenization import lost_fields_allowed
from rlhf.distributed.ranks import current_ranks
from rlhf.errors import CheckpointError, ConfigError, DataError, InterruptedRun, RLHFError, check_type, text_of
from rlhf.files import sha256, storage_errors, write_json, write_text
from rlhf.models.device import describe_device, model_device, placed_on
from rlhf.pipeline import archive
from rlhf.pipeline.actors import actors_of
from rlhf.pipeline.archive import events_of
from rlhf.pipeline.artifacts import STARTED, Artifact, Started, content_hash, plain_numbers, stage_files
from rlhf.pipeline.judge_certificates import uncertified_judges
from rlhf.pipeline.kinds import UNCERTIFIED
from rlhf.pipeline.leakage import INDEPENDENCE
from rlhf.pipeline.lock import locked
from rlhf.pipeline.manifest import machine as machine
from rlhf.pipeline.manifest import manifest, now, summary
from rlhf.pipeline.manifest import versions as versions
from rlhf.pipeline.memory import memory_errors
from rlhf.pipeline.plan import REQUEST, Action, PlannedStage, Planner, RunOptions, parents_of
from rlhf.pipeline.provenance import inputs_by_name, local_inputs
from rlhf.pipeline.recipe_over_ranks import check_recipe, check_stages, follow, not_started
from rlhf.pipeline.report import FILE_NAME, write_report
from rlhf.pipeline.stages import StageContext, StageOutcome, runner
from rlhf.pipeline.trace_lists import keep_trace_lists
from rlhf.pipeline.validate.independence import find_leakage, find_shared_judge
from rlhf.pipeline.validate.seen_prompts import count_seen_prompts
from rlhf.rewards.in_memory import is_in_memory, warning_about
from rlhf.training.checkpoint_names import PREFIX, step_of
from rlhf.training.interrupt import StopRequest, signals_as_requests
from rlhf.training.log import EVENTS, TrainingLogger, finite, read_jsonl
from rlhf.training.profile import profile_table, profiled

logger = logging.getLogger(__name__)

WRITTEN = ("recipe.yaml", "manifest.json", "summary.json", FILE_NAME)
"""Besides the stages' folders."""


class Pipeline:
    """A recipe and its run folder.

    Args:
        recipe: What to run.
        console: Where people look; None is silent.
    """

    def __init__(self, recipe: RecipeConfig, *, console: Console | None = None) -> None:
        check_type(
            recipe,
            RecipeConfig,
            name="recipe",
            expected="a RecipeConfig; rlhf.config.recipe.load_recipe(file) reads one",
        )
        self.recipe = recipe
        self.run_dir = Path(recipe.output_dir) / recipe.name
        self.ranks = current_ranks()
        self.log = TrainingLogger(self.run_dir, console=console)
        self._signals = StopRequest(at_once=True)
        self._profiles = False
        self.has_trained = False
        """Whether a training stage was measured."""
        self._profile: list[str] = []
        """Of the newest stage, for people."""
        self.artifacts: dict[str, Artifact] = {}
        """Stages that are there, as the recipe asks for them or (``until``, ``only_for``) as they were left."""

    def plan(self, **options: Any) -> list[PlannedStage]:
        """What ``run`` with the same options (see ``RunOptions``) would do with each stage, and why; changes nothing."""
        return Planner(self.recipe, self.run_dir, RunOptions(**options)).plan()

    def run(self, **options: Any) -> dict[str, Any]:
        """Run every stage that is not there yet, write manifest, summary and report.

        Args:
            options: See ``RunOptions``.

        Returns:
            The summary; nothing on ranks other than 0.

        Raises:
            ConfigError: The recipe's device is not there, it wants more threads than can be started, or what several ranks can't do.
            RunBusyError: Another live process has the run folder.
            StorageError: It can't be written, or the disk is full.
            MemoryLimitError: A stage ran out of memory.
            InterruptedRun: Somebody asked it to stop; the same call goes on from there.
        """
        chosen = RunOptions(**options)
        self._profiles = chosen.profile
        check_threads(self.recipe.threads)
        if self.recipe.threads is not None:
            torch.set_num_threads(self.recipe.threads)
        with (
            placed_on(self.recipe.device),  # first: a missing device is reported before anything is written
            storage_errors(self.run_dir),
            signals_as_requests(at_once=True) as self._signals,
        ):
            check_recipe(self.recipe, self.run_dir, self.ranks, until=chosen.until)
            if not self.ranks.is_main:
                with actors_of(self.recipe, ()):  # which rank 0 asks for all
                    follow(self.recipe, self.run_dir, self.ranks)
                return {}
            self._make_folder()
            with locked(self.run_dir):
                done = self._run(chosen)
            self.ranks.order(None)
            return done

    def _make_folder(self) -> None:
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(
                f"{self.run_dir} can't be the run's folder, because it or a folder above it is a file; "
                "give another output_dir= or name=."
            ) from None

    def _run(self, options: RunOptions) -> dict[str, Any]:
        archive.settle(self.run_dir)
        for name in self.recipe.stages:
            if Artifact.read(self.run_dir / name) is not None and (self.run_dir / name / STARTED).exists():
                self._clear(name)  # killed right after it was finished
        planner = Planner(self.recipe, self.run_dir, options)
        plans = planner.plan()
        recipe = yaml_of(self.recipe.model_dump(mode="json"))
        if all(plan.action is Action.KEPT for plan in plans) and self._is_up_to_date(recipe):
            return self._nothing_to_do(plans, brief=options.brief)
        self._announce(plans, brief=options.brief)
        if (told := not_started(self.recipe, self.ranks)) is not None:
            self.log.say(escape(told))
        undone = [plan.name for plan in plans if not plan.is_there]
        check_stages(self.recipe, undone, self.ranks)
        with actors_of(
            self.recipe, undone
        ):  # first: pools that can't be placed are reported before anything is written
            if options.request:
                write_json(self.run_dir / REQUEST, {"request": options.request, "number": planner.request})
            write_text(self.run_dir / "recipe.yaml", recipe)
            try:
                self._do_all(planner, plans, brief=options.brief)
            except KeyboardInterrupt:  # who presses Ctrl-C twice does not wait for a page
                raise
            except BaseException as err:
                self._report_failure(err)
                raise
        (self.run_dir / REQUEST).unlink(missing_ok=True)
        report = write_report(self.run_dir)
        self._say_where(report, only=plans[-1].name if options.brief else None)
        return summary(self.run_dir, self.artifacts)

    def _do_all(self, planner: Planner, plans: Sequence[PlannedStage], *, brief: bool) -> None:
        for foreseen in plans:
            plan = planner.settle(foreseen)
            if plan.line != foreseen.line and plan.action is not foreseen.action:
                self.log.say(escape(plan.line))
            self.artifacts[plan.name] = self._do(plan, brief=brief)
            planner.take(plan.name, self.artifacts[plan.name].key, self.artifacts[plan.name])
            self._tell(of=planner.stages)

    def _report_failure(self, err: BaseException) -> None:
        """A page that names what failed, and where, noted on the error; whatever goes wrong with it must not hide the failure itself."""
        try:
            err.add_note(f"Report: {write_report(self.run_dir)}")
        except Exception:
            logger.debug("No report of the failed run could be written", exc_info=True)

    def _is_up_to_date(self, recipe: str) -> bool:
        """Whether recipe, manifest, summary and report are there and say what they would say."""
        if not all((self.run_dir / name).is_file() for name in WRITTEN):
            return False
        return (self.run_dir / "recipe.yaml").read_text(encoding="utf-8", errors="replace") == recipe

    def _nothing_to_do(self, plans: list[PlannedStage], *, brief: bool) -> dict[str, Any]:
        for plan in plans:
            assert plan.artifact is not None
            self.artifacts[plan.name] = plan.artifact
            if brief and plan is not plans[-1]:
                continue
            self._line(plan.name, plan.artifact.headline, "; ".join((str(plan.action), *plan.reasons)))
        self._add_others(but=[plan.name for plan in plans])
        (self.run_dir / REQUEST).unlink(missing_ok=True)
        if not brief:
            count = f"all {len(plans)} stages are" if len(plans) > 1 else f"{plans[0].name} is"
            self.log.say(f"Nothing to do: {count} as the recipe asks.")
            self._say_where(self.run_dir / FILE_NAME)
        return summary(self.run_dir, self.artifacts)

    def _announce(self, plans: list[PlannedStage], *, brief: bool) -> None:
        for plan in plans:
            if not brief or plan.action is not Action.KEPT:
                self.log.say(escape(plan.line))
        if not brief:
            self.log.say("")

    def _do(self, plan: PlannedStage, *, brief: bool) -> Artifact:
        """Keep, bring back or make one stage."""
        if plan.previous is not None:
            archive.bring_back(self.run_dir, plan.previous)
            self.log.for_stage(plan.name).write("stage_back", key=plan.key)
        if plan.artifact is not None:
            if not brief or plan.action is not Action.KEPT:
                self._line(plan.name, plan.artifact.headline, str(plan.action))
            return plan.artifact
        folder = self.run_dir / plan.name
        if plan.action is not Action.ON:
            archive.move_aside(self.run_dir, plan.name)
            if folder.exists():
                raise ConfigError(
                    f"{folder} is a file, and stage {plan.name!r} wants a folder of that name; move the file away, or give the "
                    "stage another name."
                )
            folder.mkdir()
        Started(plan.made_from, plan.contents, plan.asked).write(folder)
        keep_trace_lists(folder, plan.made_from.parents)
        artifact = self._make(plan)
        self._clear(plan.name)
        return artifact

    def _make(self, plan: PlannedStage) -> Artifact:
        stage = self.recipe.stages[plan.name]
        log = self.log.for_stage(plan.name, log_to=getattr(stage, "log_to", ()))
        log.write("stage_start", kind=plan.kind, key=plan.key, action=str(plan.action), reasons=list(plan.reasons))
        began = time.monotonic()
        with self._failures(plan.name, log), memory_errors(plan.name, stage), storage_errors(self.run_dir):
            self._check_parents(plan.name)
            self._warn(plan.name, log)
            outcome = self._outcome(stage, StageContext(plan.name, self.run_dir, log))
            self._signals.check()  # a library that catches everything may have caught what a signal raised
            self._check_inputs(plan)
            folder = self.run_dir / plan.name
            files = stage_files(folder)
            artifact = Artifact(
                stage=plan.name,
                kind=stage.kind,
                key=plan.key,
                seconds=round(time.monotonic() - began, 2),
                headline=outcome.headline,
                metrics=finite(plain_numbers(outcome.metrics)),
                parents=plan.made_from.parents,
                files=files,
                sizes={name: (folder / name).stat().st_size for name in files},
                settings=plan.made_from.settings,
                code=plan.made_from.code,
                contents=plan.contents,
                asked=plan.asked,
                finished=now(),
                versions=versions(),
                device=describe_device(model_device()),
                names=inputs_by_name(stage, plan.made_from.parents),
            )
            artifact.write(folder)
            log.write("stage_end", seconds=artifact.seconds, message=outcome.headline)
        self._line(plan.name, outcome.headline, f"{artifact.seconds:.0f} s")
        for line in self._profile:
            self.log.say(escape(f"  {line}"))
        return artifact

    def _outcome(self, stage: Stage, at: StageContext) -> StageOutcome:
        """Do the work; where that is training and somebody asked, measure where its time goes."""
        with lost_fields_allowed(getattr(stage, "allow_lost_fields", ())):
            return self._outcome_of(stage, at)

    def _outcome_of(self, stage: Stage, at: StageContext) -> StageOutcome:
        self._profile = []
        if stage.trains:
            self.ranks.order({"stage": at.name})
        with self.ranks.naming_failures():
            if not self._profiles or not stage.trains:
                return runner(stage.kind)(stage, at)
            self.has_trained = True
            with profiled(at.folder) as profile:
                outcome = runner(stage.kind)(stage, at)
        self._profile = profile_table(profile.as_dict())
        return outcome

    def _warn(self, name: str, log: TrainingLogger) -> None:
        """Say, and note in the report, what calls a function in memory and where an evaluation measures with what training saw."""
        stage = self.recipe.stages[name]
        said = {event.get("message") for event in events_of(read_jsonl(self.run_dir / EVENTS), name)}
        for _, text, names in named_things(stage):
            if names is Names.FUNCTION and is_in_memory(text) and warning_about(text) not in said:
                log.alarm(warning_about(text))
        if isinstance(stage, PolicyStage) and stage.judge is not None:
            shared = find_shared_judge(self.recipe.stages, stage, run=self.run_dir, runs=self.run_dir.parent)
            if shared.refusal and not stage.allows_shared_judge:
                raise ConfigError(f"stages.{name}.judge: {shared.refusal}")
            if shared.note and shared.note not in said:
                log.write("note", message=shared.note)
                self.log.say(escape(f"  {shared.note}"))
        for judge in uncertified_judges(stage, StageContext(name, self.run_dir, log)):
            log.write(UNCERTIFIED, message=judge.problem, key=judge.key)
            if judge.problem not in said:
                self.log.say(escape(f"  {judge.problem}"))
        if not stage.evaluates:
            return
        seen = find_leakage(
            self.recipe.stages, stage, run=self.run_dir, runs=self.run_dir.parent, count=count_seen_prompts
        )
        write_json(self.run_dir / name / INDEPENDENCE, seen.to_dict())
        for warning in seen.warnings:
            if warning not in said:  # in an attempt that was broken off
                log.alarm(warning)
        for note in seen.notes:
            if note not in said:
                log.write("note", message=note)
                self.log.say(escape(f"  {note}"))

    @contextlib.contextmanager
    def _failures(self, name: str, log: TrainingLogger) -> Iterator[None]:
        """However a stage ends before its end, the log says so, and a user's error says where it happened."""
        try:
            yield
        except BaseException as err:
            stopped = isinstance(err, InterruptedRun | KeyboardInterrupt)
            message = (
                text_of(err) if isinstance(err, RLHFError | InterruptedRun) else f"{type(err).__name__}: {text_of(err)}"
            )
            with contextlib.suppress(OSError):  # the disk may be what is full
                log.write("stage_interrupted" if stopped else "stage_failed", message=message)
            if isinstance(err, InterruptedRun):
                how = "" if "the same command" in message else "; the same command goes on from there"
                err.add_note(f"In stage {name!r} of {self.run_dir}{how}.")
            elif isinstance(err, RLHFError):
                kept = "; the stages that were finished before it are kept" if self.artifacts else ""
                err.add_note(f"In stage {name!r} of {self.run_dir}{kept}.")
            raise

    def _check_parents(self, name: str) -> None:
        """What an earlier stage made must still be what it wrote: training on turned bytes would go unnoticed.

        Raises:
            CheckpointError: Naming the file.
        """
        for parent in parents_of(self.recipe.stages[name]):
            folder = self.run_dir / parent
            for file, digest in self.artifacts[parent].files.items():
                if sha256(folder / file) != digest:
                    raise CheckpointError(
                        f"{folder / file} is not what stage {parent!r} wrote: its sha256 is another. Put the file back, or make it "
                        f"again with --from {parent}."
                    )

    def _check_inputs(self, plan: PlannedStage) -> None:
        """A file that changed while the stage read it would leave a result that nobody could make again.

        Raises:
            DataError: Naming the file.
        """
        for place, path in local_inputs(self.recipe.stages[plan.name]):
            before = plan.made_from.parents.get(place, "")
            if before.rpartition("@")[2] != (content_hash(path) if path.exists() else ""):
                raise DataError(
                    f"{path} was changed while stage {plan.name!r} ran, so its result belongs to neither content and was not "
                    "kept. Give the same command again when the file is whole."
                )

    def _clear(self, name: str) -> None:
        """Remove what only an unfinished stage needs."""
        folder = self.run_dir / name
        archive.remove([path for path in folder.glob(f"{PREFIX}*") if not self._stays(name, path)])
        archive.forget_unfinished(self.run_dir, name)
        (folder / STARTED).unlink(missing_ok=True)

    def _stays(self, name: str, checkpoint: Path) -> bool:
        """Whether a finished stage keeps a checkpoint; its model folder is the result, and it is never resumed."""
        every, step = getattr(self.recipe.stages[name], "keep_every", None), step_of(checkpoint)
        return every is not None and step is not None and step % every == 0

    def _tell(self, *, of: Sequence[str]) -> None:
        """Manifest and summary of what this run has done so far; what it is still to do again is no outcome any more."""
        self._add_others(but=of)
        launch = self.recipe.launch.model_dump(mode="json")
        write_json(self.run_dir / "manifest.json", manifest(self.run_dir, self.artifacts, launch=launch))
        write_json(self.run_dir / "summary.json", summary(self.run_dir, self.artifacts))

    def _add_others(self, *, but: Sequence[str]) -> None:
        """Stages of the recipe that this run does not look at, as they are; all in the order of the recipe."""
        for name in self.recipe.stages:
            if name not in but and (artifact := Artifact.read(self.run_dir / name)) is not None:
                self.artifacts[name] = artifact
        self.artifacts = {name: self.artifacts[name] for name in self.recipe.stages if name in self.artifacts}

    def _say_where(self, report: Path, *, only: str | None = None) -> None:
        """The newest model, and the report; of ``only`` one stage its model, or the report where it has none."""
        names = list(self.recipe.stages) if only is None else [only]
        models = [name for name in names if (self.run_dir / name / "model").is_dir()]
        if models:
            self.log.say(f"[bold]model        [/]{self.run_dir / models[-1] / 'model'}")
        if only is None or not models:
            self.log.say(f"[bold]report       [/]{report}")

    def _line(self, name: str, headline: str, note: str) -> None:
        self.log.say(f"[bold]{name:<12}[/] {escape(headline)} [dim]({note})[/]")
