"""Averages of runs, and two models layer by layer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from rlhf.errors import ConfigError, ModelError
from rlhf.merging.interpolation import layer_wise_interpolation
from rlhf.merging.soup import ModelSoup
from tests.fixtures.merging import FAMILIES, tensors_of, write_family, write_plain


def values(folder: Path) -> float:
    return float(tensors_of(folder)["layers.0.w"][0])


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    """Models of one number each: 0, 10, 2 and 7."""
    return [
        write_plain(tmp_path / f"run{i}", {"layers.0.w": torch.tensor([v])})
        for i, v in enumerate((0.0, 10.0, 2.0, 7.0))
    ]


def test_a_uniform_soup_is_the_mean(runs, tmp_path):
    ModelSoup(runs).uniform(tmp_path / "soup")
    assert values(tmp_path / "soup") == 4.75


def test_a_greedy_soup_keeps_what_does_not_hurt(runs, tmp_path):
    asked = []

    def nearness_to_five(folder: Path) -> float:
        asked.append(folder)
        return -abs(values(folder) - 5)

    soup = ModelSoup(runs).greedy(nearness_to_five, tmp_path / "soup")
    # 7 is the best alone (-2). With 2: 4.5, better (-.5). With 0: 3, worse. With 10: 19/3, worse.
    assert [(Path(trial.model).name, trial.kept) for trial in soup.trials] == [
        ("run3", True),
        ("run2", True),
        ("run0", False),
        ("run1", False),
    ]
    assert values(tmp_path / "soup") == 4.5
    assert soup.score == -0.5
    assert len(asked) == 4 + 3
    assert json.loads((tmp_path / "soup" / "soup.json").read_text())["ingredients"] == [str(runs[3]), str(runs[2])]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_gate_may_ask_for_more(runs, tmp_path):
    soup = ModelSoup(runs).greedy(
        lambda folder: -abs(values(folder) - 5), tmp_path / "soup", accept=lambda new, old: new > old + 5
    )
    assert soup.ingredients == (str(runs[3]),)
    assert values(tmp_path / "soup") == 7


def test_a_score_that_is_none_stops_the_soup(runs, tmp_path):
    with pytest.raises(ConfigError, match="nan"):
        ModelSoup(runs).greedy(lambda folder: math.nan, tmp_path / "soup")
    assert not (tmp_path / "soup").exists()


def test_models_that_do_not_fit_are_found_before_any_is_evaluated(runs, tmp_path):
    other = write_plain(tmp_path / "other", {"layers.0.w": torch.ones(2)})
    with pytest.raises(ModelError, match=r"layers\.0\.w"):
        ModelSoup([*runs, other]).greedy(lambda folder: pytest.fail("evaluated"), tmp_path / "soup")


@pytest.mark.parametrize("models", [[], ["a", "a"]])
def test_a_soup_takes_different_models(models):
    with pytest.raises(ConfigError, match="different models"):
        ModelSoup(models)


@pytest.mark.parametrize(
    ("alphas", "others", "expected"),
    [
        (0.25, None, {"embed.w": 2.5, "layers.0.w": 2.5, "layers.2.w": 2.5, "norm.w": 2.5}),
        ([0, 0.5, 1], None, {"embed.w": 0, "layers.0.w": 0, "layers.1.w": 5, "layers.2.w": 10, "norm.w": 0}),
        ([0, 1], 0.3, {"embed.w": 3, "layers.0.w": 0, "layers.1.w": 5, "layers.2.w": 10, "norm.w": 3}),
    ],
)
def test_folders_are_interpolated_layer_by_layer(tmp_path, alphas, others, expected):
    names = ("embed.w", "layers.0.w", "layers.1.w", "layers.2.w", "norm.w")
    a = write_plain(tmp_path / "a", {name: torch.zeros(3) for name in names})
    b = write_plain(tmp_path / "b", {name: torch.full((3,), 10.0) for name in names})
    layer_wise_interpolation(a, b, alphas, others=others, folder=tmp_path / "out")
    merged = tensors_of(tmp_path / "out")
    for name, value in expected.items():
        assert torch.allclose(merged[name], torch.full((3,), float(value)), atol=1e-6), name


@pytest.mark.parametrize("family", FAMILIES)
def test_modules_and_folders_give_the_same(tmp_path, family):
    from transformers import AutoModelForCausalLM

    parents = write_family(tmp_path, family, ("a", "b"))
    first, second = (AutoModelForCausalLM.from_pretrained(parents[name]) for name in ("a", "b"))
    before = {name: value.clone() for name, value in first.state_dict().items()}
    made = layer_wise_interpolation(first, second, [0.1, 0.6, 0.9], others=0.5)
    layer_wise_interpolation(parents["a"], parents["b"], [0.1, 0.6, 0.9], others=0.5, folder=tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.allclose(value, loaded.state_dict()[name], atol=1e-6) for name, value in made.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in first.state_dict().items())
    ends = layer_wise_interpolation(first, second, 1.0)
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in ends.state_dict().items())


def test_what_can_not_be_interpolated(tmp_path):
    a = write_plain(tmp_path / "a", {"layers.0.w": torch.zeros(3)})
    with pytest.raises(ConfigError, match="alphas"):
        layer_wise_interpolation(a, a, [], folder=tmp_path / "out")
    with pytest.raises(ConfigError, match="alphas has 2 numbers"):
        layer_wise_interpolation(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), [0, 1])
    with pytest.raises(ConfigError, match="folder"):
        layer_wise_interpolation(a, a, 0.5)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="two modules"):
        layer_wise_interpolation(a, torch.nn.Linear(2, 2), 0.5)  # type: ignore[call-overload]
    with pytest.raises(ModelError, match="weight"):
        layer_wise_interpolation(torch.nn.Linear(2, 2), torch.nn.Linear(3, 2), 0.5)


def test_modules_in_float64_are_interpolated_in_float64():
    one, two = (torch.nn.Linear(3, 2).double() for _ in range(2))
    made = layer_wise_interpolation(one, two, 0.25)
    assert torch.equal(made.weight, 0.75 * one.weight + 0.25 * two.weight)
