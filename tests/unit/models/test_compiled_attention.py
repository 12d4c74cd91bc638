"""Attention in C: equal to plain attention in value and gradient, whatever the tree, the width, the type and the number of threads."""

from __future__ import annotations

import functools
import math
import platform
import subprocess

import pytest
import torch

import rlhf.models.attention as attention
import rlhf.models.compiled_attention as module
import rlhf.native.kernels.tree_kernel as kernel
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, TrainingError
from rlhf.models.attention import AttentionSettings, PackedLayout
from rlhf.models.buckets import build_buckets
from rlhf.models.compiled_attention import compiled_tree_attention
from rlhf.models.tree_attention import tree_attention
from rlhf.native import library
from rlhf.native.compiled_mode import in_c, is_in_c
from rlhf.native.library import compiler, load
from tests.fixtures import toy
from tests.fixtures.rounding import DRAWS, TIMES, round_weights

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(compiler() is None, reason="no C compiler: neither $CC nor cc, gcc or clang is there"),
]

TREES = {
    "a pair": [(3, 2, 4)],
    "rows of one token": [(1, 1, 1), (1, 1)],
    "no prefix of two": [(1, 5), (1, 7)],
    "around a piece, a panel and a tile": [(8, 7, 9, 8), (31, 33, 32), (64, 65, 63, 1), (129, 127)],
    "many branches": [(40, 3, 1, 17, 40, 2, 9), (2, 60)],
}
FORMS = [{}, {"window": 3}, {"window": 40}, {"chunk": 4}, {"chunk": 50}, {"window": 7, "chunk": 16}]
SHAPES = {
    "A": (8, 8, 32, 32),
    "GQA": (6, 2, 64, 64),
    "MQA": (4, 1, 8, 8),
    "wide": (2, 1, 128, 128),
    "odd": (4, 2, 24, 5),
    "two widths of tiles": (2, 2, 96, 64),
    "80": (2, 1, 80, 80),
}
"""Heads, key heads, widths of keys and of values."""
BUILDS = {
    "as this processor does it": ({}, [*SHAPES]),
    "without tiles of bfloat16": ({"TILES": 0}, ["A", "two widths of tiles"]),
    "without products of bfloat16": ({"PAIRS": 0}, ["A", "MQA", "80"]),
    "as any processor of this kind does it": (None, ["A", "MQA", "odd"]),
}
"""Macros (None: no instruction set beyond the first one's), and the shapes that tell such builds apart: widths that are no multiple of 32
have no tiles, and an odd one has no pairs, so those would be compiled to the same again. How heads share keys is one code for all."""
NEEDED_FOR = {"TILES": "__AMX_BF16__", "PAIRS": "__AVX512BF16__"}
"""What a compiler defines where a macro of these makes a difference."""


@functools.cache
def defined_by_the_compiler():
    command = compiler()
    asked = [*command, *library._flags(command), "-dM", "-E", "-x", "c", "/dev/null"]
    return set(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split())


def tree_of(lengths):
    batch = pack([Group([1] * prefix, [Branch([2] * n) for n in branches]) for prefix, *branches in lengths])
    return build_buckets(batch)[0], batch.num_tokens


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(num_rows, shape, dtype=torch.float64):
    heads, kv_heads, width, value_width = shape
    sizes = ((heads, width), (kv_heads, width), (kv_heads, value_width))
    return [draw(num_rows, *size, seed=n).to(dtype).requires_grad_() for n, size in enumerate(sizes)]


def taught(attend, tensors, buckets, **settings):
    """Output and gradients for a random direction."""
    out = attend(*tensors, buckets, **{"scaling": tensors[0].shape[2] ** -0.5, **settings})
    direction = draw(*out.shape, seed=9).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * direction).sum(), tensors)]


@functools.cache
def truth_of(tree, shape, **form):
    """What tiles in float64 give for ``inputs`` of a tree and a shape, by name."""
    buckets, num_rows = tree_of(TREES[tree])
    return taught(tree_attention, inputs(num_rows, SHAPES[shape]), buckets, **form)


@pytest.fixture(scope="module", autouse=True)
def truths_are_forgotten():
    """They take some hundreds of MiB."""
    yield
    truth_of.cache_clear()


