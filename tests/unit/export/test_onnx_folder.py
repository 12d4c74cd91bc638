from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from rlhf.errors import ModelError
from rlhf.export.export_model import export_model
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from tests.fixtures.exported import FAMILIES, tiny_policy


def test_a_graph_with_a_cache_answers_as_torch_does(tmp_path):
    policy = tiny_policy(FAMILIES["llama"] | {"num_hidden_layers": 1})
    report = export_model(policy, "onnx", output_path=tmp_path / "out", num_rows=3)
    assert report.outputs is not None
    assert report.outputs.max_difference < 1e-4
    assert report.outputs.greedy_same == report.outputs.greedy_tokens == 48
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    assert [given.name for given in session.get_inputs()] == [
        "input_ids", "attention_mask", "position_ids", "past_key_values.0.key", "past_key_values.0.value",
    ]  # fmt: skip
    # Two rows of six tokens at once, four of them first: what onnxruntime keeps is what torch keeps.
    ids = torch.arange(3, 15).reshape(2, 6)
    empty = np.zeros((2, 2, 0, 16), dtype=np.float32)
    ones = np.ones((2, 6), dtype=np.int64)
    positions = np.arange(6)[None].repeat(2, 0)
    first = {"past_key_values.0.key": empty, "past_key_values.0.value": empty}
    _, key, value = session.run(
        None,
        {"input_ids": ids[:, :4].numpy(), "attention_mask": ones[:, :4], "position_ids": positions[:, :4], **first},
    )
    then = {"past_key_values.0.key": key, "past_key_values.0.value": value}
    logits, *_ = session.run(
        None, {"input_ids": ids[:, 4:].numpy(), "attention_mask": ones, "position_ids": positions[:, 4:], **then}
    )
    with torch.no_grad():
        assert np.allclose(logits, policy.model(ids).logits[:, 4:].numpy(), atol=1e-4)


@pytest.mark.parametrize("kind", ["mamba", "recurrent_gemma"])
def test_a_cache_of_another_kind_is_refused_by_name(tmp_path, kind):
    small = {
        "mamba": {"state_size": 4},
        "recurrent_gemma": {"lru_width": 64, "attention_window_size": 16, "num_hidden_layers": 3},
    }[kind]
    policy = tiny_policy({"model_type": kind, **small})
    with pytest.raises(ModelError, match=kind):
        export_model(policy, "onnx", output_path=tmp_path / "out", check=False)
    assert not any(tmp_path.iterdir())


def test_a_family_that_torch_can_not_export_is_one_error(tmp_path, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise TypeError("unsupported operand\nand a page more")

    monkeypatch.setattr(torch.onnx, "export", fails)
    with pytest.raises(ModelError, match=r"'llama' to ONNX: unsupported operand\.$"):
        export_model(tiny_policy(FAMILIES["llama"]), "onnx", output_path=tmp_path / "out", check=False)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("family", "more"), [("qwen2", {}), ("mistral", {"sliding_window": 16}), ("llama3", {})])
def test_other_families_do(tmp_path, family, more):
    export_model(tiny_policy(FAMILIES[family] | more), "onnx", output_path=tmp_path / "out")


@pytest.mark.slow
def test_gpt2_does(tmp_path):
    config = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128}
    export_model(tiny_policy(config), "onnx", output_path=tmp_path / "out")


@pytest.mark.slow
def test_a_real_model_in_eight_bits_keeps_its_perplexity_on_real_stories(tmp_path, assets):
    texts = str(assets / "tinystories" / "stories_cased.jsonl")
    rows = tmp_path / "stories.jsonl"
    with open(texts, encoding="utf-8") as file:
        rows.write_text("".join(line.replace('"story"', '"text"', 1) for line, _ in zip(file, range(16), strict=False)))
    report = export_model(str(assets / "models" / "stories260K"), "onnx", "int8", tmp_path / "out", texts=str(rows))
    assert report.outputs is not None
    assert report.outputs.perplexity_before is not None
    assert 3 < report.outputs.perplexity_before < 6
    assert report.outputs.perplexity_after == pytest.approx(report.outputs.perplexity_before, rel=0.01)
    assert (tmp_path / "out" / "model.onnx").stat().st_size < 1_500_000


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_reward_model_of_several_heads_gives_its_normalized_score(tmp_path, quantization):
    reward = RewardModel.from_policy(PolicyModel.from_pretrained("embedded"), num_heads=2, head="mlp")
    reward.set_normalization(torch.tensor([0.5, -0.5]), torch.tensor([2.0, 3.0]))
    report = export_model(reward, "onnx", quantization, tmp_path / "out", max_increase=0.1)
    assert report.outputs is not None
    assert report.outputs.spread is not None
    assert report.outputs.spread > 0
