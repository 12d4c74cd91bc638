"""docs/context-compression.md: its blocks run, and its row is a row of the stage."""

from __future__ import annotations

import json
import re

import pytest

from rlhf.config.recipe import load_recipe
from rlhf.models.policy import PolicyModel
from tests.fixtures.source import ROOT

PAGE = (ROOT / "docs" / "context-compression.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def my_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PolicyModel.from_pretrained("embedded").save_pretrained("my-model")


@pytest.mark.usefixtures("my_model")
def test_the_python_blocks_run_in_order():
    names: dict = {}
    for block in blocks("python"):
        exec(compile(block, "docs/context-compression.md", "exec"), names)
    assert names["short"] == "A cow eats coal.\n"
    assert names["vectors"].shape == (1, 4, 128)
    assert isinstance(names["answer"], str)
    assert names["same"].num_vectors == 4


def test_the_row_has_the_columns_that_the_world_writes():
    from rlhf.data.world.contexts import context_row

    [row] = [json.loads(block) for block in blocks("json")]
    import random

    assert row.keys() == context_row(random.Random(0), 1).keys() - {"fact"}


def test_the_recipe_is_valid_and_compares_what_the_page_says():
    stages = load_recipe(ROOT / "recipes" / "context_compression.yaml", []).stages
    assert [stage.kind for stage in stages.values()] == ["contexts", "sft", "compressor", "context_compare"]
    assert stages["compressor"].nested
