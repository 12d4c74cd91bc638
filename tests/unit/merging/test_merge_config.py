"""mergekit's YAML as people write it, and what of it is refused by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.config.merging import MergeConfig
from rlhf.errors import ConfigError
from rlhf.merging.merge_method import Parameter
from rlhf.merging.parameters import resolved, value_of

# As in mergekit's README and examples folder; names of models are short here.
FILES = {
    "linear": """
models:
  - {model: a, parameters: {weight: 1.0}}
  - {model: b, parameters: {weight: 0.3}}
merge_method: linear
dtype: float16
""",
    "slerp with gradients": """
slices:
  - sources:
      - {model: psmathur/orca_mini_v3_13b, layer_range: [0, 40]}
      - {model: garage-bAInd/Platypus2-13B, layer_range: [0, 40]}
merge_method: slerp
base_model: psmathur/orca_mini_v3_13b
parameters:
  t:
    - {filter: self_attn, value: [0, 0.5, 0.3, 0.7, 1]}
    - {filter: mlp, value: [1, 0.5, 0.7, 0.3, 0]}
    - value: 0.5 # fallback for rest of tensors
dtype: float16
""",
    "ties": """
models:
  - model: psmathur/orca_mini_v3_13b
    parameters: {density: [1, 0.7, 0.1], weight: 1.0}
  - model: WizardLM/WizardMath-13B-V1.0
    parameters:
      density: 0.33
      weight:
        - {filter: mlp, value: 0.5}
        - value: 0
merge_method: ties
base_model: TheBloke/Llama-2-13B-fp16
parameters: {normalize: true, int8_mask: true}
dtype: float16
""",
    "layers of two": """
slices:
  - sources: [{model: a@main, layer_range: [0, 24]}]
  - sources: [{model: b, layer_range: [8, 32]}]
merge_method: passthrough
dtype: bfloat16
""",
    "adapters and tokens": """
models:
  - model: base+lora
    parameters: {weight: 1e-1}
  - model: {model: {path: x, revision: abc}, lora: {path: y}}
    parameters: {weight: 0.5}
merge_method: task_arithmetic
base_model: base
tokenizer:
  source: union
  pad_to_multiple_of: 8
  tokens:
    <|im_start|>: {source: {kind: model_token, model: base, token: <s>}}
    <|im_end|>: {source: base, force: true}
    x: {source: {kind: zero}}
chat_template: auto
out_dtype: torch.bfloat16
""",
    "a module": """
modules:
  default:
    models: [{model: a, parameters: {weight: 1}}]
