"""What two completions have in common when they give the same answer: the key of a vote."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rlhf.rewards.verifiers.answers import marked
from rlhf.rewards.verifiers.numeric import LONGEST_ANSWER, numbers_in, only_number

AnswerOf = Callable[[str], str | None]


def answer_reader(
    *, pattern: str | None = None, where: Sequence[str] = ("hashes", "boxed", "phrase", "last_number")
) -> AnswerOf:
    """A function from a completion's text to its answer, None where there is none.

    Args:
        pattern: The answer is the first group of its last match, or the whole match where it has no group; None to look at ``where``.
        where: Places of ``rlhf.rewards.verifiers.answers``, tried in order, and ``last_number``. Numbers are compared as numbers.
    """
    if pattern is not None:
        compiled = re.compile(pattern)

        def by_pattern(text: str) -> str | None:
            matches = list(compiled.finditer(text))
            return (matches[-1].group(1 if compiled.groups else 0) or None) if matches else None

        return by_pattern
    marks = [name for name in where if name != "last_number"]

    def by_mark(text: str) -> str | None:
        answer = marked(text, marks)
        if answer is not None and answer.strip():
            number = only_number(answer)
            return " ".join(answer.split()) if number is None else str(number)
        numbers = numbers_in(text[-LONGEST_ANSWER:]) if "last_number" in where else []
        return str(numbers[-1]) if numbers and numbers[-1] is not None else None

    return by_mark
