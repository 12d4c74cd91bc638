"""Which items of an evaluation training data holds."""

from __future__ import annotations

from rlhf.evaluation.contamination import find_overlaps, normalized_words, too_short

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def places(items, *rows, **settings):
    return {
        overlap.item: (overlap.source, overlap.num_places)
        for overlap in find_overlaps(items, [(f"row {n}", r) for n, r in enumerate(rows, 1)], **settings)
    }


def test_a_run_of_thirteen_words_is_enough_and_twelve_are_not():
    words = LONG.split()
    assert places({"q": LONG}, "x " + " ".join(words[:13])) == {"q": ("row 1", 1)}
    assert places({"q": LONG}, "x " + " ".join(words[:12]) + " other words") == {}


def test_case_and_punctuation_hide_nothing():
    assert places({"q": "What is the capital of France?"}, "no", "Q: WHAT is -- the 'capital' of France! A: Paris") == {
        "q": ("row 2", 1)
    }


def test_a_short_item_is_looked_for_as_a_whole():
    item = {"q": "name the largest city of Peru"}
    assert places(item, "name the largest city of Chile") == {}
    assert places(item, "please name the largest city of Peru now") == {"q": ("row 1", 1)}


def test_a_few_words_are_in_every_text_and_are_left_out():
    assert places({"q": "yes or no"}, "yes or no") == {}


def test_items_that_are_left_out_are_named():
    items = {"four": "yes or no then", "five": "yes or no then what", "none": "?!", "three": "東京は"}
    assert too_short(items) == ["four", "none", "three"]
    assert too_short(items, min_words=3) == ["none"]
    names = {name for name in items if places({name: items[name]}, items[name])}
    assert names | set(too_short(items)) == set(items)


def test_places_are_counted_once_a_row_and_the_first_is_named():
    row = "what is the capital of France and again what is the capital of France"
    assert places({"q": "What is the capital of France?"}, "x", row, row) == {"q": ("row 2", 2)}


def test_scripts_without_spaces_are_compared_by_character():
    assert normalized_words("東京は大きい。") == list("東京は大きい")
    assert places({"q": "東京は日本の首都です"}, "知っている。東京は日本の首都です。") == {"q": ("row 1", 1)}


def test_several_items_share_a_run():
    assert set(places({"a": LONG, "b": LONG + " more"}, LONG)) == {"a", "b"}
