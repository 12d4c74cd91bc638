from __future__ import annotations

import warnings

import pytest
import torch

from rlhf.errors import ModelError
from rlhf.export.export_model import export_model
from rlhf.models.reward import RewardModel
from tests.fixtures.exported import FAMILIES, tiny_policy


def loaded(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(str(path / "model.pt"))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_traced_model_answers_as_torch_does_at_any_length(tmp_path, family):
    policy = tiny_policy(FAMILIES[family])
    report = export_model(policy, "torchscript", output_path=tmp_path / "out", num_rows=3)
    assert report.outputs.max_difference < 1e-5
    assert report.outputs.greedy_same == report.outputs.greedy_tokens
    assert report.tensors
    assert all(tensor.difference == 0 for tensor in report.tensors)
    ids = torch.randint(3, 60, (4, 23))
    with torch.no_grad():
        ours = policy.model(ids).logits
        assert torch.allclose(loaded(tmp_path / "out")(ids, torch.ones_like(ids)), ours, atol=1e-5)


def test_a_traced_reward_model_gives_the_scores_whatever_stands_behind_a_row(tmp_path):
    reward = RewardModel.from_policy(tiny_policy(FAMILIES["llama"]))
    report = export_model(reward, "torchscript", output_path=tmp_path / "out", num_rows=3)
    assert report.outputs.max_difference < 1e-5


def test_a_family_that_can_not_be_traced_is_one_error_and_leaves_nothing(tmp_path, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator\nand a page more")

    monkeypatch.setattr(torch.jit, "trace", fails)
    with pytest.raises(ModelError, match=r"'llama': no such operator\.?$"):
        export_model(tiny_policy(FAMILIES["llama"]), "torchscript", output_path=tmp_path / "out")
    assert not any(tmp_path.iterdir())
