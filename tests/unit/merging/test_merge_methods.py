"""Every method's formula on numbers that can be worked out by hand, and what holds for any numbers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlhf.errors import ConfigError, UnknownNameError
from rlhf.merging.arithmetic import BLOCK
from rlhf.merging.merge_method import MergeMethod
from rlhf.merging.method_table import METHODS, method_named
from rlhf.merging.methods.linear import linear
from rlhf.merging.methods.task_arithmetic import task_arithmetic
from rlhf.merging.sparsity import Cut, drawn, largest
from rlhf.merging.tensor_parts import TensorParts
from rlhf.merging.thresholds import magnitude_thresholds


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def call(name: str, tensors: list[Tensor], base: Tensor | None, **settings: Any) -> Tensor:
    """A method of the table with its defaults, as the merger calls it."""
    method = method_named(name)
    arguments: dict[str, Any] = {}
    for parameter in method.parameters.values():
        value = settings.pop(parameter.name, parameter.default)
        arguments[parameter.keyword] = (
            [value] * len(tensors) if parameter.each and not isinstance(value, list) else value
        )
    arguments |= {"notes": settings.pop("notes", {}), "seeds": settings.pop("seeds", list(range(len(tensors))))}
    assert not settings
    if method.prepare is not None:
        arguments["prepared"] = method.prepare(TensorParts.of_tensors(tensors, base), arguments)
    arguments = {key: value for key, value in arguments.items() if key in method.taken}
    return method.function([tensor.clone() for tensor in tensors], base, **arguments)


def test_linear_is_the_weighted_mean():
    a, b = vector(1, 2, 3), vector(5, 6, 7)
    assert linear([a.clone(), b], None, weight=[3.0, 1.0]).tolist() == [2, 3, 4]
    assert linear([a, b], None, weight=[3.0, 1.0], normalize=False).tolist() == [8, 12, 16]


def test_task_arithmetic_adds_differences():
    base, a, b = vector(1, 1), vector(2, 1), vector(1, 4)
    notes: dict[str, Any] = {}
    assert task_arithmetic([a.clone(), b.clone()], base, weight=[2.0, 1.0], lambda_=0.5, notes=notes).tolist() == [
        2,
        2.5,
    ]
    assert task_arithmetic([a, b], base, weight=[2.0, 2.0], normalize=True, notes=notes).tolist() == [1.5, 2.5]


def test_ties_trims_elects_and_averages():
    base = torch.zeros(4)
    a, b, c = vector(4, -3, 0.1, 2), vector(1, 5, -0.2, 3), vector(-2, 0.1, 6, -9)
    notes: dict[str, Any] = {}
    # Half of each stays: (4, -3, 0, 0), (0, 5, 0, 3), (0, 0, 6, -9). Sums 4, 2, 6, -6: what agrees is 4, 5, 6 and -9.
    merged = call("ties", [a, b, c], base, weight=1.0, density=0.5, notes=notes)
    assert merged.tolist() == [4, 5, 6, -9]
    assert notes["kept"] == [0.5, 0.5, 0.5]
    assert notes["sign_conflict"] == 0.5  # in the second and the fourth


def test_ties_elects_by_weight_as_mergekit_or_without_as_the_paper():
    base, a, b = torch.zeros(1), vector(1), vector(-2)
    weights: dict[str, Any] = {"weight": [3.0, 1.0], "density": [1.0, 1.0]}
    assert call("ties", [a, b], base, **weights).tolist() == [1]  # 3 against -2
    assert call("ties", [a, b], base, **weights, elect="unweighted").tolist() == [-2]  # 1 against -2


def test_where_the_sum_is_zero_the_positive_sign_wins():
    assert call("ties", [vector(2), vector(-2)], torch.zeros(1), weight=1.0).tolist() == [2]


def test_slerp_goes_along_the_arc():
    base, other = vector(1, 0), vector(0, 1)
    merged = call("slerp", [other], base, t=1 / 3)
    assert merged.tolist() == pytest.approx([math.cos(math.pi / 6), math.sin(math.pi / 6)])
    # The norms are not those of a unit circle: the same angles, each vector by its own length.
    assert call("slerp", [other * 4], base * 2, t=0.5).tolist() == pytest.approx(
        [2 * math.sqrt(0.5), 4 * math.sqrt(0.5)]
    )


@pytest.mark.parametrize("other", [vector(2, 4), vector(-2, -4), vector(0, 0)], ids=["parallel", "opposite", "zero"])
def test_slerp_of_vectors_without_an_arc_is_a_line(other):
    base = vector(1, 2)
    expected = 0.75 * base + 0.25 * other
    if not other.any():  # at right angles to everything: cos is 0
        expected = math.sin(0.75 * math.pi / 2) * base
    assert torch.allclose(call("slerp", [other], base, t=0.25), expected)


def test_model_stock_interpolates_by_the_angle():
    base = torch.zeros(2)
    # 60 degrees between two: cos 1/2, t = 2 / 2 / (1 + 1/2) = 2/3 of the way to the mean.
    a, b = vector(1, 0), vector(0.5, math.sqrt(0.75))
    assert torch.allclose(call("model_stock", [a, b], base), 2 / 3 * (a + b) / 2)
    # At right angles there is nothing in common, and opposite ones have no estimate: the base stays.
    assert call("model_stock", [vector(1, 0), vector(0, 1)], base).tolist() == [0, 0]
    assert call("model_stock", [vector(1, 0), vector(-1, 0)], base).tolist() == [0, 0]


def test_model_stock_by_rows_has_an_angle_for_each():
    base = torch.zeros(2, 2)
    a, b = torch.tensor([[1.0, 0], [1, 0]]), torch.tensor([[1.0, 0], [0, 1]])
    assert call("model_stock", [a, b], base, filter_wise=True).tolist() == [[1, 0], [0, 0]]


def trim_of(delta: Tensor, density: float) -> Cut:
    return largest([delta], delta.numel(), density, delta.dtype)


def dropped(delta: Tensor, seed: int, rescale: str) -> tuple[Tensor, float]:
    drop = drawn((part.clone() for part in delta.split(BLOCK)), 0.25, seed, rescale)
    return drop(delta.clone()), drop.kept


def test_trim_keeps_the_first_of_equal_magnitudes():
    delta = vector(1, -2, 2, 2, 0.5)
    cut = trim_of(delta, 0.41)
    assert cut.kept == 2 / 5
    assert cut(delta).tolist() == [0, -2, 2, 0, 0]


@pytest.mark.parametrize(("density", "kept"), [(0.0, 0), (1e-9, 1), (0.5, 5), (1.0, 10), (2.0, 10)])
def test_trim_keeps_so_many(density, kept):
    delta = torch.arange(1.0, 11)
    cut = trim_of(delta, density)
    assert cut.kept == kept / 10
    assert cut(delta).tolist() == [0] * (10 - kept) + list(range(11 - kept, 11))


@pytest.mark.parametrize("size", [1000, 300_000])
def test_trim_agrees_with_a_whole_sort(size):
    delta = (random(1, size) * 8).round() / 8  # many equal magnitudes
    order = torch.argsort(delta.abs(), descending=True, stable=True)[: int(0.3 * size)]
    expected = torch.zeros(size)
    expected[order] = delta[order]
    cut = trim_of(delta, 0.3)
    assert torch.equal(torch.cat([cut(part) for part in delta.split(70_000)]), expected)


def test_drop_keeps_a_share_and_makes_up_for_the_rest():
    before = random(2, 600_000)
    delta, kept = dropped(before, seed=5, rescale="density")
    assert kept == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / 600_000))
    stays = delta != 0
    assert float(stays.float().mean()) == pytest.approx(kept)
    assert torch.allclose(delta[stays], before[stays] * 4)
    by_norm, _ = dropped(before, seed=5, rescale="l1")
    assert float(by_norm.abs().sum()) == pytest.approx(float(before.abs().sum()), rel=1e-4)
    plain, _ = dropped(before, seed=5, rescale="none")
    assert torch.equal(plain, before * stays)  # the same seed, the same mask
    other, _ = dropped(before, seed=6, rescale="none")
    assert not torch.equal(other, plain)


def test_thresholds_of_whole_models_are_exact():
    parts = [[random(seed, 37), random(seed + 10, 37) * 100] for seed in range(4)]
    densities = [0.2, 0.7]
    thresholds = magnitude_thresholds(parts, densities)
    for place, density in enumerate(densities):
        everything = torch.cat([part[place] for part in parts]).abs().sort(descending=True).values
        assert thresholds[place] == float(everything[int(density * everything.numel()) - 1])


BASED = [name for name in METHODS if method_named(name).base == "required"]
SETTINGS: dict[str, dict[str, Any]] = {"slerp": {"t": 1.0}}


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("slerp", "model_stock")])
def test_one_model_is_the_identity(name):
    base, model = random(1, 5, 7), random(2, 5, 7)
    settings = {"weight": 1.0} if "weight" in method_named(name).parameters else {}
    merged = call(name, [model], base if name in BASED else None, **settings)
    assert torch.allclose(merged, model, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in BASED if "weight" in method_named(name).parameters])
def test_zero_weights_give_the_base(name):
    base = random(1, 5, 7)
    merged = call(name, [random(2, 5, 7), random(3, 5, 7)], base, weight=0.0)
    assert torch.equal(merged, base)


@pytest.mark.parametrize("t", [0.0, 1.0])
def test_slerp_ends_at_its_ends(t):
    base, other = random(1, 5, 7), random(2, 5, 7)
    assert torch.allclose(call("slerp", [other], base, t=t), (base, other)[int(t)], atol=1e-6)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("slerp", "passthrough")])
def test_the_order_of_models_does_not_count(name):
    base, models = random(1, 6, 5), [random(seed, 6, 5) for seed in (2, 3, 4)]
    weights, densities, seeds = [0.2, 0.5, 0.9], [0.4, 0.6, 0.8], [7, 8, 9]
    known = method_named(name)
    results = []
    for order in itertools.permutations(range(3)):
        settings = {"weight": [weights[i] for i in order]} if "weight" in known.parameters else {}
        settings |= {"density": [densities[i] for i in order]} if "density" in known.parameters else {}
        settings |= {"seeds": [seeds[i] for i in order]}
        results.append(call(name, [models[i] for i in order], base if name in BASED else None, **settings))
    assert all(torch.allclose(result, results[0], atol=1e-6) for result in results)


@pytest.mark.parametrize("name", [name for name in METHODS if name in BASED and name != "slerp"])
def test_equal_models_merge_into_themselves(name):
    base, model = random(1, 6, 5), random(2, 6, 5)
    settings = {"weight": 0.5} if "weight" in method_named(name).parameters else {}
    assert torch.allclose(call(name, [model, model], base, **settings), model, atol=1e-5)


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=8), st.floats(0.05, 1))
def test_ties_stays_between_what_it_merges(values, density):
    base = torch.zeros(len(values))
    tensors = [torch.tensor(values), -0.5 * torch.tensor(values)]
    merged = call("ties", tensors, base, weight=1.0, density=density)
    assert bool(((merged >= torch.minimum(*tensors)) & (merged <= torch.maximum(*tensors)) | (merged == 0)).all())


def test_an_empty_tensor_stays_empty():
    for name in METHODS:
        known = method_named(name)
        models = [torch.zeros(0, 3)] * (1 if known.most == 1 else 2)
        settings: dict[str, Any] = {"weight": 0.5} if "weight" in known.parameters else {}
        settings |= {"density": 0.5} if "density" in known.parameters else {}
        settings |= SETTINGS.get(name, {})
        assert call(name, models, torch.zeros(0, 3) if name in BASED else None, **settings).shape == (0, 3), name


def test_an_unknown_method_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="task_arithmetic"):
        method_named("task_arithmetics")


@pytest.mark.parametrize("text", ["no.such.module:f", "rlhf.errors:nothing", "missing.py:f"])
def test_a_method_that_is_not_there_is_named(text):
    with pytest.raises(ConfigError, match=text.partition(":")[0].replace(".", r"\.")):
        method_named(text)


def test_settings_are_read_from_the_signature():
    def mine(
        tensors: list[Tensor],
        base: Tensor | None,
        *,
        weight: list[float],
        sharp: bool = False,
        lambda_: float | None = None,
    ) -> Tensor:
        return tensors[0]

    parameters = MergeMethod(mine).parameters
    assert {name: (p.kind, p.each, p.required) for name, p in parameters.items()} == {
        "weight": (float, True, True), "sharp": (bool, False, False), "lambda": (float, False, False),
    }  # fmt: skip

    def odd(tensors: list[Tensor], *, weight: list[float]) -> Tensor:
        return tensors[0]

    with pytest.raises(ConfigError, match="odd"):
        _ = MergeMethod(odd).parameters
