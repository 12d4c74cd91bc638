"""Several judges as one."""

from __future__ import annotations

import math

import pytest
import torch

from rlhf.config.learned_rewards import EnsembleRewardConfig, LearnedRewardConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RewardError, UnknownNameError
from rlhf.models.reward import RewardModel
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.ensemble import EnsembleReward, combine_scores
from rlhf.rewards.factory import build_reward
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.types import ScoreResult, TextCompletion
from tests.fixtures import toy

EACH = torch.tensor([[1.0, 0.0], [2.0, 0.0], [6.0, 3.0], [3.0, 1.0]])


@pytest.mark.parametrize(
    ("how", "expected"),
    # deviations: of 1, 2, 6, 3 around 3: sqrt(14 / 4); of 0, 0, 3, 1 around 1: sqrt(6 / 4)
    [
        ("mean", [3.0, 1.0]),
        ("min", [1.0, 0.0]),
        ("median", [2.5, 0.5]),
        ("mean_minus_std", [3 - 2 * math.sqrt(3.5), 1 - 2 * math.sqrt(1.5)]),
    ],
)
def test_scores_are_combined_for_each_completion(how, expected):
    assert combine_scores(EACH, how=how, std_coef=2.0).tolist() == pytest.approx(expected)


def test_an_unknown_combination_is_named():
    with pytest.raises(UnknownNameError, match="'max'"):
        combine_scores(EACH, how="max")  # type: ignore[arg-type]


class Says:
    """A judge that says the same whatever it is shown."""

    def __init__(self, name, *scores, wrong=None):
        self.name, self.scores, self.wrong = name, scores, wrong or {}

    def score(self, prompts, completions):
        return ScoreResult(list(self.scores), {self.name: list(self.scores)}, self.wrong)


def samples(count):
    return [Prompt(str(n), [5], "p") for n in range(count)], [TextCompletion("c") for _ in range(count)]


def test_judges_are_combined_and_their_disagreement_is_told():
    ensemble = EnsembleReward([Says("a", 1.0, 2.0), Says("a", 3.0, 2.0)], combine="mean_minus_std", std_coef=0.5)
    result = ensemble.score(*samples(2))
    assert result.scores == pytest.approx([2 - 0.5, 2.0])
    assert result.per_component == {"a": [1, 2], "a_2": [3, 2], "ensemble_std": [1.0, 0.0]}


def test_judges_on_other_scales_are_brought_to_one():
    ensemble = EnsembleReward([Says("a", 0.0, 2.0), Says("b", 100.0, 300.0)], combine="min", normalize=True)
    assert ensemble.score(*samples(2)).scores == pytest.approx([-1.0, 1.0])


def test_a_sample_on_which_one_judge_fails_has_no_score():
    failing = Says("b", 1.0, math.nan, wrong={1: "it broke"})
    result = EnsembleReward([Says("a", 1.0, 2.0), failing]).score(*samples(2))
    assert result.scores[0] == 1.0
    assert math.isnan(result.scores[1])
    assert result.errors == {1: "b: it broke"}
    assert result.per_component["ensemble_std"] == [0.0, None]


def even(prompts, completions):
    return [1.0 if number % 2 == 0 else None for number in range(len(completions))]


def test_a_judge_that_abstains_is_left_out_and_somebody_must_judge():
    judges = [FunctionReward(even, in_process=True, name=name) for name in ("one", "two")]
    result = EnsembleReward([judges[0], Says("a", 3.0, 5.0)], combine="mean").score(*samples(2))
    assert result.scores == [2.0, 5.0]
    with pytest.raises(RewardError, match="one, two all returned None"):
        EnsembleReward(judges).score(*samples(2))
    reported = EnsembleReward(judges, on_error="report").score(*samples(2))
    assert list(reported.errors) == [1]


def test_an_ensemble_of_one_is_refused():
    with pytest.raises(ConfigError, match="at least two"):
        EnsembleReward([Says("a", 1.0)])


def test_a_weighted_sum_passes_on_what_its_parts_are_made_of():
    parts = [EnsembleReward([Says("x", 1.0), Says("y", 3.0)], combine="mean") for _ in range(2)]
    result = CompositeReward([Component(scorer=part) for part in parts]).score(*samples(1))
    assert result.scores == [4.0]
    assert result.per_component["ensemble"] == result.per_component["ensemble_2"] == [2.0]
    assert result.per_component["ensemble_std"] == result.per_component["ensemble_2_std"] == [1.0]
    assert result.per_component["x"] == [1.0]


@pytest.fixture
def model() -> RewardModel:
    """Two members of two heads each, on scales of their own."""
    made = RewardModel.from_policy(toy.build_policy(), num_models=2, num_heads=2, seed=1)
    made.set_normalization(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([1.0, 0.5, 2.0, 4.0]))
    return made


def test_members_of_a_reward_model_are_combined_after_each_is_normalized(model):
    prompts = toy.prompts(3)
    completions = [TextCompletion("x", tokens=[7, 8, 9 + n]) for n in range(3)]
    every = LearnedReward(model, tokenizer=toy.TOKENIZER)
    with torch.no_grad():
        each = every.outputs(
            [toy.Group(p.ids, [toy.Branch(c.tokens)]) for p, c in zip(prompts, completions, strict=True)]
        )
    strict = LearnedReward(model, tokenizer=toy.TOKENIZER, combine="min").score(prompts, completions)
    assert strict.scores == pytest.approx(each.amin(0).tolist(), abs=1e-5)
    careful = LearnedReward(model, tokenizer=toy.TOKENIZER, combine="mean_minus_std", std_coef=2.0, name="rm")
    result = careful.score(prompts, completions)
    assert result.scores == pytest.approx((each.mean(0) - 2 * each.std(0, correction=0)).tolist(), abs=1e-5)
    assert result.per_component["rm_std"] == pytest.approx(each.std(0, correction=0).tolist(), abs=1e-5)
    assert min(result.per_component["rm_std"]) > 0.01


def test_a_recipe_combines_members_and_models(model, tmp_path):
    folders = [str(model.save_pretrained(tmp_path / name)) for name in ("a", "b")]
    one = build_reward({"kind": "learned", "source": folders[0], "combine": "median"}, tokenizer=toy.TOKENIZER)
    assert isinstance(one, LearnedReward)
    assert one.combine == "median"
    both = build_reward({"kind": "ensemble", "sources": folders, "std_coef": 3.0}, tokenizer=toy.TOKENIZER)
    assert isinstance(both, EnsembleReward)
    assert (both.combine, both.std_coef, both.names) == ("mean_minus_std", 3.0, ["learned", "learned_2"])


def test_settings_that_would_do_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"std_coef.*combine: mean_minus_std"):
        LearnedRewardConfig.of({"source": "x", "combine": "min", "std_coef": 2.0})
    with pytest.raises(ConfigError, match="sources"):
        EnsembleRewardConfig.of({"sources": ["only/one"]})
