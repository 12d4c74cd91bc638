from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf.models import vocabulary_tiles as module
from rlhf.models.logprobs import token_logprobs
from rlhf.models.vocabulary_tiles import LogitTransform

pytestmark = pytest.mark.numeric

ROWS, WIDTH, VOCABULARY = 5, 3, 7
FORMS = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "scale": {"transform": LogitTransform(scale=0.25)},
    "softcap": {"transform": LogitTransform(softcap=1.5)},
    "everything": {"temperature": 1.3, "transform": LogitTransform(scale=1.7, softcap=2.0)},
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
with_and_without_bias = pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])


@pytest.fixture(params=["one tile", "several tiles"])
def tiles(request, monkeypatch):
    """Three columns a tile, which leaves a remainder."""
    if request.param == "several tiles":
        monkeypatch.setattr(module, "TILE", 3 * ROWS)


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    return draw(ROWS, WIDTH), draw(VOCABULARY, WIDTH), draw(VOCABULARY), torch.tensor([0, 6, 3, 3, 1])


def distribution(hidden, weight, bias, *, temperature=1.0, transform=None):
    """Of each row, with the whole [rows, vocabulary] tensor, by torch's own functions."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    if transform is not None:
        logits = logits * transform.scale
        if transform.softcap is not None:
            logits = transform.softcap * torch.tanh(logits / transform.softcap)
    return torch.distributions.Categorical(logits=logits / temperature)


def plainly(hidden, weight, bias, token, **form):
    spread = distribution(hidden, weight, bias, **form)
    return spread.log_prob(token), spread.entropy()


def test_two_equal_logits_are_a_coin():
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[3.0], [3.0]])
    logprobs, entropy, *_ = token_logprobs(hidden, weight, None, torch.tensor([1]), with_entropy=True)
    assert logprobs.tolist() == pytest.approx([-math.log(2)])
    assert entropy.tolist() == pytest.approx([math.log(2)])


def test_a_token_with_logit_log_3_beside_one_with_0_has_three_quarters():
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[math.log(3)], [0.0]])
    logprobs, *others = token_logprobs(hidden, weight, None, torch.tensor([0]))
    assert logprobs.tolist() == pytest.approx([math.log(0.75)])
    assert others == [None, None, None]


def test_the_mean_and_the_collision_of_three_quarters_and_one_quarter():
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[math.log(3)], [0.0]])
    token_scores = token_logprobs(hidden, weight, None, torch.tensor([0]), with_mean=True, with_collision=True)
    assert token_scores.mean_logprobs.tolist() == pytest.approx([math.log(3 / 16) / 2])  # (log 3/4 + log 1/4) / 2
    assert token_scores.log_collision_probs.tolist() == pytest.approx([math.log(5 / 8)])  # 9/16 + 1/16
    assert token_scores.entropy is None


@every_form
@with_and_without_bias
def test_values_are_those_of_the_whole_softmax(inputs, form, has_bias, tiles):
    hidden, weight, bias, token = inputs
    bias = bias if has_bias else None
    logprobs, entropy, *_ = token_logprobs(hidden, weight, bias, token, with_entropy=True, **form)
    expected, expected_entropy = plainly(hidden, weight, bias, token, **form)
    torch.testing.assert_close(logprobs, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-12, atol=1e-12)


@every_form
@with_and_without_bias
def test_gradients_are_those_of_the_whole_softmax(inputs, form, has_bias, tiles):
    hidden, weight, bias, token = inputs
    leaves = [hidden, weight, bias] if has_bias else [hidden, weight]
    upstream = torch.linspace(-1, 2, ROWS, dtype=torch.float64)

    def gradients(pair):
        logprobs, entropy, *_ = pair
        return torch.autograd.grad((logprobs * upstream).sum() + (entropy * upstream.flip(0)).sum(), leaves)

    bias = bias if has_bias else None
    ours = gradients(token_logprobs(hidden, weight, bias, token, with_entropy=True, **form))
    expected = gradients(plainly(hidden, weight, bias, token, **form))
    for mine, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@every_form
@pytest.mark.parametrize("with_entropy", [False, True], ids=["log-probability", "and entropy"])
def test_gradients_agree_with_finite_differences(inputs, form, with_entropy, tiles):
    hidden, weight, bias, token = inputs

    def run(h, w, b):
        logprobs, entropy, *_ = token_logprobs(h, w, b, token, with_entropy=with_entropy, **form)
        return (logprobs, entropy) if with_entropy else logprobs

    assert torch.autograd.gradcheck(run, (hidden, weight, bias))


@every_form
@with_and_without_bias
def test_means_and_collisions_are_those_of_the_whole_softmax(inputs, form, has_bias, tiles):
    hidden, weight, bias, token = inputs
    bias = bias if has_bias else None
    plain = token_logprobs(hidden, weight, bias, token, **form)
    token_scores = token_logprobs(hidden, weight, bias, token, with_mean=True, with_collision=True, **form)
    probs = distribution(hidden, weight, bias, **form).probs
    torch.testing.assert_close(token_scores.mean_logprobs, probs.log().mean(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(token_scores.log_collision_probs, (probs**2).sum(1).log(), rtol=1e-12, atol=1e-12)
    assert torch.equal(token_scores.logprobs, plain.logprobs), "the log-probability does not know what else was asked"


@every_form
def test_gradients_of_means_agree_with_finite_differences(inputs, form, tiles):
    hidden, weight, bias, token = inputs

    def run(h, w, b):
        token_scores = token_logprobs(h, w, b, token, with_entropy=True, with_mean=True, with_collision=True, **form)
        return token_scores.logprobs, token_scores.entropy, token_scores.mean_logprobs

    assert torch.autograd.gradcheck(run, (hidden, weight, bias))


def test_a_mean_has_a_gradient_where_only_the_mean_is_looked_at(inputs, tiles):
    hidden, weight, bias, token = inputs
    mean = token_logprobs(hidden, weight, bias, token, with_mean=True).mean_logprobs
    expected = distribution(hidden, weight, bias).logits.mean(1)
    ours, theirs = (torch.autograd.grad(x.sum(), [hidden, weight, bias]) for x in (mean, expected))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def test_a_collision_has_no_gradient(inputs):
    hidden, weight, bias, token = inputs
    token_scores = token_logprobs(hidden, weight, bias, token, with_collision=True)
    assert token_scores.logprobs.requires_grad
    assert not token_scores.log_collision_probs.requires_grad


def test_a_collision_is_finite_for_a_certain_and_for_an_even_distribution_over_many_tokens():
    weight = torch.zeros(200_000, 1)
    weight[7] = 1e4
    token_scores = token_logprobs(torch.tensor([[1.0], [0.0]]), weight, None, torch.tensor([7, 7]), with_collision=True)
    assert token_scores.log_collision_probs.tolist() == pytest.approx([0.0, -math.log(200_000)], rel=1e-6)


def test_no_tensor_of_tokens_by_vocabulary_is_made(monkeypatch):
    rows, vocabulary = 64, 512
    monkeypatch.setattr(module, "TILE", 4 * rows)
    hidden = torch.randn(rows, 8, requires_grad=True)
    weight = torch.randn(vocabulary, 8, requires_grad=True)

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor):
                    self.size = max(self.size, tensor.untyped_storage().nbytes() // tensor.element_size())
            return out

    with Largest() as largest:
        everything = {"with_entropy": True, "with_mean": True, "with_collision": True}
        token_scores = token_logprobs(hidden, weight, None, torch.zeros(rows, dtype=torch.int64), **everything)
        (token_scores.logprobs + token_scores.entropy + token_scores.mean_logprobs).sum().backward()
    assert weight.numel() <= largest.size < rows * vocabulary


@pytest.mark.parametrize("frozen", ["hidden", "weight", "bias"])
def test_what_is_frozen_gets_no_gradient_and_changes_no_other(inputs, frozen):
    hidden, weight, bias, token = inputs
    leaves = {"hidden": hidden, "weight": weight, "bias": bias}
    token_logprobs(hidden, weight, bias, token)[0].sum().backward()
    expected = {name: leaf.grad.clone() for name, leaf in leaves.items()}
    for leaf in leaves.values():
        leaf.grad = None
    leaves[frozen].requires_grad_(False)
    token_logprobs(hidden, weight, bias, token)[0].sum().backward()
    assert leaves.pop(frozen).grad is None
    for name, leaf in leaves.items():
        assert torch.equal(leaf.grad, expected[name]), name


def test_a_row_that_no_loss_looks_at_gives_no_gradient(inputs):
    hidden, weight, _, token = inputs
    logprobs, *_ = token_logprobs(hidden, weight, None, token)
    logprobs[:2].sum().backward()
    assert not hidden.grad[2:].any()
    assert hidden.grad[:2].any()


def test_no_scored_token_is_no_error(inputs):
    hidden, weight, bias, token = inputs
    logprobs, entropy, *_ = token_logprobs(hidden[:0], weight, bias, token[:0], with_entropy=True)
    assert logprobs.shape == entropy.shape == (0,)
    logprobs.sum().backward()
    assert not weight.grad.any()


def test_large_logits_neither_overflow_nor_lose_the_token():
    hidden = torch.tensor([[1.0], [1.0]], requires_grad=True)
    weight = torch.tensor([[1e4], [-1e4], [0.0]], requires_grad=True)
    logprobs, entropy, *_ = token_logprobs(hidden, weight, None, torch.tensor([0, 1]), with_entropy=True)
    assert logprobs.tolist() == [0.0, -2e4]
    assert entropy.tolist() == [0.0, 0.0]
    (logprobs + entropy).sum().backward()
    assert torch.isfinite(hidden.grad).all()
    assert torch.isfinite(weight.grad).all()


def test_bfloat16_weights_give_float32_numbers_close_to_exact_ones(inputs, tiles):
    hidden, weight, bias, token = (x.detach() for x in inputs)
    low = [x.bfloat16().requires_grad_() for x in (hidden, weight, bias)]
    exact = [x.detach().float().requires_grad_() for x in low]
    ours, expected = token_logprobs(*low, token)[0], plainly(*exact, token)[0]
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, expected, rtol=0, atol=0.03)
    ours.sum().backward()
    expected.sum().backward()
    for mine, theirs in zip(low, exact, strict=True):
        assert mine.grad.dtype == torch.bfloat16
        torch.testing.assert_close(mine.grad.float(), theirs.grad, rtol=0, atol=0.03)


def test_under_autocast_products_are_in_bfloat16_and_gradients_in_the_weights_type(inputs, tiles):
    hidden, weight, bias, token = inputs
    ours = [x.detach().float().requires_grad_() for x in (hidden, weight, bias)]
    exact = [x.detach().clone().requires_grad_() for x in ours]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprobs, *_ = token_logprobs(*ours, token)
    expected, _ = plainly(*exact, token)
    assert logprobs.dtype == torch.float32
    gap = (logprobs - expected).abs().max()
    assert 0 < gap < 0.03  # 0 would mean that autocast was ignored
    logprobs.sum().backward()
    expected.sum().backward()
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.grad.dtype == torch.float32
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=0.03)


def test_under_autocast_only_the_logits_are_rounded():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 16, generator=generator) for n in (23, 301))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        token_scores = token_logprobs(hidden, weight, None, torch.arange(23), with_entropy=True, with_collision=True)
        logits = (hidden @ weight.T).double()
    log_probs = torch.log_softmax(logits, 1)
    probs = log_probs.exp()
    torch.testing.assert_close(token_scores.entropy.double(), -(probs * log_probs).sum(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        token_scores.log_collision_probs.double(), probs.square().sum(1).log(), rtol=1e-4, atol=1e-4
    )


@with_and_without_bias
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kept", [0, 40, 1 << 20], ids=["none", "some", "all"])
def test_what_is_kept_for_the_backward_pass_does_not_change_a_bit(inputs, monkeypatch, dtype, kept, has_bias):
    hidden, weight, bias, token = inputs
    monkeypatch.setattr(module, "TILE", 2 * ROWS)

    def gradients(kept_bytes):
        monkeypatch.setattr(module, "KEPT_BYTES", kept_bytes)
        tensors = [x.detach().to(dtype).requires_grad_() for x in (hidden, weight, bias)]
        logprobs = token_logprobs(
            tensors[0], tensors[1], tensors[2] if has_bias else None, token, temperature=0.7
        ).logprobs
        return logprobs, torch.autograd.grad(
            logprobs.double() @ torch.arange(1.0, ROWS + 1).double(), tensors[: 2 + has_bias]
        )

    for ours, other in zip(gradients(kept)[1], gradients(0)[1], strict=True):
        assert torch.equal(ours, other)


def test_a_tile_that_was_kept_is_not_made_again(inputs, monkeypatch):
    hidden, weight, _, token = inputs
    monkeypatch.setattr(module, "TILE", 2 * ROWS)
    tile = 2 * ROWS * 8

    def products(kept_bytes):
        monkeypatch.setattr(module, "KEPT_BYTES", kept_bytes)
        counted = count_calls(lambda: token_logprobs(hidden, weight, None, token).logprobs.sum().backward(), "mm")
        return counted

    assert [products(size) for size in (0, tile, 2 * tile, 100 * tile)] == [16, 15, 14, 12]


def test_without_gradient_nothing_is_kept(inputs, monkeypatch):
    hidden, weight, _, token = inputs
    with torch.no_grad():
        assert count_calls(lambda: token_logprobs(hidden, weight, None, token), "_softmax") == 0
    assert count_calls(lambda: token_logprobs(hidden, weight, None, token), "_softmax") == 1


def test_what_a_bent_softmax_needs_is_not_among_what_is_kept(inputs):
    hidden, weight, _, token = inputs
    assert count_calls(lambda: token_logprobs(hidden, weight, None, token, with_entropy=True), "_softmax") == 1


def test_a_second_pass_back_over_what_was_let_go_gives_the_same(inputs):
    hidden, weight, _, token = inputs
    loss = token_logprobs(hidden, weight, None, token).logprobs.sum()
    first = torch.autograd.grad(loss, [hidden, weight], retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(loss, [hidden, weight]), strict=True))


def count_calls(work, name):
    """How often an operation of this name runs."""
    calls = []

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            calls.append(operation._schema.name.removeprefix("aten::"))
            return operation(*args, **(kwargs or {}))

    with Counter():
        work()
    return calls.count(name)
