"""Norms, rotations and gates in C: equal to their formulas in value and gradient, and put only where a family computes the same."""

from __future__ import annotations

import copy
import io
import math
import pickle
import platform

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.llama import modeling_llama

import rlhf.models.kernel_patching as choice
import rlhf.native.kernels.layer_kernels as module
from rlhf.config.model import LoRAConfig
from rlhf.data.pack import pack
from rlhf.errors import TrainingError
from rlhf.models import plain_layers
from rlhf.models.adapters import add_lora, enable_checkpointing
from rlhf.models.attention import differentiable_twice
from rlhf.models.score import score
from rlhf.native import library
from rlhf.native.compiled_mode import in_c
from rlhf.native.kernels import compiled_gate, compiled_norm, compiled_rotation
from rlhf.native.library import compiler
from tests.fixtures import toy
from tests.fixtures.rounding import DRAWS, TIMES, assert_same_but_for_rounding, round_weights, rounding_noise
from tests.unit.models.families import FAMILIES, build, family, loss_gradients, some_groups

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(compiler() is None, reason="no C compiler: neither $CC nor cc, gcc or clang is there"),
]

WIDTHS = (1, 5, 16, 63, 256, 688)
ROWS = (1, 2, 31, 32, 33, 100)
PAIRS = [(a, b) for a in (torch.float32, torch.bfloat16) for b in (torch.float32, torch.bfloat16)]
LLAMA_LIKE = ("llama", "qwen2, tied embeddings", "qwen3", "mistral, sliding window")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def taught(function, *tensors):
    """Output and gradients for a random direction."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad((out * draw(*out.shape, seed=9).to(out.dtype)).sum(), leaves)]


def norm(x, weight):
    """Zhang and Sennrich 2019, eq. 4."""
    return x / (x.pow(2).sum(-1, keepdim=True) / x.shape[-1] + 1e-5) ** 0.5 * weight


def rotation(cos, sin):
    """Each pair (d, d + D/2) as a complex number, turned by both of its own angles."""

    def turned(x):
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        c, s = cos[:, None], sin[:, None]
        return torch.cat([a * c[..., :half] - b * s[..., :half], b * c[..., half:] + a * s[..., half:]], -1)

    return turned


def gate(g, u):
    return g / (1 + torch.exp(-g)) * u


def assert_near(ours, truth, *, size=1e-5):
    for mine, true in zip(ours, truth, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=size, atol=size)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
def test_a_norm_is_its_formula(rows, width):
    x, weight = draw(rows, width), draw(width, seed=1)
    x[0] *= 1e-3  # where eps counts
    assert_near(taught(lambda x, w: compiled_norm(x, w, 1e-5), x.float(), weight.float()), taught(norm, x, weight))


@pytest.mark.parametrize("width", [2, 6, 32, 64, 126])
@pytest.mark.parametrize(("size", "angles"), [(1, 1), (3, 1), (3, 3)])
def test_a_rotation_is_its_formula(size, angles, width):
    x, cos, sin = draw(size, 5, 37, width), draw(angles, 37, width, seed=1), draw(angles, 37, width, seed=2)
    ours = taught(lambda x: compiled_rotation(x, cos.float(), sin.float()), x.float())
    assert_near(ours, taught(rotation(cos, sin), x))


@pytest.mark.parametrize("shape", [(1,), (15,), (16,), (17,), (4096,), (4097,), (3, 5, 688)], ids=str)
def test_a_gate_is_its_formula(shape):
    g, u = draw(*shape) * 5, draw(*shape, seed=1)
    assert_near(taught(compiled_gate, g.float(), u.float()), taught(gate, g, u))


def test_a_gate_is_right_from_end_to_end():
    g = torch.linspace(-200, 200, 40_001).double()
    actual, _, up = taught(compiled_gate, g.float(), torch.ones_like(g).float())
    true, slope, _ = taught(gate, g, torch.ones_like(g))
    assert ((actual - true).abs() / true.abs().clamp(min=1e-30))[g.abs() < 80].max() < 1e-6
    assert (actual - true).abs().max() < 1e-4, "1e-6 of 200"
    assert up.isfinite().all()
    assert_near(taught(compiled_gate, g.float(), torch.ones_like(g).float())[1:2], [slope])


@pytest.mark.parametrize("number", [math.nan, math.inf], ids=str)
def test_a_number_that_is_none_stays_in_its_row(number):
    x, weight = draw(70, 20).float(), draw(20, seed=1).float()
    x[40, 3] = number
    out, grad, grad_weight = taught(lambda x, w: compiled_norm(x, w, 1e-5), x, weight)
    rest = torch.arange(70) != 40
    assert out[rest].isfinite().all()
    assert grad[rest].isfinite().all()
    assert all(x.isnan().any() for x in (out[40], grad[40], grad_weight))
    for ours, torchs in zip(taught(compiled_gate, x, x), taught(plain_layers.plain_gate, x, x), strict=True):
        assert torch.equal(ours.isfinite(), torchs.isfinite())
    turned = compiled_rotation(x[None, None], torch.ones(1, 70, 20), torch.zeros(1, 70, 20))[0, 0]
    assert not turned[40, 3].isfinite()
    assert turned[rest].isfinite().all()


@pytest.mark.parametrize("types", PAIRS, ids=str)
@pytest.mark.parametrize("march", ["native", "x86-64"])
def test_in_bfloat16_they_are_as_near_to_the_truth_as_torch_is(types, march, monkeypatch):
    if march != "native" and platform.machine() != "x86_64":
        pytest.skip("another processor")
    monkeypatch.setattr(library, "FLAGS", [f"-march={march}" if "-march" in flag else flag for flag in library.FLAGS])
    monkeypatch.setattr(module, "load", library.load.__wrapped__)
    monkeypatch.setattr(module, "_library", module._library.__wrapped__)
    first, second = types
    tensors = [draw(70, 63).to(first), draw(63, seed=1).to(second)]
    angles = [draw(1, 70, 32, seed=n).to(second) for n in (1, 2)]
    heads, gates = [draw(1, 4, 70, 32).to(first)], [draw(70, 63, seed=n).to(first) for n in (1, 2)]
    tries = (
        (lambda x, w: compiled_norm(x, w, 1e-5), lambda x, w: plain_layers.plain_norm(x, w, 1e-5), norm, tensors),
        (lambda x: compiled_rotation(x, *angles), lambda x: plain_layers.plain_rotation(x, *angles),
         rotation(*(a.double() for a in angles)), heads),
        (compiled_gate, plain_layers.plain_gate, gate, gates),
    )  # fmt: skip
    for mine, torchs, exact, leaves in tries:
        actual, theirs, truth = (
            taught(mine, *leaves),
            taught(torchs, *leaves),
            taught(exact, *(x.double() for x in leaves)),
        )
        assert [x.dtype for x in actual] == [x.dtype for x in theirs]
        for a, b, true in zip(actual, theirs, truth, strict=True):
            assert (a - true).abs().mean() < 1.1 * (b - true).abs().mean() + 1e-6
            assert (a - true).abs().mean() < 0.01 * true.abs().mean()


@pytest.mark.parametrize("types", [(torch.float32,) * 2, (torch.bfloat16, torch.float32)], ids=str)
def test_the_number_of_threads_changes_no_bit(types, monkeypatch):
    monkeypatch.setattr(module, "NUMBERS_APIECE", 1)
    x, weight = draw(401, 48).to(types[0]), draw(48, seed=1).to(types[1])
    cos = draw(1, 401, 12).to(types[1])
    before, actual = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            actual.append(
                taught(lambda x, w: compiled_norm(x, w, 1e-5), x, weight)
                + taught(lambda x: compiled_rotation(x.view(1, 401, 4, 12).transpose(1, 2), cos, cos), x)
                + taught(compiled_gate, x, x.flip(0))
            )
    finally:
        torch.set_num_threads(before)
    for others in actual[1:]:
        assert all(torch.equal(a, b) for a, b in zip(actual[0], others, strict=True))


def test_rows_may_lie_anyhow_and_there_may_be_none():
    x, weight = draw(40, 3, 24).float(), draw(24, seed=1).float()
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    for function, others in ((lambda x, w: compiled_norm(x, w, 1e-5), [weight]), (compiled_gate, [x.flip(0)])):
        for a, b in zip(taught(function, x, *others), taught(function, turned, *others), strict=True):
            assert torch.equal(a, b)
    out, _, grad_weight = taught(lambda x, w: compiled_norm(x, w, 1e-5), x[:0], weight)
    assert out.shape == (0, 3, 24)
    assert not grad_weight.any()
    assert compiled_gate(x[:0], x[:0]).shape == (0, 3, 24)


def test_a_second_derivative_is_refused():
    x = draw(4, 6).float().requires_grad_()
    (slope,) = torch.autograd.grad(compiled_gate(x, x.flip(0)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_what_a_user_set_as_default_type_does_not_matter():
    x, weight = draw(70, 20).float(), draw(20, seed=1).float()
    expected = taught(lambda x, w: compiled_norm(x, w, 1e-5), x, weight)
    torch.set_default_dtype(torch.bfloat16)
    try:
        actual = taught(lambda x, w: compiled_norm(x, w, 1e-5), x, weight)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_they_may_be_compared_for_the_first_time_where_nothing_is_differentiated():
    plain_layers.check_layers.cache_clear()
    with torch.inference_mode():
        plain_layers.check_layers()


# ---- in models


@pytest.fixture
def calls(monkeypatch):
    """How often each function in C is called by layers."""
    counts = {}

    def counting(name, own):
        def counted(*args):
            counts[name] = counts.get(name, 0) + 1
            return own(*args)

        return counted

    for name in ("compiled_norm", "compiled_rotation", "compiled_gate"):
        monkeypatch.setattr(choice, name, counting(name, getattr(choice, name)))
    return counts


def scored(model, on, path="packed"):
    with in_c(on):
        model.zero_grad()
        logprobs = score(model, pack(some_groups()), path=path).logprobs
        return logprobs.detach(), loss_gradients(model, logprobs)


def assert_same(model, *, path="packed"):
    def numbers(on):
        logprobs, gradients = scored(model, on, path)
        return {"logprobs": logprobs, **gradients}

    assert_same_but_for_rounding(numbers(True), numbers(False), rounding_noise(model, lambda: numbers(False)))


@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.title)
def test_a_model_gives_the_same(kind):
    assert_same(build(kind), path=kind.path)


@pytest.mark.parametrize("title", LLAMA_LIKE)
def test_all_of_llamas_like_is_in_c(title, calls):
    model = build(family(title))
    norms = 9 if title == "qwen3" else 5
    scored(model, True)
    assert calls == {"compiled_norm": norms, "compiled_rotation": 4, "compiled_gate": 2}, "two layers"
    scored(model, False)
    assert calls["compiled_norm"] == norms, "it ends with the block"


@pytest.mark.parametrize(
    "kind", [one for one in FAMILIES if one.name in ("gemma2", "gpt2")], ids=lambda kind: kind.title
)
def test_what_is_computed_otherwise_keeps_its_code(kind, calls):
    scored(build(kind), True, kind.path)
    assert not {"compiled_norm", "compiled_gate"} & calls.keys()
    assert modeling_gemma2.Gemma2RMSNorm.forward not in choice._BETTER.values()


def test_under_autocast_numbers_and_types_are_those_of_torch(calls):
    model = build(family("qwen3"))
    exact, gradients = scored(model, False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        off, theirs = scored(model, False)
        on, ours = scored(model, True)
    assert set(calls) == {"compiled_norm", "compiled_rotation", "compiled_gate"}
    assert on.dtype == off.dtype
    assert (on - exact).abs().mean() < 1.2 * (off - exact).abs().mean()
    far = [sum(float((x[n] - gradients[n]).abs().sum()) for n in gradients) for x in (ours, theirs)]
    assert far[0] < 1.2 * far[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_models_of_other_types(dtype, calls):
    model = build(family("llama"), dtype=dtype)
    off, on = scored(model, False)[0], scored(model, True)[0]
    assert bool(calls) == (dtype == torch.bfloat16)
    if not calls:
        assert torch.equal(off, on)
    assert (off - on).abs().mean() < 0.05


def test_a_model_with_adapters_gives_the_same(calls):
    adapter = LoRAConfig(rank=4, target_modules=["q_proj", "gate_proj", "down_proj"])
    model = add_lora(build(family("llama")), adapter, task="CAUSAL_LM", seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(3))
    assert_same(model)
    assert calls["compiled_gate"] == 2


def test_layers_that_are_computed_again_on_the_way_back_give_the_same(calls):
    model = build(family("llama"))
    enable_checkpointing(model)
    model.train()
    assert_same(model)
    assert calls["compiled_gate"] == 4


def test_a_second_derivative_takes_the_familys_own_code(calls):
    layer = build(family("llama")).model.norm
    x = draw(3, 32).float().requires_grad_()
    with in_c(True):
        choice.install_layers(layer)
        with differentiable_twice():
            (slope,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
            slope.sum().backward()
    assert not calls
    assert x.grad.abs().sum() > 0


def test_copies_and_pickles_are_what_they_were(calls):
    model = build(family("llama"))
    scored(model, True)
    calls.clear()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        assert vars(other.model.norm).keys() == vars(build(family("llama")).model.norm).keys()
        assert torch.equal(scored(other, False)[0], scored(model, False)[0])
        assert not calls
    assert pickle.loads(pickle.dumps(modeling_llama.apply_rotary_pos_emb)) is modeling_llama.apply_rotary_pos_emb


def test_where_c_was_never_asked_for_nothing_is_replaced(monkeypatch):
    monkeypatch.setattr(choice, "_replace", lambda *_: pytest.fail("replaced"))
    scored(build(family("llama")), False)


def test_it_is_installed_once(monkeypatch):
    model = build(family("llama"))
    scored(model, True)
    forward = modeling_llama.LlamaRMSNorm.forward
    monkeypatch.setattr(choice, "_agreed", lambda *_: pytest.fail("compared again"))
    scored(model, True)
    monkeypatch.undo()
    scored(build(family("llama")), True)
    assert modeling_llama.LlamaRMSNorm.forward is forward
    assert choice._own(forward) is not forward


class OddRMSNorm(nn.Module):
    """One that computes something else in some settings."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.weight, self.eps, self.offset = nn.Parameter(torch.ones(8)), 1e-6, offset

    def forward(self, x):
        return (self.offset + self.weight) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


