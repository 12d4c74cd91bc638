"""What a run writes about itself: where everything came from, and how it ended, for machines."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from rlhf.files import sha256
from rlhf.pipeline.archive import events_of
from rlhf.pipeline.artifacts import Artifact
from rlhf.pipeline.kinds import EVALUATION, GATE
from rlhf.training.log import EVENTS, finite, read_jsonl
from rlhf.version import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "peft", "datasets", "numpy", "pydantic", "safetensors")
OUTCOMES = ("win_rate", "win_rate_low", "win_rate_high", "reward_accuracy", "kl", "gold_before", "gold_after")
EVALUATED = ("policy", "baseline", "judge", "verdict", "verdict_title", "verdict_reasons")
"""What an evaluation compared, and what it found, in words."""
GATE_FILE = "gate.json"
"""As in ``rlhf.evaluation.gates.gate_file``, which imports numpy."""
ALARM_FIELDS = ("stage", "step", "message", "guard", "metric", "value", "limit", "action", "false_alarms")


def manifest(run_dir: Path, artifacts: Mapping[str, Artifact], *, launch: Mapping[str, Any]) -> dict[str, Any]:
    """Where everything in a run came from; ``rlhf lineage`` reads it back from any file."""
    code = {name: digest for artifact in artifacts.values() for name, digest in artifact.code.items()}
    listed = "".join(f"{name}={code[name]};" for name in sorted(code))
    return {
        "run": run_dir.name,
        "created": now(),
        "machine": machine(),
        "versions": dict(versions()),
        "launch": dict(launch),
        "recipe": {"file": "recipe.yaml", "sha256": sha256(run_dir / "recipe.yaml")},
        "code": {"rlhf": __version__, "sha256": hashlib.sha256(listed.encode()).hexdigest()[:16]},
        "artifacts": {
            name: {
                "kind": a.kind,
                "key": a.key,
                "parents": dict(a.parents),
                "contents": dict(a.contents),
                "seconds": a.seconds,
                "finished": a.finished,
                "device": a.device,
                "code": dict(a.code),
                "versions": dict(a.versions),
                "files": dict(a.files),
            }
            for name, a in artifacts.items()
        },
    }


def summary(run_dir: Path, artifacts: Mapping[str, Artifact]) -> dict[str, Any]:
    """The outcome for machines; a number that no stage measured is null.

    What stands at the top is that of the run's evaluation. Of several none is the run's: then it is null, and ``evaluations`` says it
    of each, with its policy, baseline and judge.
    """
    evaluated = {name: artifact.metrics for name, artifact in artifacts.items() if artifact.kind == EVALUATION}
    measured = next(iter(evaluated.values())) if len(evaluated) == 1 else {}
    fields: dict[str, Any] = finite(
        {
            "run": run_dir.name,
            **{name: measured.get(name) for name in OUTCOMES},
            "evaluations": {
                name: {key: metrics.get(key) for key in (*EVALUATED, *OUTCOMES)} for name, metrics in evaluated.items()
            },
            "gates": [_gate(run_dir / name, a) for name, a in artifacts.items() if a.kind == GATE],
            "alarms": [{k: e[k] for k in ALARM_FIELDS if k in e} for e in alarms(run_dir, artifacts)],
            "stages": {
                name: {"kind": a.kind, "seconds": a.seconds, "headline": a.headline, "metrics": dict(a.metrics)}
                for name, a in artifacts.items()
            },
        }
    )
    return fields


def _gate(folder: Path, artifact: Artifact) -> dict[str, Any]:
    """What a gate decided; its gate.json has the measurements, too."""
    try:
        evidence = json.loads((folder / GATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        evidence = {}
    return {
        "stage": artifact.stage,
        "candidate": (evidence.get("candidate") or {}).get("name"),
        "alias": evidence.get("alias"),
        "registry": evidence.get("registry"),
        "champion_before": artifact.metrics.get("champion_before"),
        "decision": artifact.metrics.get("decision"),
        "reason": evidence.get("reason"),
        "promoted": artifact.metrics.get("promoted"),
        "version": artifact.metrics.get("version"),
        "requirements": [
            {"name": name, **{key: ruling.get(key) for key in ("decision", "reason", "evidence")}}
            for name, ruling in (evidence.get("rulings") or {}).items()
        ],
        "evidence": {"file": f"{artifact.stage}/{GATE_FILE}", "sha256": artifact.files.get(GATE_FILE)},
    }


def alarms(run_dir: Path, stages: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Alarms of what is there now; those of attempts with other settings are history."""
    events = read_jsonl(run_dir / EVENTS)
    return [e for stage in stages for e in events_of(events, stage) if e.get("event") == "alarm"]


def now() -> str:
    """UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def machine() -> dict[str, Any]:
    """What the run ran on."""
    import torch  # seconds, which those who only look at a run should not wait for

    from rlhf.models.device import describe_device, model_device

    described: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": sys.version.split()[0],
        "device": describe_device(model_device()),
    }
    if torch.cuda.is_available():
        described["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return described


@cache
def versions() -> Mapping[str, str]:
    """Installed versions of the packages that decide results."""
    return {"rlhf": __version__, **{name: metadata.version(name) for name in PACKAGES}}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
