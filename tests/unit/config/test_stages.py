from __future__ import annotations

import subprocess
import sys

import pytest

from rlhf.config.methods import METHODS, OWN_KINDS
from rlhf.config.stages import BY_KIND, FILE_STAGES, JUDGE_KINDS, POLICY_KINDS, STAGE_KINDS, StageEntry
from rlhf.errors import ConfigError

IMPORTED = """
import sys
from rlhf.config.stages import BY_KIND, FILE_STAGES
first = "pydantic" in sys.modules
"world" in FILE_STAGES, "nowhere" in BY_KIND
print(first, *(name for name in ("file_stages", "training_stages", "gates") if f"rlhf.config.{name}" in sys.modules))
"""


def test_a_class_is_imported_for_its_own_kind():
    ran = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True)
    assert ran.stdout.split() == ["False", "file_stages"], ran.stderr


def test_every_line_names_the_class_of_its_kind():
    assert [stage.kind_name() for stage in BY_KIND.values()] == list(STAGE_KINDS)
    assert {*POLICY_KINDS, *JUDGE_KINDS, *FILE_STAGES} == set(BY_KIND)
    assert "sft" in POLICY_KINDS
    assert "reward" not in POLICY_KINDS
    assert None not in FILE_STAGES
    with pytest.raises(KeyError, match="nowhere"):
        BY_KIND["nowhere"]


@pytest.mark.parametrize(
    "settings", ["nowhere:SFTStage", "training_stages:Nowhere", "training_stages:SFTStage", "kl:KLConfig"]
)
def test_a_line_that_names_no_class_of_its_kind_is_named(settings, monkeypatch):
    monkeypatch.setitem(STAGE_KINDS, "other", StageEntry(settings))
    with pytest.raises(ConfigError, match="'other'"):
        BY_KIND["other"]


def test_a_method_declares_a_stage_where_the_table_says_so(monkeypatch):
    monkeypatch.setitem(OWN_KINDS, "ipo", "")
    monkeypatch.delitem(OWN_KINDS, "grpo")
    for name in ("ipo", "grpo"):
        with pytest.raises(ConfigError, match=rf"'{name}'.*OWN_KINDS"):
            METHODS[name]
