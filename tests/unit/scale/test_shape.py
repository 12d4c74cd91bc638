from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf.config.model import ModelConfig
from rlhf.errors import ModelError
from rlhf.models.adapters import add_lora
from rlhf.scale.shape import shape_of

LLAMA = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 96,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def new(init, **more):
    return ModelConfig.of({"init": init, "tokenizer": "anything", **more})


def built(config):
    return AutoModelForCausalLM.from_config(shape_of(config).config, dtype=torch.float32)


@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_counted_as_the_model_has_them_and_tied_ones_once(tied):
    config = new({**LLAMA, "tie_word_embeddings": tied})
    shape, model = shape_of(config), built(config)
    assert shape.num_parameters == sum(p.numel() for p in model.parameters())
    assert shape.num_body == sum(p.numel() for p in model.model.layers.parameters()) + model.model.norm.weight.numel()
    assert (shape.num_head, shape.num_embeddings) == (96 * 32, 96 * 32)


def test_keys_and_values_are_those_of_grouped_heads():
    # 3 layers, 2 heads of 32 / 4 = 8 numbers, keys and values
    assert shape_of(new(LLAMA)).cached_numbers_per_token == 3 * 2 * 8 * 2


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("init", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_adapters_have_as_many_weights_as_peft_gives_them(init):
    config = new(init, lora={"rank": 4})
    shape = shape_of(config)
    adapted = add_lora(built(config), config.lora, task="CAUSAL_LM", seed=0)
    assert shape.num_adapter == sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert shape.num_trainable == shape.num_adapter


@pytest.mark.parametrize("init", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_a_thin_copy_differs_in_its_layers_alone(init):
    shape = shape_of(new(init))
    thin = AutoModelForCausalLM.from_config(shape.cut(1), dtype=torch.float32)
    layer = shape.num_parameters - sum(p.numel() for p in thin.parameters())
    assert layer % (shape.num_layers - 1) == 0
    assert thin.config.num_hidden_layers == 1
    assert shape.num_layers == (3 if init is LLAMA else 2)  # the original is as it was


def test_types_and_adapters_decide_about_bytes():
    plain, half = shape_of(new(LLAMA)), shape_of(new(LLAMA, dtype="bfloat16"))
    assert plain.weight_bytes == 4 * plain.num_parameters == 2 * half.weight_bytes
    lora = shape_of(new(LLAMA, dtype="bfloat16", lora={"rank": 4}))
    assert lora.weight_bytes == half.weight_bytes + 4 * lora.num_adapter
    assert (half.trained_width, lora.trained_width) == (2, 4)


def test_a_folder_that_is_not_there_is_named():
    with pytest.raises(ModelError, match=r"\./absent"):
        shape_of(ModelConfig.of({"path": "./absent"}))


def test_a_kind_that_transformers_lacks_is_refused_with_what_is_near():
    with pytest.raises(ModelError, match=r"'lama'.*llama"):
        shape_of(new({**LLAMA, "model_type": "lama"}))


def test_of_a_mixture_a_token_passes_a_few_experts():
    init = {
        "model_type": "qwen3_moe", "vocab_size": 100, "hidden_size": 16, "intermediate_size": 32, "moe_intermediate_size": 8,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_experts": 4,
        "num_experts_per_tok": 1, "tie_word_embeddings": False,
    }  # fmt: skip
    shape = shape_of(ModelConfig.of({"init": init, "tokenizer": "x"}))
    assert shape.num_routed == 2 * 4 * 3 * 16 * 8  # layers, experts, matrices
    assert shape.routed_frac == 1 / 4
    assert shape.num_active == shape.num_body - shape.num_routed * 3 / 4
    assert shape.inner == 8
    assert shape.attention_width == 32  # wider than the hidden state


def test_latent_attention_keeps_one_vector_for_all_heads():
    init = {
        "model_type": "deepseek_v3", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 8,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8,
        "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    }  # fmt: skip
    shape = shape_of(ModelConfig.of({"init": init, "tokenizer": "x"}))
    assert shape.cached_numbers_per_token == 2 * (8 + 4)
    assert shape.routed_frac == 1 / 2
