"""What `rlhf plan` and `rlhf doctor` say on a machine with a GPU."""

from __future__ import annotations

import pytest
import torch

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError, UnknownNameError
from rlhf.pipeline.doctor import findings
from rlhf.pipeline.doctor.examine import _torch
from rlhf.scale.gpus import this_gpu
from rlhf.scale.plan import plan_recipe
from tests.fixtures.pretend_gpu import GPU, NAME, pretend_gpu


def recipe(folder, device):
    (folder / "rows.jsonl").write_text('{"prompt": "a", "completion": " b"}\n' * 8)
    stage = {"kind": "sft", "model": "embedded", "data": str(folder / "rows.jsonl"), "max_steps": 2, "epochs": None}
    return RecipeConfig.of({"name": "run", "output_dir": str(folder), "device": device, "stages": {"sft": stage}})


@pytest.fixture
def an_h100(monkeypatch):
    monkeypatch.setattr("tests.fixtures.pretend_gpu.NAME", "NVIDIA H100 80GB HBM3")


def grpo_on_a_gpu(folder, **changes):
    (folder / "prompts.jsonl").write_text('{"prompt": "a"}\n' * 8)
    stage = {
        "kind": "grpo", "model": "embedded", "prompts": str(folder / "prompts.jsonl"), "group_size": 2, "minibatch_size": 2,
        "prompts_per_rollout": 2, "reward": [{"kind": "learned", "source": "embedded"}] * 2,
    }  # fmt: skip
    asked = RecipeConfig.of({"name": "run", "threads": 1, "device": "cpu", "stages": {"grpo": {**stage, **changes}}})
    (planned,) = plan_recipe(asked, gpu_name="H100").stages
    return planned.memory


def test_a_plan_counts_models_that_wait_on_the_cpu_one_at_a_time(tmp_path):
    staying, waiting = (grpo_on_a_gpu(tmp_path, **changes) for changes in ({}, {"offload": ["reference", "reward"]}))
    one = staying["reference"]
    assert staying["reward models"] == pytest.approx(2 * one, rel=1e-2)
    assert {"reference", "reward models"}.isdisjoint(waiting)
    assert waiting["offloaded model in use"] == pytest.approx(one, rel=1e-2)
    assert sum(staying.values()) - sum(waiting.values()) == pytest.approx(2 * one, rel=1e-2)


@pytest.mark.usefixtures("an_h100")
def test_a_plan_is_made_for_the_gpu_that_the_recipe_runs_on(tmp_path):
    with pretend_gpu():
        machine = plan_recipe(recipe(tmp_path, "auto")).machine
    assert (machine.name, machine.is_gpu, machine.memory_bytes) == ("H100", True, 1 << 34)


def test_a_plan_for_a_gpu_that_is_not_there_is_refused(tmp_path):
    with pretend_gpu(), pytest.raises(ConfigError, match="torch has 1: cuda:0"):
        plan_recipe(recipe(tmp_path, "cuda:1"))


def test_a_gpu_without_published_figures_is_named_with_what_to_do():
    with pretend_gpu(), pytest.raises(UnknownNameError, match=rf"cuda:0 is a {NAME}, .* --gpu .* device=cpu"):
        this_gpu(GPU)


def test_the_doctor_says_where_models_go():
    with pretend_gpu(count=2):
        said = {finding.name: finding.value for finding in _torch()}
    assert said["models go to"] == f"cuda:0 ({NAME}); a run uses one of them, which `device: cuda:N` names"
    if not torch.cuda.is_available():
        assert {finding.name: finding.value for finding in _torch()}["models go to"] == "cpu"


def test_other_bits_are_unsafe_on_a_cpu_and_a_word_of_warning_on_a_gpu():
    assert findings.judge_repeat(False).level == "unsafe"
    assert findings.judge_repeat(False, on_gpu=True).level == "ok"
    assert "device: cpu" in findings.judge_repeat(False, on_gpu=True).advice