@pytest.mark.parametrize("offsets", [(0.0, 1.0), (1.0, 0.0)], ids=str)
def test_a_class_that_differs_in_some_settings_keeps_its_code_in_all(offsets, calls):
    kind = type("AnotherRMSNorm", (OddRMSNorm,), {"forward": lambda self, x: OddRMSNorm.forward(self, x)})
    model = nn.Sequential(*(kind(offset) for offset in offsets))
    x = draw(4, 8).float()
    before = model(x)
    with in_c(True):
        choice.install_layers(model)
        assert torch.equal(model(x), before)
    assert not calls


class ClampedMLP(nn.Module):
    """What DeepSeek's and GLM's newest families have: a bound that ordinary numbers never meet."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit, self.act_fn = limit, nn.SiLU()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        gate, up = self.gate_proj(x).clamp(max=self.limit), self.up_proj(x).clamp(-self.limit, self.limit)
        return self.down_proj(self.act_fn(gate) * up)


@pytest.mark.parametrize("limit", [7.0, 10.0, 16.0, 100.0])
def test_a_gate_with_a_bound_that_is_rarely_met_keeps_its_code(limit, calls):
    kind = type("AnotherMLP", (ClampedMLP,), {"forward": lambda self, x: ClampedMLP.forward(self, x)})
    layer, x = kind(limit), draw(4, 8).float() * 1000
    before = layer(x)
    with in_c(True):
        choice.install_layers(layer)
        assert torch.equal(layer(x), before)
    assert not calls


def test_a_gate_without_bound_is_in_c_whatever_the_seed_of_the_process(calls):
    for seed in range(5):
        kind = type(
            "FreeMLP",
            (ClampedMLP,),
            {"forward": lambda self, x: self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))},
        )
        torch.manual_seed(seed)
        layer = kind(0.0)
        with in_c(True):
            choice.install_layers(layer)
            layer(draw(4, 8).float())
        assert calls == {"compiled_gate": seed + 1}


class NarrowRMSNorm(nn.Module):
    """One that gives what it was given, whatever the type of its weight, as Olmo 2 does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, x):
        return plain_layers.plain_norm(x.float(), self.weight, self.eps).to(x.dtype)


