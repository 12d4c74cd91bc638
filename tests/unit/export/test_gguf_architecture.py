from __future__ import annotations

import pytest
import torch

from rlhf.errors import ModelError
from rlhf.export.gguf_architecture import (
    ROPE_FREQS,
    context_length,
    family_of,
    gguf_name,
    metadata,
    restored,
    tensors,
)
from tests.fixtures.exported import FAMILIES, tiny_policy


def test_rows_that_rotate_together_stand_next_to_each_other():
    # Two heads of width 4: transformers rotates rows 0 and 2, 1 and 3 of each head together, llama.cpp's `llama` neighbors.
    model = tiny_policy(
        {"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4}
    ).model
    weight = model.model.layers[0].self_attn.q_proj.weight
    weight.data = torch.arange(8.0)[:, None].repeat(1, weight.shape[1])
    written = {name: value for name, _, value in tensors(model, family_of(model))}
    assert written["blk.0.attn_q.weight"][:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_has_a_place_and_comes_back_as_it_was(family):
    model = tiny_policy(FAMILIES[family]).model
    written = {theirs: (ours, value) for ours, theirs, value in tensors(model, family_of(model))}
    assert written.keys() - {ROPE_FREQS} == dict(model.named_parameters()).keys()
    assert len({ours for ours, _ in written.values()}) == len(written)
    for name, value in model.named_parameters():
        assert torch.equal(restored(name, written[name][1], model.config, family_of(model)), value)


def test_llama_3_divides_slow_rotations_by_its_factor_and_leaves_fast_ones():
    model = tiny_policy(FAMILIES["llama3"]).model
    factors = {name: value for name, _, value in tensors(model, family_of(model))}[ROPE_FREQS]
    # Width 16: frequencies 10000^(-i/8), i = 0..7. Wavelengths 6.3, 20, 63, 199 ... of 64 tokens; up to 64/4 = 16 they stay,
    # from 64/1 on they are four times as long.
    assert factors[0].item() == pytest.approx(1.0)
    assert 1 < factors[1].item() < 4
    assert factors[3:].tolist() == pytest.approx([4.0] * 5, rel=1e-5)


def test_the_metadata_of_a_model_with_grouped_heads():
    model = tiny_policy({"model_type": "llama", "head_dim": 32}).model
    found = metadata(model, family_of(model))
    assert (found["attention.head_count"], found["attention.head_count_kv"]) == (4, 2)
    assert found["rope.dimension_count"] == found["attention.key_length"] == 32
    assert isinstance(found["rope.freq_base"], float)


def test_a_context_ends_with_the_sliding_window():
    assert context_length(tiny_policy(FAMILIES["mistral"]).model.config) == 128
    assert context_length(tiny_policy(FAMILIES["qwen2"]).model.config) == 256, "its window is switched off"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": "llama", "hidden_act": "gelu"}, "gelu"),
        ({"model_type": "llama", "mlp_bias": True}, "mlp_bias"),
        (
            {"model_type": "llama", "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
            "yarn",
        ),
    ],
)
def test_what_llama_cpp_does_otherwise_is_refused_by_name(config, named):
    with pytest.raises(ModelError, match=named):
        family_of(tiny_policy(config).model)


def test_a_weight_without_a_place_is_named():
    assert gguf_name("model.layers.11.mlp.down_proj.weight") == "blk.11.ffn_down.weight"
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.extra"):
        gguf_name("model.layers.0.mlp.extra.weight")
