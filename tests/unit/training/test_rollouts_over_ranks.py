"""Who samples and judges which prompt, and how the parts become a whole again."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlhf.data.contracts import Prompt
from rlhf.distributed.ranks import Ranks
from rlhf.errors import InterruptedRun
from rlhf.pipeline.stages.judging import HeldOutJudge
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.factory import as_scorer
from rlhf.rewards.model_reward import model_rewards
from rlhf.rewards.types import ScoreResult, TextCompletion
from rlhf.training import rollouts_over_ranks, sharded_training
from rlhf.training.rollouts_over_ranks import ask_over_ranks, places_of_rank, score_over_ranks
from rlhf.training.sharded_training import models_of_rollouts
from tests.fixtures import toy
from tests.fixtures import trained_over_ranks as cases

IDS = ["a", "a", "b", "c", "a", "d"]


class OneOfTwo(Ranks):
    """A rank whose other one says what it is given."""

    size = 2

    def __init__(self, rank: int, other: Any) -> None:
        self.rank, self.other = rank, other

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other] if self.is_main else [self.other, value]


class Lengths:
    """Scores a completion by its length; the empty one has no score."""

    name = "length"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, prompts, completions):
        self.asked = [completion.text for completion in completions]
        lengths = [float(len(text)) if text else math.nan for text in self.asked]
        errors = {place: "it is empty" for place, text in enumerate(self.asked) if not text}
        return ScoreResult(lengths, {"length": [length or None for length in lengths]}, errors)


def rank_is(monkeypatch: pytest.MonkeyPatch, rank: int, other: Any) -> None:
    monkeypatch.setattr(rollouts_over_ranks, "current_ranks", lambda: OneOfTwo(rank, other))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_each_place_belongs_to_one_rank_and_a_prompt_stays_together(size):
    shares = [places_of_rank(IDS, rank=rank, size=size) for rank in range(size)]
    assert sorted(place for share in shares for place in share) == list(range(len(IDS)))
    assert sum(any(IDS[place] == "a" for place in share) for share in shares) == 1
    assert max(map(len, shares)) - min(map(len, shares)) <= 3  # "a" is asked three times


def test_what_ranks_were_given_is_put_in_order(monkeypatch):
    rank_is(monkeypatch, 0, {2: "B", 5: "D"})
    assert places_of_rank(IDS, rank=1, size=2) == [2, 5]
    assert ask_over_ranks(IDS, lambda places: [IDS[place].upper() for place in places]) == [*"AABCAD"]


def test_a_rank_without_prompts_is_not_asked(monkeypatch):
    rank_is(monkeypatch, 1, {0: "A"})
    assert ask_over_ranks(["a"], lambda places: pytest.fail(f"asked for {places}")) == ["A"]


def test_scores_components_and_errors_of_ranks_are_joined(monkeypatch):
    prompts, completions = [Prompt(i, [], i) for i in IDS], [TextCompletion(t) for t in ("x", "", "yy", "zzz", "w", "")]
    theirs = ScoreResult([2.0, math.nan], {"other": [1.0, None]}, {1: "it is empty"})
    rank_is(monkeypatch, 0, ([2, 5], theirs, None))
    scorer = Lengths()
    result = score_over_ranks(scorer, prompts, completions)
    assert scorer.asked == ["x", "", "zzz", "w"]
    assert [score for score in result.scores if not math.isnan(score)] == [1.0, 2.0, 3.0, 1.0]
    assert result.errors == {1: "it is empty", 5: "it is empty"}
    assert result.per_component["other"] == [None, None, 1.0, None, None, None]
    assert result.per_component["length"][2] is None


def test_what_puts_scores_together_sees_those_of_all_ranks(monkeypatch):
    prompts, completions = [Prompt(i, [], i) for i in "ab"], [TextCompletion("x"), TextCompletion("yyy")]
    rank_is(monkeypatch, 0, ([1], ScoreResult([3.0]), None))
    both = CompositeReward([Component(scorer=Lengths(), normalize=True)])
    assert score_over_ranks(both, prompts, completions).scores == [-1.0, 1.0]
    assert isinstance(both.components[0].scorer, Lengths)


def test_verdicts_of_ranks_that_may_be_none_are_joined(monkeypatch):
    prompts, completions = [Prompt(i, [], i) for i in "abc"], [TextCompletion(text) for text in ("x", "yy", "zzz")]
    short = as_scorer(lambda prompts, completions, **_: [len(c) if len(c) < 3 else None for c in completions])
    whole = CompositeReward([Component(scorer=short), Component(scorer=Lengths())])
    answers = iter([([1], ([2.0], {}), None), ([1], ScoreResult([2.0]), None)])
    ranks = OneOfTwo(0, None)
    ranks.gather = lambda value: [value, next(answers)]
    monkeypatch.setattr(rollouts_over_ranks, "current_ranks", lambda: ranks)
    assert score_over_ranks(whole, prompts, completions).scores == [2.0, 4.0, 3.0]


def test_a_scorer_that_keeps_files_is_asked_by_rank_0_about_everything(monkeypatch):
    prompts, completions = [Prompt(i, [], i) for i in IDS], [TextCompletion("x") for _ in IDS]
    scorer = Lengths()
    scorer.keeps_files = True
    inside = CompositeReward([Component(scorer=scorer)])
    rank_is(monkeypatch, 0, ([], None, None))
    assert score_over_ranks(inside, prompts, completions).scores == [1.0] * len(IDS)
    rank_is(monkeypatch, 1, (list(range(len(IDS))), ScoreResult([2.0] * len(IDS)), None))
    scorer.asked = []
    assert score_over_ranks(inside, prompts, completions).scores == [2.0] * len(IDS)
    assert scorer.asked == []


@pytest.mark.parametrize("keeps_files", [True, False])
def test_a_held_out_judge_is_asked_once_about_each_completion(monkeypatch, keeps_files):
    prompts, completions = [Prompt(i, [], i) for i in "ab"], [TextCompletion("x"), TextCompletion("yyy")]
    judge = Lengths()
    judge.keeps_files = keeps_files
    theirs = ([], None, None) if keeps_files else ([1], ScoreResult([3.0]), None)
    rank_is(monkeypatch, 0, theirs)
    assert score_over_ranks(HeldOutJudge(judge), prompts, completions).scores == [1.0, 3.0]
    assert judge.asked == (["x", "yyy"] if keeps_files else ["x"])
    rank_is(monkeypatch, 1, ([0, 1], ScoreResult([1.0, 3.0]), None) if keeps_files else ([0], ScoreResult([1.0]), None))
    judge.asked = []
    assert score_over_ranks(HeldOutJudge(judge), prompts, completions).scores == [1.0, 3.0]
    assert judge.asked == ([] if keeps_files else ["yyy"])


def test_a_held_out_function_is_asked_on_each_rank_about_its_own(monkeypatch):
    prompts, completions = [Prompt(i, [], i) for i in "ab"], [TextCompletion("x"), TextCompletion("yyy")]
    asked = []
    judge = HeldOutJudge(lambda prompts, completions, **_: asked.extend(completions) or [1.0] * len(completions))
    rank_is(monkeypatch, 0, ([1], ScoreResult([3.0]), None))
    assert score_over_ranks(judge, prompts, completions).scores == [1.0, 3.0]
    assert asked == ["x"]


def test_a_scorers_own_attribute_components_may_be_anything(monkeypatch):
    scorer = Lengths()
    scorer.components = ["length", "style"]
    rank_is(monkeypatch, 0, ([1], ScoreResult([3.0]), None))
    result = score_over_ranks(scorer, [Prompt(i, [], i) for i in "ab"], [TextCompletion("x"), TextCompletion("yyy")])
    assert result.scores == [1.0, 3.0]
    assert list(model_rewards(scorer)) == []


def test_a_scorer_that_stops_the_run_on_one_rank_stops_all(monkeypatch):
    prompts, completions = [Prompt(i, [], i) for i in IDS], [TextCompletion("x") for _ in IDS]
    rank_is(monkeypatch, 1, ([0, 1, 3, 4], None, "The judge was asked as often as it may."))
    with pytest.raises(InterruptedRun, match="as often"):
        score_over_ranks(Lengths(), prompts, completions)


def test_models_of_rewards_and_of_the_held_out_judge_lie_in_shards_but_those_that_wait_on_the_cpu(monkeypatch):
    scorer, judge = (cases.model_rewards(torch.float32) for _ in range(2))
    trainer = toy.build_trainer("grpo", scorer=scorer, judge=judge, hacking={"allow_shared": True})
    models = [reward.model for part in (scorer, judge) for reward in model_rewards(part)]
    assert len(models) == 4
    assert [id(model) for model in models_of_rollouts(trainer)[-4:]] == [id(model) for model in models]
    monkeypatch.setattr(sharded_training, "is_offloaded", lambda model: model is models[0])
    assert [id(model) for model in models_of_rollouts(trainer)[-3:]] == [id(model) for model in models[1:]]
    assert all(model is not models[0] for model in models_of_rollouts(trainer))
