from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from rlhf.config.model import LoRAConfig, ModelConfig
from rlhf.errors import ConfigError, ModelError, UnknownNameError
from rlhf.export.export_model import export_model
from rlhf.export.format_table import FORMATS
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from tests.fixtures.exported import FAMILIES, tiny_policy
from tests.fixtures.source import SOURCE


@pytest.fixture
def policy() -> PolicyModel:
    return tiny_policy(FAMILIES["llama"])


@pytest.fixture
def adapter(tmp_path, policy) -> Path:
    """A folder with an adapter that changes its base, which lies next to it."""
    base = policy.save_pretrained(tmp_path / "base")
    config = ModelConfig(path=str(base), lora=LoRAConfig(rank=2))
    adapted = PolicyModel.from_pretrained(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for parameter in adapted.trainable_parameters().values():
            parameter.data.normal_(std=0.3)
    return adapted.save_pretrained(tmp_path / "adapter")


def test_an_adapter_is_merged_into_its_base(tmp_path, adapter):
    report = export_model(adapter, output_path=tmp_path / "out", num_rows=2)
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    ids = torch.arange(3, 30)[None]
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids).logits
        adapted = PolicyModel.from_pretrained(str(adapter)).model(ids).logits
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")(ids).logits
    assert torch.allclose(plain, adapted, atol=1e-4)
    assert not torch.allclose(plain, base, atol=0.1)
    assert report.outputs is not None
    assert report.outputs.max_difference == 0


def test_weights_have_the_type_that_was_asked_for_and_the_model_in_memory_keeps_its_own(tmp_path, policy):
    before = policy.fingerprint()
    policy.train()
    report = export_model(policy, output_path=tmp_path / "out", dtype="bfloat16", num_rows=2, max_increase=0.5)
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert read.dtype == torch.bfloat16
    assert policy.fingerprint() == before
    assert policy.training
    assert all(parameter.requires_grad for parameter in policy.parameters())
    assert {tensor.difference for tensor in report.tensors} == {0.0}


def test_weights_are_written_in_shards(tmp_path, policy):
    report = export_model(policy, output_path=tmp_path / "out", shard_size=1e-4, check=False)
    assert len(report.files) > 2
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()


def test_the_record_and_the_card_name_the_origin(tmp_path, policy):
    policy.save_pretrained(
        tmp_path / "m", card={"license": "mit", "base_model": "a/b", "summary": "It has no manners yet."}
    )
    report = export_model(tmp_path / "m", output_path=tmp_path / "out", num_rows=2)
    record = json.loads((tmp_path / "out" / "export.json").read_text())
    assert record["origin"] == report.origin
    assert record["outputs"]["max_difference"] == 0
    card = (tmp_path / "out" / "README.md").read_text()
    head = yaml.safe_load(card.split("---\n")[1])
    assert (head["license"], head["base_model"], head["pipeline_tag"]) == ("mit", "a/b", "text-generation")
    assert report.origin["weights"] in card
    assert "no manners yet" in (tmp_path / "out" / "source_card.md").read_text()


def test_the_stage_that_made_a_model_is_carried_along(tmp_path, policy):
    stage = tmp_path / "run" / "ppo"
    policy.save_pretrained(stage / "model")
    (stage / "artifact.json").write_text(json.dumps({"kind": "ppo", "key": "abc", "finished": "today", "files": {}}))
    report = export_model(stage / "model", "gguf", output_path=tmp_path / "out", check=False)
    assert report.origin["key"] == "abc"
    assert report.files == ["run-ppo-F32.gguf"]


def test_texts_of_the_user_are_compared_on(tmp_path, policy):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "The cow eats grass."}\n{"text": "The fox lives in a den."}\n')
    report = export_model(policy, output_path=tmp_path / "out", texts=str(texts))
    assert report.outputs is not None
    assert (report.outputs.rows, report.outputs.over) == (2, "rows of the given texts")


def test_a_reward_model_gives_the_same_scores_from_its_new_folder(tmp_path, policy):
    reward = RewardModel.from_policy(policy, num_heads=2, num_models=2)
    reward.set_normalization(torch.tensor([1.0, 2, 3, 4]), torch.tensor([2.0, 1, 1, 1]))
    reward.save_pretrained(tmp_path / "reward")
    report = export_model(tmp_path / "reward", output_path=tmp_path / "out", num_rows=4)
    assert report.outputs is not None
    assert report.outputs.max_difference == 0
    assert len(report.files) == 2
    assert RewardModel.from_pretrained(tmp_path / "out").mean.tolist() == [1, 2, 3, 4]
    with pytest.raises(ModelError, match="reward model, and gguf"):
        export_model(reward, "gguf", output_path=tmp_path / "no")


@pytest.mark.parametrize(
    ("asked", "error", "named"),
    [
        ({"format": "ggfu"}, UnknownNameError, "gguf"),
        ({"format": "tensorrt"}, ConfigError, "trtexec"),
        ({"format": "torchscript", "quantization": "int8"}, ConfigError, "onnx"),
        ({"format": "safetensors", "quantization": "int8"}, ConfigError, "torchao"),
        ({"format": "onnx", "quantization": "q4_0"}, ConfigError, "gguf can"),
        ({"format": "onnx", "dtype": "float16"}, ConfigError, "float16"),
        ({"format": "gguf", "quantization": "int8", "dtype": "float16"}, ConfigError, "not both"),
        ({"shard_size": 0}, ConfigError, "shard_size"),
        ({"max_increase": float("nan")}, ConfigError, "max_increase"),
    ],
)
def test_what_can_not_be_written_is_refused_before_a_model_is_loaded(tmp_path, asked, error, named):
    with pytest.raises(error, match=named):
        export_model("a/model/that/is/not/there", output_path=tmp_path / "out", **asked)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ModelError, match="not empty; an exported model"):
        export_model("embedded", output_path=tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("model", ["no/such/model", "embeded"])
def test_a_model_that_is_not_there_is_one_error(tmp_path, model):
    with pytest.raises(ModelError):
        export_model(model, output_path=tmp_path / "out")


def test_every_format_names_a_writer_that_exists():
    import importlib

    for known in FORMATS.values():
        module, _, name = known.writer.partition(":")
        assert hasattr(importlib.import_module(f"rlhf.export.{module}"), name)


@pytest.mark.faults
@pytest.mark.slow
def test_a_killed_export_leaves_nothing_under_its_name(tmp_path):
    code = """
        import os, signal
        from rlhf.export import export_model as module
        write = module.compare_outputs
        module.compare_outputs = lambda *args: os.kill(os.getpid(), signal.SIGKILL)  # the files are written, their name is not given
        module.export_model("embedded", "gguf", output_path="out", num_rows=1)
    """
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert list(tmp_path.glob(".out.*/*.gguf")), "it was killed after the file was written"
    export_model("embedded", "gguf", output_path=tmp_path / "out", check=False)
    assert (tmp_path / "out" / "Modelfile").is_file()
