from __future__ import annotations

import pytest

from rlhf.rewards.rules import RuleBasedReward, completion_text, ends_like_a_sentence, starts_with_capital
from tests.unit.rewards.helpers import samples


def test_a_score_by_hand():
    # 150 words for a target of 200: 0.25 lost; capital 0.5 and full stop 0.5 won
    text = "Word " + "word " * 148 + "word."
    assert RuleBasedReward().judge(text) == pytest.approx(0.75)
    # the same, 250 words, no capital, no full stop, other weights: -2 * 0.25
    rules = RuleBasedReward(length_weight=2.0, capital_weight=0.1, punctuation_weight=0.2)
    assert rules.judge("word " * 250) == pytest.approx(-0.5)
    assert rules.judge("") == pytest.approx(-2.0)


def test_the_target_costs_nothing_and_distance_costs_in_proportion():
    rules = RuleBasedReward(target_words=10, capital_weight=0, punctuation_weight=0)
    assert [rules.judge("w " * n) for n in (10, 5, 15, 0, 20, 30)] == pytest.approx([0, -0.5, -0.5, -1, -1, -2])


@pytest.mark.parametrize(
    ("text", "capital"),
    [("Yes", True), ("yes", False), (' "Yes"', True), ("42 is It", False), ("Émile", True), ("", False)],
)
def test_the_first_letter_decides(text, capital):
    assert starts_with_capital(text) is capital


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("Yes.", True),
        ("Yes. \n", True),
        ('He said "yes."', True),
        ("Really?!)", True),
        ("Yes", False),
        ("", False),
        ('""', False),
    ],
)
def test_the_last_mark_decides(text, ends):
    assert ends_like_a_sentence(text) is ends


def test_a_conversation_is_read_as_its_contents():
    turns = [{"role": "assistant", "content": "One."}, {"role": "assistant", "content": "Two."}]
    assert completion_text(turns) == "One.\nTwo."


def test_it_is_a_reward_function_and_a_scorer():
    rules = RuleBasedReward(target_words=1, name="form")
    assert rules(prompts=["p"], completions=["Yes."], anything=[1]) == [1.0]
    result = rules.score(*samples("Yes.", "yes"))
    assert result.scores == [1.0, 0.0]
    assert result.per_component == {"form": [1.0, 0.0]}
