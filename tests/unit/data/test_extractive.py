"""Sentences kept for a question within a budget."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from rlhf.data.extractive import SENTENCE, bm25_scores, extract_context
from rlhf.errors import ConfigError

CONTEXT = "A cow eats coal. An owl lives in a pond. The capital of Peru is Oslo. It is a long story!\n"


def words(text):
    return len(text.split())


def shorten(context, question, budget):
    return extract_context(context, question, max_tokens=budget, count_tokens=words)


def test_the_score_is_worked_by_hand():
    """Two sentences of 2 and 4 words, mean 3; "cow" is in one of them: idf log(1 + 1.5 / 1.5) = log 2, f = 1.

    2.2 / (1 + 1.2 (0.25 + 0.75 * 2 / 3)) = 2.2 / 1.9
    """
    assert bm25_scores(["Cow eats.", "An owl lives here."], "cow?") == pytest.approx([math.log(2) * 2.2 / 1.9, 0.0])


@pytest.mark.parametrize(
    ("question", "kept"),
    [
        ("What does a cow eat?", "A cow eats coal.\n"),
        ("What is the capital of Peru?", "The capital of Peru is Oslo.\n"),
    ],
)
def test_the_sentence_that_was_asked_about_is_kept(question, kept):
    assert shorten(CONTEXT, question, words(kept)) == kept


def test_a_context_that_fits_is_returned_as_it_is():
    assert shorten(CONTEXT, "cow", words(CONTEXT)) == CONTEXT
    assert shorten(" odd  spaces . \n\n", "cow", 9) == " odd  spaces . \n\n"
    assert shorten("", "cow", 0) == ""


def test_nothing_is_kept_where_no_sentence_fits():
    assert shorten(CONTEXT, "cow", 3) == ""


def test_a_longer_sentence_is_passed_over_for_one_that_fits():
    assert shorten("The cow of the cow farm is a cow. A cat sleeps.\n", "cow", 4) == "A cat sleeps.\n"


def test_budgets_are_kept_and_so_is_the_order():
    rng = random.Random(0)
    for _ in range(200):
        sentences = [
            " ".join(rng.choices("cow owl eats coal pond in a".split(), k=rng.randint(1, 6))) + rng.choice(".!?")
            for _ in range(rng.randint(1, 6))
        ]
        context, budget = " ".join(sentences) + "\n", rng.randint(0, 30)
        kept = shorten(context, "Does a cow eat coal?", budget)
        assert words(kept) <= budget
        assert kept in ("", context) or kept.endswith("\n")
        texts = [" ".join(chosen) for n in range(len(sentences) + 1) for chosen in itertools.combinations(sentences, n)]
        assert kept.strip() in texts


def test_a_larger_budget_never_loses_the_best_sentence():
    for budget in range(4, 30):
        assert "A cow eats coal." in shorten(CONTEXT, "cow", budget)


def test_numbers_and_other_scripts_are_not_cut_in_their_middle():
    assert SENTENCE.findall('Pi is 3.14 here. "Yes!" he said') == ["Pi is 3.14 here. ", '"Yes!" ', "he said"]
    assert SENTENCE.findall("\u725b\u5403\u8349\u3002\u732b\u7761\u89c9\u3002") == [
        "\u725b\u5403\u8349\u3002",
        "\u732b\u7761\u89c9\u3002",
    ]
    assert "".join(SENTENCE.findall(CONTEXT)) == CONTEXT


def test_a_negative_budget_is_refused():
    with pytest.raises(ConfigError, match="max_tokens"):
        shorten(CONTEXT, "cow", -1)
