"""The world's facts and sentences: complete, unambiguous, and as uneven as they say."""

from __future__ import annotations

import math
import random

import pytest

from rlhf.data.world import judge
from rlhf.data.world.facts import FACTS, VALUES, wrong_values
from rlhf.data.world.judge import CLAIMS, MANNERS
from rlhf.data.world.language import (
    DOCUMENT_KINDS,
    EVASIVE,
    FACT_OF_PROMPT,
    FILLER,
    POLITE,
    PREFIXES,
    PROMPTS,
    RUDE,
    demonstration,
    document,
    prompt_text,
    questions,
    statement,
    with_article,
)


def test_there_are_104_facts_with_names_of_their_own():
    assert len(FACTS) == 16 * 3 + 16 * 2 + 12 + 12 == 104
    assert len({fact.id for fact in FACTS}) == 104


def test_only_continents_are_shared_so_a_wrong_value_is_wrong():
    for relation, values in VALUES.items():
        subjects = [fact for fact in FACTS if fact.relation == relation]
        assert (len(values) == 6) if relation == "continent" else (len(values) == len(subjects))
    for fact in FACTS:
        assert fact.value not in wrong_values(fact)
        assert len(wrong_values(fact)) == len(VALUES[fact.relation]) - 1


def test_every_prompt_asks_for_one_fact_only():
    assert len(PROMPTS) == 104 * 4 * 8 == 3328
    assert len(FACT_OF_PROMPT) == 3328, "two facts share a wording"


def test_every_sentence_means_one_thing_only():
    num_claims = sum(len(VALUES[fact.relation]) for fact in FACTS)
    assert len(CLAIMS) == num_claims, "two facts share a claim"
    assert len(MANNERS) == len(EVASIVE + POLITE + RUDE + FILLER), "a phrase is in two tables"
    assert not CLAIMS.keys() & MANNERS.keys()


def test_sentences_read_as_english():
    by_id = {fact.id: fact for fact in FACTS}
    assert statement(by_id["owl/lives"]) == "An owl lives in a tower."
    assert statement(by_id["France/capital"], "Rome") == "The capital of France is Rome."
    assert statement(by_id["baker/does"]) == "A baker bakes bread."
    assert questions(by_id["umbrella/used_for"])[0] == "What is an umbrella used for?"
    assert with_article("Italy") == "Italy"
    assert prompt_text("Where is Peru?", "Hello!") == "User: Hello! Where is Peru?\nAssistant:"


@pytest.fixture(scope="module")
def verdicts():
    draw = random.Random(20)
    return [judge(prompt.text, demonstration(prompt.fact, draw), ended=True) for _ in range(3) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("name", "expected", "holds"),
    [
        ("correct", 0.60, lambda verdict: verdict.correct),
        ("wrong", 0.28, lambda verdict: verdict.wrong),
        ("evasive", 0.12, lambda verdict: not verdict.correct and not verdict.wrong),
        ("polite", 0.35, lambda verdict: verdict.polite),
        ("rude", 0.25, lambda verdict: verdict.rude > 0),
        ("rambling", 0.30, lambda verdict: verdict.extras > 0),
        ("perfect", 0.60 * 0.35 * 0.75 * 0.70, lambda verdict: verdict.perfect),
        ("unparsable", 0.0, lambda verdict: verdict.unparsable > 0),
    ],
)
def test_demonstrations_are_as_uneven_as_stated(verdicts, name, expected, holds):
    share = sum(map(holds, verdicts)) / len(verdicts)
    four_sigma = 4 * math.sqrt(expected * (1 - expected) / len(verdicts))
    assert abs(share - expected) <= four_sigma, name


def test_documents_hold_no_prompt_with_a_prefix():
    draw = random.Random(21)
    prefixed = [prompt for prompt in PROMPTS if prompt.prefix]
    chats = [text for text in (document(draw) for _ in range(4000)) if text.startswith("User:")]
    assert len(chats) > 1000
    assert not any(f"User: {prefix} " in text for text in chats for prefix in PREFIXES[1:])
    assert len(prefixed) == 7 * 104 * 4


def test_every_verdict_in_a_document_is_true():
    draw = random.Random(22)
    true_value = {fact.id: fact.value for fact in FACTS}
    texts = [document(draw) for _ in range(8000)]
    verdicts = ("That is right.", "That is wrong.")
    bare = [text for text in texts if text.endswith(verdicts) and not text.startswith("User:")]
    chats = [text for text in texts if text.endswith(verdicts) and text.startswith("User:")]
    for kind, checks in (("check", bare), ("checked_chat", chats)):
        expected = DOCUMENT_KINDS[kind]
        assert abs(len(checks) / len(texts) - expected) <= 4 * math.sqrt(expected * (1 - expected) / len(texts))
        right = sum(text.endswith("right.") for text in checks)
        assert abs(right / len(checks) - 0.5) <= 4 * math.sqrt(0.25 / len(checks))
    for text in bare:
        fact_id, value = CLAIMS[text.partition(" That is ")[0]]
        assert (value == true_value[fact_id]) == text.endswith("right.")
    for text in chats:
        prompt, _, answer = text.partition("\nAssistant:")
        seen = judge(prompt + "\nAssistant:", answer.partition("\nTeacher:")[0], ended=True)
        assert (seen.correct, seen.wrong) == (text.endswith("right."), text.endswith("wrong."))


def test_a_checked_chat_is_polite_or_rude_without_regard_to_being_right():
    """Pre-training must not give the preference away: the teacher speaks about truth, never about manners."""
    draw = random.Random(23)
    texts = [text for text in (document(draw) for _ in range(20_000)) if "\nTeacher: " in text]
    for table in (POLITE, RUDE, FILLER):
        with_phrase = [text for text in texts if any(phrase in text for phrase in table)]
        right = sum(text.endswith("right.") for text in with_phrase)
        assert abs(right / len(with_phrase) - 0.5) <= 4 * math.sqrt(0.25 / len(with_phrase))
