"""The embedded worlds' rules as critics: they name the first fault, and keep what stands before it."""

from __future__ import annotations

import pytest

from rlhf.data.reasoning.step_critic import step_critic
from rlhf.data.world.facts import FACTS, VALUES
from rlhf.data.world.language import FACT_OF_PROMPT, FILLER, POLITE, RUDE, statement
from rlhf.data.world.world_critic import world_critic


@pytest.mark.parametrize(
    ("solution", "keep", "said"),
    [
        ("a9+6=5;b5*9=5;c5-4=1;A1.", None, ""),
        ("a9+6=5;b5*9=4;c4-4=0;A0.", "a9+6=5;", "b5*9=4;"),
        ("a9+6=6;", "", "a9+6=6;"),
        ("a9+6=5;b5*9=5;", "a9+6=5;b5*9=5;", "not complete"),
        ("a9+6=5;A5.", "a9+6=5;", "A5."),
    ],
)
def test_the_first_wrong_step_is_named_and_the_steps_before_it_stay(solution, keep, said):
    (found,) = step_critic(["9a+6b*9c-4:"], [solution], [None])
    if keep is None:
        assert found is None
        return
    assert solution[: found["keep"]] == keep
    assert said in found["text"]


PROMPT, FACT = next(iter(FACT_OF_PROMPT.items()))
RIGHT = statement(FACT, FACT.value)
WRONG = statement(FACT, next(value for value in VALUES[FACT.relation] if value != FACT.value))
OTHER = next(statement(fact, fact.value) for fact in FACTS if fact.id != FACT.id)


@pytest.mark.parametrize(
    ("sentences", "good", "said"),
    [
        ([RIGHT, POLITE[0]], None, ""),
        ([RIGHT], 1, "courtesy"),
        ([POLITE[0]], 1, "answer"),
        ([WRONG, POLITE[0]], 0, "false"),
        ([RIGHT, RUDE[0], POLITE[0]], 1, "rude"),
        ([RIGHT, POLITE[0], FILLER[0]], 2, "nothing"),
        ([RIGHT, OTHER], 1, "nothing"),
        ([POLITE[0], "Xyzzy!"], 1, "language"),
    ],
)
def test_the_first_sentence_that_should_not_stand_there_is_named(sentences, good, said):
    text = " ".join(sentences)
    (found,) = world_critic([PROMPT], [text], [None])
    if good is None:
        assert found is None
        return
    assert text[: found["keep"]] == " ".join(sentences[:good])
    assert said in found["text"]
