"""`rlhf config schema --json` is a JSON Schema that takes what a recipe may hold and refuses what it may not."""

from __future__ import annotations

import json
from functools import cache

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.config.json_schema import ALSO_TAKES, TAKES_NO_MORE, RecipeJsonSchema, json_schema
from rlhf.config.presets import PRESETS, preset
from rlhf.config.recipe import RecipeConfig
from rlhf.config.schema import class_to_describe, stage_classes
from tests.fixtures.source import ROOT

RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
SFT = {"kind": "sft", "model": "embedded", "data": "rows.jsonl"}


@cache
def validator():
    schema = json_schema(RecipeConfig)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def takes(**stage):
    return validator().is_valid({"name": "a", "stages": {"sft": {**SFT, **stage}}})


def test_every_recipe_that_is_shipped_is_valid():
    assert len(RECIPES) > 60
    refused = [path.name for path in RECIPES if not validator().is_valid(yaml.safe_load(path.read_text()))]
    assert not refused


def test_every_preset_written_out_is_valid():
    for name in PRESETS:
        assert validator().is_valid(preset(name, []).model_dump(mode="json")), name


@pytest.mark.parametrize(
    "stage",
    [
        {"learning_rate": "3e-4"},
        {"max_steps": "${STEPS}"},
        {"model": {"path": "embedded", "lora": True}},
        {"data": ["a.jsonl", "b.jsonl"]},
        {"data": {"path": "a.jsonl", "dedup": 0.8, "workers": 4}},
        {"guards": "off"},
        {"allow_lost_fields": ["reasoning"]},
    ],
)
def test_short_forms_are_taken(stage):
    assert takes(**stage)


@pytest.mark.parametrize(
    "stage",
    [
        {"learning_rat": 3e-4},
        {"learning_rate": -1},
        {"learning_rate": "fast"},
        {"kind": "sftt"},
        {"data": None},
        {"data": {"dedup": True}},
        {"model": 3},
        {"truncation": "cut"},
        {"allow_lost_fields": ["thoughts"]},
    ],
)
def test_what_is_wrong_is_refused(stage):
    assert takes()
    assert not takes(**stage)


def test_every_function_that_runs_before_validation_is_listed():
    seen = set()

    class Noting(RecipeJsonSchema):
        def function_before_schema(self, schema):
            seen.add(schema["function"]["function"].__name__)
            return super().function_before_schema(schema)

    RecipeConfig.model_json_schema(schema_generator=Noting)
    assert seen <= ALSO_TAKES.keys() | TAKES_NO_MORE, "add the function to config/json_schema.py, with what it takes"


def test_the_command_prints_it():
    printed = json.loads(CliRunner().invoke(app, ["config", "schema", "--json"]).stdout)
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert printed == json_schema(RecipeConfig)
    for kind in stage_classes():
        Draft202012Validator.check_schema(json_schema(class_to_describe(kind)))
