"""Which models lie in a run folder, for people who name the folder where they mean a model. Reads records only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf.pipeline.kinds import REWARD_MODEL

RECORD = "artifact.json"


def models_in(run: Path) -> list[tuple[Path, str]]:
    """(folder, kind of its stage) of every model in a run, newest first and policies before reward models."""
    found = []
    for config in run.glob("*/model/*config.json"):
        record = _record(config.parent.parent)
        kind, finished = str(record.get("kind") or "unfinished"), str(record.get("finished") or "")
        found.append((kind != REWARD_MODEL, finished, config.stat().st_mtime_ns, config.parent, kind))
    return list(dict.fromkeys((folder, kind) for *_, folder, kind in sorted(found, reverse=True)))


def where_models_are(run: Path) -> str:
    """``Its models, the newest policy first: A (ppo), B (sft), C (reward).``, or the empty string where there is none."""
    found = [f"{folder} ({kind})" for folder, kind in models_in(run)]
    if len(found) < 2:
        return f"Its model is {found[0]}." if found else ""
    return f"Its models, the newest policy first: {', '.join(found)}."


def _record(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
