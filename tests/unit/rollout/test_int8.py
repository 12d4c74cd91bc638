"""Weights of 8 bits: how wrong a product can be, and what is left alone."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model

from rlhf.rollout import int8
from rlhf.rollout.int8 import Int8Projection, int8_linears, quantize
from tests.unit.rollout.helpers import build_family

pytestmark = pytest.mark.numeric


@pytest.fixture(params=["kernel", "codes"])
def way(request, monkeypatch) -> str:
    """Both ways of multiplying; the kernel where this machine has it."""
    if request.param == "codes":
        monkeypatch.setattr(int8, "_has_kernel", lambda weight: False)
    elif not int8._has_kernel(torch.zeros(1)):
        pytest.skip("this CPU has no instructions for it")
    return request.param


@pytest.fixture(autouse=True)
def everything_is_rounded(monkeypatch):
    """The layers here are small."""
    monkeypatch.setattr(int8, "SMALLEST", 1)


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_weight_is_within_half_a_step_of_its_code():
    weight = numbers(40, 24, seed=0) * torch.logspace(-3, 2, 40)[:, None]
    scale, codes = quantize(weight)
    assert codes.dtype == torch.int8
    assert int(codes.abs().amax()) == 127
    # by hand: a row whose largest number is 254 has steps of 2, so that 3 lies in the middle of two of them
    assert quantize(torch.tensor([[254.0, -3.1, 2.9]]))[1].tolist() == [[127, -2, 1]]
    half_step = weight.abs().amax(1, keepdim=True) / 127 / 2
    assert ((weight - scale[:, None] * codes).abs() <= half_step * 1.0001).all(), "each row has a step of its own"


def test_a_product_is_within_what_the_steps_allow(way):
    weight, bias, x = numbers(64, 48, seed=1), numbers(64, seed=2), numbers(7, 48, seed=3)
    half_weight = weight.abs().amax(1) / 127 / 2
    error = (Int8Projection(weight, bias)(x) - F.linear(x, weight, bias)).abs()
    bound = x.abs().sum(1, keepdim=True) * half_weight
    if way == "kernel":  # a token's numbers are rounded too
        half_token = x.abs().amax(1, keepdim=True) / 127 / 2
        bound = bound + half_token * (weight.abs().sum(1) + 48 * half_weight)
    assert (error <= bound + 1e-4).all()
    assert float(error.max()) > 1e-3, "nothing was rounded"


def test_numbers_that_have_codes_are_multiplied_exactly(way):
    codes = torch.randint(-127, 128, (33, 16), generator=torch.Generator().manual_seed(0)).float()
    codes[:, 0], tokens = 127, torch.randint(-127, 128, (5, 16), generator=torch.Generator().manual_seed(1)).float()
    tokens[:, 3] = 127
    assert torch.equal(Int8Projection(codes, None)(tokens).round(), tokens @ codes.T)


def test_a_row_does_not_hang_on_its_neighbors_and_zeros_stay_zeros(way):
    projection, x = Int8Projection(numbers(64, 48, seed=1), None), numbers(4, 48, seed=2)
    x[1] *= 1000
    x[2] = 0
    out = projection(x)
    assert torch.allclose(out[0], projection(x[:1])[0], atol=1e-5)
    assert torch.equal(out[2], torch.zeros(64))
    assert torch.equal(projection(x[None]), out[None])
    assert projection(x.bfloat16()).dtype == torch.bfloat16
    assert projection(x.double()).dtype == torch.float64


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_model_multiplies_with_codes_only_for_a_while(family):
    model = build_family(family)
    ids = torch.arange(10, 22)[None]
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        exact = model(ids).logits
        with int8_linears(model):
            rounded = model(ids).logits
        again = model(ids).logits
    assert torch.equal(again, exact)
    assert 1e-3 < float((rounded - exact).abs().max()) < 0.2 * float(exact.abs().max())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_an_error_inside_leaves_the_model_as_it_was_with_forwards_of_its_own():
    model = build_family("llama")
    own = model.lm_head.forward = lambda x: x
    seen = []

    def fail() -> None:
        with int8_linears(model):
            seen.append(model.lm_head.forward)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert isinstance(seen[0], Int8Projection)
    assert model.lm_head.forward is own
    assert [name for name, module in model.named_modules() if "forward" in module.__dict__] == ["lm_head"]


def test_adapters_and_small_maps_keep_their_weights(monkeypatch):
    monkeypatch.setattr(int8, "SMALLEST", 32 * 32)
    model = get_peft_model(build_family("llama"), LoraConfig(r=40, target_modules=["q_proj"]))
    with int8_linears(model):
        rounded = {name for name, m in model.named_modules() if isinstance(m.__dict__.get("forward"), Int8Projection)}
    assert any(name.endswith("q_proj.base_layer") for name in rounded)
    assert not any("lora_" in name for name in rounded)
    assert not any("k_proj" in name for name in rounded), "two heads of eight, by 32"
