from __future__ import annotations

import math

import pytest

from rlhf.errors import DataError
from rlhf.rewards.lexicon import LexiconReward, read_lexicon
from tests.unit.rewards.helpers import samples

LINES = "good\t1.9\t0.9\t[2, 2]\nbad\t-2.5\t0.6\n:)\t2.0\nhappy\t2.7\n"


@pytest.fixture
def lexicon(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text(LINES)
    return path


def test_the_mean_of_the_rated_words_by_hand(lexicon):
    reward = LexiconReward(lexicon)
    # (1.9 - 2.5 + 2.0) / 3; "day" and "Bob" are not rated
    assert reward.judge("Good day, Bob; a BAD one! :)") == pytest.approx(1.4 / 3)
    assert reward.judge("Nothing rated here") == 0.0
    assert reward.judge("") == 0.0


def test_the_compound_score_by_hand(lexicon):
    reward = LexiconReward(lexicon, scale="compound")
    # s = 1.9 + 2.7 = 4.6: 4.6 / sqrt(21.16 + 15)
    assert reward.judge("good and happy") == pytest.approx(4.6 / math.sqrt(36.16))
    assert reward.judge("good " * 1000) == pytest.approx(1.0, abs=1e-4)
    assert reward.judge("bad") == pytest.approx(-2.5 / math.sqrt(21.25))


@pytest.mark.parametrize(
    ("text", "valence"),
    [
        ("not good", -0.74 * 1.9),
        ("It isn't a good", -0.74 * 1.9),
        ("isn’t good", -0.74 * 1.9),
        ("no, good", -0.74 * 1.9),
        ("never was it good", -0.74 * 1.9),
        ("never was it as good", 1.9),  # four words back
        ("good, not", 1.9),
        ("not not good", -0.74 * 1.9),  # once, however many
        ("not bad", 0.74 * 2.5),
    ],
)
def test_a_negation_within_three_words_turns_a_valence_round(lexicon, text, valence):
    assert LexiconReward(lexicon).valences(text) == pytest.approx([valence])
    assert [abs(v) in (1.9, 2.5) for v in LexiconReward(lexicon, negation=False).valences(text)] == [True]


def test_it_is_a_reward_function_and_a_scorer(lexicon):
    reward = LexiconReward(lexicon)
    assert reward(prompts=["p"], completions=["good"], anything=[1]) == [1.9]
    assert reward.score(*samples("good", "bad")).per_component == {"lexicon": [1.9, -2.5]}


@pytest.mark.parametrize(
    ("text", "message"),
    [("good\t1.9\nbad 2\n", r"lexicon.txt:2 is 'bad 2'"), ("good\tnan\n", "lexicon.txt:1"), ("\n\n", "is empty")],
)
def test_a_wrong_lexicon_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "lexicon.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_lexicon(path)


def test_a_lexicon_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.txt can't be read"):
        LexiconReward(tmp_path / "nowhere.txt")


def test_the_real_lexicon_is_read_whole(assets):
    path = assets / "vader" / "vader_lexicon.txt"
    words = read_lexicon(path)
    assert len(words) == 7506  # 7,520 lines, 14 of them a second rating of a word: the last one counts, as in VADER
    assert words["good"] == 1.9
    assert words["bad"] == -2.5
    assert words[":)"] == 2.0
    reward = LexiconReward(path, scale="compound")
    happy = reward.judge("They were happy and loved their good friend.")
    sad = reward.judge("They were sad, and nobody loved the ugly old dog.")
    assert happy > 0.8 > 0 > sad
