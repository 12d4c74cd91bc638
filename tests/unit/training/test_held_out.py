"""What is measured on held-out prompts while a policy learns."""

from __future__ import annotations

import itertools

import pytest
import torch

from rlhf.config.held_out import HeldOutConfig
from rlhf.errors import ConfigError
from rlhf.rewards.types import ScoreResult
from rlhf.training.held_out import chance_of_a_success, mean_pass_at_k, win_rate
from tests.fixtures import toy

EVERYTHING = {"samples": 2, "success_score": 0.5, "pass_k": [1, 2], "win_rate": True}


def test_the_chance_of_a_success_is_the_share_of_sets_that_hold_one():
    for n, c, k in [(1, 0, 1), (4, 1, 2), (5, 2, 3), (6, 6, 1), (7, 3, 7)]:
        sets = list(itertools.combinations(range(n), k))
        assert chance_of_a_success(c, n, k) == sum(min(chosen) < c for chosen in sets) / len(sets)


def test_a_completion_that_scores_the_bound_has_solved_its_task():
    # a: 1 of 2 right, b: 2 of 2 right, c: none. pass@1 = (1/2 + 1 + 0) / 3, pass@2 = (1 + 1 + 0) / 3
    scores = {("a", 0): 1.0, ("a", 1): 0.9, ("b", 0): 1.0, ("b", 1): 2.0, ("c", 0): 0.0, ("c", 1): -1.0}
    assert mean_pass_at_k(scores, 1.0, 1) == pytest.approx(0.5)
    assert mean_pass_at_k(scores, 1.0, 2) == pytest.approx(2 / 3)


def test_ties_count_half_and_what_only_one_side_has_counts_nothing():
    ours = {("a", 0): 1.0, ("a", 1): 0.0, ("b", 0): 0.5, ("c", 0): 9.0}
    theirs = {("a", 0): 0.5, ("a", 1): 0.0, ("b", 0): 0.7, ("d", 0): 0.0}
    assert win_rate(ours, theirs) == (1 + 0.5 + 0) / 3
    assert win_rate(ours, {}) is None


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_a_policy_that_has_learned_nothing_ties_with_its_start(name):
    trainer = toy.build_trainer(name, held_out=True, evaluation=EVERYTHING, learning_rate=1e-12)
    evaluation = trainer.train().evaluation
    assert evaluation["eval/win_rate"] == 0.5
    assert 0 <= evaluation["eval/pass_at_1"] <= evaluation["eval/pass_at_2"] <= 1


@pytest.mark.slow
def test_a_policy_that_has_learned_beats_its_start():
    settings = {"rollouts": 30, "learning_rate": 2e-2, "kl": {"coef": 0.0}}
    evaluation = toy.build_trainer("grpo", held_out=True, evaluation=EVERYTHING, **settings).train().evaluation
    assert evaluation["eval/win_rate"] > 0.7
    assert evaluation["eval/score_mean"] > 0.7


class Counting(toy.ShareOfGood):
    """Notes how much it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def score(self, prompts, completions) -> ScoreResult:
        self.asked.append(len(completions))
        return super().score(prompts, completions)


def test_the_start_is_asked_once_and_before_anything_is_learned():
    scorer = Counting()
    trainer = toy.build_trainer("grpo", held_out=True, evaluation=EVERYTHING, scorer=scorer, eval_every=2)
    trainer.train()
    evaluations = 2  # of 3 prompts with 2 samples; a rollout has 4 prompts of 3
    assert scorer.asked[0] == 6
    assert scorer.asked.count(6) == 1 + evaluations
    assert set(scorer.asked) == {6, 12}


def test_asking_the_start_changes_nothing_that_is_learned():
    plain = toy.build_trainer("grpo", dropout=0.2)
    plain.train()
    compared = toy.build_trainer("grpo", dropout=0.2, held_out=True, evaluation=EVERYTHING, eval_every=1)
    compared.train()
    assert toy.largest_difference(toy.weights_of(plain), toy.weights_of(compared)) == 0.0


def test_what_the_start_scored_survives_a_checkpoint():
    trainer, again = (
        toy.build_trainer("grpo", held_out=True, evaluation=EVERYTHING, scorer=Counting()) for _ in range(2)
    )
    trainer.held_out.measure_start()
    again.held_out.load_state_dict(trainer.held_out.state_dict())
    assert again.held_out.start == trainer.held_out.start
    again.held_out.measure_start()
    assert again.inputs.scorer.asked == []


def test_only_so_many_held_out_prompts_are_asked():
    scorer = Counting()
    toy.build_trainer("grpo", held_out=True, evaluation={"limit": 2}, scorer=scorer).evaluate()
    assert scorer.asked == [2]


def test_early_stopping_can_watch_the_win_rate():
    stopping = {"metric": "eval/win_rate", "mode": "max", "patience": 1, "min_delta": 1.0}
    trainer = toy.build_trainer(
        "grpo", held_out=True, evaluation=EVERYTHING, rollouts=6, eval_every=2, early_stopping=stopping
    )
    result = trainer.train()
    assert result.stopped_early
    assert result.steps == 8  # of 24: the second evaluation is no better than the first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pass_k": [1, 4], "samples": 4}, "pass_k needs success_score"),
        (
            {"pass_k": [1, 8], "samples": 4, "success_score": 1},
            "pass@8 needs as many completions of each prompt; samples is 4",
        ),
        ({"pass_k": [0], "success_score": 1}, "wanted numbers from 1 on"),
        ({"pass_k": [], "success_score": 1}, "wanted numbers from 1 on"),
    ],
)
def test_what_can_not_be_measured_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        HeldOutConfig(**settings)


def test_settings_written_out_are_read_back_as_the_same():
    for config in (HeldOutConfig(), HeldOutConfig(**EVERYTHING)):
        assert HeldOutConfig.of(config.model_dump(mode="json")) == config


def test_the_settings_name_what_they_add():
    assert HeldOutConfig().metrics == ()
    assert HeldOutConfig(**EVERYTHING).metrics == ("eval/pass_at_1", "eval/pass_at_2", "eval/win_rate")
    trainer = toy.build_trainer("grpo", held_out=True, evaluation=EVERYTHING)
    assert set(trainer.train().evaluation) >= set(HeldOutConfig(**EVERYTHING).metrics)


def test_scores_go_to_the_samples_that_earned_them():
    trainer = toy.build_trainer("grpo", held_out=True, evaluation=EVERYTHING)
    judged = trainer.held_out.sample(step=0)
    trainer.held_out.measure_start()
    for completion, score in zip(judged.rollout.completions, judged.scores.tolist(), strict=True):
        assert trainer.held_out.start[completion.prompt_id, completion.sample] == score
        assert score == torch.tensor(sum(t < toy.MIDDLE for t in completion.tokens) / len(completion.tokens)).item()
