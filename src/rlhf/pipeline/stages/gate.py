"""A candidate against the champion: measure, decide, promote or refuse, and leave the champion for what comes behind.

    1. measure and decide         -> gate.json, in one step
    2. promote or refuse          -> a line of the registry's history that holds the hash of gate.json
    3. copy the champion          -> model/

After a kill anywhere the next run goes on: a gate.json that is there is not measured again, and a line with its hash is not written
a second time. What is promoted is what was measured: the candidate's files are hashed before, and compared when they are copied.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf.config.gates import GateStage
from rlhf.errors import GateError, ModelError, UndecidedGateError
from rlhf.evaluation.decision import Decision
from rlhf.evaluation.gates.gate import ONLY_COMPARISONS, decide
from rlhf.evaluation.gates.gate_file import FILE, SCHEMA, read_evidence, sealed
from rlhf.files import write_json
from rlhf.models.folders import write_folder_aside
from rlhf.models.sources import EMBEDDED, embedded_folder
from rlhf.pipeline.evidence import called
from rlhf.pipeline.judge_certificates import check_certified, uncertified_judges
from rlhf.pipeline.manifest import now
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.gate_measurements import Contenders, measure_contenders
from rlhf.pipeline.stages.inputs import load_policy
from rlhf.registry.registry import DEFAULT, AliasMovedError, Registry, content_of

MAX_ATTEMPTS = 3
"""Measurements, where other processes promote in between."""
REGISTRY_FILE = "registry.json"
"""The registry's history as it was after the decision, for the report."""


def run_gate(stage: GateStage, at: StageContext) -> StageOutcome:
    """Decide, carry it out, and leave the champion.

    Raises:
        ConfigError: A judge has no certificate that holds, and nobody allowed that.
        GateError: The candidate failed, and later stages are not to go on; or there is no champion that they could go on from.
        UndecidedGateError: The same where the evidence says too little.
        ModelError: The candidate is no folder, or its files were changed since they were measured.
    """
    check_certified(stage, at)
    registry = Registry(registry_folder(stage, at.run_dir))
    evidence = at.folder / FILE
    document, version = _decided_and_done(stage, at, registry, evidence)
    decision = Decision(document["decision"])
    history = [event.to_dict() for event in registry.history(stage.alias)]
    write_json(at.folder / REGISTRY_FILE, {"folder": str(registry.folder), "alias": stage.alias, "history": history})
    _stop_where_asked(stage, at, decision, document["reason"], champion=version)
    passed = decision is Decision.PASS
    source = Path(document["candidate"]["folder"]) if version is None else registry.path(version)
    with write_folder_aside(at.folder / "model") as aside:
        shutil.copytree(source, aside, dirs_exist_ok=True)
        if version is None and content_of(aside) != document["candidate"]["content"]:
            raise ModelError(
                f"The files of {source} were changed since the gate {at.name} measured them; run it again."
            )
    leaves = called(stage.candidate.path) if passed else f"{stage.alias}, version {version}"
    return StageOutcome(
        f"{decision}, goes on with {leaves}. {document['reason'].removesuffix('.')}",
        {
            "decision": str(decision),
            "promoted": passed and stage.promote,
            "version": version,
            "champion_before": (document["champion"] or {}).get("version"),
            **{f"{name}_decision": ruling["decision"] for name, ruling in document["rulings"].items()},
        },
    )


def _decided_and_done(
    stage: GateStage, at: StageContext, registry: Registry, evidence: Path
) -> tuple[Mapping[str, Any], int | None]:
    """The decision, carried out, and the version it leaves; measured again where another process promoted in between."""
    for attempts_left in reversed(range(MAX_ATTEMPTS)):
        document = _already_decided(stage, at, registry)
        if document is None:
            document = sealed(_decided(stage, at, registry))
            write_json(evidence, document)
        try:
            return document, _carry_out(stage, document, registry, evidence)
        except AliasMovedError as err:
            if not attempts_left:
                raise
            at.log.say(f"Measures again: {err}")
    raise AssertionError("the last attempt returns or raises")


def registry_folder(stage: GateStage, run_dir: Path) -> Path:
    """As the settings say, else next to the folder of runs."""
    return Path(stage.registry).expanduser() if stage.registry is not None else run_dir.parent.parent / DEFAULT