def test_a_class_that_gives_another_type_keeps_its_code_for_that(calls):
    layer, x = NarrowRMSNorm(), draw(4, 8)
    with in_c(True):
        choice.install_layers(layer)
        assert layer(x.float()).dtype == torch.float32
        assert calls == {"compiled_norm": 1}
        assert layer(x.bfloat16()).dtype == torch.bfloat16
        assert calls == {"compiled_norm": 1}
        assert layer.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
        assert calls == {"compiled_norm": 2}


def test_what_a_function_in_c_can_not_take_goes_to_the_familys_own(calls):
    model = build(family("llama"))
    scored(model, True)
    calls.clear()
    turn, own = modeling_llama.apply_rotary_pos_emb, choice._own(modeling_llama.apply_rotary_pos_emb)
    x, angles, narrow = draw(1, 4, 6, 8).float(), draw(2, 6, 8).float(), draw(1, 6, 1).float()
    mlp, rows = model.model.layers[0].mlp, draw(5, 32).float()
    with torch.no_grad(), in_c(True):
        for cos in (angles, narrow):
            assert all(torch.equal(a, b) for a, b in zip(turn(x, x, cos, cos), own(x, x, cos, cos), strict=True))
        mlp.act_fn = nn.GELU()
        assert torch.equal(mlp(rows), mlp.down_proj(mlp.act_fn(mlp.gate_proj(rows)) * mlp.up_proj(rows)))
    assert not calls


