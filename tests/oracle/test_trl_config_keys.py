"""Every field of TRL's configs is answered by `rlhf config convert`, and the defaults that it counts on are TRL's."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rlhf.config.foreign.layouts import TRL

pytestmark = pytest.mark.oracle
CONFIGS = {
    "sft": "SFTConfig", "dpo": "DPOConfig", "kto": "KTOConfig", "reward": "RewardConfig", "grpo": "GRPOConfig", "rloo": "RLOOConfig",
}  # fmt: skip
SET_LATER = {"bf16": True}
"""Fields whose default is null and means this."""


def fields_of(trl: Any, name: str) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(getattr(trl, name))}


@pytest.mark.parametrize("method", CONFIGS)
def test_every_field_has_an_answer(trl, method):
    fields = {**fields_of(trl, CONFIGS[method]), **fields_of(trl, "ModelConfig"), **fields_of(trl, "ScriptArguments")}
    assert not [name for name in fields if TRL.entry(name, method) is None]


@pytest.mark.parametrize("method", CONFIGS)
def test_defaults_are_those_of_the_pinned_version(trl, method):
    fields = {**fields_of(trl, "ModelConfig"), **fields_of(trl, CONFIGS[method])}
    ours = TRL.defaults[method]
    assert {key: SET_LATER.get(key, fields[key]) for key in ours if key in fields} == {
        key: ours[key] for key in ours if key in fields
    }
    assert ours.keys() - fields.keys() <= {"truncation_mode"}, "KTO cuts the end off, and has no key for it"
