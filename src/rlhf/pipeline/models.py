"""Which models lie in a run folder, for people who name the folder where they mean a model. Reads records only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf.errors import ModelError
from rlhf.pipeline.kinds import REWARD_MODEL

RECORD = "artifact.json"
CONFIGS = ("config.json", "adapter_config.json")


def model_in(folder: Path) -> Path | None:
    """The folder itself where it is a model's, or the model of a stage's folder; None where neither is one."""
    for place in (folder, folder / "model"):
        if any((place / name).is_file() for name in CONFIGS):
            return place
    return None


def named_model(text: str) -> str:
    """What people mean by a name on the command line: a model's folder or a stage's; what is neither stays as it is.

    Raises:
        ModelError: It is the folder of a run, which holds several; the message names them.
    """
    folder = Path(text)
    if (model := model_in(folder)) is not None:
        return text if model == folder else os.path.join(text, "model")
    if models := where_models_are(folder):
        raise ModelError(f"{text} is the folder of a run and no model. {models}")
    return text


def models_in(run: Path) -> list[tuple[Path, str]]:
    """(folder, kind of its stage) of every model in a run, newest first and policies before reward models."""
    candidates = []
    for config in run.glob("*/model/*config.json"):
        record = _record(config.parent.parent)
        kind, finished = str(record.get("kind") or "unfinished"), str(record.get("finished") or "")
        candidates.append((kind != REWARD_MODEL, finished, config.stat().st_mtime_ns, config.parent, kind))
    return list(dict.fromkeys((folder, kind) for *_, folder, kind in sorted(candidates, reverse=True)))


def where_models_are(run: Path) -> str:
    """``Its models, the newest policy first: A (ppo), B (sft), C (reward).``, or the empty string where there is none."""
    models = [f"{folder} ({kind})" for folder, kind in models_in(run)]
    if len(models) < 2:
        return f"Its model is {models[0]}." if models else ""
    return f"Its models, the newest policy first: {', '.join(models)}."


def _record(folder: Path) -> Mapping[str, Any]:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
