from __future__ import annotations

from rlhf.rollout.lookup import GroupLookup


def test_what_followed_the_same_tokens_in_the_prompt_is_guessed():
    lookup = GroupLookup([1, 2, 3, 4, 5, 9, 1], ngram_tokens=2)
    lookup.extend(0, [2])  # the prompt's last token and this one
    assert lookup.guess(0, 3) == [3, 4, 5]
    assert lookup.guess(0, 10) == [3, 4, 5, 9, 1]
    assert lookup.guess(0, 0) == []


def test_tokens_not_seen_before_are_followed_by_no_guess():
    lookup = GroupLookup([1, 2, 3], ngram_tokens=2)
    lookup.extend(0, [1])
    assert lookup.guess(0, 4) == []
    lookup.extend(0, [3])
    assert lookup.guess(0, 4) == [], "1 3 was seen nowhere; 3 alone was"


def test_a_run_of_tokens_is_no_guess_about_itself():
    lookup = GroupLookup([7], ngram_tokens=2)
    lookup.extend(0, [1, 2])
    assert lookup.guess(0, 4) == []
    lookup.extend(0, [3, 1, 2])
    assert lookup.guess(0, 4) == [3, 1, 2]


def test_of_several_places_the_newest_counts():
    lookup = GroupLookup([1, 2, 3, 1, 2, 4, 9], ngram_tokens=2)
    lookup.extend(0, [1, 2])
    assert lookup.guess(0, 1) == [4]


def test_what_another_completion_of_the_prompt_said_is_guessed_as_far_as_it_went():
    lookup = GroupLookup([8, 9], ngram_tokens=2)
    lookup.extend(0, [1, 2])
    lookup.extend(1, [1])
    assert lookup.guess(1, 4) == [2], "9 1 is followed by 2 in the other"
    lookup.extend(0, [5, 6])
    lookup.extend(1, [2])
    assert lookup.guess(1, 4) == [5, 6]
    lookup.extend(1, [5])
    assert lookup.guess(1, 4) == [6]


def test_a_prompt_shorter_than_the_run_is_read_with_the_completion():
    lookup = GroupLookup([4], ngram_tokens=3)
    lookup.extend(0, [5, 6, 7, 4, 5, 6])
    assert lookup.guess(0, 2) == [7, 4]
