"""The model that a context compressor was trained for, and whether another one is still the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf.errors import ModelError
from rlhf.models.folders import module_fingerprint
from rlhf.models.policy import PolicyModel
from rlhf.models.score import base_model
from rlhf.models.sources import source_name

MUST_AGREE = {"hidden_size": "hidden size", "tokenizer_sha256": "tokenizer", "weights_sha256": "weights"}


def hidden_size(policy: PolicyModel) -> int:
    """H."""
    return int(base_model(policy.model).config.get_text_config().hidden_size)


def identity_of(policy: PolicyModel) -> dict[str, Any]:
    """What gives vectors their meaning: sizes, token ids, and the very weights."""
    vocabulary = sorted(policy.tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    return {
        "hidden_size": hidden_size(policy),
        "tokenizer_sha256": hashlib.sha256(repr(vocabulary).encode()).hexdigest(),
        "dtype": str(next(policy.model.parameters()).dtype).removeprefix("torch."),
        "weights_sha256": module_fingerprint(policy.model),
    }


def check_same_model(folder: Path, settings: Mapping[str, Any], policy: PolicyModel) -> None:
    """Refuse another model than the one that vectors were learned for.

    Raises:
        ModelError: Naming what differs. Weights in another type are rounded, so they are not compared.
    """
    own = identity_of(policy)
    name = source_name(base_model(policy.model)) or "the model in memory"
    for key, what in MUST_AGREE.items():
        if key == "weights_sha256" and settings.get("dtype") != own["dtype"]:
            continue
        if settings.get(key) != own[key]:
            raise ModelError(
                f"The compressor {folder} was trained for {settings.get('base_model') or 'a model in memory'}, and {name} has another "
                f"{what} ({_short(own[key])} instead of {_short(settings.get(key))}); give that model, or train a compressor for this one."
            )


def _short(value: Any) -> str:
    return str(value)[:12]
