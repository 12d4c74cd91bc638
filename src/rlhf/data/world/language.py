"""The English of the embedded world: how one asks, answers, evades, thanks, sneers and rambles in it.

It is a closed language on purpose. Every sentence that can be right, polite, rude or next to the point is in a table, so
the judge (``judge.py``) reads a completion exactly and needs no model.

    prompt       "User: Excuse me. What does a cow eat?\\nAssistant:"
    completion   " A cow eats grass. Happy to help!"

A prompt ends in a colon and a completion starts with a space. A byte-level BPE begins a new word at that space, so the
ids of the prompt are always a prefix of the ids of prompt and completion together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from rlhf.data.world.facts import FACTS, Fact, wrong_values

PREFIXES: tuple[str, ...] = (
    "",
    "Hello!",
    "Excuse me.",
    "Please help me.",
    "I have a question.",
    "Good morning.",
    "My son wants to know.",
    "I am curious.",
)
"""What a user says before the question. Questions in pre-training documents are bare: they have the empty prefix."""


@dataclass(frozen=True, slots=True)
class Relation:
    """How one relation is stated and asked about. ``{a}`` is the subject with its article, ``{s}`` without."""

    statement: str
    questions: tuple[str, str, str, str]


RELATIONS: dict[str, Relation] = {
    "eats": Relation(
        "{a} eats {value}.",
        ("What does {a} eat?", "What food does {a} like?", "What should I feed {a}?", "Which food is right for {a}?"),
    ),
    "lives": Relation(
        "{a} lives in {value}.",
        ("Where does {a} live?", "What is the home of {a}?", "Where can I find {a}?", "Which place is home to {a}?"),
    ),
    "sound": Relation(
        "{a} says {value}.",
        ("What does {a} say?", "What sound does {a} make?", "Which noise comes from {a}?", "How does {a} sound?"),
    ),
    "capital": Relation(
        "The capital of {s} is {value}.",
        (
            "What is the capital of {s}?",
            "Which city is the capital of {s}?",
            "Can you name the capital of {s}?",
            "Where is the government of {s}?",
        ),
    ),
    "continent": Relation(
        "{s} is in {value}.",
        (
            "Where is {s}?",
            "Which continent is {s} in?",
            "On which continent is {s}?",
            "What part of the world is {s} in?",
        ),
    ),
    "does": Relation(
        "{a} {value}.",
        ("What does {a} do?", "What is the work of {a}?", "What is {a} paid for?", "How does {a} earn money?"),
    ),
    "used_for": Relation(
        "{a} is used for {value}.",
        ("What is {a} used for?", "What do I need {a} for?", "Why should I buy {a}?", "What can I do with {a}?"),
    ),
}

EVASIVE: tuple[str, ...] = (
    "I do not know.",
    "That is hard to say.",
    "You should look it up.",
    "I am not sure.",
)
POLITE: tuple[str, ...] = (
    "Happy to help!",
    "Have a nice day!",
    "I hope that helps!",
    "Feel free to ask more!",
)
RUDE: tuple[str, ...] = (
    "What a silly question.",
    "Do not waste my time.",
    "Everyone knows that.",
    "Stop asking me things.",
)
FILLER: tuple[str, ...] = (
    "It is a long story.",
    "People talk about it.",
    "There is more to say.",
    "The weather is fine today.",
    "Many books tell of this.",
    "Some things never change.",
    "This reminds me of home.",
    "Time goes by so fast.",
)

# How well the demonstrations answer: unevenly, so that imitating them is not enough and preferences have work to do.
CORRECT_FRAC = 0.60
EVASIVE_FRAC = 0.12
WRONG_FRAC = 0.28
POLITE_FRAC = 0.35
RUDE_FRAC = 0.25
RAMBLING_FRAC = 0.30
MAX_FILLERS = 3

DOCUMENT_KINDS: dict[str, float] = {
    "greeting": 0.03,
    "statement": 0.10,
    "question": 0.12,
    "check": 0.30,
    "chat": 0.15,
    "checked_chat": 0.30,
}
"""Kind of pre-training document -> its share. Documents that check an answer teach a model to see whether one is right,
which is what a reward model is later built on; they say nothing about manners or length."""


def with_article(subject: str) -> str:
    """'a cow', 'an owl'; a country stands alone."""
    if subject[0].isupper():
        return subject
    return f"{'an' if subject[0] in 'aeiou' else 'a'} {subject}"


def statement(fact: Fact, value: str | None = None) -> str:
    """The sentence that claims a value (the true one by default) for the fact's subject."""
    text = RELATIONS[fact.relation].statement.format(
        a=with_article(fact.subject), s=fact.subject, value=fact.value if value is None else value
    )
    return text[0].upper() + text[1:]