def plain(query, key, value, buckets, *, scaling, window=None, chunk=None):
    """Every row on its own, written down from the units."""
    repeats = query.shape[1] // key.shape[1]
    out = torch.zeros(*query.shape[:2], value.shape[2], dtype=query.dtype)
    for first, length, prefix_first, prefix_length in (unit for bucket in buckets for unit in bucket.units):
        rows = [*range(prefix_first, prefix_first + prefix_length), *range(first, first + length)]
        for position in range(prefix_length, prefix_length + length):
            low = max(0, position - window + 1 if window else 0, position // chunk * chunk if chunk else 0)
            seen = rows[low : position + 1]
            keys, values = (x[seen].repeat_interleave(repeats, 1) for x in (key, value))
            probs = torch.softmax(torch.einsum("hd,khd->hk", query[rows[position]], keys) * scaling, -1)
            out = out.index_put((torch.tensor(rows[position]),), torch.einsum("hk,khd->hd", probs, values))
    return out


@pytest.mark.parametrize("form", [{}, {"window": 3}, {"chunk": 4}], ids=str)
def test_it_is_attention_written_down_row_by_row(form):
    buckets, num_rows = tree_of([(9, 2, 5), (1, 1), (4, 11)])
    tensors = inputs(num_rows, (4, 2, 8, 6))
    truth = taught(plain, tensors, buckets, **form)
    ours = taught(compiled_tree_attention, [x.detach().float().requires_grad_() for x in tensors], buckets, **form)
    for mine, true in zip(ours, truth, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tree", TREES)
def test_values_and_gradients_are_those_of_tiles_in_float64(tree, shape, form):
    buckets, num_rows = tree_of(TREES[tree])
    tensors = [x.detach().float().requires_grad_() for x in inputs(num_rows, SHAPES[shape])]
    ours = taught(compiled_tree_attention, tensors, buckets, **form)
    for mine, true in zip(ours, truth_of(tree, shape, **form), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "shape"), [(build, shape) for build, (_, shapes) in BUILDS.items() for shape in shapes]
)
@pytest.mark.parametrize("form", [{}, {"window": 3}, {"window": 40}, {"chunk": 4}, {"chunk": 50}], ids=str)
def test_under_autocast_it_is_as_near_to_the_truth_as_tiles_are(build, shape, form, monkeypatch):
    macros = BUILDS[build][0]
    if macros is None:
        if platform.machine() != "x86_64":
            pytest.skip("another processor")
        own = library.FLAGS
        monkeypatch.setattr(library, "FLAGS", ["-march=x86-64" if "-march" in flag else flag for flag in own])
    more = macros or {}
    if any(NEEDED_FOR[name] not in defined_by_the_compiler() for name in more):
        pytest.skip("the processor has none of these, so the build is the same as without the macro")
    monkeypatch.setattr(kernel, "load", lambda name, **others: load.__wrapped__(name, **others, **more))
    monkeypatch.setattr(kernel, "_functions", functools.cache(kernel._functions.__wrapped__))
    tree = "around a piece, a panel and a tile"
    buckets, num_rows = tree_of(TREES[tree])
    truth = truth_of(tree, shape, **form)
    rounded = [x.detach().float().requires_grad_() for x in inputs(num_rows, SHAPES[shape])]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = taught(compiled_tree_attention, rounded, buckets, **form)
        tiles = taught(tree_attention, rounded, buckets, **form)
    assert [x.dtype for x in ours] == [x.dtype for x in tiles]
    for mine, theirs, true in zip(ours, tiles, truth, strict=True):
        assert (mine - true).abs().mean() < 1.1 * (theirs - true).abs().mean()
        assert (mine - true).abs().mean() < 0.01 * true.abs().mean()
        errors, others = (mine - true).abs(), (theirs - true).abs()
        for kept in ((1, 2), 0):
            assert errors.mean(kept).max() < 1.5 * others.mean(kept).max(), "one row or column may hide in a mean"
        assert errors.max() < 2**-7 * true.abs().max(), "and one number in these"


@pytest.mark.parametrize(("width", "value_width"), [(192, 128), (256, 128), (320, 320), (512, 512), (576, 512)])
def test_wide_heads_pass_the_check_before_their_first_use(width, value_width):
    module._check(width, value_width, torch.bfloat16)
    gap, of_tiles = module._largest_gaps(width, value_width, torch.bfloat16)
    assert gap < of_tiles
    assert gap < module.ALLOWED_HALF_GAP or width > 256


def test_scores_are_not_rounded_under_autocast():
    """Large scores: rounded to bfloat16 they would be off by tenths."""
    buckets, num_rows = tree_of([(60, 40, 30), (50, 20, 45)])
    exact = inputs(num_rows, SHAPES["A"])
    truth = taught(tree_attention, exact, buckets, scaling=4.0)[0]
    rounded = [x.detach().float().requires_grad_() for x in exact]
    coarse = [x.detach().bfloat16().float().requires_grad_() for x in exact]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, worse = (taught(compiled_tree_attention, x, buckets, scaling=4.0)[0] for x in (rounded, coarse))
    assert (ours - truth).abs().mean() < 0.5 * (worse - truth).abs().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_number_of_threads_changes_no_bit(dtype, monkeypatch):
    monkeypatch.setattr(kernel, "SCORES_APIECE", 1)
    buckets, num_rows = tree_of([(70, 40, 3, 66, 20), (50, 20, 45), (9, 1)])
    tensors = [x.detach().to(dtype).requires_grad_() for x in inputs(num_rows, (6, 3, 32, 32))]
    before = torch.get_num_threads()
    actual = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            actual.append(taught(compiled_tree_attention, tensors, buckets))
    finally:
        torch.set_num_threads(before)
    for others in actual[1:]:
        assert all(torch.equal(a, b) for a, b in zip(actual[0], others, strict=True))


@pytest.mark.parametrize("broken", range(3), ids=["query", "key", "value"])
@pytest.mark.parametrize("number", [math.nan, math.inf], ids=str)
def test_a_number_that_is_none_reaches_who_sees_it_and_no_other_tree(broken, number):
    buckets, num_rows = tree_of([(40, 20, 7), (30, 12)])
    tensors = inputs(num_rows, SHAPES["A"], torch.float32)
    sound = taught(compiled_tree_attention, tensors, buckets)[0]
    with torch.no_grad():
        tensors[broken][3, 0] = number  # in the first prefix
    out, *grads = taught(compiled_tree_attention, tensors, buckets)
    sees = [3] if broken == 0 else [3, 39, 59, 66]
    assert not out[sees, 0].isfinite().any()
    assert torch.equal(out[67:], sound[67:])
    assert torch.equal(out[:, 1:], sound[:, 1:])
    assert any(grad.isnan().any() for grad in grads)
    assert all(grad[67:].isfinite().all() for grad in grads)


def test_a_probability_too_small_for_a_float_is_none_and_a_large_score_does_not_overflow():
    buckets, num_rows = tree_of([(40, 20, 7)])
    tensors = inputs(num_rows, SHAPES["A"])
    truth = taught(tree_attention, tensors, buckets, scaling=30.0)
    ours = taught(
        compiled_tree_attention, [x.detach().float().requires_grad_() for x in tensors], buckets, scaling=30.0
    )
    for mine, true in zip(ours, truth, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=1e-3, atol=1e-3)


def test_rows_may_lie_anyhow_and_a_prefix_may_have_no_branch():
    buckets, num_rows = tree_of([(12, 6, 7), (5, 9)])
    for bucket in buckets:
        bucket.units[:] = [unit for unit in bucket.units if not (unit.prefix_first == 25 and unit.prefix_length)]
    tensors = inputs(num_rows, SHAPES["GQA"], torch.float32)
    turned = [x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in tensors]
    ours, other = (taught(compiled_tree_attention, x, buckets) for x in (tensors, turned))
    assert not turned[0].is_contiguous()
    for number, (a, b) in enumerate(zip(ours, other, strict=True)):
        assert torch.equal(a, b)
        alone = (0, 25) if number == 1 else ()  # these see one key, so nothing moves their queries
        assert a[[row for row in range(30) if row not in alone]].abs().sum(-1).gt(0).all()
        assert not a[30:].any(), "the branch that was taken out"


def test_other_types_go_to_tiles():
    buckets, num_rows = tree_of([(12, 6, 7)])
    tensors = inputs(num_rows, SHAPES["A"])
    ours, tiles = (taught(attend, tensors, buckets) for attend in (compiled_tree_attention, tree_attention))
    assert all(torch.equal(a, b) for a, b in zip(ours, tiles, strict=True))


def test_a_second_derivative_is_refused():
    buckets, num_rows = tree_of([(3, 2)])
    tensors = inputs(num_rows, SHAPES["A"], torch.float32)
    once = compiled_tree_attention(*tensors, buckets, scaling=0.3).square().sum()
    (slope,) = torch.autograd.grad(once, tensors[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_a_layout_takes_c_where_that_is_asked_for(monkeypatch):
    calls = []
    monkeypatch.setattr(
        attention, "compiled_tree_attention", lambda *x, **y: calls.append(1) or compiled_tree_attention(*x, **y)
    )
    layout = PackedLayout.of(pack([Group([1] * 5, [Branch([2] * 3), Branch([2] * 4)])]))
    tensors = [x.transpose(0, 1)[None] for x in inputs(12, SHAPES["A"], torch.float32)]
    settings = AttentionSettings(scaling=0.2)
    off = layout.attend(torch.nn.Identity(), *tensors, settings)
    with in_c(False):
        layout.attend(torch.nn.Identity(), *tensors, settings)
    assert not calls
    with in_c(True):
        on = layout.attend(torch.nn.Identity(), *tensors, settings)
    assert len(calls) == 1
    layout.attend(torch.nn.Identity(), *tensors, settings)
    assert len(calls) == 1, "it ends with the block"
    torch.testing.assert_close(on, off, rtol=1e-5, atol=1e-6)


def test_where_the_system_refuses_tiles_it_does_without(monkeypatch):
    asked = []

    class Refused:
        tiles_allowed = staticmethod(lambda: 0)

    def refusing(name, **macros):
        asked.append(macros)
        return load(name, **macros) if "TILES" in macros else Refused()

    monkeypatch.setattr(kernel, "load", refusing)
    monkeypatch.setattr(kernel, "_functions", kernel._functions.__wrapped__)
    buckets, num_rows = tree_of([(60, 40, 30)])
    tensors = inputs(num_rows, SHAPES["A"], torch.bfloat16)
    ours, other = (taught(attend, tensors, buckets) for attend in (compiled_tree_attention, tree_attention))
    assert {"TILES": 0, "WIDTH": 32, "VALUE_WIDTH": 32, "HALF": 1} in asked
    for mine, theirs in zip(ours, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.05)


def test_it_cannot_be_asked_for_without_a_compiler(monkeypatch):
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(ConfigError, match="C compiler"), in_c(True):
        pass
    assert not is_in_c()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("result", [0.0, math.nan], ids=str)
def test_a_library_that_computes_something_else_is_found_before_its_first_use(dtype, result, monkeypatch):
    monkeypatch.setattr(module, "_CHECKED", set())
    own = kernel._run

    def wrong(name, tensors, trees, asked, **others):
        own(name, tensors, trees, asked, **others)
        if name == "backward":
            others["grad_key"].fill_(result)

    monkeypatch.setattr(kernel, "_run", wrong)
    buckets, num_rows = tree_of([(3, 2, 4)])
    tensors = inputs(num_rows, SHAPES["A"], dtype)
    for _ in range(2):
        with pytest.raises(TrainingError, match=r"Attention.*off by .*heads of 32.*compiled"):
            compiled_tree_attention(*tensors, buckets, scaling=0.2)


def test_a_comparison_that_was_broken_off_is_made_again(monkeypatch):
    monkeypatch.setattr(module, "_CHECKED", set())
    monkeypatch.setattr(module, "_largest_gaps", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    buckets, num_rows = tree_of([(3, 2, 4)])
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            compiled_tree_attention(*inputs(num_rows, SHAPES["A"], torch.float32), buckets, scaling=0.2)


def test_it_may_be_used_first_where_nothing_is_differentiated_and_with_another_default_type(monkeypatch):
    monkeypatch.setattr(module, "_CHECKED", set())
    buckets, num_rows = tree_of([(9, 2, 5)])
    tensors = [x.detach() for x in inputs(num_rows, SHAPES["A"], torch.float32)]
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.inference_mode():
            actual = compiled_tree_attention(*tensors, buckets, scaling=0.2)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(actual, tree_attention(*tensors, buckets, scaling=0.2))


@pytest.mark.parametrize("kind", ["dpo", "reward", "grpo"])
def test_a_run_learns_the_same_with_it(kind, monkeypatch):
    calls = []
    monkeypatch.setattr(
        attention, "compiled_tree_attention", lambda *x, **y: calls.append(1) or compiled_tree_attention(*x, **y)
    )
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
