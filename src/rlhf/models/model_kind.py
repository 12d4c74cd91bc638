"""What a model folder holds: a language model, or one that gives scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from transformers import AutoConfig

from rlhf.models.checks import ADAPTER_FILE
from rlhf.models.reward import SETTINGS_FILE
from rlhf.models.scalar_model import PROCESS_SETTINGS_FILE
from rlhf.models.sources import hub_options, is_adapter, plain_errors

ModelKind = Literal["policy", "reward", "process_reward"]


def model_kind(source: str) -> ModelKind:
    """The kind of a folder or hub name; `policy` where nothing says otherwise.

    Raises:
        ModelError: Its config can't be read.
    """
    folder = Path(source)
    if (folder / PROCESS_SETTINGS_FILE).is_file():
        return "process_reward"
    if (folder / SETTINGS_FILE).is_file():
        return "reward"
    if is_adapter(source):
        with plain_errors(f"the adapter {source!r}"):
            task = json.loads((folder / ADAPTER_FILE).read_text(encoding="utf-8")).get("task_type")
        return "reward" if task == "SEQ_CLS" else "policy"
    if folder.is_dir() and not (folder / "config.json").is_file():
        return "policy"
    with plain_errors(f"the model {source!r}"):
        config = AutoConfig.from_pretrained(source, **hub_options(source, None))
    is_classifier = any("ForSequenceClassification" in name for name in config.architectures or ())
    return "reward" if is_classifier else "policy"