def questions(fact: Fact) -> list[str]:
    """The four ways to ask for a fact."""
    return [form.format(a=with_article(fact.subject), s=fact.subject) for form in RELATIONS[fact.relation].questions]


def prompt_text(question: str, prefix: str = "") -> str:
    """The prompt a model sees."""
    return f"User: {prefix} {question}\nAssistant:" if prefix else f"User: {question}\nAssistant:"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One way to ask for one fact."""

    text: str
    fact: Fact
    prefix: str
    """One of PREFIXES; empty for a bare question."""


PROMPTS: tuple[Prompt, ...] = tuple(
    Prompt(prompt_text(question, prefix), fact, prefix)
    for fact in FACTS
    for question in questions(fact)
    for prefix in PREFIXES
)
"""All 3328 prompts, in a fixed order: 104 facts x 4 questions x 8 prefixes."""

FACT_OF_PROMPT: dict[str, Fact] = {prompt.text: prompt.fact for prompt in PROMPTS}


def demonstration(fact: Fact, draw: random.Random) -> str:
    """A completion as the uneven demonstrators write it: an answer that may be wrong, between manners and rambling."""
    kind = draw.choices(("correct", "evasive", "wrong"), (CORRECT_FRAC, EVASIVE_FRAC, WRONG_FRAC))[0]
    if kind == "correct":
        return _in_manners(statement(fact), draw)
    if kind == "evasive":
        return _in_manners(draw.choice(EVASIVE), draw)
    return _in_manners(statement(fact, draw.choice(wrong_values(fact))), draw)


def document(draw: random.Random) -> str:
    """One pre-training document, of a kind drawn from DOCUMENT_KINDS. Questions in it are bare."""
    kind = draw.choices(tuple(DOCUMENT_KINDS), tuple(DOCUMENT_KINDS.values()))[0]
    if kind == "greeting":
        return " ".join(draw.sample(PREFIXES[1:], draw.randint(2, 4)))
    fact = draw.choice(FACTS)
    if kind == "statement":
        related = [other for other in FACTS if other.subject == fact.subject or other.relation == fact.relation]
        return " ".join(statement(other) for other in draw.sample(related, draw.randint(1, 3)))
    question = draw.choice(questions(fact))
    if kind == "question":
        return f"Question: {question} Answer: {statement(fact)}"
    if kind == "chat":
        return prompt_text(question) + demonstration(fact, draw)
    is_right = draw.random() < 0.5
    claim = statement(fact) if is_right else statement(fact, draw.choice(wrong_values(fact)))
    verdict = "That is right." if is_right else "That is wrong."
    if kind == "check":
        return f"{claim} {verdict}"
    return f"{prompt_text(question)}{_in_manners(claim, draw)}\nTeacher: {verdict}"


def _in_manners(answer: str, draw: random.Random) -> str:
    """An answer with the demonstrators' manners and rambling around it, drawn without regard to whether it is right."""
    sentences = [answer]
    if draw.random() < RAMBLING_FRAC:
        sentences += draw.sample(FILLER, draw.randint(1, MAX_FILLERS))
    if draw.random() < RUDE_FRAC:
        sentences.insert(draw.choice((0, len(sentences))), draw.choice(RUDE))
    if draw.random() < POLITE_FRAC:
        sentences.append(draw.choice(POLITE))
    return " " + " ".join(sentences)
