from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlhf.config.engines import LocalEngineConfig, PromptLookupConfig
from rlhf.config.model import LoRAConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, TrainingError
from rlhf.models.adapters import add_lora
from rlhf.models.policy import PolicyModel
from rlhf.native import library, threads
from rlhf.native.compiled_mode import in_c
from rlhf.native.kernels import DecodeKernels, decode_kernels
from rlhf.native.library import compiler
from rlhf.rollout.cache import GROW_BLOCK, KVCache
from rlhf.rollout.compiled import CompiledModel, can_compile
from rlhf.rollout.engines import build_engine
from rlhf.rollout.fused import FusedModel
from rlhf.rollout.fused_selection import compare
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.packed import PackedDecoder
from rlhf.rollout.sampling import BLOCK, draw, uniforms
from rlhf.rollout.snapshot import SnapshotSampler, Start
from tests.fixtures import toy
from tests.fixtures.rounding import assert_same_but_for_rounding, rounding_noise
from tests.unit.rollout.helpers import FAMILIES, FUSED_FAMILIES, build_family, build_prompts, continued_by_transformers

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH"),
]

GREEDY = SamplingConfig(max_new_tokens=20, temperature=0.0)
SAMPLED = SamplingConfig(max_new_tokens=20)
LONG = SamplingConfig(max_new_tokens=GROW_BLOCK + 40)
IDS = [prompt.ids for prompt in build_prompts()]


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def ask(engine: LocalEngine, sampling: SamplingConfig = SAMPLED, num_samples: int = 3):
    groups = engine.generate(build_prompts(), num_samples=num_samples, sampling=sampling, seed=3, rollout_index=1)
    return [completion for group in groups for completion in group]


def tokens_of(completions) -> list[list[int]]:
    return [completion.tokens for completion in completions]


def logprobs_of(completions) -> torch.Tensor:
    return torch.tensor([number for completion in completions for number in completion.logprobs])


def logits(model, fused: FusedModel | None, steps: int = 12) -> torch.Tensor:
    """float32 [steps, rows, V] of two rows for each prompt, fed the same tokens either way; a third of the rows leaves on the way."""
    decoder = PackedDecoder(model, KVCache(), max_prefill_tokens=20, fused=fused)
    group = np.repeat(np.arange(len(IDS)), 2)
    steps_logits = [decoder.prefill(IDS, group, steps)]
    fed = torch.arange(len(group)) + 10
    for step in range(steps - 1):
        if step == 4:
            kept = torch.from_numpy(decoder.keep(np.arange(len(group)) % 3 != 1))
            fed = fed.index_select(0, kept)
        steps_logits.append(decoder.step(fed + step))
    return torch.cat([part.float().flatten() for part in steps_logits])


def assert_logits_are_its_own(model, made):
    """In float32: as near as rounding allows."""
    own = {"logits": logits(model, None)}
    noise = rounding_noise(model, lambda: {"logits": logits(model, None)})
    assert_same_but_for_rounding({"logits": logits(model, made)}, own, noise)


def assert_as_near_as_autocast(model, made):
    """In bfloat16: as near to float32 as torch's own operations are."""
    exact = logits(model, None)
    with torch.autocast("cpu", torch.bfloat16):
        usual = (logits(model, None) - exact).abs().mean()
    assert 0 < (logits(model, made) - exact).abs().mean() < 1.2 * usual


@pytest.mark.parametrize("family", FUSED_FAMILIES)
def test_logits_are_the_models_own(family):
    model = build_family(family)
    settings = compare(model, IDS)
    assert settings is not None
    assert can_compile(model, settings, torch.float32)
    assert_logits_are_its_own(model, CompiledModel(model, settings, torch.float32))


@pytest.mark.parametrize("family", FUSED_FAMILIES)
def test_half_precision_is_as_near_as_autocast(family):
    model = build_family(family)
    settings = compare(model, IDS)
    assert_as_near_as_autocast(model, CompiledModel(model, settings, torch.bfloat16))


