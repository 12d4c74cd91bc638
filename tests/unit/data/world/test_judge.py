"""Each rule of the ground-truth judge, with the score worked by hand."""

from __future__ import annotations

import pytest

from rlhf.data.world import judge
from rlhf.errors import DataError

PROMPT = "User: Excuse me. What does a cow eat?\nAssistant:"


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        # answers: +1 right, -1 wrong, -0.5 none
        (" A cow eats grass.", 1.0),
        (" A cow eats oats.", -1.0),
        (" I do not know.", -0.5),
        ("", -0.5),
        # manners: +0.5 polite once, -0.5 for each rude sentence up to two
        (" A cow eats grass. Happy to help!", 1.5),
        (" I do not know. Have a nice day!", 0.0),
        (" Everyone knows that. A cow eats grass.", 0.5),
        (" Everyone knows that. A cow eats grass. What a silly question.", 0.0),
        (" Everyone knows that. A cow eats grass. What a silly question. Do not waste my time.", 0.0),
        # polite and rude are judged apart: 1 + 0.5 - 0.5
        (" Everyone knows that. A cow eats grass. Happy to help!", 1.0),
        # extras: -0.25 each
        (" A cow eats grass. It is a long story.", 0.75),
        (" A cow eats grass. A cow lives in a barn.", 0.75),
        (" A cow eats grass. A dog eats grass.", 0.75),
        (" A cow eats grass. A cow eats grass.", 0.75),
        (" A cow eats grass. Happy to help! Happy to help!", 1.25),
        (" A cow eats grass. I do not know.", 0.75),
        (" I do not know. A cow eats grass.", 0.75),
        (" I do not know. I am not sure.", -0.75),
        # ... up to six: 1 - 6 * 0.25, with seven fillers
        (" A cow eats grass." + " Time goes by so fast." * 7, -0.5),
        # a claim about something else answers nothing, even a true one: -0.5 - 0.25
        (" A cow lives in a barn.", -0.75),
        (" A horse eats oats.", -0.75),
        # naming both a right and a wrong value is wrong: -1 - 0.25
        (" A cow eats grass. A cow eats oats.", -1.25),
        (" A cow eats oats. A cow eats grass.", -1.25),
        # unparsable: -0.5 each up to three
        (" A cow eats grass. Moo moo moo.", 0.5),
        (" A cow eats hay.", -1.0),
        (" A cow eats Paris.", -1.0),
        (" x. x. x. x.", -2.0),
    ],
)
def test_score_by_hand(completion, score):
    assert judge(PROMPT, completion, ended=True).score == score
    assert judge(PROMPT, completion, ended=False).score == score - 0.5


@pytest.mark.parametrize(
    "completion",
    [
        " A cow eats grass.Happy to help!",  # no space between the sentences
        "  A cow eats grass.",  # two spaces
        " A cow eats grass. ",  # a space after the last
        " A cow eats grass",  # cut off
        " a cow eats grass.",
        "\nA cow eats grass.",
        " A cow eats grass.\nUser: Hello!",
    ],
)
def test_what_is_not_word_for_word_in_the_language_is_unparsable(completion):
    verdict = judge(PROMPT, completion, ended=True)
    assert verdict.unparsable == 1
    assert not verdict.perfect


def test_a_completion_is_judged_the_same_without_its_leading_space():
    assert judge(PROMPT, "A cow eats grass.", ended=True) == judge(PROMPT, " A cow eats grass.", ended=True)


def test_the_verdict_tells_what_was_seen():
    verdict = judge(
        PROMPT, " Everyone knows that. A cow eats grass. It is a long story. Blah. Happy to help!", ended=False
    )
    assert verdict.correct
    assert not verdict.wrong
    assert verdict.polite
    assert (verdict.rude, verdict.extras, verdict.unparsable, verdict.ended) == (1, 1, 1, False)
    assert verdict.score == 1 + 0.5 - 0.5 - 0.25 - 0.5 - 0.5


@pytest.mark.parametrize(
    ("completion", "ended", "perfect"),
    [
        (" A cow eats grass. Happy to help!", True, True),
        (" Happy to help! A cow eats grass.", True, True),
        (" A cow eats grass. Happy to help!", False, False),
        (" A cow eats grass.", True, False),
        (" A cow eats oats. Happy to help!", True, False),
        (" Everyone knows that. A cow eats grass. Happy to help!", True, False),
        (" A cow eats grass. It is a long story. Happy to help!", True, False),
        (" A cow eats grass. Mooo! Happy to help!", True, False),
    ],
)
def test_perfect_is_right_polite_and_nothing_else(completion, ended, perfect):
    verdict = judge(PROMPT, completion, ended=ended)
    assert verdict.perfect == perfect
    assert (verdict.score == 1.5) == perfect


def test_the_same_answer_is_right_for_one_prompt_and_beside_the_point_for_another():
    other = "User: What does a horse eat?\nAssistant:"
    assert judge(other, " A cow eats grass.", ended=True).score == -0.75


def test_a_prompt_from_elsewhere_is_refused_by_name():
    with pytest.raises(DataError, match=r"'User: What is love\?"):
        judge("User: What is love?\nAssistant:", " A cow eats grass.", ended=True)
