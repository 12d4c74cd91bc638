"""docs/data.md: its rows are of the kinds that it says, and its stages take the kinds that it says."""

from __future__ import annotations

import json
import re

import pytest

from rlhf.data.contracts import Kind
from rlhf.data.plans import PLANS
from rlhf.data.row_kinds import parse_row
from tests.fixtures.source import ROOT

TEXT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| (\w+) \| .* \| `(\{.*\})` \|$", TEXT, re.MULTILINE))
TAKEN = {
    "`sft`": ["sft"],
    "`dpo`": ["preference"],
    "`reward`": ["preference", "comparison", "ranking", "rating"],
    "`kto`": ["kto"],
}
"""How the line of a stage begins, and the plans of what it takes."""


def test_every_kind_has_an_example():
    assert set(ROWS) == set(Kind)


@pytest.mark.parametrize("kind", ROWS)
def test_an_example_is_a_row_of_its_kind(kind):
    assert parse_row(json.loads(ROWS[kind])).kind == kind


@pytest.mark.parametrize("stage", TAKEN)
def test_a_stage_takes_what_the_page_says(stage):
    (line,) = (line for line in TEXT.splitlines() if line.startswith(f"| {stage}"))
    said = line.split("|")[2]
    if "the same" in said:
        said += "preference, comparison, ranking"
    accepted = {kind for plan in TAKEN[stage] for kind in PLANS[plan].accepts}
    assert {kind for kind in Kind if re.search(rf"\b{kind}s?\b", said)} == accepted
