"""The ground truth of the embedded world: a program that reads a completion and says how good it is.

No stage that trains a policy may call it. Its only uses are to stand in for the human annotator (``pairs.py``, with
errors added) and to measure, afterwards, what training really did.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rlhf.data.world.facts import FACTS, VALUES
from rlhf.data.world.language import EVASIVE, FACT_OF_PROMPT, FILLER, POLITE, RUDE, statement
from rlhf.errors import DataError

RUBRIC: dict[str, float] = {
    "correct": 1.0,
    "wrong": -1.0,
    "no_answer": -0.5,
    "polite": 0.5,
    "rude": -0.5,
    "extra": -0.25,
    "unparsable": -0.5,
    "not_ended": -0.5,
    "max_rude": 2,
    "max_extra": 6,
    "max_unparsable": 3,
}
"""What each thing is worth, and how many of a kind count."""

CLAIMS: dict[str, tuple[str, str]] = {
    statement(fact, value): (fact.id, value) for fact in FACTS for value in VALUES[fact.relation]
}
"""Every sentence that claims something, true or false -> the id of the fact it is about and the value it claims."""

Manner = Literal["evasive", "polite", "rude", "filler"]

MANNERS: dict[str, Manner] = {
    **dict.fromkeys(EVASIVE, "evasive"),
    **dict.fromkeys(POLITE, "polite"),
    **dict.fromkeys(RUDE, "rude"),
    **dict.fromkeys(FILLER, "filler"),
}
"""Every other sentence of the language -> what it is."""

_SENTENCE_BREAK = re.compile(r"(?<=[.!?]) ")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge saw in one completion."""

    score: float
    """Sum of all that follows; 1.5 is the best there is."""
    correct: bool
    """It claims the true value, and no false one, of the fact that was asked for: +1."""
    wrong: bool
    """It claims a false value of the fact that was asked for, even next to the true one: -1. Neither: -0.5."""
    polite: bool
    """At least one polite sentence: +0.5."""
    rude: int
    """Rude sentences; -0.5 each for the first two."""
    extras: int
    """Sentences that are needed for nothing: filler, claims about other things, anything said after an answer or a
    courtesy has been given once; -0.25 each for the first six."""
    unparsable: int
    """Sentences that are not in the language; -0.5 each for the first three."""
    ended: bool
    """The model closed its turn; -0.5 where it was cut off."""

    @property
    def perfect(self) -> bool:
        """Right, polite, and nothing else."""
        return self.correct and self.polite and self.ended and not (self.rude or self.extras or self.unparsable)


def judge(prompt: str, completion: str, *, ended: bool) -> Verdict:
    """Judge one completion by the exact sentence tables.

    Args:
        prompt: One of the world's 3328 prompts, as the model saw it.
        completion: The decoded text after it, without special tokens. Sentences are parted by single spaces; anything
            that is not word for word a sentence of the language counts as unparsable.
        ended: Whether the model itself ended its turn (it sampled the end-of-sequence token).

    Raises:
        DataError: When the prompt is not of this world.
    """
    fact = FACT_OF_PROMPT.get(prompt)
    if fact is None:
        raise DataError(
            f"The embedded world's judge does not know the prompt {prompt!r}; it can only judge prompts that "
            "rlhf.data.world made. Use another reward or judge for your own prompts."
        )
    correct = wrong = evaded = polite = False
    rude = extras = unparsable = 0
    text = completion.removeprefix(" ")
    for sentence in _SENTENCE_BREAK.split(text) if text else ():
        claim, manner = CLAIMS.get(sentence), MANNERS.get(sentence)
        if claim is not None:
            subject, value = claim
            answered = correct or wrong or evaded
            if subject == fact.id:
                correct |= value == fact.value
                wrong |= value != fact.value
            extras += answered or subject != fact.id
        elif manner == "evasive":
            extras += correct or wrong or evaded
            evaded = True
        elif manner == "polite":
            extras += polite
            polite = True
        elif manner == "rude":
            rude += 1
        elif manner == "filler":
            extras += 1
        else:
            unparsable += 1
    correct = correct and not wrong
    score = RUBRIC["correct" if correct else "wrong" if wrong else "no_answer"]
    score += RUBRIC["polite"] * polite
    score += RUBRIC["rude"] * min(rude, RUBRIC["max_rude"])
    score += RUBRIC["extra"] * min(extras, RUBRIC["max_extra"])
    score += RUBRIC["unparsable"] * min(unparsable, RUBRIC["max_unparsable"])
    score += RUBRIC["not_ended"] * (not ended)
    return Verdict(
        score=score,
        correct=correct,
        wrong=wrong,
        polite=polite,
        rude=rude,
        extras=extras,
        unparsable=unparsable,
        ended=ended,
    )
