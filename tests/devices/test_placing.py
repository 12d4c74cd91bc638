"""Where models are put, who may say so, and what is said of it."""

from __future__ import annotations

import json

import pytest
import torch

from rlhf.config.model import ModelConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError
from rlhf.models.device import describe_device, model_device, placed, placed_on, resolve_device
from rlhf.models.policy import PolicyModel
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reward import RewardModel
from rlhf.models.value import ValueModel
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate import find_problems
from tests.fixtures.pretend_gpu import GPU, NAME, pretend_gpu

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


def recipe(folder, **changes):
    stage = {"kind": "sft", "model": "embedded", "data": str(folder / "rows.jsonl"), "max_steps": 2, "epochs": None}
    (folder / "rows.jsonl").write_text('{"prompt": "a", "completion": " b"}\n' * 8)
    tree = {"name": "run", "output_dir": str(folder), "threads": 1, "stages": {"sft": stage}}
    return RecipeConfig.of({**tree, **changes})


@needs_no_gpu
def test_without_a_gpu_models_are_on_the_cpu():
    assert resolve_device("auto") == model_device() == torch.device("cpu")
    assert next(PolicyModel.from_pretrained("embedded").parameters()).device.type == "cpu"


@needs_no_gpu
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:3"])
def test_a_gpu_that_is_not_there_is_an_error_that_says_what_to_write(name):
    with pytest.raises(ConfigError, match=rf"'{name}'.*build for CPUs.*`device: auto`"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "CUDA", "cpu:0", "", "cuda:0 "])
def test_what_is_no_device_is_refused_by_the_recipe_and_by_the_library(name, tmp_path):
    with pytest.raises(ConfigError, match=r"device: .*cuda:N"):
        recipe(tmp_path, device=name)
    with pytest.raises(ConfigError, match="cuda:N"):
        resolve_device(name)


def test_apples_gpu_is_refused_in_a_sentence_and_never_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    for name in ("mps", "mps:0"):
        with pytest.raises(ConfigError, match=r"float64.*`device: cpu`"):
            resolve_device(name)
        with pytest.raises(ConfigError, match=r"device: .*float64.*`device: cpu`"):
            recipe(tmp_path, device=name)


def test_a_number_beyond_the_last_gpu_is_an_error_that_counts_them():
    with pretend_gpu(count=2):
        assert resolve_device("cuda:1") == torch.device("cuda", 1)
        with pytest.raises(ConfigError, match="2: cuda:0 to cuda:1"):
            resolve_device("cuda:2")
    with pretend_gpu(), pytest.raises(ConfigError, match="torch has 1: cuda:0"):
        resolve_device("cuda:1")


def test_the_first_gpu_is_taken_unless_somebody_says_otherwise():
    with pretend_gpu(count=2):
        assert resolve_device("auto") == resolve_device("cuda") == model_device() == GPU
        with placed_on("cuda:1"):
            assert model_device() == torch.device("cuda", 1)
            with placed_on("cpu"):
                assert model_device() == torch.device("cpu")
            assert model_device() == torch.device("cuda", 1)
        assert describe_device(GPU) == f"cuda:0 ({NAME})"
    assert describe_device(torch.device("cpu")) == "cpu"


def test_a_model_that_is_where_it_should_be_is_left_as_it_is():
    layer = torch.nn.Linear(2, 2)
    before = layer.weight.data_ptr()
    assert placed(layer) is layer
    assert layer.weight.data_ptr() == before


def devices(module):
    return {tensor.device.type for tensor in (*module.parameters(), *module.buffers())}


