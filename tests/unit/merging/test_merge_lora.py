"""Adapters: merged into the weights that are read, as peft merges them, and with each other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlhf.errors import ConfigError, ModelError
from rlhf.merging.merger import ModelMerger
from tests.fixtures.merging import merge_tree, tensors_of, write_family

ONE: dict[str, Any] = {"weight": 1.0}
TARGETS = {"llama": ["q_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "c_proj"]}


def write_adapter(base: Path, folder: Path, seed: int, family: str = "llama", **settings: Any) -> Path:
    """An adapter of random weights."""
    lora = LoraConfig(
        **({"r": 3, "lora_alpha": 5, "target_modules": TARGETS[family], "fan_in_fan_out": family == "gpt2"} | settings)
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(folder)
    return folder


def merged_by_peft(base: Path, adapter: Path) -> dict[str, torch.Tensor]:
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).merge_and_unload()
    return {name: value.detach() for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def parents(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("parents")
    family = write_family(root, "llama", ("base", "a"))
    family["lora1"] = write_adapter(family["base"], root / "lora1", 1)
    family["lora2"] = write_adapter(family["base"], root / "lora2", 2, r=2, lora_alpha=8)
    return family


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "by the root of the rank": {"use_rslora": True},
    "patterns": {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"layers.1.mlp.down_proj": 1}},
    "an embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "a whole head": {"modules_to_save": ["lm_head"]},
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("settings", SETTINGS)
def test_an_adapter_is_merged_as_peft_does(parents, tmp_path, settings):
    adapter = write_adapter(parents["base"], tmp_path / "lora", 3, **SETTINGS[settings])
    tree = {"merge_method": "passthrough", "models": [{"model": f"{parents['base']}+{adapter}"}]}
    ModelMerger(tree).merge(tmp_path / "out")
    expected, merged = merged_by_peft(parents["base"], adapter), tensors_of(tmp_path / "out")
    assert expected.keys() == merged.keys()
    assert all(torch.allclose(merged[name], expected[name], atol=1e-6) for name in merged)
    base = tensors_of(parents["base"])
    assert any(not torch.equal(merged[name], base[name]) for name in merged)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_weights_that_are_stored_the_other_way_round(tmp_path):
    base = write_family(tmp_path, "gpt2", ("base",))["base"]
    adapter = write_adapter(base, tmp_path / "lora", 3, "gpt2")
    ModelMerger({"merge_method": "passthrough", "models": [{"model": f"{base}+{adapter}"}]}).merge(tmp_path / "out")
    expected, merged = merged_by_peft(base, adapter), tensors_of(tmp_path / "out")
    assert all(torch.allclose(merged[name], expected[name], atol=1e-6) for name in merged)


def test_an_adapters_folder_stands_for_its_base_with_it(parents, tmp_path):
    ModelMerger(merge_tree("task_arithmetic", {parents["lora1"]: ONE}, base_model=parents["base"])).merge(
        tmp_path / "out"
    )
    expected, merged = merged_by_peft(parents["base"], parents["lora1"]), tensors_of(tmp_path / "out")
    assert all(torch.allclose(merged[name], expected[name], atol=1e-6) for name in merged)


def test_an_adapter_of_other_weights_than_the_base_holds(parents, tmp_path):
    base = Path(shutil.copytree(parents["base"], tmp_path / "base"))
    adapter = Path(shutil.copytree(parents["lora1"], tmp_path / "lora"))
    change(adapter, base_model_name_or_path="../base")
    (adapter / "rlhf_base.json").write_text(json.dumps({"weights_sha256": "0" * 64}), encoding="utf-8")
    with pytest.raises(ModelError, match="other weights"):
        ModelMerger(merge_tree("linear", {adapter: ONE})).plan()
    (adapter / "rlhf_base.json").unlink()
    plan = ModelMerger(merge_tree("linear", {adapter: ONE})).plan()
    assert plan.donor.folder == base  # relative to the adapter's own folder


def change(adapter: Path, **settings: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings), encoding="utf-8")


@pytest.mark.parametrize("settings", [{"peft_type": "IA3"}, {"use_dora": True}, {"lora_alpha": None}])
def test_an_adapter_that_is_more_than_a_product(parents, tmp_path, settings):
    adapter = Path(shutil.copytree(parents["lora1"], tmp_path / "lora"))
    change(adapter, **settings)
    with pytest.raises(ModelError, match=next(iter(settings))):
        ModelMerger(merge_tree("linear", {Path(f"{parents['base']}+{adapter}"): ONE})).plan()


def test_an_adapter_of_another_model(parents, tmp_path):
    other = write_family(tmp_path, "llama", ("base",), hidden_size=48)["base"]
    with pytest.raises(ModelError, match=r"adds \[32, 32\] to .* which is \[48, 48\]|Give the base"):
        ModelMerger(merge_tree("linear", {Path(f"{other}+{parents['lora1']}"): ONE})).plan()


def adapters_of(parents: dict[str, Path], method: str, first: float, second: float, **settings: Any) -> dict[str, Any]:
    return merge_tree(
        method,
        {parents["lora1"]: {"weight": first}, parents["lora2"]: {"weight": second}},
        output="adapter",
        **settings,
    )


@pytest.mark.parametrize(("method", "factors"), [("task_arithmetic", (0.5, 2.0)), ("linear", (0.2, 0.8))])
def test_a_sum_of_adapters_is_an_adapter_of_the_summed_rank(parents, tmp_path, method, factors):
    first, second = (0.5, 2.0)
    report = ModelMerger(adapters_of(parents, method, first, second)).merge(tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert settings["r"] == 5
    merged, base = merged_by_peft(parents["base"], tmp_path / "out"), tensors_of(parents["base"])
    one, two = (merged_by_peft(parents["base"], parents[name]) for name in ("lora1", "lora2"))
    for name, weight in base.items():
        expected = weight + factors[0] * (one[name] - weight) + factors[1] * (two[name] - weight)
        assert torch.allclose(merged[name], expected, atol=1e-5), name
    assert max(row["lost"] for row in report.tensors) < 1e-4


def test_other_methods_are_cut_to_a_rank_and_say_what_is_lost(parents, tmp_path):
    losses = []
    for rank in (1, 5, 32):
        tree = adapters_of(parents, "ties", 1.0, 1.0, adapter_rank=rank, parameters={"density": 0.5})
        report = ModelMerger(tree).merge(tmp_path / str(rank))
        losses.append(sum(row["lost"] for row in report.tensors))
        assert PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(parents["base"]), tmp_path / str(rank))
    assert losses[0] > losses[1] > 1e-3 > losses[2]


def test_a_merged_adapter_has_the_type_that_the_file_asks_for(parents, tmp_path):
    ModelMerger(adapters_of(parents, "linear", 1.0, 1.0, dtype="bfloat16")).merge(tmp_path / "out")
    saved = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.bfloat16}
    ModelMerger(adapters_of(parents, "linear", 1.0, 1.0)).merge(tmp_path / "plain")
    for name, tensor in load_file(tmp_path / "plain" / "adapter_model.safetensors").items():
        assert torch.equal(saved[name], tensor.to(torch.bfloat16))


def test_adapters_of_other_bases_or_targets_are_not_merged_with_each_other(parents, tmp_path):
    other = Path(shutil.copytree(parents["lora2"], tmp_path / "other"))
    change(other, base_model_name_or_path=str(parents["a"]))
    with pytest.raises(ModelError, match="base_model_name_or_path"):
        ModelMerger(adapters_of(parents | {"lora2": other}, "linear", 1, 1)).merge(tmp_path / "out")
    few = write_adapter(parents["base"], tmp_path / "few", 4, target_modules=["q_proj"])
    with pytest.raises(ModelError, match="Only one of"):
        ModelMerger(adapters_of(parents | {"lora2": few}, "linear", 1, 1)).merge(tmp_path / "out")
    with pytest.raises(ConfigError, match="base_model"):
        ModelMerger(adapters_of(parents, "linear", 1, 1, base_model=parents["base"])).merge(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_adapters_writes_nothing(parents, tmp_path):
    import yaml
    from typer.testing import CliRunner

    from rlhf.cli import app

    file = tmp_path / "adapters.yaml"
    file.write_text(yaml.safe_dump(adapters_of(parents, "linear", 1, 1)), encoding="utf-8")
    result = CliRunner().invoke(app, ["merge", str(file), "--dry-run"], catch_exceptions=False)
    assert "2 adapters fit" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["adapters.yaml"]
    found = CliRunner().invoke(app, ["merge", str(file), "--dry-run", "--json"], catch_exceptions=False)
    assert json.loads(found.output)["parents"] == [str(parents["lora1"]), str(parents["lora2"])]


def test_a_merged_adapter_is_left_alone_by_the_same_merge(parents, tmp_path):
    merger = ModelMerger(adapters_of(parents, "linear", 1, 1))
    first, weights = merger.merge(tmp_path / "out"), tmp_path / "out" / "adapter_model.safetensors"
    before = weights.stat().st_mtime_ns
    assert merger.dry_run(tmp_path / "out")["finished"]
    assert merger.merge(tmp_path / "out") == first
    assert weights.stat().st_mtime_ns == before
    for other in (adapters_of(parents, "linear", 1, 2), adapters_of(parents, "linear", 1, 1, adapter_rank=2)):
        with pytest.raises(ModelError, match="not empty"):
            ModelMerger(other).merge(tmp_path / "out")


@pytest.mark.parametrize("rank", [{}, {"adapter_rank": 2}])
def test_weights_of_adapters_that_cancel(parents, tmp_path, rank):
    merger = ModelMerger(adapters_of(parents, "linear", 1, -1, **rank))
    for start in (merger.merge, merger.dry_run):
        with pytest.raises(ConfigError, match=r"parameters\.weight"):
            start(tmp_path / "out")