def _already_decided(stage: GateStage, at: StageContext, registry: Registry) -> Mapping[str, Any] | None:
    """What an attempt decided that was killed behind its decision; None where candidate or champion is another one by now."""
    path = at.folder / FILE
    if not path.is_file():
        return None
    document = read_evidence(path)
    event, current = registry.recorded(path, alias=stage.alias), registry.current(stage.alias)
    has_begun_since = event is not None and event.version is None and current is not None  # as the error advised
    if event is not None and not has_begun_since:
        return document
    is_same_champion = (document["champion"] or {}).get("version") == (current.number if current is not None else None)
    is_same_candidate = document["candidate"].get("content") == content_of(_folder_of(stage, at))
    return document if is_same_champion and is_same_candidate else None


def _decided(stage: GateStage, at: StageContext, registry: Registry) -> dict[str, Any]:
    """Measure and decide."""
    seed = seed_of(stage.seed)
    folder = _folder_of(stage, at)
    content = content_of(folder)  # before anything is measured: what is promoted must be the same
    current = registry.current(stage.alias)
    candidate = load_policy(stage.candidate, at, seed=seed)
    champion, about = None, None
    if current is not None:
        registry.verify(current.number)
        path = registry.path(current.number)
        champion = load_policy(stage.candidate.updated(path=str(path), revision=None), at, seed=seed)
        about = {
            "alias": stage.alias,
            "version": current.number,
            "folder": str(path),
            "fingerprint": champion.fingerprint(),
        }
    names = (called(stage.candidate.path), f"{stage.alias} {current.name if current is not None else ''}".strip())
    measured = measure_contenders(stage, at, Contenders(candidate, champion, names), folder)
    decision = decide(stage.require, measured, confidence=stage.confidence)
    return {
        "schema": SCHEMA,
        "id": secrets.token_hex(8),  # the same decision made again is another decision
        "time": now(),
        "run": str(at.run_dir),
        "stage": at.name,
        "candidate": {
            "name": names[0],
            "folder": str(folder),
            "fingerprint": candidate.fingerprint(),
            "content": content,
        },
        "champion": about,
        "registry": str(registry.folder),
        "alias": stage.alias,
        **decision.to_dict(),
        "confidence": stage.confidence,
        "requirements": [each.model_dump(mode="json") for each in stage.require],
        "settings": stage.model_dump(mode="json", exclude={"require", "candidate"}),
        "uncertified_judges": [each.problem for each in uncertified_judges(stage, at)],
        "measurements": measured.to_dict(),
    }


def _folder_of(stage: GateStage, at: StageContext) -> Path:
    source = at.model(stage.candidate).path
    folder = embedded_folder() if source == EMBEDDED else Path(source or "").expanduser()
    if source is None or not folder.is_dir():
        raise ModelError(
            f"stages.{at.name}.candidate is {source}, and a gate promotes folders; save the model to one first."
        )
    return folder


def _carry_out(stage: GateStage, document: Mapping[str, Any], registry: Registry, evidence: Path) -> int | None:
    """The version that the stage leaves; None where that is the candidate itself, or nothing."""
    before = (document["champion"] or {}).get("version")
    passed = document["decision"] == Decision.PASS
    if not stage.promote:
        return None if passed else before
    if (event := registry.recorded(evidence, alias=stage.alias)) is not None:
        return event.version
    reason = f"{document['decision']}: {document['reason']}"
    candidate = document["candidate"]["folder"]
    if not passed:
        registry.refuse(candidate, alias=stage.alias, reason=reason, evidence=evidence)
        return before
    content = document["candidate"]["content"]
    return registry.promote(
        candidate, alias=stage.alias, reason=reason, evidence=evidence, instead_of=before, content=content
    ).number


def _stop_where_asked(
    stage: GateStage, at: StageContext, decision: Decision, reason: str, *, champion: int | None
) -> None:
    if decision is Decision.PASS:
        return
    kind = GateError if decision is Decision.FAIL else UndecidedGateError
    consequence = stage.on_fail if decision is Decision.FAIL else stage.on_undecided
    if consequence == "stop":
        key = "on_fail" if decision is Decision.FAIL else "on_undecided"
        raise kind(f"The gate {at.name} decided {decision}, and {key} is stop. {reason}")
    if champion is None:
        advice = " Promote a first one with `rlhf registry promote MODEL`, or ask less of the first candidate."
        raise kind(
            f"The gate {at.name} decided {decision}, and {stage.alias} names no model yet that later stages could go on from. {reason}"
            f"{'' if reason == ONLY_COMPARISONS else advice}"
        )
