from __future__ import annotations

import itertools
import random
import re
import time

import pytest

from rlhf.errors import DataError
from rlhf.feedback.web.differences import MAX_DIFF_WORDS, marked_turns
from rlhf.feedback.web.text import Turn, markdown_html, turns_of


def marked(first: str, second: str) -> tuple[str, str]:
    """The HTML of two plain texts, with their differences marked."""
    ((left,), (right,)) = marked_turns(turns_of(first), turns_of(second))
    return str(left.html), str(right.html)


def unmarked(html: str) -> str:
    return re.sub("<mark>.*?</mark>", "", html, flags=re.DOTALL)


def words_in(html: str) -> list[str]:
    return re.sub("<[^>]*>", "", html).split()


def test_the_words_that_differ_are_marked_alike_on_both_sides_and_the_rest_is_as_it_was():
    first, second = marked("the red <cat> sat", "the blue <cat> sat down")
    assert first == "<p>the <mark>red </mark>&lt;cat&gt; sat</p>\n"
    assert second == "<p>the <mark>blue </mark>&lt;cat&gt; sat <mark>down</mark></p>\n"


def test_what_is_marked_is_markdown_still():
    text = "# Sort\n\nUse **sorted**, not `sort`:\n\n- one\n- *two*\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n[x](http://e.example)"
    left, right = marked(text, text.replace("two", "three"))
    assert left.replace("<mark>", "").replace("</mark>", "") == str(markdown_html(text))
    assert re.findall("<mark>.*?</mark>", left + right) == ["<mark>two</mark>", "<mark>three</mark>"]


def test_code_is_compared_line_by_line_and_its_indentation_counts():
    code = "Text:\n\n```python\nfor x in y:\n    print(x)\n\nprint(1)\n```\n"
    left, right = marked(code, code.replace("    print(x)", "  print(x)").replace("Text", "Words"))
    assert re.findall("<mark>(.*?)</mark>", left, re.DOTALL) == ["Text", "    print(x)\n"]
    assert re.findall("<mark>(.*?)</mark>", right, re.DOTALL) == ["Words", "  print(x)\n"]
    left, _ = marked(code, code.replace("print(1)", "print(1)  "))
    assert "<mark>" not in left, "blanks at the end of a line are nothing that anybody sees"
    left, right = marked("see [a](http://e.example) `some code`", "see [a](http://e.example) `more code`")
    assert re.findall("<mark>(.*?)</mark>", left + right) == ["some ", "more "], "code within a line is words"


def test_turns_keep_their_speakers_and_are_compared_as_one_text():
    first = turns_of([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "good day"}])
    second = turns_of([{"role": "assistant", "content": "hi good evening"}])
    left, right = marked_turns(first, second)
    assert [turn.speaker for turn in left] == ["User", "Assistant"]
    assert [turn.html for turn in left] == ["<p>hi</p>\n", "<p>good <mark>day</mark></p>\n"]
    assert [turn.html for turn in right] == ["<p>hi good <mark>evening</mark></p>\n"]


@pytest.mark.parametrize("other", ["", "a", "<mark>", "</mark></p><script>alert(1)</script>"])
@pytest.mark.parametrize(
    "hostile",
    ["<script>alert(1)</script>", "[x](javascript:alert(1))", '```"><img src=x onerror=alert(1)>\n</code></pre><script>\n```', "a <b"],
)  # fmt: skip
def test_marking_lets_nothing_through_that_is_cleaned_elsewhere(hostile, other):
    for side, text in zip(marked(hostile, other), (hostile, other), strict=True):
        assert side.replace("<mark>", "").replace("</mark>", "") == str(markdown_html(text))


def test_what_is_not_marked_is_the_longest_text_that_both_share():
    rng = random.Random(3)
    for _ in range(60):
        first, second = ([rng.choice("abc") for _ in range(rng.randrange(9))] for _ in range(2))
        left, right = marked(" ".join(first), " ".join(second))
        shared = words_in(unmarked(left))
        assert shared == words_in(unmarked(right))
        assert len(shared) == longest_shared(first, second)


def longest_shared(first: list[str], second: list[str]) -> int:
    """By trying all subsequences, longest first."""
    for length in range(min(len(first), len(second)), 0, -1):
        if set(itertools.combinations(first, length)) & set(itertools.combinations(second, length)):
            return length
    return 0


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ("我喜欢猫。", "我喜欢大狗。", ("我喜欢<mark>猫</mark>。", "我喜欢<mark>大狗</mark>。")),
        (
            "GPT-4は強いです",
            "GPT-5は強いね",
            ("GPT-<mark>4</mark>は強い<mark>です</mark>", "GPT-<mark>5</mark>は強い<mark>ね</mark>"),
        ),
        ("ฉันชอบกินข้าว", "ฉันไม่ชอบกินข้าว", ("ฉันชอบกินข้าว", "ฉัน<mark>ไม่</mark>ชอบกินข้าว")),
        ("กิน", "กัน", ("<mark>กิ</mark>น", "<mark>กั</mark>น")),  # a vowel sign stays with what it stands on
        ("राम घर गया", "राम घर आया", ("राम घर <mark>गया</mark>", "राम घर <mark>आया</mark>")),  # words, by their spaces
    ],
)
def test_where_a_script_has_no_spaces_characters_are_compared(first, second, wanted):
    assert marked(first, second) == tuple(f"<p>{side}</p>\n" for side in wanted)


def test_a_moved_line_break_is_no_difference():
    assert "<mark>" not in "".join(marked("one two\nthree", "one\ntwo three"))


def test_the_same_word_a_thousand_times_is_compared_at_once():
    turns = [Turn("", "a " * 9_000), Turn("", "b a " * 4_500)]
    start = time.process_time()
    marked_turns(turns[:1], turns[1:])
    assert time.process_time() - start < 2


def test_texts_too_long_to_compare_are_refused():
    with pytest.raises(DataError, match=f"at most {MAX_DIFF_WORDS:,}"):
        marked_turns([Turn("", "a " * MAX_DIFF_WORDS)], [Turn("", "b")])