def test_trying_a_layer_draws_nothing_from_a_run():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with in_c(True):
        choice.install_layers(build(family("llama")))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("result", [0.0, math.nan], ids=str)
@pytest.mark.parametrize("name", ["norm_forward_ff", "norm_backward_hh", "rotate_fh", "gate_backward_f", "norm_weight"])
def test_a_library_that_computes_something_else_is_found_before_its_first_use(name, result, monkeypatch):
    own = module._library()

    class Wrong:
        def __getattr__(self, asked):
            if asked != name:
                return getattr(own, asked)
            return lambda *_: None  # it writes nothing to what is there

    monkeypatch.setattr(module, "_library", Wrong)
    monkeypatch.setattr(torch, "empty_like", lambda x, **kwargs: torch.full_like(x, result, **kwargs))
    monkeypatch.setattr(choice, "check_layers", plain_layers.check_layers.__wrapped__)
    model = build(family("llama"))
    for _ in range(2):
        with in_c(True), pytest.raises(TrainingError, match=r"off by .*compiled"):
            choice.install_layers(model)


@pytest.mark.parametrize("kind", ["sft", "dpo", "reward"])
def test_a_run_learns_the_same_with_it(kind, calls, monkeypatch):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=toy.VOCABULARY, bos_token_id=0, eos_token_id=toy.EOS, pad_token_id=2, **sizes)
    monkeypatch.setattr(toy, "GPT2LMHeadModel", lambda _: LlamaForCausalLM(config))
    actual = []
    for on, draw in ((False, None), (True, None), *((False, draw) for draw in range(DRAWS))):
        trainer = toy.build_trainer(kind, compiled=on)
        for part in toy.modules_of(trainer).values() if draw is not None else ():
            round_weights(part, draw)
        trainer.train()
        actual.append(toy.weights_of(trainer))
        assert bool(calls) == (len(actual) > 1)
    off, on, *rounded = actual
    assert toy.largest_difference(off, on) <= TIMES * max(toy.largest_difference(off, other) for other in rounded)
    moved = toy.largest_difference(off, toy.weights_of(toy.build_trainer(kind)))
    assert toy.largest_difference(off, on) < 0.1 * moved, "else the line above would say nothing"
