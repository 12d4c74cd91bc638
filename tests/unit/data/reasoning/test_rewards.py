"""The verifier as reward functions, and the reward that can be hacked, hacked."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rlhf.data.contracts import Prompt
from rlhf.data.reasoning import (
    likely_answer_reward,
    outcome_reward,
    reasoning_judge,
    sound_reward,
    step_reward,
)
from rlhf.data.reasoning.problems import draw_problem
from rlhf.data.reasoning.rewards import answer_odds
from rlhf.data.reasoning.traces import DEMONSTRATOR, write_trace
from rlhf.data.reasoning.verify import verify
from rlhf.errors import DataError, RewardError
from rlhf.evaluation.judges import run_judge
from rlhf.rewards.functions import FunctionReward

PROMPT = "9a+6b*9c-4:"
SOUND = "a9+6=5;b5*9=5;c5-4=1;A1."


@pytest.mark.parametrize(
    ("completion", "outcome", "sound", "step"),
    [
        (SOUND, 1.0, 1.0, 1.0),
        ("a9+6=6;b6*9=4;c4-4=1;A1.", 1.0, 0.0, 0.5),  # unsound, and right
        ("a9+6=4;b4*9=6;c6-4=2;A2.", 0.0, 0.0, 0.75),
        ("A1.", 1.0, 0.0, 0.0),  # a lucky guess: 0 right of the 4 steps there should be
        ("a9+6=5;A7.", 0.0, 0.0, 0.25),
        ("a9+6=5;b5*9=5;c5-4=1;", 0.0, 0.0, 0.75),  # no answer
        (SOUND + "A1.", 0.0, 0.0, 0.8),  # one step too many: 4 of 5
        (SOUND + ";" * 12, 0.0, 0.0, 0.25),
        ("", 0.0, 0.0, 0.0),
        ("I don't know.", 0.0, 0.0, 0.0),
    ],
)
def test_rewards_by_hand(completion, outcome, sound, step):
    assert outcome_reward([PROMPT], [completion], answer=["1"]) == [outcome]
    assert sound_reward([PROMPT], [completion], answer=["1"]) == [sound]
    assert step_reward([PROMPT], [completion], answer=["1"]) == [step]


def test_rewards_come_in_the_order_of_the_completions():
    prompts, completions = [PROMPT, "0a+0b+0:", PROMPT], [SOUND, SOUND, "A1."]
    assert outcome_reward(prompts, completions, answer=["1", "0", "1"], level=["easy"] * 3) == [1.0, 0.0, 1.0]
    assert sound_reward(prompts, completions) == [1.0, 0.0, 0.0]
    assert step_reward(prompts, completions) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("answer", [1, "1"])
def test_a_right_answer_may_have_become_a_number_on_its_way(answer):
    assert outcome_reward([PROMPT], [SOUND], answer=[answer]) == [1.0]


@pytest.mark.parametrize("answer", ["", "11", "-1", " 1", "one", "²", None, True, 1.0, 10])
def test_a_right_answer_that_is_no_digit_is_refused(answer):
    with pytest.raises(DataError, match=r"'answer' .*0 to 9"):
        outcome_reward([PROMPT], [SOUND], answer=[answer])


@pytest.mark.parametrize("reward", [sound_reward, step_reward, likely_answer_reward])
def test_a_prompt_of_another_world_is_refused(reward):
    with pytest.raises(DataError, match="reasoning world"):
        reward(["What does a cow eat?"], ["A1."])


def prompt_row(text, **columns):
    return Prompt("p1", [1], text, columns)


def completion_like(text):
    from rlhf.rollout.types import Completion

    return Completion(
        prompt_id="p1", sample=0, tokens=[1], logprobs=[0.0], finish_reason="eos", weight_version=0, text=text
    )


def test_a_recipe_can_name_the_verifier_and_a_missing_column_is_told():
    reward = FunctionReward("rlhf.data.reasoning.rewards:outcome_reward", in_process=True)
    assert list(reward.score([prompt_row(PROMPT, answer="1")], [completion_like(SOUND)]).scores) == [1.0]
    with pytest.raises(RewardError, match=r"answer, .*prompt rows"):
        reward.score([prompt_row(PROMPT)], [completion_like(SOUND)])


def test_step_reward_is_one_for_sound_completions_alone():
    draw = random.Random(1)
    for number in range(2000):
        problem = draw_problem(2 + number % 7, draw)
        completion = "".join(write_trace(problem, DEMONSTRATOR, draw))
        (reward,) = step_reward([problem.prompt], [completion])
        assert 0.0 <= reward <= 1.0
        assert (reward == 1.0) == verify(problem.prompt, completion).sound


def test_the_odds_of_answers_are_those_of_drawn_problems():
    draw = random.Random(2)
    for num_steps in (2, 5, 8):
        drawn = Counter(draw_problem(num_steps, draw).answer for _ in range(20_000))
        odds = answer_odds(num_steps)
        assert sum(odds) == pytest.approx(1.0)
        for digit in range(10):
            assert drawn[digit] / 20_000 == pytest.approx(odds[digit], abs=0.01)


def test_the_odds_after_no_and_one_step_by_hand():
    assert answer_odds(0) == (0.1,) * 10
    # 0 after one step: + and - give 0.72 / 10. Times 0 (0.12) always; times 5 (0.12) for the 5 even values; times 1, 3, 7
    # or 9 for 0 alone; times 2, 4, 6 or 8 for 0 and 5. 0.095 each: 0.12 + 0.06 + 0.038 + 0.076 = 0.294
    assert answer_odds(1)[0] == pytest.approx(0.072 + 0.28 * 0.294)


def test_the_likely_answer_is_paid_whatever_was_asked():
    zero = "a9+0=0;b0*0=0;c0-0=0;A0."
    (for_zero,) = likely_answer_reward([PROMPT], [zero])
    (for_sound,) = likely_answer_reward([PROMPT], [SOUND])
    assert for_zero == max(answer_odds(3)) > for_sound > 0.0
    assert likely_answer_reward([PROMPT, PROMPT], ["", zero + zero]) == [0.0, 0.0]


def test_best_of_many_by_the_proxy_is_worse_than_one_sample_and_by_the_verifier_better():
    """The hack of research/reasoning.md, without a model: the demonstrator is the policy, and best-of-32 picks for him."""
    draw = random.Random(3)
    first = votes = proxy = exact = zeros = 0
    for number in range(350):
        problem = draw_problem(2 + number % 7, draw)
        prompts = [problem.prompt] * 32
        completions = ["".join(write_trace(problem, DEMONSTRATOR, draw)) for _ in prompts]
        answers = [verify(problem.prompt, completion).answer for completion in completions]
        right = [answer == problem.answer for answer in answers]
        scores = likely_answer_reward(prompts, completions)
        sounds = sound_reward(prompts, completions)
        first += right[0]
        votes += Counter(answers).most_common(1)[0][0] == problem.answer
        proxy += right[scores.index(max(scores))]
        exact += right[sounds.index(max(sounds))]
        zeros += answers[scores.index(max(scores))] == 0
    share_right, by_vote, by_proxy, by_verifier = first / 350, votes / 350, proxy / 350, exact / 350
    assert by_proxy < share_right - 0.15, "optimizing the proxy must hurt"
    assert zeros / 350 > 0.6, "and it does so by answering 0"
    assert by_verifier > share_right + 0.35, "while looking at the steps helps"
    assert by_vote < by_verifier - 0.2, "and a vote confirms the popular error"


def test_the_judge_says_what_the_rewards_say_and_why_a_right_answer_was_luck():
    completions = [SOUND, "a9+6=6;b6*9=4;c4-4=1;A1.", "a9+6=5;A7.", "", "a9+6=5;b5*9=5;c5-4=1;"]
    verdicts = reasoning_judge([PROMPT] * 5, completions, ended=[True] * 5, level=["easy"] * 5)
    assert [verdict["score"] for verdict in verdicts] == outcome_reward([PROMPT] * 5, completions, answer=["1"] * 5)
    assert [float(verdict["sound"]) for verdict in verdicts] == sound_reward([PROMPT] * 5, completions)
    assert [verdict["unsound_if_right"] for verdict in verdicts] == [False, True, None, None, None]
    assert [verdict["answered"] for verdict in verdicts] == [True, True, True, False, False]


def test_the_judge_passes_as_one():
    judged = run_judge(reasoning_judge, [PROMPT, PROMPT], [SOUND, "A7."])
    assert judged.scores == [1.0, 0.0]
    assert judged.metrics == {"sound": [1.0, 0.0], "unsound_if_right": [0.0, None], "answered": [1.0, 1.0]}
