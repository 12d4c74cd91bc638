"""The loop from Python with models passed in: fine-tune, train judges, optimize the policy, save what came of it.

    from rlhf import RLHFOrchestrator
    loop = RLHFOrchestrator("./my-model", output_dir="runs/mine")
    loop.run_sft("sft.jsonl")
    loop.run_reward_model_training("pairs.jsonl")
    loop.run_policy_optimization("prompts.jsonl", method="grpo")
    loop.save_models("models")

With ``suites=`` every trained policy is asked these before it is used: one that lost more than their margins is left aside, later stages
go on from the champion before it, and ``decisions`` says why. ``rollback()`` takes back one that passed.

Every call runs one more stage of an ordinary recipe (``rlhf.pipeline.run.Pipeline``): lineage, resume and report are those of
``rlhf run``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from rlhf.config.methods import method as find_method
from rlhf.config.model import AUTO
from rlhf.config.recipe import RecipeConfig, stage_references
from rlhf.config.requirements import Requirement
from rlhf.config.stages import BY_KIND, JUDGE_KINDS, POLICY_KINDS
from rlhf.errors import ConfigError, RLHFError, kind_of, text_of
from rlhf.evaluation.suites.suite import load_suite
from rlhf.models.reference import ReferenceModel
from rlhf.models.scalar_model import PROCESS_SETTINGS_FILE
from rlhf.models.sources import model_source
from rlhf.pipeline.artifacts import STAGE_INPUT
from rlhf.pipeline.kinds import GATE
from rlhf.pipeline.staged_run import FinishedStage, StagedRun, copy_model, functions_named
from rlhf.pipeline.validate import check_quickly
from rlhf.registry.history import Event
from rlhf.registry.registry import CHAMPION, DEFAULT, Registry

HANDED_OVER = "handed_over"
"""Folder inside a run folder: models that were given in memory."""


class TrainingStage(StrEnum):
    """Where a pipeline stands."""

    NOT_STARTED = "not_started"
    SFT = "sft"
    REWARD_MODEL = "reward_model"
    PROCESS_REWARD_MODEL = "process_reward_model"
    POLICY_OPTIMIZATION = "policy_optimization"

    @classmethod
    def of_kind(cls, kind: str) -> TrainingStage | None:
        """That of a kind of stage, such as ``ppo``; None for kinds that train nothing."""
        if kind in JUDGE_KINDS:
            return cls.PROCESS_REWARD_MODEL if kind == "prm" else cls.REWARD_MODEL
        if kind in POLICY_KINDS and kind != GATE:
            return cls.SFT if kind == "sft" else cls.POLICY_OPTIMIZATION
        return None


ROLES = {
    TrainingStage.SFT: "sft",
    TrainingStage.REWARD_MODEL: "reward_model",
    TrainingStage.PROCESS_REWARD_MODEL: "process_reward_model",
    TrainingStage.POLICY_OPTIMIZATION: "policy",
}
"""What ``save_models`` calls the folder of each stage's model."""


@runtime_checkable
class SaveableModel(Protocol):
    """A model in memory, such as ``PolicyModel`` or ``RewardModel``."""

    def fingerprint(self) -> str:
        """Another one for any other weights."""
        ...

    def save_pretrained(self, folder: Path | str, *, card: Mapping[str, Any] | None = None) -> Path:
        """Write a folder that can be loaded."""
        ...


ModelSource = str | Path | SaveableModel | ReferenceModel
"""A folder, a hub name, or a model in memory."""


