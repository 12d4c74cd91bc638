from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf.config.model import LoRAConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, pack
from rlhf.models.adapters import add_lora
from rlhf.models.policy import PolicyModel
from rlhf.models.score import base_model
from rlhf.rollout import fused as fused_module
from rlhf.rollout.cache import KVCache
from rlhf.rollout.fused import FusedModel, Projection, filled_up, has_shape
from rlhf.rollout.fused_selection import FusedChoice, compare
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.packed import PackedDecoder
from tests.fixtures.rounding import assert_same_but_for_rounding, rounding_noise
from tests.unit.rollout.helpers import COMMON, FAMILIES, FUSED_FAMILIES, UNLIKE_FAMILIES, build_family, build_prompts

pytestmark = pytest.mark.numeric

SAMPLED = SamplingConfig(max_new_tokens=20)
IDS = [prompt.ids for prompt in build_prompts()]


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def ask(engine: LocalEngine) -> list[list[list[int]]]:
    groups = engine.generate(build_prompts(), num_samples=3, sampling=SAMPLED, seed=3, rollout_index=1)
    return [[completion.tokens for completion in group] for group in groups]


def logits(model, fused: FusedModel | None, steps: int = 6) -> torch.Tensor:
    """[steps, rows, V] of two rows for each prompt, fed the same tokens either way."""
    decoder = PackedDecoder(model, KVCache(), max_prefill_tokens=20, fused=fused)
    group = np.repeat(np.arange(len(IDS)), 2)
    steps_logits = [decoder.prefill(IDS, group, steps)]
    for step in range(steps - 1):
        steps_logits.append(decoder.step(torch.arange(len(group)) + 10 + step))
    return torch.stack(steps_logits)


@pytest.mark.parametrize("family", FUSED_FAMILIES)
def test_logits_are_the_models_own(family):
    model = build_family(family)
    settings = compare(model, IDS)
    assert settings is not None
    own, actual = {"logits": logits(model, None)}, {"logits": logits(model, FusedModel(model, settings, torch.float32))}
    noise = rounding_noise(model, lambda: {"logits": logits(model, None)})
    assert_same_but_for_rounding(actual, own, noise)


@pytest.mark.parametrize("family", FUSED_FAMILIES)
def test_half_precision_is_as_near_as_autocast(family):
    model = build_family(family)
    settings = compare(model, IDS)
    exact = logits(model, None)
    mean = (logits(model, FusedModel(model, settings, torch.bfloat16)) - exact).abs().mean()
    with torch.autocast("cpu", torch.bfloat16):
        usual = (logits(model, None) - exact).abs().mean()
    assert 0 < mean < 1.5 * usual


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in FUSED_FAMILIES])
def test_other_families_keep_their_own_code(family):
    model = build_family(family)
    assert has_shape(model) == (family in UNLIKE_FAMILIES)
    assert FusedChoice().build(model, IDS, torch.float32, max_new_tokens=8) is None


def test_what_is_built_differently_is_seen_by_its_logits(caplog):
    model = build_family("granite")
    with caplog.at_level("INFO", logger="rlhf.rollout.fused_selection"):
        assert compare(model, IDS) is None
    assert "GraniteForCausalLM has the parts of a Llama but puts them together differently" in caplog.text


def test_a_layer_that_computes_something_else_is_seen_by_its_logits():
    model = build_family("llama")
    own = model.model.layers[0].forward
    model.model.layers[0].forward = lambda *args, **kwargs: own(*args, **kwargs) * 1.001
    assert has_shape(model)
    assert compare(model, IDS) is None


@pytest.mark.parametrize("kind", ["adapter", "hook", "double", "half", "bias in a norm", "growing rotations"])
def test_what_the_parts_do_not_show_is_refused(kind, word_tokenizer):
    model = build_family("llama")
    if kind == "adapter":
        model = base_model(add_lora(model, LoRAConfig(rank=2), task="CAUSAL_LM", seed=0))
    elif kind == "hook":
        model.model.embed_tokens.register_forward_hook(lambda module, args, output: output * 2)
    elif kind == "double":
        model.double()
    elif kind == "half":
        model.bfloat16()
    elif kind == "bias in a norm":
        model.model.layers[0].input_layernorm.bias = nn.Parameter(torch.ones(32))
    else:
        model.model.rotary_emb.rope_type = "dynamic"
    assert not has_shape(model)


def test_a_refused_shape_is_not_compared_and_an_equal_one_once(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "rlhf.rollout.fused_selection.compare",
        lambda model, ids, **how: asked.append(model) or compare(model, ids, **how),
    )
    choice, model = FusedChoice(), build_family("llama")
    for _ in range(3):
        assert choice.build(model, IDS, torch.float32, max_new_tokens=8) is not None
    assert asked == [model]
    other = build_family("qwen3")
    assert choice.build(other, IDS, torch.float32, max_new_tokens=8) is not None
    assert choice.build(build_family("gpt2"), IDS, torch.float32, max_new_tokens=8) is None
    assert asked == [model, other]


@pytest.mark.parametrize("family", FUSED_FAMILIES)
def test_samples_are_the_same_either_way(family, word_tokenizer):
    policy = PolicyModel(build_family(family), word_tokenizer)
    assert ask(LocalEngine(policy)) == ask(LocalEngine(policy, fused=False))


