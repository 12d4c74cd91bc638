"""What tells a model that judges from any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf.files import sha256_once
from rlhf.rewards.pairwise.votes import digest

DECIDING = (
    "*.safetensors",
    "*.bin",
    "config.json",
    "adapter_config.json",
    "tokenizer*.json",
    "*.model",
    "chat_template*",
)
"""Files of a model's folder that decide what it says."""


def model_identity(model: str | Path) -> dict[str, Any]:
    """The content of a folder, which may have any name; of a hub name the name."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return {"model": str(model)}
    files = sorted({file for pattern in DECIDING for file in folder.rglob(pattern) if file.is_file()})
    return {"content": digest({file.relative_to(folder).as_posix(): sha256_once(file) for file in files})}
