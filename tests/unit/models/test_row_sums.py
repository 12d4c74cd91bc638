"""Sums over rows of logits in C: closed forms in float64, any width, any number of threads, and log-probabilities made of them."""

from __future__ import annotations

import functools
import math
import platform

import pytest
import torch

import rlhf.native.kernels.softmax_sums as module
from rlhf.errors import TrainingError
from rlhf.models import vocabulary_tiles
from rlhf.models.logprobs import token_logprobs
from rlhf.models.vocabulary_tiles import LogitTransform
from rlhf.native import library
from rlhf.native.compiled_mode import in_c
from rlhf.native.kernels import row_sums
from rlhf.native.library import compiler

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(compiler() is None, reason="there is no C compiler"),
]
HALF = {torch.float32: False, torch.bfloat16: True}


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(4).to(dtype)


@pytest.fixture(params=["native", "x86-64"])
def march(request, monkeypatch):
    """What C is compiled for."""
    if request.param == "native":
        return
    if platform.machine() != "x86_64":
        pytest.skip("another processor")
    monkeypatch.setattr(
        library, "FLAGS", [f"-march={request.param}" if "-march" in flag else flag for flag in library.FLAGS]
    )
    monkeypatch.setattr(module, "load", library.load.__wrapped__)
    monkeypatch.setattr(module, "_library", functools.cache(module._library.__wrapped__))


@pytest.mark.usefixtures("march")
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 16), (7, 33), (5, 2974), (0, 4)], ids=str)
def test_sums_are_those_of_float64(shape, dtype):
    logits = draw(*shape, dtype=dtype)
    wide = logits.double()
    probs = torch.softmax(wide, 1)
    sums = row_sums(logits, expected=True, squares=True, total=True, probs=torch.empty_like(logits))
    for mine, true in (
        (sums.logsumexp, wide.logsumexp(1)),
        (sums.expected, (probs * wide).sum(1)),
        (sums.squares, probs.square().sum(1)),
        (sums.total, wide.sum(1)),
    ):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), true, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums.probs.double(), probs, rtol=4e-3 if HALF[dtype] else 2e-6, atol=1e-12)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_probabilities_may_take_the_place_of_the_logits(dtype):
    logits = draw(6, 100, dtype=dtype)
    apart = row_sums(logits, probs=torch.empty_like(logits))
    assert apart.expected is apart.squares is apart.total is None
    row_sums(logits, probs=logits)
    assert torch.equal(logits, apart.probs)


