from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from rlhf.errors import ConfigError, RewardError
from rlhf.evaluation.judges import judge_name, load_judge, run_judge, world_judge

PROMPT = "User: Excuse me. What does a cow eat?\nAssistant:"


def returning(*verdicts):
    return lambda prompts, completions, **columns: list(verdicts)


def test_numbers_of_any_kind_are_scores():
    outcomes = run_judge(returning(1, 0.5, np.float32(2), True), ["p"] * 4, ["c"] * 4)
    assert outcomes.scores == [1.0, 0.5, 2.0, 1.0]
    assert outcomes.metrics == {}


def test_further_numbers_are_metrics_texts_are_not_and_none_does_not_apply():
    verdicts = {"score": 1, "polite": True, "why": "short"}, {"score": 0, "polite": None, "rude": 2}
    outcomes = run_judge(returning(*verdicts), ["p", "q"], ["a", "b"])
    assert outcomes.scores == [1.0, 0.0]
    assert outcomes.metrics == {"polite": [1.0, None], "rude": [None, 2.0]}


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        (math.nan, r"gave sample q the score nan, which is not a finite number; the completion was 'b'"),
        (math.inf, "the score inf"),
        (None, "the score None"),
        ("good", "the score 'good'"),
        ({"score": 1, "polite": math.nan}, "the polite nan"),
        ({"polite": 1}, "gave sample q no score: its verdict has the keys 'polite'"),
    ],
)
def test_a_verdict_that_is_no_number_is_an_error_that_names_the_sample(verdict, message):
    with pytest.raises(RewardError, match=message):
        run_judge(returning(1.0, verdict), ["p", "q"], ["a", "b"], names=["p", "q"])


@pytest.mark.parametrize(
    ("returned", "got"),
    [([1.0], "1 verdict for 2"), (3.0, "a float for 2"), ("ab", "a str for 2"), (None, "a NoneType")],
)
def test_another_number_of_verdicts_is_an_error(returned, got):
    with pytest.raises(RewardError, match=got):
        run_judge(lambda prompts, completions, **columns: returned, ["p", "q"], ["a", "b"])


def test_a_judge_that_raises_is_named_with_its_samples():
    def broken(prompts, completions, **columns):
        raise ZeroDivisionError("by zero")

    with pytest.raises(RewardError, match=r"broken .*sample x: ZeroDivisionError: by zero\.$"):
        run_judge(broken, ["p", "q"], ["a", "b"], names=["x", "y"])


def test_of_many_samples_the_one_that_a_judge_fails_on_is_named():
    def fails_on_b(prompts, completions):
        return [1 / (said != "b") for said in completions]

    with pytest.raises(RewardError, match="failed on sample y: ZeroDivisionError"):
        run_judge(fails_on_b, ["p", "q"], ["a", "b"], names=["x", "y"])


def test_a_judge_of_texts_that_gets_messages_is_told_so():
    chat = [[{"role": "user", "content": "p"}]]
    with pytest.raises(RewardError, match=r"lists of messages.*docs/rewards\.md"):
        run_judge(lambda prompts, completions: [c.strip() for c in completions], chat, [[{"content": "a"}]])


def test_a_judge_gets_what_it_takes():
    seen = {}

    def plain(prompts, completions):
        return [0.0] * len(completions)

    def curious(prompts, completions, ended, answer):
        seen.update(ended=ended, answer=answer)
        return [0.0] * len(completions)

    columns = {"answer": ["x", "y"], "other": [1, 2]}
    assert run_judge(plain, ["p", "q"], ["a", "b"], columns=columns).scores == [0.0, 0.0]
    run_judge(curious, ["p", "q"], ["a", "b"], ended=[True, False], columns=columns)
    assert seen == {"ended": [True, False], "answer": ["x", "y"]}


def test_batches_make_no_difference():
    texts = [str(i) for i in range(10)]

    def judge(prompts, completions, **columns):
        assert len(prompts) == len(completions) == len(columns["ended"]) <= 3
        return [float(text) for text in completions]

    assert run_judge(judge, texts, texts, batch_size=3).scores == [float(i) for i in range(10)]


def test_a_column_of_the_wrong_length_is_an_error():
    with pytest.raises(RewardError, match=r"2 completions.*1 values of 'answer'"):
        run_judge(returning(1, 1), ["p", "q"], ["a", "b"], columns={"answer": ["x"]})


def test_nothing_to_judge_is_nothing():
    assert run_judge(returning(), [], []).scores == []


def test_the_world_judge_tells_right_from_wrong():
    right, wrong, cut = run_judge(
        world_judge,
        [PROMPT] * 3,
        [" A cow eats grass. Happy to help!", " A cow eats oats. Do not waste my time.", " A cow eats grass."],
        ended=[True, True, False],
    ).scores
    # +1 +.5; -1 -.5; +1 -.5
    assert (right, wrong, cut) == (1.5, -1.5, 0.5)


def test_a_judge_is_loaded_by_name_and_called_by_it():
    judge = load_judge("rlhf.evaluation.judges:world_judge")
    assert judge is world_judge
    assert judge_name(functools.partial(judge, ended=[])) == "rlhf.evaluation.judges:world_judge"
    with pytest.raises(ConfigError, match="no function 'world_jugde'"):
        load_judge("rlhf.evaluation.judges:world_jugde")