class RLHFOrchestrator(StagedRun):
    """Runs each stage of the loop, or all of them, in one run folder.

    A model is given as a folder, a hub name or an object in memory (``PolicyModel``, ``RewardModel``, ``ProcessRewardModel``,
    ``ReferenceModel``); an object is saved below the run folder under the hash of its weights. Each stage starts from the newest
    fine-tuned model unless ``model=`` is given. ``settings`` are keys of the stage (``rlhf config schema KIND``).

    Args:
        model: Where training starts.
        output_dir: The run folder; what another process finished there is known.
        seed: Seeds everything.
        device: Where models are, as in a recipe: ``cpu``, ``cuda``, ``cuda:N`` or ``auto``.
        quiet: Print nothing.
        suites: Capability suites (bundled names, YAML files, settings) that every policy is asked before and after a stage that trains it.
        require: Further requirements of a gate, such as ``Better(metric="win_rate")``, or as a recipe has them; both make a stage
            ``NAME_gate`` behind each such stage.
        on_regression: What a policy that fails leads to: ``rollback``, later stages go on from the champion; or ``stop``.
        gate: Further keys of the stage ``gate``, such as ``prompts`` and ``judge``.

    Raises:
        ConfigError: The run folder holds a recipe that this version can't read, the model is neither folder nor object, or the gate
            that suites and requirements make can't be: a wrong key, a metric without what it needs, no suite of that name.
        RLHFError: What a run would refuse the gate with, such as a file of prompts that is not there.
    """

    def __init__(
        self,
        model: ModelSource,
        *,
        output_dir: str | Path = "runs/rlhf",
        seed: int = 0,
        device: str = AUTO,
        quiet: bool = False,
        suites: Sequence[Any] = (),
        require: Sequence[Requirement | Mapping[str, Any] | str] = (),
        on_regression: Literal["rollback", "stop"] = "rollback",
        gate: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(output_dir, seed=seed, device=device, quiet=quiet)
        self.model = self._source(model, "model")
        asked = [suite if isinstance(suite, Mapping) else str(suite) for suite in suites]
        given = [each.model_dump(mode="json") if isinstance(each, Requirement) else each for each in require]
        self.require = [*({"kind": "non_inferior", "suite": suite} for suite in asked), *given]
        self.gate = {"on_fail": on_regression, **(gate or {})}
        self.registry = Registry(self.gate.setdefault("registry", str(self.run_dir / DEFAULT)))
        """Its champion is the newest policy that lost nothing; the first one is the model that training starts from."""
        self._newest: dict[str, str] = {}
        self._versions: dict[str, int] = {}  # of the registry, by role: what the gate left
        self._checked: Any = None
        self._check_gate()
        self._running: TrainingStage | None = None
        for record in self.history:
            self._remember(record)

    @property
    def models(self) -> dict[str, str]:
        """``sft``, ``reward_model``, ``process_reward_model``, ``policy``: the newest of each, as ``stage:NAME`` or a folder.

        Where a version was rolled back, by whomever, the champion stands in its place.
        """
        gone = self._rolled_back() if self._versions else set()
        return {
            role: str(self.registry.path(self._alias)) if self._versions.get(role) in gone else source
            for role, source in self._newest.items()
        }

    @property
    def stage(self) -> TrainingStage:
        """The stage that is running, else the one that was finished last."""
        if self._running is not None:
            return self._running
        finished = [TrainingStage.of_kind(record.kind) for record in self.history]
        return next((stage for stage in reversed(finished) if stage is not None), TrainingStage.NOT_STARTED)

    def run_sft(self, data: str | Path, *, model: ModelSource | None = None, **settings: Any) -> FinishedStage:
        """Fine-tune on demonstrations.

        Args:
            data: File of rows, or a hub name.
            model: Where to start; the orchestrator's by default.
            settings: Keys of the stage ``sft``.

        Returns:
            The stage's record; ``metrics`` are numbers, ``headline`` is a line.
        """
        start = self.model if model is None else self._source(model, "model")
        return self._train("sft", {"kind": "sft", "model": start, "data": str(data), **settings})

    def run_reward_model_training(
        self, data: str | Path, *, model: ModelSource | None = None, **settings: Any
    ) -> FinishedStage:
        """Train a reward model on preference pairs, or on what ``loss=`` learns from; arguments as ``run_sft``'s."""
        return self._train("reward", {"kind": "reward", "model": self._start(model), "data": str(data), **settings})

    def run_process_reward_model_training(
        self, data: str | Path, *, model: ModelSource | None = None, **settings: Any
    ) -> FinishedStage:
        """Train a judge of each step on labeled steps; arguments as ``run_sft``'s."""
        return self._train("prm", {"kind": "prm", "model": self._start(model), "data": str(data), **settings})

    def run_policy_optimization(
        self,
        data: str | Path,
        *,
        method: str = "ppo",
        model: ModelSource | None = None,
        reward: Any = None,
        reference: ModelSource | None = None,
        **settings: Any,
    ) -> FinishedStage:
        """Train the policy by any method of ``rlhf methods`` that leaves one.

        Args:
            data: Prompts for methods that sample; pairs or labeled completions for those that learn from a file.
            method: Such as ``ppo``, ``grpo``, ``dpo`` or ``ipo``; also names the stage.
            model: Where to start.
            reward: Who judges what is sampled: a model, or whatever a recipe's ``reward`` takes; by default the newest reward
                model, else the newest process reward model.
            reference: What the policy is held to; by default made from the policy as it starts.
            settings: Keys of the stage.

        Raises:
            UnknownNameError: No method has that name.
            ConfigError: It leaves no policy, needs a reward and there is none, or has no reference.
        """
        entry = find_method(method)
        fields = BY_KIND[entry.kind].model_fields
        if entry.kind not in POLICY_KINDS:
            raise ConfigError(f"method {method!r} trains no policy; see `rlhf methods` for those that do.")
        tree: dict[str, Any] = {"kind": entry.kind, **entry.settings, "model": self._start(model)}
        tree["prompts" if "prompts" in fields else "data"] = str(data)
        if "reward" in fields:
            judges = self._rewards(reward, required="environment" not in settings)
            tree |= {"reward": judges} if judges is not None else {}
        elif reward is not None:
            raise ConfigError(f"method {method!r} learns from rows and takes no reward=.")
        if reference is not None:
            if "reference" not in fields:
                raise ConfigError(f"method {method!r} has no reference model; leave reference= out.")
            tree["reference"] = self._source(reference, "reference")
        return self._train(method, {**tree, **settings})

    def run_full_pipeline(
        self,
        *,
        sft_data: str | Path | None = None,
        reward_data: str | Path | None = None,
        step_data: str | Path | None = None,
        policy_data: str | Path | None = None,
        method: str = "ppo",
        settings: Mapping[TrainingStage | str, Mapping[str, Any]] | None = None,
    ) -> dict[TrainingStage, FinishedStage]:
        """Run the stages that data was given for, one after the other, the policy last.

        Args:
            sft_data: Demonstrations.
            reward_data: Preference pairs.
            step_data: Labeled steps, for a process reward model.
            policy_data: As ``data`` of ``run_policy_optimization``; by default ``reward_data``, whose prompts are asked.
            method: Of the policy optimization.
            settings: Keys of a stage by ``TrainingStage``; those of the policy may hold ``reward`` and ``reference``.

        Returns:
            Each stage's record.
        """
        policy_data = policy_data if policy_data is not None else reward_data
        if policy_data is None:
            raise ConfigError("run_full_pipeline needs policy_data=, or reward_data= whose prompts can be asked.")
        given = {TrainingStage(stage): dict(keys) for stage, keys in (settings or {}).items()}
        calls: list[tuple[TrainingStage, Any, str | Path | None]] = [
            (TrainingStage.SFT, self.run_sft, sft_data),
            (TrainingStage.REWARD_MODEL, self.run_reward_model_training, reward_data),
            (TrainingStage.PROCESS_REWARD_MODEL, self.run_process_reward_model_training, step_data),
        ]
        if "prompts" not in BY_KIND[find_method(method).kind].model_fields and policy_data == reward_data:
            del calls[1]  # what learns from the pairs themselves needs no judge of them
        records = {stage: call(data, **given.get(stage, {})) for stage, call, data in calls if data is not None}
        last = TrainingStage.POLICY_OPTIMIZATION
        records[last] = self.run_policy_optimization(policy_data, method=method, **given.get(last, {}))
        return records

    def save_models(self, folder: str | Path) -> dict[str, Path]:
        """Copy the newest model of each kind to ``folder/ROLE``; what was there is replaced.

        Returns:
            Role (``sft``, ``reward_model``, ``process_reward_model``, ``policy``) to folder.

        Raises:
            ConfigError: There is no model yet.
        """
        if not self._newest:
            raise ConfigError("save_models has nothing to save: no stage is finished and no model was loaded.")
        saved = {}
        for role in self._newest:
            saved[role] = copy_model(self.folder_of(role), Path(folder) / role)
        return saved

    def load_models(self, folder: str | Path) -> dict[str, Path]:
        """Use the models that ``save_models`` wrote: later stages start from them and are judged by them.

        Returns:
            Role to folder, of those that are there.

        Raises:
            ConfigError: There is none.
        """
        models = {role: Path(folder) / role for role in ROLES.values() if (Path(folder) / role).is_dir()}
        if not models:
            raise ConfigError(f"{folder} holds no model: expected a folder {', '.join(ROLES.values())} in it.")
        for role, path in models.items():
            self._newest[role] = str(path)
            self._versions.pop(role, None)
        return models

    def rollback(self, *, to: int | None = None, reason: str = "") -> Path:
        """Take back the newest policy that a gate promoted: it is no longer the champion, and no later stage starts from it.

        Args:
            to: A version of the registry; by default what the champion was before.
            reason: For people; it stands in ``decisions``.

        Returns:
            The folder of the champion now, which ``models`` and ``folder_of`` name in place of what was taken back.

        Raises:
            ModelError: There is no such version, or it is damaged; then nothing is changed.
        """
        self.registry.rollback(self._alias, to=to, reason=reason)
        return self.registry.path(self._alias)

    def folder_of(self, role: str) -> Path:
        """Where a model of ``models`` lies, for ``PolicyModel.from_pretrained`` and the like."""
        source = self.models[role]
        return self.run_dir / source.removeprefix("stage:") / "model" if source.startswith("stage:") else Path(source)

    @property
    def decisions(self) -> list[Event]:
        """What became of each policy: promoted or refused, why, and the file with the evidence; oldest first."""
        return self.registry.history()

    def _gate_of(self, candidate: str) -> dict[str, Any]:
        return {**self.gate, "kind": GATE, "candidate": candidate, "require": self.require}

    def _check_gate(self) -> None:
        """Refuse before anything trains what the gate behind it would be refused for."""
        asked = (list(self.require), dict(self.gate))
        if not self.require or asked == self._checked:
            return
        tree = functions_named(self._gate_of(self.model))
        gate: Any = BY_KIND[GATE].of(tree, source=type(self).__name__)
        if not any(stage_references(gate)):  # what other stages write is not there yet
            recipe = {"name": GATE, "output_dir": str(self.run_dir), "stages": {GATE: tree}}
            check_quickly(RecipeConfig.of(recipe, source=type(self).__name__))
            for suite in gate.suites:
                load_suite(suite)
        self._checked = asked

    @property
    def _alias(self) -> str:
        return str(self.gate.get("alias", CHAMPION))

    def _rolled_back(self) -> set[int]:
        """Versions that a rollback passed over, unless they were promoted or rolled back to since."""
        gone: set[int] = set()
        for event in self.registry.history(self._alias):
            if event.action == "rollback" and event.previous is not None and event.version is not None:
                gone |= set(range(event.version + 1, event.previous + 1))
            if event.action != "refuse" and event.version is not None:
                gone.discard(event.version)
        return gone

    def _train(self, name: str, tree: dict[str, Any]) -> FinishedStage:
        gated = bool(self.require) and tree["kind"] in POLICY_KINDS
        self._check_gate()
        if gated and self.registry.current() is None:
            self.registry.promote(model_source(self.model), reason="Where training starts.")
        self._running = TrainingStage.of_kind(tree["kind"])
        try:
            record = self.run_stage(name, tree)
        except RLHFError as err:
            if gated:
                self.registry.refuse(self.run_dir / name, reason=f"error: {text_of(err)}")
            raise
        finally:
            self._running = None
        if gated:
            self._remember(self.run_stage(f"{name}_{GATE}", self._gate_of(f"{STAGE_INPUT}{name}")))
        else:
            self._remember(record)
        return record

    def _remember(self, record: FinishedStage) -> None:
        """A policy that is to be gated counts when its gate has decided, and then it is the one that the gate left."""
        kind = record.kind
        if kind == GATE:
            candidate = str(((record.settings or {}).get("candidate") or {}).get("path")).removeprefix(STAGE_INPUT)
            kind = (self.stages.get(candidate) or {}).get("kind", "")
        elif self.require and kind in POLICY_KINDS:
            return
        if (stage := TrainingStage.of_kind(kind)) is not None:
            role, version = ROLES[stage], record.metrics.get("version") if record.kind == GATE else None
            self._newest[role] = f"{STAGE_INPUT}{record.stage}"
            self._versions.pop(role, None)
            if isinstance(version, int):
                self._versions[role] = version

    def _start(self, model: ModelSource | None) -> str:
        if model is not None:
            return self._source(model, "model")
        loaded = self._newest.get("policy", "stage:")
        return self.models.get("sft") or (loaded if not loaded.startswith("stage:") else self.model)

    def _rewards(self, reward: Any, *, required: bool) -> Any:
        """Settings of the reward; None where there need not be one."""
        if isinstance(reward, SaveableModel):
            reward = self._source(reward, "reward")
            return {"kind": "process", "source": reward} if (Path(reward) / PROCESS_SETTINGS_FILE).is_file() else reward
        if reward is not None:
            return str(reward) if isinstance(reward, Path) else reward
        if "reward_model" in self.models:
            return self.models["reward_model"]
        if "process_reward_model" in self.models:
            return {"kind": "process", "source": self.models["process_reward_model"]}
        if required:
            raise ConfigError("This method needs a reward: call run_reward_model_training first, or give reward=... .")
        return None

    def _source(self, model: object, argument: str) -> str:
        """The folder or hub name of a model; one in memory is saved first."""
        if isinstance(model, ReferenceModel):
            model = model.copy
        if isinstance(model, str | Path):
            return str(model)
        if not isinstance(model, SaveableModel):
            raise ConfigError(
                f"{argument} is {kind_of(model)}; expected a folder, a hub name or a model such as PolicyModel(model, tokenizer)."
            )
        folder = self.run_dir / HANDED_OVER / f"{type(model).__name__}-{model.fingerprint()[:16]}"
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            model.save_pretrained(folder)
        return str(folder.resolve())