@pytest.mark.usefixtures("march")
def test_logits_that_are_not_numbers():
    logits = torch.tensor(
        [[0.0, -math.inf, 0.0, -math.inf], [1.0, math.nan, 0.0, 2.0], [-math.inf] * 4, [0, 90, -90, 0]]
    )
    sums = row_sums(logits, expected=True, squares=True, probs=torch.empty_like(logits))
    assert sums.probs[0].tolist() == [0.5, 0, 0.5, 0]
    assert float(sums.logsumexp[0]) == pytest.approx(math.log(2))
    assert (float(sums.expected[0]), float(sums.squares[0])) == pytest.approx((0, 0.5))
    for row in (1, 2):
        assert sums.logsumexp[row].isnan()
        assert sums.probs[row].isnan().all()
    assert sums.probs[3].tolist() == pytest.approx([0, 1, 0, 0])
    assert float(sums.logsumexp[3]) == 90


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_any_number_of_threads_gives_the_same_bits(dtype, threads, monkeypatch):
    monkeypatch.setattr(module, "ELEMENTS_APIECE", 50)
    logits, results = draw(41, 77, dtype=dtype), []
    for count in (1, 2, 3):
        threads(count)
        results.append(row_sums(logits, expected=True, squares=True, total=True, probs=torch.empty_like(logits)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def taught(on: bool, dtype: torch.dtype, **asked):
    """Log-probabilities and what else was asked, and the gradients by hidden states and weight."""
    hidden, weight = draw(23, 16).div_(4).requires_grad_(), draw(301, 16, seed=1).div_(4).requires_grad_()
    token = torch.arange(23) * 13
    with in_c(on), torch.autocast("cpu", torch.bfloat16, enabled=HALF[dtype]):
        token_scores = token_logprobs(hidden, weight, None, token, temperature=0.7, **asked)
        loss = (token_scores.logprobs * torch.linspace(-1, 2, 23)).sum()
        if asked.get("with_mean"):
            loss = loss + token_scores.mean_logprobs.square().sum()
        loss.backward()
    return [x.detach() for x in token_scores if x is not None] + [hidden.grad, weight.grad]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("asked", [{}, {"with_entropy": True}, {"with_mean": True, "with_collision": True}], ids=str)
@pytest.mark.parametrize("tile", [23 * 301, 23 * 100, 23 * 7])
def test_log_probabilities_are_those_by_torch(asked, dtype, tile, monkeypatch):
    monkeypatch.setattr(vocabulary_tiles, "TILE", tile)
    calls = []
    monkeypatch.setattr(vocabulary_tiles, "row_sums", lambda *x, **y: calls.append(1) or row_sums(*x, **y))
    ours, theirs = taught(True, dtype, **asked), taught(False, dtype, **asked)
    assert len(calls) >= math.ceil(23 * 301 / tile)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        bound = 1e-2 if HALF[dtype] else 1e-5
        torch.testing.assert_close(mine, other, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_probabilities_that_are_made_again_are_those_that_were_kept(dtype, monkeypatch):
    monkeypatch.setattr(vocabulary_tiles, "TILE", 23 * 100)
    results = []
    for kept in (0, 1 << 25):
        monkeypatch.setattr(vocabulary_tiles, "KEPT_BYTES", kept)
        results.append(taught(True, dtype))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_what_a_way_back_does_hangs_on_its_way_there():
    hidden, weight = draw(5, 8).requires_grad_(), draw(30, 8, seed=1).requires_grad_()
    with in_c(True):
        actual = token_logprobs(hidden, weight, None, torch.arange(5)).logprobs.sum()
    grads = torch.autograd.grad(actual, (hidden, weight))
    again = token_logprobs(hidden, weight, None, torch.arange(5)).logprobs.sum()
    for mine, other in zip(grads, torch.autograd.grad(again, (hidden, weight)), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("case", ["bias", "softcap", "float64"])
def test_what_c_is_not_written_for_is_torchs(case, monkeypatch):
    monkeypatch.setattr(vocabulary_tiles, "row_sums", lambda *_, **__: pytest.fail("in C"))
    dtype = torch.float64 if case == "float64" else torch.float32
    hidden, weight = draw(5, 8).to(dtype), draw(30, 8, seed=1).to(dtype)
    bias = draw(30) if case == "bias" else None
    transform = LogitTransform(softcap=5.0 if case == "softcap" else None)
    with in_c(True):
        token_logprobs(hidden, weight, bias, torch.arange(5), transform=transform)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("number", range(1, 6))
def test_a_library_that_computes_something_else_is_found_before_its_first_use(number, dtype, monkeypatch):
    own = module._row_sums

    def wrong(*asked):
        actual = own(*asked)
        actual[number].view(-1)[-1] = math.nan if number % 2 else 5.0
        return actual

    monkeypatch.setattr(module, "_row_sums", wrong)
    module._check.cache_clear()
    for _ in range(2):
        with pytest.raises(TrainingError, match=r"softmax.*off by .*compiled"):
            row_sums(draw(2, 3, dtype=dtype))
    module._check.cache_clear()


def test_what_c_would_read_wrongly_is_refused():
    with pytest.raises(AssertionError, match="behind the other"):
        row_sums(draw(4, 6).T)
    with pytest.raises(AssertionError):
        row_sums(draw(4, 6), probs=torch.empty(4, 5))


@pytest.mark.parametrize(("rows", "width"), [(23, 91136), (3000, 640), (1 << 20, 2)])
def test_tiles_are_whole_blocks_wide_where_they_can_be(rows, width):
    tiles = vocabulary_tiles.VocabularyTiles(
        torch.empty(rows, 1),
        torch.empty(1 << 17, 1),
        None,
        1.0,
        LogitTransform(),
        torch.float32,
        in_c=False,
    )
    assert tiles.width == min(1 << 17, width)
    assert tiles.width * rows <= vocabulary_tiles.TILE
