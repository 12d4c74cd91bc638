"""What is found out before anything is written: models that don't fit, and every tensor that would not reach the output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf.errors import ConfigError, ModelError
from rlhf.merging.merge_plan import MergePlan, output_config
from rlhf.merging.merger import ModelMerger
from tests.fixtures.merging import LETTERS, merge_tree, tensors_of, write_family, write_plain, write_tokenizer

ONE: dict[str, Any] = {"weight": 1.0}


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> dict[str, Path]:
    return write_family(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def two(llama, tmp_path) -> dict[str, Path]:
    """A base and a model that a test may damage."""
    return {name: Path(shutil.copytree(llama[name], tmp_path / name)) for name in ("base", "a")}


def plan_of(tree: dict[str, Any]) -> MergePlan:
    return ModelMerger(tree).plan()


def refused(two: dict[str, Path], error: type[Exception] = ModelError, **settings: Any) -> str:
    """The message of a merge of both, which writes nothing."""
    out = two["base"].parent / "out"
    before = sorted(two["base"].parent.iterdir())
    with pytest.raises(error) as caught:
        ModelMerger(merge_tree("task_arithmetic", {two["a"]: ONE}, base_model=two["base"], **settings)).merge(out)
    assert sorted(two["base"].parent.iterdir()) == before
    return str(caught.value)


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


def change_tensors(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_another_architecture(two):
    change_json(two["a"] / "config.json", model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    assert "model_type" in refused(two)


@pytest.mark.parametrize("key", ["num_attention_heads", "hidden_act"])
def test_a_config_in_which_equal_shapes_mean_something_else(two, key):
    change_json(two["a"] / "config.json", **{key: 2 if key.startswith("num") else "gelu"})
    assert key in refused(two)


def test_other_differences_of_configs_are_lines(two):
    change_json(two["a"] / "config.json", rms_norm_eps=0.5)
    plan = plan_of(merge_tree("task_arithmetic", {two["a"]: ONE}, base_model=two["base"]))
    assert [note for note in plan.notes if "rms_norm_eps" in note]


def test_other_shapes(two):
    change_tensors(two["a"], lambda t: t.update({"model.norm.weight": torch.ones(33)}))
    message = refused(two)
    assert "model.norm.weight" in message
    assert "[33]" in message


@pytest.mark.parametrize("who", ["base", "a"])
def test_a_missing_tensor(two, who):
    change_tensors(two[who], lambda t: t.pop("model.layers.2.mlp.up_proj.weight"))
    message = refused(two)
    assert "model.layers.2.mlp.up_proj.weight" in message
    assert f"{two[who]} lacks" in message


def test_a_head_that_only_one_has(two):
    change_tensors(two["a"], lambda t: t.pop("lm_head.weight"))
    change_json(two["a"] / "config.json", tie_word_embeddings=True)
    assert "tie_word_embeddings" in refused(two)


def test_a_tied_head_that_is_no_copy(two):
    change_json(two["a"] / "config.json", tie_word_embeddings=True)
    assert "lm_head.weight differs" in refused(two)


def test_a_copy_of_a_tied_head_is_a_line(two, tmp_path):
    for folder in two.values():
        change_json(folder / "config.json", tie_word_embeddings=True)
        change_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    report = ModelMerger(merge_tree("task_arithmetic", {two["a"]: ONE}, base_model=two["base"])).merge(tmp_path / "out")
    assert {one["tensor"] for one in report.dropped} == {"lm_head.weight"}
    assert len(report.dropped) == 2
    assert "lm_head.weight" not in tensors_of(tmp_path / "out")


def test_other_vocabularies(two):
    write_tokenizer(two["a"], [*reversed(LETTERS)])
    message = refused(two)
    assert "'a' is number 2 and number 27" in message or "'z' is number 27 and number 2" in message
    assert "tokenizer" in message


def test_embeddings_of_other_sizes_point_to_the_tokenizer(two):
    change_tensors(two["a"], lambda t: t.update({"model.embed_tokens.weight": torch.ones(30, 32)}))
    assert "tokenizer: {source: union}" in refused(two)


def test_a_missing_tokenizer(two):
    (two["a"] / "tokenizer.json").unlink()
    assert "no tokenizer" in refused(two)
    assert "no tokenizer" in refused(two, tokenizer_source="union")


def test_a_damaged_tokenizer(two):
    (two["a"] / "tokenizer.json").write_text("{", encoding="utf-8")
    assert "tokenizer.json is damaged" in refused(two)


@pytest.mark.parametrize("cut", [4, 100, -10])
def test_a_damaged_file_of_weights(two, cut):
    path = two["a"] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    assert f"{path} is damaged" in refused(two)


def test_a_missing_part(two):
    (two["a"] / "model.safetensors").rename(two["a"] / "model-00001-of-00002.safetensors")
    names = load_file(two["a"] / "model-00001-of-00002.safetensors")
    table = dict.fromkeys(names, "model-00001-of-00002.safetensors") | {"more": "model-00002-of-00002.safetensors"}
    (two["a"] / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}), encoding="utf-8")
    assert "model-00002-of-00002.safetensors" in refused(two)
    table.pop("more")
    table.pop("model.norm.weight")
    (two["a"] / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}), encoding="utf-8")
    assert "'model.norm.weight'" in refused(two)


def test_a_pickle_is_not_opened(two):
    (two["a"] / "model.safetensors").rename(two["a"] / "pytorch_model.bin")
    assert "pickle" in refused(two)


def test_a_quantized_model(two):
    change_json(two["a"] / "config.json", quantization_config={"quant_method": "bitsandbytes"})
    assert "quantization_config" in refused(two)


def test_a_reward_model_is_sent_elsewhere(two):
    (two["a"] / "rlhf_reward.json").write_text("{}", encoding="utf-8")
    assert "average_reward_models" in refused(two)


def test_a_model_that_is_not_there(two):
    shutil.rmtree(two["a"])
    two["a"] = two["base"].parent / "bas"
    assert "Did you mean 'base'" in refused(two)


def test_a_name_that_neither_disk_nor_hub_has(two):
    two["a"] = Path("nobody/nothing")
    assert "hf download nobody/nothing" in refused(two)


def test_a_misspelled_setting(two):
    assert "'density'" in refused(two, ConfigError, parameters={"densty": 0.5})


@pytest.mark.parametrize("method", ["ties", "dare_linear", "dare_ties"])
def test_a_density_that_is_no_share(llama, method):
    tree = merge_tree(method, {llama["a"]: {"weight": 1, "density": 50}}, base_model=llama["base"])
    with pytest.raises(ConfigError, match=r"density.*from 0 to 1"):
        plan_of(tree)


def test_a_setting_of_another_method_is_a_line(two):
    plan = plan_of(merge_tree("task_arithmetic", {two["a"]: {"weight": 1, "density": 0.5}}, base_model=two["base"]))
    assert [note for note in plan.notes if "density" in note]


@pytest.mark.parametrize(
    ("method", "count", "base", "word"),
    [
        ("ties", 1, False, "base_model"), ("slerp", 2, True, "at most 1"), ("model_stock", 1, True, "at least 2"),
        ("passthrough", 2, False, "at most 1"),
    ],
)  # fmt: skip
def test_so_many_models_as_the_method_takes(llama, method, count, base, word):
    models = {llama[name]: ONE for name in ("a", "b")[:count]}
    tree = merge_tree(method, models, parameters={"t": 0.5}, **({"base_model": llama["base"]} if base else {}))
    with pytest.raises(ConfigError, match=word):
        plan_of(tree)


def test_a_missing_weight_names_model_and_tensor(llama):
    with pytest.raises(ConfigError, match=r"parameters\.weight .*/b"):
        plan_of(merge_tree("linear", {llama["a"]: ONE, llama["b"]: {}}))


def test_the_same_model_twice(llama):
    tree = merge_tree("linear", {llama["a"]: ONE})
    tree["models"] *= 2
    with pytest.raises(ConfigError, match="twice"):
        plan_of(tree)


def slice_of(model: Path, first: int, end: int, **own: Any) -> dict[str, Any]:
    return {"model": str(model), "layer_range": [first, end], **own}


def test_slices_leave_out_layers_by_name(llama):
    plan = plan_of(
        {
            "merge_method": "passthrough",
            "slices": [{"sources": [slice_of(llama["a"], 0, 3)]}, {"sources": [slice_of(llama["b"], 2, 4)]}],
        }
    )
    assert {(one.model, one.tensor) for one in plan.dropped if ".layers." not in one.tensor} == {
        (str(llama["a"]), "model.norm.weight"), (str(llama["a"]), "lm_head.weight"), (str(llama["b"]), "model.embed_tokens.weight"),
    }  # fmt: skip
    layers = {(one.model, one.tensor.split(".")[2]) for one in plan.dropped if ".layers." in one.tensor}
    assert layers == {(str(llama["a"]), "3"), (str(llama["b"]), "0"), (str(llama["b"]), "1")}
    read = {source for task in plan.tasks for source in task.sources}
    everything = {(label, name) for label, parent in plan.parents.items() for name in parent.places}
    assert read | {(one.model, one.tensor) for one in plan.dropped} == everything
    assert output_config(plan)["num_hidden_layers"] == 5


def test_a_layer_beyond_the_last(llama):
    with pytest.raises(ConfigError, match="goes beyond the 4 layers"):
        plan_of({"merge_method": "passthrough", "slices": [{"sources": [slice_of(llama["a"], 0, 5)]}]})


def test_a_slice_without_the_base(llama):
    with pytest.raises(ConfigError, match="base model"):
        plan_of({"merge_method": "slerp", "base_model": str(llama["base"]), "parameters": {"t": 0.5}, "slices": [
            {"sources": [slice_of(llama["a"], 0, 4), slice_of(llama["b"], 0, 4)]}]})  # fmt: skip


def test_lists_of_the_config_follow_the_layers(tmp_path):
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    parents = write_family(tmp_path, "qwen2", ("a",), layer_types=kinds)
    plan = plan_of({"merge_method": "passthrough", "slices": [
        {"sources": [slice_of(parents["a"], 0, 2)]}, {"sources": [slice_of(parents["a"], 0, 4)]}]})  # fmt: skip
    assert output_config(plan)["layer_types"] == kinds[:2] + kinds


def test_models_of_other_depths(tmp_path):
    tensors = {f"layers.{layer}.w": torch.ones(2) for layer in range(3)}
    a = write_plain(tmp_path / "a", tensors)
    b = write_plain(tmp_path / "b", {name: value for name, value in tensors.items() if "2" not in name})
    with pytest.raises(ModelError, match="slices"):
        plan_of(merge_tree("linear", {a: ONE, b: ONE}))


def test_buffers_agree_or_are_left_out_or_refused(tmp_path):
    plain = {"layers.0.w": torch.ones(2), "ids": torch.tensor([1, 2])}
    a = write_plain(tmp_path / "a", plain)
    b = write_plain(tmp_path / "b", plain)
    c = write_plain(tmp_path / "c", plain | {"ids": torch.tensor([1, 3])})
    d = write_plain(tmp_path / "d", plain | {"layers.0.rotary_emb.inv_freq": torch.ones(2)})
    ModelMerger(merge_tree("linear", {a: ONE, b: ONE})).merge(tmp_path / "same")
    assert tensors_of(tmp_path / "same")["ids"].tolist() == [1, 2]
    with pytest.raises(ModelError, match="whole numbers"):
        ModelMerger(merge_tree("linear", {a: ONE, c: ONE})).merge(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    plan = plan_of(merge_tree("linear", {a: ONE, d: ONE}))
    assert [(one.model, one.tensor) for one in plan.dropped] == [(str(d), "layers.0.rotary_emb.inv_freq")]


def test_the_type_is_the_widest_or_the_one_asked_for(tmp_path):
    a = write_plain(tmp_path / "a", {"layers.0.w": torch.ones(2, dtype=torch.bfloat16)})
    b = write_plain(tmp_path / "b", {"layers.0.w": torch.ones(2, dtype=torch.float16)})
    tree = merge_tree("linear", {a: ONE, b: ONE})
    types = [
        plan_of(tree | given).tasks[0].dtype
        for given in ({}, {"dtype": "bfloat16"}, {"dtype": "float32", "out_dtype": "float16"})
    ]
    assert types == [torch.float32, torch.bfloat16, torch.float16]
    assert plan_of(tree | {"dtype": "float64"}).tasks[0].working == torch.float64
    assert plan_of(tree | {"dtype": "bfloat16"}).tasks[0].working == torch.float32


def change_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])


def _overlap(header: dict[str, Any]) -> None:
    header["model.layers.1.mlp.up_proj.weight"]["data_offsets"] = header["model.layers.2.mlp.up_proj.weight"][
        "data_offsets"
    ]


def _fractions(header: dict[str, Any]) -> None:
    entry = header["model.norm.weight"]
    entry["data_offsets"] = [float(offset) for offset in entry["data_offsets"]]


@pytest.mark.parametrize("change", [_overlap, _fractions])
def test_a_header_whose_offsets_are_no_places_of_tensors_is_refused(two, change):
    change_header(two["a"] / "model.safetensors", change)
    message = refused(two)
    assert "damaged" in message
    assert str(two["a"]) in message


def test_layers_that_the_config_does_not_count_stay_uncounted(two):
    """DeepSeek V3 keeps the layer that predicts the token after the next behind the last of `num_hidden_layers`."""
    for folder in two.values():
        change_json(folder / "config.json", num_hidden_layers=3)
    plan = plan_of(merge_tree("task_arithmetic", {two["a"]: ONE}, base_model=two["base"]))
    assert any(task.layer == 3 for task in plan.tasks)
    assert output_config(plan)["num_hidden_layers"] == 3
    assert any("num_hidden_layers is 3" in note and "4 layers" in note for note in plan.notes)