def test_every_kind_of_model_is_loaded_onto_the_gpu(tmp_path, gpu):
    with gpu() as device:
        policy = PolicyModel.from_pretrained("embedded")
        reward = RewardModel.from_policy("embedded", num_models=2, seed=1)
        reward.save_pretrained(tmp_path / "reward")
        value = ValueModel.from_reward(reward)
        value.save_pretrained(tmp_path / "value")
        shared = ValueModel.shared(policy)
        shared.save_pretrained(tmp_path / "shared")
        process = ProcessRewardModel.from_policy("embedded", extra_layers=1, keep_language_head=True)
        process.save_pretrained(tmp_path / "process")
        loaded = [
            RewardModel.from_pretrained(str(tmp_path / "reward")),
            ValueModel.from_pretrained(str(tmp_path / "value")),
            ValueModel.from_pretrained(str(tmp_path / "shared")),
            ProcessRewardModel.from_pretrained(str(tmp_path / "process")),
        ]
        for model in (policy, reward, value, shared, process, *loaded):
            assert devices(model) == {"cuda"}, type(model).__name__
            assert model.device == device


def test_fresh_weights_heads_and_adapters_are_the_same_on_every_device(gpu):
    def made():
        config = ModelConfig.of({"path": "embedded", "lora": {"rank": 2}})
        policy = PolicyModel.from_pretrained(config, seed=3)
        models = {
            "adapter": policy.model,
            "reward": RewardModel.from_policy("embedded", head="mlp", seed=3),
            "process": ProcessRewardModel.from_policy("embedded", extra_layers=1, seed=3),
        }
        return {name: {k: v.cpu() for k, v in m.named_parameters()} for name, m in models.items()}

    with placed_on("cpu"):
        on_cpu = made()
    with gpu():
        on_gpu = made()
    for name, weights in on_cpu.items():
        for key, value in weights.items():
            assert torch.equal(value, on_gpu[name][key]), (name, key)


def test_what_is_saved_from_a_gpu_is_what_is_saved_from_a_cpu(tmp_path, gpu):
    with placed_on("cpu"):
        PolicyModel.from_pretrained("embedded").save_pretrained(tmp_path / "cpu")
    with gpu():
        policy = PolicyModel.from_pretrained("embedded")
        fingerprint = policy.fingerprint()
        policy.save_pretrained(tmp_path / "gpu")
    names = {path.name for path in (tmp_path / "cpu").iterdir()}
    assert names == {path.name for path in (tmp_path / "gpu").iterdir()}
    for name in names:
        assert (tmp_path / "cpu" / name).read_bytes() == (tmp_path / "gpu" / name).read_bytes(), name
    with placed_on("cpu"):
        assert PolicyModel.from_pretrained(str(tmp_path / "gpu")).fingerprint() == fingerprint


def test_a_run_says_where_its_models_were_and_its_keys_do_not_depend_on_it(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "auto").mkdir()
    keys = {}
    for name, device in (("cpu", "cpu"), ("auto", "auto")):
        asked = recipe(tmp_path, output_dir=str(tmp_path / name), device=device)
        keys[name] = [plan.key for plan in Pipeline(asked).plan()]
    assert keys["cpu"] == keys["auto"]
    asked = recipe(tmp_path, device="cpu")
    Pipeline(asked).run()
    told = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert told["machine"]["device"] == told["artifacts"]["sft"]["device"] == "cpu"
    assert [plan.action for plan in Pipeline(recipe(tmp_path, device="auto")).plan()] == ["kept"]


def test_a_run_on_the_gpu_trains_there_and_says_so(tmp_path):
    with pretend_gpu():
        Pipeline(recipe(tmp_path)).run()
    told = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert told["artifacts"]["sft"]["device"] == f"cuda:0 ({NAME})"


@needs_no_gpu
def test_a_run_on_a_gpu_that_is_not_there_ends_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="device is 'cuda'"):
        Pipeline(recipe(tmp_path, device="cuda")).run()
    assert not (tmp_path / "run").exists()


@needs_no_gpu
def test_validation_names_a_device_that_is_not_there(tmp_path):
    (problem,) = [p for p in find_problems(recipe(tmp_path, device="cuda:1")) if p.level == "error"]
    assert (problem.stage, problem.key) == (None, "device")
    assert "torch is a build for CPUs" in problem.message
