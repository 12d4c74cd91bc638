from __future__ import annotations

import random

import pytest

from rlhf.data.dedup import duplicate_groups, normalize, row_text, shingles, similarity
from rlhf.data.prefixes import shared_length
from rlhf.data.row_kinds import parse_row
from rlhf.errors import ConfigError


def test_case_width_and_space_make_no_difference():
    assert normalize("The  Fox\n lives") == normalize("the fox lives") == normalize("the \uff26\uff2f\uff38 lives ")
    assert normalize("the fox") != normalize("the foxes")


def test_equal_texts_form_one_set_in_order():
    assert duplicate_groups(["a", "b", "a", "c", "b", "a"]) == [[0, 2, 5], [1, 4]]
    assert duplicate_groups(["a", "b"]) == []


def test_similarity_counts_shared_runs_of_three_words():
    # "a b c d" has abc, bcd; "a b c e" has abc, bce: one shared of three.
    assert shingles("a b c d") == {"a b c", "b c d"}
    assert similarity("a b c d", "a b c e") == pytest.approx(1 / 3)
    assert similarity("a", "a") == 1
    assert similarity("a", "b") == 0


def test_near_duplicates_are_found_and_strangers_are_not():
    draw = random.Random(0)
    words = [f"w{n}" for n in range(400)]
    texts = [" ".join(draw.choices(words, k=60)) for _ in range(40)]
    changed = texts[7].split()
    changed[30] = "other"  # 3 of 58 shingles change: 55 / 61 = 0.90
    texts.append(" ".join(changed))
    assert similarity(texts[7], texts[40]) == pytest.approx(55 / 61)
    assert duplicate_groups(texts, near=0.8) == [[7, 40]]
    assert duplicate_groups(texts, near=0.95) == []
    assert duplicate_groups(texts) == []


def test_no_two_texts_are_joined_that_are_less_alike_than_asked():
    # MinHash only estimates: among 60 pairs just below the threshold it takes some to be above.
    draw = random.Random(1)
    pairs = []
    for _ in range(60):
        words = [f"w{draw.randrange(10**6)}" for _ in range(80)]
        other = [*words[:40], "other", *words[41:]]
        pairs += [" ".join(words), " ".join(other)]
    assert similarity(pairs[0], pairs[1]) == pytest.approx(75 / 81)
    assert len(duplicate_groups(pairs, near=75 / 81 - 0.001)) > 55
    assert duplicate_groups(pairs, near=75 / 81 + 0.001) == []


def test_equal_texts_stay_together_with_near_ones():
    base = " ".join(f"w{n}" for n in range(50))
    near = base + " more"
    assert duplicate_groups([base, "else where it is", base, near], near=0.9) == [[0, 2, 3]]


@pytest.mark.parametrize("near", [0, 1.5, -0.1])
def test_an_impossible_similarity_is_refused(near):
    with pytest.raises(ConfigError, match=r"near is .*above 0"):
        duplicate_groups(["a"], near=near)


def test_rows_are_compared_by_their_texts_alone():
    first = parse_row({"prompt": "P", "chosen": "c", "rejected": "r", "id": 1})
    second = parse_row({"prompt": "p ", "chosen": "C", "rejected": "r", "margin": 3})
    swapped = parse_row({"prompt": "p", "chosen": "r", "rejected": "c"})
    assert row_text(first) == row_text(second) != row_text(swapped)
    spoken = parse_row({"messages": [{"role": "user", "content": "Hi"}]})
    assert "hi" in row_text(spoken)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("", "", 0),
        ("abc", "abc", 3),
        ("abc", "abd", 2),
        ("abc", "xbc", 0),
        ("ab", "abc", 2),
        ("abcdefgh", "abcdefgx", 7),
    ],
)
def test_the_shared_beginning_is_counted(first, second, shared):
    assert shared_length(first, second) == shared
    assert shared_length(list(map(ord, first)), list(map(ord, second))) == shared