merge_method: linear
""",
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_mergekit_are_read_and_written_back(name, tmp_path):
    path = tmp_path / "merge.yaml"
    path.write_text(FILES[name], encoding="utf-8")
    config = MergeConfig.read(path)
    assert config.references()
    assert MergeConfig.of(config.model_dump(mode="json", exclude_none=True)) == config


def test_a_model_is_a_path_a_revision_and_an_adapter(tmp_path):
    odd = tmp_path / "a+b@c"
    odd.mkdir()
    tree = {"merge_method": "linear", "models": [{"model": text} for text in ("x@r1+y@r2", str(odd))]}
    first, second = (each.model for each in MergeConfig.of(tree).models or [])
    assert (first.path, first.revision, first.lora, first.lora_revision) == ("x", "r1", "y", "r2")
    assert first.text == "x@r1+y@r2"
    assert (second.path, second.lora) == (str(odd), None)  # a folder that is there is taken by its name


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"slices": []}, None),
        ({"slices": [{"sources": [{"model": "a", "layer_range": [0, 2]}]}]}, "exactly one"),
        ({"models": None}, "exactly one"),
        ({"merge_metod": "x"}, "merge_metod"),
        ({"dtype": "int8"}, "dtype"),
        ({"models": [{"model": "a", "weight": 1}]}, "weight"),
        ({"tokenizer_source": "union", "tokenizer": {"source": "base"}}, "tokenizer_source"),
        ({"tokenizer": {"source": "union", "tokens": {"x": {"source": {"kind": "model_token", "model": "a"}}}}}, "model_token"),
        ({"parameters": {"t": {"filter": "mlp"}}}, "parameters.t"),
        ({"parameters": {"t": [0.1, {"value": 1}]}}, "parameters.t"),
        ({"parameters": {"t": []}}, "parameters.t"),
        ({"parameters": {"t": {"filtre": "mlp", "value": 1}}}, "filtre"),
        ({"modules": {"a": {"models": [{"model": "a"}]}, "b": {"models": [{"model": "a"}]}}, "models": None}, "modules"),
        ({"chat_template": "chatml"}, "chat_template"),
        ({"seed": -1}, "seed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_key(change, key):
    tree = {"merge_method": "linear", "models": [{"model": "a"}], **change}
    if key is None:
        assert MergeConfig.of(tree).models
        return
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        MergeConfig.of(tree)


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ({"sources": [{"model": "a", "layer_range": [2, 2]}]}, "layer_range"),
        ({"sources": [{"model": "a", "layer_range": [0, 2]}, {"model": "b", "layer_range": [0, 3]}]}, "layers"),
        ({"sources": []}, "sources"),
    ],
)
def test_slices_are_checked(part, key):
    with pytest.raises(ConfigError, match=key):
        MergeConfig.of({"merge_method": "passthrough", "slices": [part]})


def test_a_recipe_is_not_a_merge(tmp_path: Path):
    (tmp_path / "recipe.yaml").write_text("name: x\nstages: {}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="rlhf run"):
        MergeConfig.read(tmp_path / "recipe.yaml")


NUMBER = Parameter("t", "t", float)


@pytest.mark.parametrize(
    ("setting", "name", "at", "expected"),
    [
        (0.3, "x", 0.5, 0.3),
        ("1e-2", "x", 0.5, 0.01),
        ([0, 1], "x", 0.25, 0.25),
        ([0, 1, 0], "x", 0.75, 0.5),
        ([0.2, 0.7], "x", 1.0, 0.7),
        ([{"filter": "mlp", "value": [0, 1]}, {"value": 5}], "model.layers.1.mlp.up", 0.5, 0.5),
        ([{"filter": "mlp", "value": [0, 1]}, {"value": 5}], "model.layers.1.self_attn.q", 0.5, 5),
        ([{"filter": "*", "value": 1}, {"filter": "x", "value": 2}], "x", 0, 1),
        ({"filter": "mlp", "value": 2}, "x", 0, None),
    ],
)
def test_gradients_and_filters(setting, name, at, expected):
    actual = value_of(setting, NUMBER, name=name, at=at)
    assert actual == (None if expected is None else pytest.approx(expected))


def test_texts_and_switches_step_where_numbers_slide():
    assert value_of([True, False, True], Parameter("x", "x", bool), name="", at=0.6) is False
    assert value_of(["a", "b"], Parameter("x", "x", str), name="", at=0.9) == "a"


def test_the_nearest_level_with_a_value_wins():
    levels = [None, {"t": {"filter": "mlp", "value": 1}}, {"t": 2}]
    assert resolved(NUMBER, levels, name="a.mlp", at=0, of="") == 1
    assert resolved(NUMBER, levels, name="a.attn", at=0, of="") == 2
    assert resolved(NUMBER, [{}], name="a", at=0, of="") is None
    with pytest.raises(ConfigError, match=r"parameters\.t is missing"):
        resolved(Parameter("t", "t", float, required=True), [{}], name="a", at=0, of="")
    with pytest.raises(ConfigError, match=r"parameters\.t"):
        resolved(NUMBER, [{"t": "much"}], name="a", at=0, of="")


@pytest.mark.parametrize(("parameter", "value"), [
    (Parameter("x", "x", bool), 2), (Parameter("x", "x", float), True), (Parameter("x", "x", int), 1.5),
    (Parameter("x", "x", str, ("l1", "density")), "l2"), (Parameter("x", "x", float), float("nan")),
    (Parameter("x", "x", float, is_share=True), 50), (Parameter("x", "x", float, is_share=True), -0.5),
])  # fmt: skip
def test_a_value_of_another_type_is_refused(parameter, value):
    with pytest.raises(ValueError, match=str(value)):
        parameter.read(value)