@pytest.mark.parametrize("head_dim", [2, 6, 16, 48, 64, 256])  # without vectors; an odd number of them, and an even one
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_heads_of_any_width_are_read_right(head_dim, dtype, monkeypatch):
    monkeypatch.setitem(FAMILIES, "qwen3", FAMILIES["qwen3"] | {"head_dim": head_dim})
    model = build_family("qwen3")
    settings = compare(model, IDS)
    made = CompiledModel(model, settings, dtype)
    if dtype == torch.float32:
        assert_logits_are_its_own(model, made)
    else:
        assert_as_near_as_autocast(model, made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_biases_are_added(dtype):
    model = build_family("qwen2")
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    made = CompiledModel(model, compare(model, IDS), dtype)
    if dtype == torch.float32:
        assert_logits_are_its_own(model, made)
    else:
        assert_as_near_as_autocast(model, made)


@pytest.mark.parametrize("family", FUSED_FAMILIES)
def test_greedy_completions_are_transformers_own(family, word_tokenizer):
    policy = PolicyModel(build_family(family), word_tokenizer)
    reply = ask(LocalEngine(policy, compiled=True), GREEDY, num_samples=1)
    assert tokens_of(reply) == [continued_by_transformers(policy.model, prompt, 20) for prompt in build_prompts()]


@pytest.mark.parametrize("family", FUSED_FAMILIES)
@pytest.mark.parametrize("max_rows", [1024, 5], ids=["at once", "as there is room"])
def test_samples_are_the_same_either_way(family, max_rows, word_tokenizer):
    # 104 tokens in a ring that begins with room for 64, and rows of different ages in it.
    model = build_family(family)
    model.generation_config.eos_token_id = [2, 7]
    policy = PolicyModel(model, word_tokenizer)
    expected = ask(LocalEngine(policy, max_rows=max_rows), LONG)
    reply = ask(LocalEngine(policy, max_rows=max_rows, compiled=True), LONG)
    assert tokens_of(reply) == tokens_of(expected)
    assert max(map(len, tokens_of(reply))) > GROW_BLOCK
    assert torch.allclose(logprobs_of(reply), logprobs_of(expected), atol=1e-5)
    assert [c.text for c in reply] == [c.text for c in expected]
    assert [c.finish_reason for c in reply] == [c.finish_reason for c in expected]


@pytest.mark.parametrize(
    "sampling",
    [
        SAMPLED.updated(temperature=0.7),
        SAMPLED.updated(top_p=0.8),
        SAMPLED.updated(top_k=7, min_p=0.02),
        SAMPLED.updated(repetition_penalty=1.3),
        SAMPLED.updated(stop=["w9"]),
    ],
    ids=["temperature", "top_p", "top_k and min_p", "penalty", "stop"],
)
def test_every_way_of_drawing_gives_the_same(sampling, word_tokenizer):
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    expected, reply = ask(LocalEngine(policy), sampling), ask(LocalEngine(policy, compiled=True), sampling)
    assert tokens_of(reply) == tokens_of(expected)
    assert torch.allclose(logprobs_of(reply), logprobs_of(expected), atol=1e-5)


@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
def test_two_threads_give_the_bits_of_one(autocast, word_tokenizer, monkeypatch, two_threads):
    monkeypatch.setattr(decode_kernels, "UNITS_APIECE", 2)
    monkeypatch.setattr(decode_kernels, "ROWS_APIECE", 1)
    shared = []
    own = threads._pool
    monkeypatch.setattr(threads, "_pool", lambda count: shared.append(count) or own(count))
    policy = PolicyModel(build_family("qwen3"), word_tokenizer)
    both = ask(LocalEngine(policy, compiled=True, autocast=autocast))
    assert shared
    monkeypatch.setattr(decode_kernels, "UNITS_APIECE", 1 << 30)
    monkeypatch.setattr(decode_kernels, "ROWS_APIECE", 1 << 30)
    shared.clear()
    alone = ask(LocalEngine(policy, compiled=True, autocast=autocast))
    assert not shared
    assert [(c.tokens, c.logprobs) for c in both] == [(c.tokens, c.logprobs) for c in alone]


def test_another_activation_is_torchs_own(word_tokenizer):
    model = build_family("llama")
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.GELU()
    policy = PolicyModel(model, word_tokenizer)
    expected, reply = ask(LocalEngine(policy)), ask(LocalEngine(policy, compiled=True))
    assert tokens_of(reply) == tokens_of(expected)


def test_whole_numbers_are_multiplied_as_without(word_tokenizer, monkeypatch):
    monkeypatch.setattr("rlhf.rollout.int8.SMALLEST", 1)
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    expected = ask(LocalEngine(policy, weights="int8"))
    reply = ask(LocalEngine(policy, weights="int8", compiled=True))
    alike = sum(a == b for a, b in zip(tokens_of(reply), tokens_of(expected), strict=True))
    assert alike >= len(expected) - 2  # a number at the border of two codes may be rounded to either


def test_half_precision_keeps_keys_and_values_in_half_the_bytes(word_tokenizer):
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    engines = [LocalEngine(policy, autocast="bfloat16", compiled=flag) for flag in (False, True)]
    for engine in engines:
        ask(engine)
    kinds = [{layer.keys.dtype for layer in engine._cache.layers.values()} for engine in engines]
    assert kinds == [{torch.float32}, {torch.bfloat16}]


@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
@pytest.mark.parametrize("where", ["embedding", "keys", "head"])
def test_weights_that_are_not_finite_are_found(where, autocast, word_tokenizer):
    model = build_family("llama")
    policy = PolicyModel(model, word_tokenizer)
    engine = LocalEngine(policy, compiled=True, autocast=autocast)
    ask(engine)  # the comparison at the start was passed
    weight = {
        "embedding": model.model.embed_tokens.weight,
        "keys": model.model.layers[1].self_attn.k_proj.weight,
        "head": model.lm_head.weight,
    }[where]
    weight[5:] = math.nan
    with pytest.raises(TrainingError, match="not finite"):
        ask(engine)


def made(half: bool) -> CompiledModel:
    model = build_family("llama")
    settings = compare(model, IDS)
    assert settings is not None
    return CompiledModel(model, settings, torch.bfloat16 if half else torch.float32)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("vocabulary", [1, 5, BLOCK, 3 * BLOCK + 17])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_draw_is_torchs(half, vocabulary, temperature):
    torch.manual_seed(0)
    rows = 400
    given = (4 * torch.randn(rows, vocabulary)).to(torch.bfloat16 if half else torch.float32)
    uniform = torch.from_numpy(uniforms(np.arange(rows, dtype=np.uint64), 3))
    sampling = SamplingConfig(temperature=temperature)
    expected = draw(given.clone(), uniform, sampling)
    actual = made(half).draw(given.clone(), uniform, sampling)
    assert (actual.tokens != expected.tokens).sum() <= 1  # sums are rounded in another order
    same = actual.tokens == expected.tokens
    assert torch.allclose(actual.logprobs[same].float(), expected.logprobs[same].float(), atol=3e-6)


def test_what_has_no_probability_is_never_drawn():
    given = torch.full((6, 2 * BLOCK), -math.inf)
    given[:, [3, BLOCK + 9]] = torch.tensor([1.0, 2.0])
    given[5, 3] = -math.inf
    uniform = torch.tensor([0.0, 0.26, 0.27, 1 - 2.0**-53, 0.5, 0.0], dtype=torch.float64)
    actual = made(False).draw(given, uniform, SAMPLED)
    share = 1 / (1 + math.e)  # 0.2689
    assert actual.tokens.tolist() == [3, 3, BLOCK + 9, BLOCK + 9, BLOCK + 9, BLOCK + 9]
    expected = [math.log(share)] * 2 + [math.log(1 - share)] * 3 + [0.0]
    assert torch.allclose(actual.logprobs, torch.tensor(expected, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_draw_from_what_is_not_finite_says_so(value):
    given = torch.zeros(5, BLOCK + 4)
    given[0], given[1, 7], given[2, BLOCK + 1] = value, value, value
    given[3, BLOCK:], given[4, :BLOCK] = value, value  # all of a block
    actual = made(False).draw(given, torch.full((5,), 0.5, dtype=torch.float64), SAMPLED)
    assert actual.logprobs.isnan().all()
    assert ((actual.tokens >= 0) & (actual.tokens < BLOCK + 4)).all()


def test_what_is_left_of_a_rounded_sum_goes_to_a_token_that_can_be_drawn():
    # The largest number below 1 lies behind the last cumulative probability wherever a block's sum was rounded up.
    torch.manual_seed(1)
    given = torch.randn(300, BLOCK)
    given[:, -20:] = -math.inf
    uniform = torch.full((300,), 1 - 2.0**-53, dtype=torch.float64)
    assert int(made(False).draw(given, uniform, SAMPLED).tokens.max()) < BLOCK - 20


def kernels(half: bool) -> DecodeKernels:
    return DecodeKernels(8, torch.bfloat16 if half else torch.float32, block=BLOCK)


def normed(half: bool, given: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(given, dtype=torch.bfloat16 if half else torch.float32)
    kernels(half).norm(given, out, eps)
    return out


@pytest.mark.parametrize("half", [False, True])
def test_a_norm_is_rounded_to_the_nearest(half):
    torch.manual_seed(0)
    given = torch.randn(50, 200)
    exact = given.double() / (given.double().square().mean(-1, keepdim=True) + 1e-3).sqrt()
    actual = normed(half, given, 1e-3)
    if half:
        assert (
            actual != exact.bfloat16()
        ).float().mean() < 1e-3  # a sum in another order may cross the middle between two numbers
    else:
        assert torch.allclose(actual.double(), exact, rtol=1e-6)


def test_every_nan_stays_one_when_it_is_rounded():
    given = torch.ones(1, 16)
    given.view(torch.int32)[0, 3] = 0x7FFFFFFF
    assert normed(True, given, 1e-6).isnan().all()


@pytest.mark.parametrize("half", [False, True])
def test_a_gate_is_right_at_any_size(half):
    dtype = torch.bfloat16 if half else torch.float32
    gate = torch.tensor([-1e4, -200.0, -90.0, -88.0, -20.0, -1.0, 0.0, 1e-3, 1.0, 20.0, 90.0, 1e4]).to(dtype)
    up = torch.full_like(gate, 0.75)
    actual = kernels(half).silu_product(torch.cat([gate, up])[None])[0]
    expected = torch.nn.functional.silu(gate.double()) * 0.75
    assert torch.allclose(actual.double(), expected, rtol=1e-2 if half else 1e-6, atol=1e-30)
    assert kernels(half).silu_product(torch.full((1, 2), math.nan, dtype=dtype)).isnan().all()


def test_a_library_that_is_wrong_in_half_precision_is_seen(word_tokenizer, monkeypatch, caplog):
    own = CompiledModel.hidden

    def wrong(model, tokens, positions, layout):
        actual = own(model, tokens, positions, layout)
        return actual * (2 if model.dtype == torch.bfloat16 else 1) + (model.dtype == torch.bfloat16)

    monkeypatch.setattr(CompiledModel, "hidden", wrong)
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    ask(LocalEngine(policy, compiled=True, autocast="bfloat16"))
    assert "engine.compiled has no effect" in caplog.text


def test_the_recipe_asks_for_it_and_c_does_the_steps(word_tokenizer, monkeypatch):
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    calls = []
    own = CompiledModel._attended
    monkeypatch.setattr(CompiledModel, "_attended", lambda *args: calls.append(1) or own(*args))
    ask(build_engine(policy, LocalEngineConfig()))
    assert not calls
    ask(build_engine(policy, LocalEngineConfig(compiled=True)))
    assert len(calls) > 10


def test_a_sampler_beside_training_is_asked_for_it_too():
    for compiled in (False, True):
        settings = LocalEngineConfig(compiled=compiled)
        sampler = SnapshotSampler(Start(toy.build_policy(), (), "none", 1, settings))
        assert sampler.engine._choice is not None
        assert sampler.engine._choice.compiled == compiled


@pytest.mark.parametrize("kind", ["family", "layers added up in another way", "adapter", "float16"])
def test_what_it_is_not_written_for_is_sampled_from_as_ever(kind, word_tokenizer, caplog):
    model = build_family({"family": "gpt2", "layers added up in another way": "granite"}.get(kind, "llama"))
    if kind == "adapter":
        model = add_lora(model, LoRAConfig(rank=2), task="CAUSAL_LM", seed=0)
    policy = PolicyModel(model, word_tokenizer)
    autocast = "float16" if kind == "float16" else "none"
    engine = LocalEngine(policy, compiled=True, autocast=autocast)
    assert tokens_of(ask(engine)) == tokens_of(ask(LocalEngine(policy, autocast=autocast)))
    ask(engine)
    assert caplog.text.count("engine.compiled has no effect") == 1


@pytest.mark.parametrize("family", [name for name in FAMILIES if name in ("gemma2", "gpt_oss")])
def test_soft_caps_and_sinks_are_left_to_torch(family):
    model = build_family(family)
    cache = KVCache()
    PackedDecoder(model, cache, max_prefill_tokens=20).prefill(IDS, np.arange(len(IDS)), 2)
    settings = {module: layer.settings for module, layer in cache.layers.items()}
    assert not can_compile(model, settings, torch.float32)


@pytest.mark.parametrize("family", ["mistral", "qwen3"])
@pytest.mark.parametrize("units_apiece", [1, 64], ids=["two threads", "one thread"])
def test_several_tokens_of_a_row_are_fed_at_once(family, units_apiece, word_tokenizer, monkeypatch, two_threads):
    """Windows and norms of heads; rows of different ages, and the room grows."""
    monkeypatch.setattr(decode_kernels, "UNITS_APIECE", units_apiece)
    policy = PolicyModel(build_family(family), word_tokenizer)
    cold, guesses = LONG.updated(temperature=0.3), PromptLookupConfig(ngram_tokens=1, draft_tokens=3, max_rows=100)
    engine = LocalEngine(policy, compiled=True, speculate=guesses, max_rows=5)
    reply, expected = (ask(each, cold, num_samples=1) for each in (engine, LocalEngine(policy, max_rows=5)))
    assert tokens_of(reply) == tokens_of(expected)
    assert (logprobs_of(reply) - logprobs_of(expected)).abs().max() < 2e-5
    assert engine.figures["rollout/draft_accept_frac"] > 0.01


def test_without_a_compiler_the_run_is_told(word_tokenizer, monkeypatch, tmp_path):
    decode_kernels._functions.cache_clear()
    library.load.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    engine = LocalEngine(PolicyModel(build_family("llama"), word_tokenizer), compiled=True)
    with pytest.raises(ConfigError, match=r"apt-get install gcc"):
        ask(engine)


@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
def test_what_training_was_told_changes_no_bit_of_what_is_sampled(autocast, word_tokenizer):
    """The layers of a policy that is not sampled from in few kernels may be in C where it is trained."""
    policy = PolicyModel(build_family("granite"), word_tokenizer)
    expected = ask(LocalEngine(policy, autocast=autocast))
    with in_c(True):
        policy.logprobs(pack([Group([3, 4, 5], [Branch([6, 7])])]))
        reply = ask(LocalEngine(policy, autocast=autocast))
    assert tokens_of(reply) == tokens_of(expected)
    assert torch.equal(logprobs_of(reply), logprobs_of(expected))