def test_the_engine_does_sample_in_few_kernels(word_tokenizer, monkeypatch):
    calls = []
    own = FusedModel.hidden
    monkeypatch.setattr(FusedModel, "hidden", lambda *args: calls.append(1) or own(*args))
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    ask(LocalEngine(policy, fused=False))
    assert not calls
    engine = LocalEngine(policy)
    ask(engine)
    assert len(calls) > 10


def test_weights_are_copied_anew_for_each_call(word_tokenizer):
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    engine = LocalEngine(policy)
    before = ask(engine)
    policy.model.model.layers[0].mlp.down_proj.weight.data.mul_(-1)  # leaves no trace in the tensor's version
    assert ask(engine) != before
    assert ask(engine) == ask(LocalEngine(policy, fused=False))


def test_an_engine_goes_back_to_the_models_own_code_when_it_must(word_tokenizer):
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    engine = LocalEngine(policy)
    before = ask(engine)
    handle = policy.model.model.embed_tokens.register_forward_hook(lambda module, args, output: output * 2)
    assert ask(engine) != before
    handle.remove()
    assert ask(engine) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_projection_is_the_linear_map(dtype, bias):
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, 24, generator=generator).to(dtype) for n in (40, 5))
    b = torch.randn(40, generator=generator).to(dtype) if bias else None
    expected = nn.functional.linear(x.double(), weight.double(), b.double() if b is not None else None)
    actual = Projection(weight, b, dtype)(x)
    assert actual.dtype == dtype
    assert torch.allclose(actual.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=40 * torch.finfo(dtype).eps)


def test_without_onednn_the_results_are_the_same(word_tokenizer, monkeypatch):
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    expected = ask(LocalEngine(policy))
    monkeypatch.setattr(fused_module, "_packed", lambda weight: None)
    assert ask(LocalEngine(policy)) == expected


def test_a_family_that_scales_queries_by_position_is_seen_far_from_the_first_one(word_tokenizer):
    # Ministral 3 multiplies queries by 1 + beta * ln(1 + position // 64) here: nothing at all below position 64.
    rotations = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 64}
    rotations |= {
        "llama_4_scaling_beta": 0.5,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    shape = COMMON | {"max_position_embeddings": 1024, "rope_parameters": rotations}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("ministral3", **shape)).eval()
    assert has_shape(model)
    choice = FusedChoice()
    assert choice.build(model, IDS, torch.float32, max_new_tokens=8) is not None
    long = [list(IDS[0]) * 20]
    assert choice.build(model, long, torch.float32, max_new_tokens=8) is None
    policy = PolicyModel(model, word_tokenizer)
    prompts = [Prompt("long", long[0], "")]
    group = LocalEngine(policy).generate(prompts, num_samples=2, sampling=SAMPLED, seed=0, rollout_index=0)[0]
    said = policy.logprobs(pack([Group(long[0], [Branch(c.tokens) for c in group])]))
    assert torch.allclose(torch.tensor([x for c in group for x in c.logprobs]), said, atol=1e-5)


def test_a_longer_request_is_a_new_comparison_and_a_shorter_one_is_not(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "rlhf.rollout.fused_selection.compare",
        lambda model, ids, **how: asked.append(how["reach"]) or compare(model, ids, **how),
    )
    choice, model = FusedChoice(), build_family("llama")
    for tokens in (8, 8, 40, 47, 48, 8):  # the longest prompt has 17
        assert choice.build(model, IDS, torch.float32, max_new_tokens=tokens) is not None
    assert asked == [32, 64, 128]


def test_the_heads_bias_is_kept():
    model = build_family("llama")
    model.lm_head = nn.Linear(32, model.config.vocab_size, bias=True)
    nn.init.normal_(model.lm_head.bias)
    settings = compare(model, IDS)
    assert settings is not None
    own, actual = {"logits": logits(model, None)}, {"logits": logits(model, FusedModel(model, settings, torch.float32))}
    noise = rounding_noise(model, lambda: {"logits": logits(model, None)})
    assert_same_but_for_rounding(actual, own, noise)


def test_a_large_cache_is_given_back_to_training(word_tokenizer, monkeypatch):
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    engine = LocalEngine(policy)
    ask(engine)
    assert engine._cache._buffers
    monkeypatch.setattr("rlhf.rollout.local.KEPT_BYTES", 1)
    ask(engine)
    assert not engine._cache._buffers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_whose_weights_were_released_samples_on(dtype):
    model = build_family("llama")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    settings = compare(model, IDS)
    assert settings is not None
    fused = FusedModel(model, settings, dtype)
    before = logits(model, fused)
    size = sum(parameter.nbytes for parameter in model.parameters())
    fused.release(model)
    assert torch.equal(logits(model, fused), before)
    assert sum(parameter.nbytes for parameter in model.parameters()) < size / 2
    assert fused.embedding.dtype == dtype


def test_an_embedding_that_bfloat16_would_round_stays():
    model = build_family("llama")
    settings = compare(model, IDS)
    assert settings is not None
    fused = FusedModel(model, settings, torch.bfloat16)
    fused.release(model)
    assert fused.embedding.dtype == torch.float32


def test_rows_are_filled_up_to_few_numbers_and_by_an_eighth_at_most():
    filled = {rows: filled_up(rows) for rows in range(1, 4097)}
    assert all(filled[rows] == rows for rows in range(1, 17))
    assert all(rows <= more <= rows * 1.125 for rows, more in filled.items())
    assert len(set(filled.values())) < 100
