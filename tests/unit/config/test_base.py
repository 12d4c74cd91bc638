from __future__ import annotations

import math
import textwrap

import pytest
import yaml
from pydantic import TypeAdapter

from rlhf.config.base import SHORT_FORMS, apply_overrides
from rlhf.config.engines import EngineSpec
from rlhf.config.environments import EnvironmentSpec
from rlhf.config.model import ModelConfig
from rlhf.config.policy import PPOConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.config.sft import SFTConfig
from rlhf.config.training_stages import SFTStage
from rlhf.config.yaml_text import parse_yaml, read_yaml, yaml_of
from rlhf.errors import ConfigError


def written(tmp_path, text, name="run.yaml"):
    path = tmp_path / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def test_a_number_without_a_dot_is_a_number_everywhere(tmp_path):
    # YAML 1.1, which PyYAML reads, takes 1e-5 for text; where any value is allowed nothing would turn it back.
    tree = read_yaml(written(tmp_path, "a: 1e-5\nb: -2E+3\nc: {d: [1e3]}\ne: 1e-5s\nf: '1e-5'\ng: 0x1e5\n"))
    assert tree == {"a": 1e-5, "b": -2000.0, "c": {"d": [1000.0]}, "e": "1e-5s", "f": "1e-5", "g": 0x1E5}
    assert apply_overrides({}, ["a=1e-5"]) == {"a": 1e-5}
    assert SFTConfig.of({"learning_rate": "1e-5"}).learning_rate == 1e-5


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("key", ["learning_rate", "max_steps", "betas", "model"])
def test_true_and_false_are_no_numbers(key, given):
    value = {"betas": [given, 0.99], "model": {"path": "m", "lora": {"rank": given}}}.get(key, given)
    with pytest.raises(ConfigError, match=rf"{key}.*number.*true or false"):
        SFTStage.of({"kind": "sft", "model": "m", "data": "d.jsonl", key: value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r"run\.yaml line 3, column 1 is not valid YAML: the key 'a' appears twice"),
        ("a:\n  b: 1\n  b: 2\n", r"line 3, column 3 .* 'b' appears twice"),
        ("a:\n\tb: 1\n", r"line 2, column 1 .*YAML wants spaces, not tabs"),
        ("a: [1, 2\n", r"run\.yaml line 2, column 1 is not valid YAML"),
        ("a: b: c\n", r"line 1, column 5 is not valid YAML: mapping values are not allowed here"),
        (
            "a:\n  b:\n    c: 1\n   d: 2\n",
            r"line 4, column 4 is not valid YAML: `d: 2` is indented by 3 spaces, which fits no level above it; wanted 0, 2 or 4, as",
        ),
        ("a:\n  b: 1\n   c: 2\n", r"line 3, column 5 .*`c: 2` is indented by 3 spaces, .*; wanted 0 or 2, as"),
        ("  a: 1\nb: 2\n", r"line 2, column 1 .*`b: 2` is indented by 0 spaces, .*; wanted 2, as"),
        ("a:\n  - b: 1\n   c: 2\n", r"`c: 2` is indented by 3 spaces, .*; wanted 0, 2 or 4, as"),
        ("a: [1\nb: 2\n", r"expected ',' or '\]'"),
        ("", r"is empty; a recipe needs at least `name:` and `stages:`"),
        ("# nothing\n", "is empty"),
        ("- a\n- b\n", "holds a list; it should hold keys and values"),
        ("just text\n", "holds a str; it should hold keys and values"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_place(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read_yaml(written(tmp_path, text))


def test_a_file_that_is_not_there_is_answered_with_the_nearest(tmp_path):
    written(tmp_path, "a: 1", "quickstart.yaml")
    with pytest.raises(ConfigError, match=r"quickstrat\.yaml.*'quickstart\.yaml'"):
        read_yaml(tmp_path / "quickstrat.yaml")


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="as text"):
        read_yaml(tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match="as text"):
        read_yaml(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("﻿name: x\n", encoding="utf-8")
    assert read_yaml(path) == {"name": "x"}


def test_a_section_may_be_shared_and_changed(tmp_path):
    path = written(tmp_path, "a: &common {x: 1, y: 2}\nb: {<<: *common, y: 3}\n")
    assert read_yaml(path)["b"] == {"x": 1, "y": 3}


def test_overrides_reach_through_sections_and_lists_in_order():
    tree = {"a": {"b": [{"c": 1}, {"c": 2}]}, "keep": 1}
    changed = apply_overrides(tree, ["a.b.1.c=5", "a.b.0=x", "new.deep=[1, two]", "keep=null", "a.d=1", "a.d=2"])
    assert changed == {"a": {"b": ["x", {"c": 5}], "d": 2}, "keep": None, "new": {"deep": [1, "two"]}}
    assert tree == {"a": {"b": [{"c": 1}, {"c": 2}]}, "keep": 1}, "the tree that was given stays as it was"


def test_an_override_reaches_into_a_section_that_was_written_as_one_text():
    tree = {"sft": {"model": "stage:base", "engine": "local"}}
    changed = apply_overrides(tree, ["sft.model.lora.rank=8", "sft.engine.compiled=true"])
    assert changed == {
        "sft": {"model": {"path": "stage:base", "lora": {"rank": 8}}, "engine": {"kind": "local", "compiled": True}}
    }


@pytest.mark.parametrize(
    "items",
    [
        ["model=m", "model.lora.rank=8"],
        ["model.lora.rank=8", "model=m"],
        ["model.lora.rank=8", "model.lora=true", "model=m"],
        ["model=m", "model.lora=true", "model.lora.rank=8"],
        ["model.path=other", "model.lora.rank=8", "model=m"],
    ],
)
def test_a_section_as_one_text_and_its_inside_come_in_any_order(items):
    assert apply_overrides({}, items) == {"model": {"path": "m", "lora": {"rank": 8}}}


def test_a_section_as_one_text_replaces_what_the_file_has():
    assert apply_overrides({"model": {"path": "a", "dtype": "bfloat16"}}, ["model=b"]) == {"model": "b"}
    assert apply_overrides({}, ["model.lora.rank=8", "model=null"]) == {"model": None}


@pytest.mark.parametrize(
    "items",
    [
        ["reward=judge.yaml", "reward.mode=pairwise"],
        ["reward.mode=pairwise", "reward=judge.yaml"],
        ["reward=other.yaml", "reward.mode=pairwise", "reward=judge.yaml"],
        ["reward.kind=learned", "reward.judge=other.yaml", "reward.mode=pairwise", "reward=judge.yaml"],
    ],
)
def test_a_reward_as_one_text_is_a_section_of_the_kind_that_it_stands_for(items):
    assert apply_overrides({}, items) == {"reward": {"kind": "judge", "judge": "judge.yaml", "mode": "pairwise"}}


def test_another_kind_of_reward_takes_nothing_from_the_text_that_it_replaces():
    changed = apply_overrides({"reward": "runs/reward/model"}, ["reward.kind=judge", "reward.judge=judge.yaml"])
    assert changed == {"reward": {"kind": "judge", "judge": "judge.yaml"}}
    weighted = apply_overrides({"reward": "a.b:score"}, ["reward.weight=2"])
    assert weighted == {"reward": {"kind": "function", "function": "a.b:score", "weight": 2}}


def test_true_stands_for_adapters_with_their_defaults():
    assert ModelConfig(path="m", lora=True) == ModelConfig(path="m", lora={})
    assert ModelConfig(path="m", lora=False).lora is None
    with pytest.raises(ConfigError, match="lora"):
        ModelConfig(path="m", lora=8)


@pytest.mark.parametrize(
    ("key", "kind", "text"),
    [
        ("model", ModelConfig, "m"),
        ("engine", EngineSpec, "local"),
        ("environment", EnvironmentSpec, "package.module:make"),
    ],
)
def test_the_short_form_of_a_section_is_read_as_the_long_one_that_overrides_make_of_it(key, kind, text):
    read = TypeAdapter(kind).validate_python
    assert read(text) == read({SHORT_FORMS[key]: text})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("a.b", "is not of the form key.subkey=value"),
        ("=3", "is not of the form key.subkey=value"),
        ("text.b=3", r"'text' holds the value 'words', not a section of keys.*as in text=\{"),
        ("judge.model=m", "'judge.yaml', not a section of keys; change that file, or replace it"),
        ("list.x=3", "'x' is not a place in a list of 2; count from 0"),
        ("list.2=3", "'2' is not a place in a list of 2"),
        ("a=[1", r"The value of override 'a=\[1' line 1, column 3 is not valid YAML"),
        ("a={b: 1, b: 2}", "the key 'b' appears twice"),
    ],
)
def test_an_override_that_fits_nowhere_is_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        apply_overrides({"text": "words", "judge": "judge.yaml", "list": [1, 2]}, [override])


def test_a_changed_copy_is_validated_and_keeps_the_rest():
    config = PPOConfig(clip_low=0.1, kl={"coef": 0.2})
    assert config.updated(gamma=0.9) == PPOConfig(clip_low=0.1, kl={"coef": 0.2}, gamma=0.9)


def test_a_stage_can_be_changed_whose_reward_was_written_as_text():
    stages = {"ppo": {"kind": "ppo", "model": "m", "prompts": "p", "reward": "rules"}}
    stage = RecipeConfig.of({"name": "x", "stages": stages}).stages["ppo"]
    assert stage.updated(seed=5).seed == 5


@pytest.mark.parametrize("text", ["[" * 500_000, "- " * 200_000, "{a: " * 200_000])
def test_a_record_nested_too_deeply_is_an_error_and_no_crash(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_yaml(tmp_path / "recipe.yaml", written_by_us=True)


def test_a_record_is_read_by_the_rules_of_any_yaml_file(tmp_path):
    (tmp_path / "recipe.yaml").write_text("a: 1e-5\nb: 012\nc: 12:30\nd: 2026-01-31\ne: [.inf, -3, null]\n")
    tree = read_yaml(tmp_path / "recipe.yaml", written_by_us=True)
    assert tree == read_yaml(tmp_path / "recipe.yaml")
    assert tree == {"a": 1e-5, "b": 12, "c": "12:30", "d": "2026-01-31", "e": [math.inf, -3, None]}
    (tmp_path / "recipe.yaml").write_text("a: 1\na: 2\n")
    with pytest.raises(ConfigError, match=r"'a'.*twice"):
        read_yaml(tmp_path / "recipe.yaml", written_by_us=True)


ODD_VALUES = {
    "text": ["a: b", "012", "yes", " lead", "two\nlines\n", "Größe 大小 \U0001f469 \x1b \u2028", "word " * 60],
    "numbers": [1e-5, 1.0, -3, True, None],
    "empty": [{}, [], ""],
    "${NAME}": {"stage:sft": "x"},
}


@pytest.mark.parametrize("without_libyaml", [False, True])
def test_what_is_written_as_yaml_is_read_back_and_is_the_same_text_with_and_without_libyaml(
    without_libyaml, monkeypatch
):
    if without_libyaml:
        monkeypatch.delattr(yaml, "CSafeDumper", raising=False)
    text = yaml_of(ODD_VALUES)
    assert parse_yaml(text, "text") == ODD_VALUES
    assert text == yaml.safe_dump(ODD_VALUES, sort_keys=False, allow_unicode=True, width=120)
