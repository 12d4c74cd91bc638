from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlhf.models.policy import PolicyModel
from rlhf.native.kernels import DecodeKernels, TiledLinear, can_tile, decode_kernels, tiled_linear
from rlhf.native.library import compiler
from rlhf.rollout.cache import KVCache
from rlhf.rollout.compiled import CompiledModel
from rlhf.rollout.fused import Projection
from rlhf.rollout.fused_selection import compare
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.packed import PackedDecoder
from rlhf.rollout.sampling import BLOCK
from tests.unit.rollout.helpers import FUSED_FAMILIES, build_family, build_prompts
from tests.unit.rollout.test_compiled import ask, logits

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH"),
]
IDS = [prompt.ids for prompt in build_prompts()]


def kernels() -> DecodeKernels:
    return DecodeKernels(8, torch.bfloat16, block=BLOCK)


@pytest.fixture(autouse=True)
def _where_there_are_tiles():
    if not kernels().has_tiles:
        pytest.skip("this processor has no tiles of bfloat16 (AMX)")
    with torch.no_grad():
        yield


@pytest.fixture
def three_threads(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(tiled_linear, "APIECE", 1)
    monkeypatch.setattr(decode_kernels, "NUMBERS_APIECE", 1)
    yield
    torch.set_num_threads(before)


def projection(weight: torch.Tensor, bias: torch.Tensor | None = None) -> TiledLinear:
    assert can_tile(weight)
    return kernels().tiled_linear(weight, bias)


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 31, 32, 33, 48, 100])
@pytest.mark.parametrize(
    ("wide", "out"), [(32, 1), (34, 16), (48, 17), (62, 33), (64, 47), (96, 64), (250, 120)], ids=str
)
def test_a_product_is_rounded_once(rows, wide, out):
    torch.manual_seed(rows)
    weight, bias, x = torch.randn(out, wide), torch.randn(out), torch.randn(rows, wide).bfloat16()
    exact = x.double() @ weight.bfloat16().double().T + bias.double()
    actual = projection(weight, bias)(x).double()
    # Half a unit in the last of 8 binary places, and float32 sums of `wide` terms that may cancel.
    allowed = exact.abs() * 2.0**-8 + wide * 2.0**-23
    assert ((actual - exact).abs() <= allowed).all()
    without = projection(weight)(x).double()
    assert (
        (without - (exact - bias.double())).abs() <= (exact - bias.double()).abs() * 2.0**-8 + wide * 2.0**-23
    ).all()


def test_a_row_hangs_on_no_other():
    torch.manual_seed(0)
    tiled, x = projection(torch.randn(70, 50)), torch.randn(45, 50).bfloat16()
    whole = tiled(x)
    alone = torch.cat([tiled(row[None]) for row in x])
    assert torch.equal(whole, alone)
    assert torch.equal(tiled(x[7:40]), whole[7:40])


def test_no_rows_give_none():
    assert projection(torch.randn(20, 40))(torch.empty(0, 40, dtype=torch.bfloat16)).shape == (0, 20)


def test_rows_that_stand_apart_in_memory_are_read_where_they_are():
    x = torch.randn(9, 2, 40).bfloat16()
    tiled = projection(torch.randn(20, 40))
    assert torch.equal(tiled(x[:, 1]), tiled(x[:, 1].clone()))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_comes_through(value):
    x = torch.ones(20, 40).bfloat16()
    x[3, 39] = value
    actual = projection(torch.ones(33, 40))(x)
    assert not actual[3].isfinite().any()
    assert torch.equal(actual[:3], torch.full((3, 33), 40.0).bfloat16())
    assert actual[4:].isfinite().all()


def test_more_threads_give_the_same_bits(three_threads):
    torch.manual_seed(0)
    tiled, x = projection(torch.randn(500, 64), torch.randn(500)), torch.randn(40, 64).bfloat16()
    actual = tiled(x)
    torch.set_num_threads(1)
    assert torch.equal(tiled(x), actual)


@pytest.mark.parametrize("wide", [16, 30, 33])
def test_what_does_not_fit_is_torchs(wide):
    assert not can_tile(torch.empty(8, wide))


def compiled(model, **changed) -> CompiledModel:
    settings = compare(model, IDS)
    assert settings is not None
    return CompiledModel(model, settings, changed.get("dtype", torch.bfloat16))


@pytest.mark.parametrize("family", FUSED_FAMILIES)
def test_a_step_in_one_call_is_what_its_parts_are(family, monkeypatch):
    model = build_family(family)
    whole = compiled(model)
    assert whole._weights is not None
    actual = logits(model, whole)
    by_parts = compiled(model)
    by_parts._weights = None
    assert torch.equal(logits(model, by_parts), actual)  # the same functions in the same order
    library = decode_kernels._functions(8, BLOCK, half=True)[0]
    monkeypatch.setattr(decode_kernels, "_functions", lambda *_, **__: (library, False))
    without = compiled(model)
    assert without._weights is None
    assert all(isinstance(layer.down, Projection) for layer in without.layers)
    exact = logits(model, None)
    gaps = [(one - exact).abs().mean() for one in (actual, logits(model, without))]
    assert 0 < gaps[0] < 1.1 * gaps[1]


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_threads_do_not_change_a_sample(family, word_tokenizer, three_threads):
    policy = PolicyModel(build_family(family), word_tokenizer)
    engine = LocalEngine(policy, compiled=True, autocast="bfloat16")
    reply = ask(engine)
    torch.set_num_threads(1)
    alone = ask(LocalEngine(policy, compiled=True, autocast="bfloat16"))
    assert [(c.tokens, c.logprobs) for c in reply] == [(c.tokens, c.logprobs) for c in alone]


def test_a_row_hangs_on_none_beside_it():
    model = build_family("llama")
    fused, rows = compiled(model), np.arange(2 * len(IDS))
    actual = []
    for kept in (rows, rows[1::3]):
        decoder = PackedDecoder(model, KVCache(), max_prefill_tokens=20, fused=fused)
        decoder.prefill(IDS, rows // 2, 12)
        places = decoder.keep(np.isin(rows, kept))
        said = torch.stack([decoder.step(torch.from_numpy(places) + 10 + step) for step in range(10)], dim=1)
        actual.append(dict(zip(places.tolist(), said, strict=True)))
    assert set(actual[1]) == set(rows[1::3])
    assert all(torch.equal(actual[0][row], actual[1][row]) for row in actual[1])


def test_an_interrupt_before_one_thread_begins_leaves_no_other_waiting(word_tokenizer, three_threads, monkeypatch):
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    engine = LocalEngine(policy, compiled=True, autocast="bfloat16")
    expected = ask(engine)
    own, steps = decode_kernels.together, [5]

    def interrupted(call, **how):
        steps[0] -= 1

        def instead(memory: int, thread: int) -> None:
            if thread == 0 and steps[0] == 0:
                raise KeyboardInterrupt
            call(memory, thread)

        own(instead, **how)

    monkeypatch.setattr(decode_kernels, "together", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(engine)
    assert steps == [0]
    assert [(c.tokens, c.logprobs) for c in ask(engine)] == [(c.tokens, c.logprobs) for c in expected]
