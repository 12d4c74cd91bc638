"""Averages of reward models: their weights by hand, what is refused, and the record of what they are made of."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf.errors import ModelError
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.models.reward_averaging import average_reward_models
from tests.fixtures import tiny
from tests.unit.models.test_reward import BATCH

WEIGHTS = "model.safetensors"


@pytest.fixture
def sources(tmp_path, tiny_model_folder):
    """Two reward models of one start; each weight of the second is 1.5 times the first's."""
    first = RewardModel.from_policy(PolicyModel.from_pretrained(str(tiny_model_folder)))
    first.set_normalization(torch.tensor([1.0]), torch.tensor([2.0]))
    first.save_pretrained(tmp_path / "a")
    second = RewardModel.from_pretrained(tmp_path / "a")
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(1.5)
    second.set_normalization(torch.tensor([5.0]), torch.tensor([4.0]))
    second.save_pretrained(tmp_path / "b")
    return [tmp_path / "a", tmp_path / "b"]


def change(folder, function):
    tensors = load_file(folder / WEIGHTS)
    save_file({name: function(name, tensor) for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})


@pytest.mark.parametrize(
    ("weights", "factor", "mean", "std"),
    # theta_b = 1.5 theta_a: with shares (1/4, 3/4) the average is (.25 + 1.125) theta_a
    [(None, 1.25, 3.0, 3.0), ([1, 3], 1.375, 4.0, 3.5), ([2.0, 0.0], 1.0, 1.0, 2.0)],
)
def test_the_weighted_mean_of_weights_shift_and_scale_by_hand(tmp_path, sources, weights, factor, mean, std):
    folder = average_reward_models(sources, tmp_path / "mean", weights=weights)
    first, made = load_file(sources[0] / WEIGHTS), load_file(folder / WEIGHTS)
    assert made.keys() == first.keys()
    for name, tensor in made.items():
        torch.testing.assert_close(tensor, first[name] * factor, rtol=1e-6, atol=0)
    model = RewardModel.from_pretrained(folder)  # a Path, as it is returned
    assert (model.mean.tolist(), model.std.tolist()) == ([mean], [std])
    raw = model.raw_scores(BATCH)
    torch.testing.assert_close(model.scores(BATCH), (raw[0] - mean) / std)


def test_equal_models_average_to_the_same_bits(tmp_path, sources):
    copy = shutil.copytree(sources[0], tmp_path / "copy")
    folder = average_reward_models([sources[0], copy], tmp_path / "mean", weights=[1, 3])
    assert (folder / WEIGHTS).read_bytes() == (sources[0] / WEIGHTS).read_bytes()


@pytest.mark.parametrize(
    "weights", [[float("inf"), 1.0], [float("nan"), 1.0], [1.0, float("nan")], [1e308, 1e308], [-1.0, 2.0], [0, 0], [1]]
)
def test_weights_that_are_no_shares_are_refused(tmp_path, sources, weights):
    with pytest.raises(ModelError, match="weights"):
        average_reward_models(sources, tmp_path / "mean", weights=weights)
    assert not (tmp_path / "mean").exists()


def test_a_source_is_never_replaced(tmp_path, sources):
    before = (sources[1] / WEIGHTS).read_bytes()
    (tmp_path / "link").symlink_to(sources[1])
    for folder in (sources[1], tmp_path / "link", sources[1] / "mean", tmp_path, sources[0] / ".." / "b"):
        with pytest.raises(ModelError, match="would replace"):
            average_reward_models(sources, folder)
    assert (sources[1] / WEIGHTS).read_bytes() == before


def test_weights_of_another_start_are_refused_and_named(tmp_path, sources):
    def other(name, tensor):
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name)))
        return noise if "q_proj" in name else tensor

    change(sources[1], other)
    with pytest.raises(ModelError, match=r"same start.*q_proj"):
        average_reward_models(sources, tmp_path / "mean")


def test_other_heads_of_one_backbone_are_averaged(tmp_path, sources):
    change(sources[1], lambda name, tensor: -tensor if name.startswith("score") else tensor)
    folder = average_reward_models(sources, tmp_path / "mean")
    (head,) = (tensor for name, tensor in load_file(folder / WEIGHTS).items() if name.startswith("score"))
    (first,) = (tensor for name, tensor in load_file(sources[0] / WEIGHTS).items() if name.startswith("score"))
    torch.testing.assert_close(head, -0.25 * first)  # (1 - 1.5) / 2


def test_another_vocabulary_of_the_same_size_is_refused(tmp_path, sources):
    lines = tuple(line[::-1] for line in tiny.LINES)
    tiny.build_tokenizer(lines, vocab_size=280).save_pretrained(sources[1])
    with pytest.raises(ModelError, match="vocabulary"):
        average_reward_models(sources, tmp_path / "mean")


def test_another_shape_an_ensemble_and_a_language_model_are_refused(tmp_path, sources, tiny_model_folder):
    with pytest.raises(ModelError, match="single reward model"):
        average_reward_models([sources[0], tiny_model_folder], tmp_path / "mean")
    policy = PolicyModel.from_pretrained(str(tiny_model_folder))
    many = RewardModel.from_policy(policy, num_models=2).save_pretrained(tmp_path / "many")
    with pytest.raises(ModelError, match="single reward model"):
        average_reward_models([sources[0], many], tmp_path / "mean")
    change(sources[1], lambda name, tensor: tensor[:-1].contiguous() if "q_proj" in name else tensor)
    with pytest.raises(ModelError, match=r"another shape.*q_proj"):
        average_reward_models(sources, tmp_path / "mean")


def test_the_folder_records_what_it_is_made_of_also_through_another_average(tmp_path, sources):
    once = average_reward_models(sources, tmp_path / "once", weights=[1, 3])
    twice = average_reward_models([once, sources[0]], tmp_path / "twice")
    record = json.loads((twice / "rlhf_average.json").read_text())["sources"]
    assert {(one["folder"], one["share"]) for one in record} == {
        (str(once), 0.5), (str(sources[0]), 0.125), (str(sources[1]), 0.375), (str(sources[0]), 0.5),
    }  # fmt: skip
    for one in record:
        content = (tmp_path / one["folder"] / WEIGHTS).read_bytes()
        assert one["weights"] == {WEIGHTS: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
